# SPDX-License-Identifier: Apache-2.0
"""Run a recipe: check it, print what will run, train with verl, follow the step log, and report the outcome.

The run's folder holds run.json (the record), recipe.yaml and verl.yaml (the recipe and the resulting verl
configuration), steps.jsonl (verl's step log), engine-*.jsonl and answers-*.jsonl (the engine's logs), verl.log and, if
the run has checkpoints, checkpoints/ and history/. A run that is started again resumes from its newest checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from sam_core.files import replacing, try_lock, write_json

from llm_rl import config, environment, layout, prometheus, resume, rewards, space, verl
from llm_rl.data import files
from llm_rl.data import prepare as data
from llm_rl.errors import UserError
from llm_rl.follow import failure, follow, started_late, stop, summarize, table
from llm_rl.pin_set import RecipePins
from llm_rl.recipe import ROOT, Recipe
from llm_rl.shape import read_shape
from llm_rl.steps import read_steps

MAY_CHANGE = ("steps", "env", "local_ray", "cluster", "checkpoints", "trainer")
"""Keys that may change when a run resumes, except for the number of devices with FSDP (resume.point)."""
STARTS = 3
"""Attempts to start a run if Ray times out: Ray gives its agents 15 s, and a later attempt finds their files cached."""
OTHER_REWARDS = ("custom_reward_function", "reward_manager", "reward_loop", "reward_fn_key")
"""Parts of the names of verl's keys, in any release, that change how answers are scored."""


@dataclass(frozen=True)
class Plan:
    """What will run: the recipe and verl's part of it.

    folder: working directory of verl; variables: additions to this process's environment; verl_config: verl's
    configuration as YAML; table, warnings: the layout's.
    """

    recipe: Recipe
    run_dir: Path
    folder: Path
    argv: list[str]
    variables: dict[str, str]
    verl_config: str
    table: list[str]
    warnings: list[str]
    needs: space.Needs | None = None

    def script(self) -> list[str]:
        """Shell commands that do the same by hand."""
        exports = [f"export {name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return [f"cd {shlex.quote(str(self.folder))}", *exports, f"exec {shlex.join(self.argv)}"]


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m llm_rl.launch",
        description="Run a recipe under the verl and vLLM of its pin set.",
        epilog="Overrides: sam=off, sam=batch, seed=2, steps=10, sam_options.k=4, checkpoints.every=1 ... "
        "(docs/recipes.md)",
    )
    parser.add_argument("config", type=Path, help="the recipe's YAML file")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings that replace those of the file")
    parser.add_argument("--run-dir", type=Path, help="folder for logs and results (default: runs/<name>-sam-<switch>)")
    parser.add_argument("--dry-run", action="store_true", help="print layout, environment and verl's command, and stop")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the recipe, its number of hosts, the numbers of hosts that fit its layout, the size and number of "
        "its checkpoints, and the keys that may change when a run resumes, and stop",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="also check the disk and memory of this host, and whether the run in --run-dir can resume, and stop; exit "
        "status 1 on failure",
    )
    parser.add_argument(
        "--object-store",
        type=int,
        metavar="BYTES",
        help="with --check: size of the running Ray's object store (default: the recipe's, else Ray's own)",
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_intermixed_args(argv)
    run_dir: Path | None = None
    try:
        recipe = config.load(args.config, args.overrides)
        run_dir = (args.run_dir or ROOT / "runs" / f"{recipe.title}-sam-{recipe.sam}").resolve()
        if args.json:
            print_facts(recipe)
        elif args.check:
            check(recipe, run_dir, args.object_store)
        elif args.dry_run:
            planned = plan(recipe, run_dir, dry_run=True)
            comments = [f"{recipe.title}: pin set {recipe.pin_set}, sam {recipe.sam}", *planned.table]
            comments += [f"warning: {warning}" for warning in planned.warnings]
            print("\n".join([*(f"# {line}" for line in comments), *planned.script()]))
        else:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the trainer's processes are ended
            run(recipe, run_dir)
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    except OSError as e:
        print(f"error: {e.filename or run_dir or args.config}: {e.strerror or e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: the run and its processes are ended", file=sys.stderr)
        return 130
    return 0


def print_facts(recipe: Recipe) -> None:
    """Print the recipe and its facts as JSON, see `--json`."""
    layout.check_sizes(recipe, None)
    facts = {"hosts": recipe.hosts, "fitting_nodes": layout.fitting_nodes(recipe), "may_change": MAY_CHANGE}
    needed = space.needs(recipe, read_shape(Path(recipe.model.path)))
    facts |= {"checkpoint_gb": needed and needed.checkpoint, "checkpoints": needed and needed.checkpoints}
    print(json.dumps({"recipe": recipe.model_dump(), **facts}))


def check(recipe: Recipe, run_dir: Path, object_store: int | None) -> None:
    """Check the disk and memory of this host, and whether the run in run_dir can resume. Raises UserError if not.

    object_store: bytes of the running Ray's object store; None: as the recipe says.
    """
    planned = plan(recipe, run_dir, dry_run=True)
    if needed := planned.needs:
        if object_store is not None:
            needed = replace(needed, store=object_store / layout.GIB)
        space.check(needed, run_dir)
    check_sources(planned)
    if done := resume_point(recipe, run_dir, resume.checkpoints(run_dir)):
        begin_record(planned, tree_ids(recipe), done)
    print(f"{recipe.title}: fits the {recipe.cluster.unit}s, the disk of {run_dir} and the memory of this host")


def plan(recipe: Recipe, run_dir: Path, dry_run: bool = False) -> Plan:
    """Check a recipe and plan its run. Raises UserError. A dry run does not look for a Ray cluster."""
    pin_set = RecipePins.of(recipe.pin_set)
    entry = pin_set.entry_point(recipe)
    model = read_shape(Path(recipe.model.path))
    environment.check_state_layers(recipe, model)
    lines, warnings = layout.report(recipe, model)
    needs = space.needs(recipe, model)
    lines += needs.lines() if needs else []
    variables = environment.variables(recipe, pin_set, run_dir)
    if history := recipe.history(run_dir):
        variables["SAM_ROUTES"] = f"{history}/routes.json"
    if entry.folder != ROOT:
        inherited = [path for path in (os.environ.get("PYTHONPATH"),) if path]
        variables["PYTHONPATH"] = os.pathsep.join([str(entry.folder), str(ROOT), *inherited])
    if dry_run:
        ray = os.environ.get("RAY_ADDRESS") or ("local" if recipe.cluster.device == "cpu" else "auto")
    else:
        ray = environment.ray_address(recipe)
    overrides = verl.overrides(recipe, pin_set, run_dir, variables, ray)
    verl_config = OmegaConf.to_yaml(verl.compose(entry, pin_set.verl, overrides))
    argv = verl.command(entry, overrides, run_dir)
    variables = {**variables, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    return Plan(recipe, run_dir, entry.folder, argv, variables, verl_config, lines, warnings, needs)


def run(recipe: Recipe, run_dir: Path) -> None:
    """Train according to `recipe`, or resume the interrupted run in `run_dir`. Raises UserError."""
    trees = tree_ids(recipe)
    for file in (Path(recipe.model.path, "config.json"), Path(recipe.data.train_files), Path(recipe.data.val_files)):
        if not file.is_file():
            raise UserError(f"there is no {file}: make or fetch the model and the data first (docs/recipes.md)")
    for name in (recipe.data.train_files, recipe.data.val_files):
        data.check(Path(name))
    planned = plan(recipe, run_dir)
    check_sources(planned)
    if planned.needs:
        space.check(planned.needs, run_dir)
    with lock_folder(run_dir) as lock:
        found = resume.checkpoints(run_dir)
        done = resume_point(recipe, run_dir, found)
        record = begin_record(planned, trees, done)
        resume.rewind(run_dir, found, done, recipe.checkpoints.keep)
        write_json(run_dir / "run.json", record)
        for name, text in {"recipe.yaml": recipe_yaml(recipe), "verl.yaml": planned.verl_config}.items():
            with replacing(run_dir / name) as temporary:
                temporary.write_text(text)
        print(f"{recipe.title}: sam {recipe.sam}, seed {recipe.seed}, {recipe.steps} steps; log {run_dir / 'verl.log'}")
        lines = [f"  {line}" for line in planned.table] + [f"  warning: {warning}" for warning in planned.warnings]
        print("\n".join(lines), flush=True)
        if done:
            print(f"  resuming from the checkpoint of step {done}", flush=True)
        problem = train(planned, record, lock, done) if done < recipe.steps else None
        steps = read_steps(run_dir / "steps.jsonl")
        problem = problem or failure(recipe, steps, 0, run_dir / "verl.log")
        record["status"] = problem or "ok"
        record["summary"] = summarize(steps) if steps else {}
        write_json(run_dir / "run.json", record)
        if problem:
            raise UserError(problem)
        print("\n".join(table(record["summary"], len(steps))), flush=True)


def resume_point(recipe: Recipe, run_dir: Path, found: list[resume.Checkpoint]) -> int:
    """The step after which a run with these checkpoints resumes; warns of newer, unusable ones. Raises UserError."""
    ranks = None if recipe.train.backend == "megatron" else recipe.cluster.dies
    done = resume.point(run_dir, found, recipe.checkpoints.every, ranks)
    for sentence in resume.incomplete(found, done):
        print(f"  warning: {sentence}", flush=True)
    return done


def check_sources(planned: Plan) -> None:
    """Raise UserError if verl's reward does not know a data source that is scored, unless the recipe changes the
    reward."""
    recipe, keys = planned.recipe, planned.recipe.verl_keys
    if any(word in name for name in keys for word in OTHER_REWARDS) or any(map(keys.get, layout.OTHER_MODELS)):
        return
    validates = recipe.trainer.val_before_train or recipe.trainer.test_freq > 0
    for file in (recipe.data.train_files, *([recipe.data.val_files] if validates else [])):
        names = sorted(source for source in files.sources(Path(file)) if not rewards.of_math_dapo(source))
        if names and (unknown := _unknown_sources(names, planned)):
            raise UserError(
                f"{file} has rows of data_source {', '.join(map(repr, unknown))}, for which there is no reward: "
                "prepare it with `python -m llm_rl.data`, or name a source that verl's default_compute_score supports"
            )


def _unknown_sources(names: list[str], planned: Plan) -> list[str]:
    """The sources for which verl has no reward; runs in a separate process, because verl imports torch."""
    command = [sys.executable, "-m", "llm_rl.rewards", *names]
    env = os.environ | planned.variables
    done = subprocess.run(command, cwd=planned.folder, env=env, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        print(f"  warning: cannot determine whether verl has a reward for {', '.join(names)}: {reason}", flush=True)
        return []
    return json.loads(done.stdout.splitlines()[-1])


def recipe_yaml(recipe: Recipe) -> str:
    """The resolved recipe as YAML that can be run."""
    return OmegaConf.to_yaml(OmegaConf.create(recipe.model_dump()))


def train(planned: Plan, record: dict[str, Any], lock: int, done: int) -> str | None:
    """Run verl to its end, after `done` finished steps; return the reason for its failure, or None."""
    if not done:
        (planned.run_dir / "verl.log").unlink(missing_ok=True)
    for _ in range(STARTS - 1):
        problem, late = _train(planned, record, lock, done)
        if not late:
            return problem
        print("  warning: Ray did not start in time: starting the run again", flush=True)
    return _train(planned, record, lock, done)[0]


def _train(planned: Plan, record: dict[str, Any], lock: int, done: int) -> tuple[str | None, bool]:
    """Run verl once. Return the reason for its failure, or None, and whether it failed because Ray started late."""
    recipe, log = planned.recipe, planned.run_dir / "verl.log"
    with log.open("a") as out:
        out.write(f"pin set {recipe.pin_set}\n")
        out.writelines(f"tree {module} {tree}\n" for module, tree in record["tree_ids"].items())
        out.write(recipe_yaml(recipe))
        out.write(f"host {json.dumps(record['host'])}\n")
        out.writelines(f"layout {line}\n" for line in planned.table)
        out.writelines(f"warning {line}\n" for line in planned.warnings)
        out.writelines(f"{line}\n" for line in planned.script())
        out.flush()
        begin = out.tell()
        process = subprocess.Popen(
            planned.argv,
            cwd=planned.folder,
            env={**{k: v for k, v in os.environ.items() if k != "SAM_ROUTES"}, **planned.variables},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[lock],  # held as long as the trainer lives, even if this process ends
        )
        steps_file, trainer = planned.run_dir / "steps.jsonl", recipe.trainer
        try:
            with prometheus.published(planned.run_dir) as publish:
                timed_out = follow(
                    process,
                    steps_file,
                    recipe.steps,
                    trainer.step_timeout,
                    record["load"],
                    publish,
                    trainer.hang_timeout,
                )
        finally:
            stop(process)
    if timed_out:
        return f"{timed_out}: the run was ended; see {log}", False
    steps = read_steps(steps_file)
    problem = failure(recipe, steps, process.returncode, log, begin)
    return problem, bool(process.returncode) and len(steps) == done and started_late(log, begin)


@contextlib.contextmanager
def lock_folder(run_dir: Path) -> Iterator[int]:
    """Create the run's folder and lock it against a second run. Yields the descriptor that child processes inherit."""
    with contextlib.ExitStack() as stack:
        try:
            run_dir.parent.mkdir(parents=True, exist_ok=True)
            run_dir.mkdir(0o750, exist_ok=True)  # answers and logs are for its owner and group
            lock = stack.enter_context(open(run_dir / ".lock", "w"))
        except OSError as e:
            raise UserError(f"{run_dir} cannot be used as the run's folder: {e.strerror}") from None
        try:
            try_lock(lock.fileno(), run_dir / ".lock")
        except ValueError as e:
            raise UserError(f"{e} as --run-dir") from None
        except BlockingIOError:
            raise UserError(
                f"a run is still active in {run_dir}: wait for it, end it (its trainer is a process of "
                f"`fuser {run_dir / '.lock'}`), or use another --run-dir"
            ) from None
        yield lock.fileno()


def begin_record(planned: Plan, trees: dict[str, str], done: int) -> dict[str, Any]:
    """Content of run.json when a run starts, or resumes after `done` steps.

    Raises UserError if the existing file belongs to a different run.
    """
    recipe, path = planned.recipe, planned.run_dir / "run.json"
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    record: dict[str, Any] = {
        "name": recipe.name,
        "pin_set": recipe.pin_set,
        "tree_ids": trees,
        "seed": recipe.seed,
        "sam": recipe.sam,
        "k": recipe.sam_options["k"],
        "threshold": recipe.options.threshold,
        "steps": recipe.steps,
        "config": _config(recipe, planned.run_dir),
        "host": environment.host(),
        "layout": planned.table,
        "attempts": [{"after_step": done, "started": now}],
        "load": {},
        "status": "running",
    }
    if done:
        try:
            before = json.loads(path.read_text())
            current = record["config"].items()
            pairs = {key: (before["config"][key], new) for key, new in current if key not in MAY_CHANGE}
            for name, (old, new) in {"tree_ids": (before["tree_ids"], trees), **pairs}.items():
                if old != new:
                    raise UserError(
                        f"{planned.run_dir} holds {done} steps of a run with another {name}: "
                        "continue with the same, or use another --run-dir"
                    )
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise UserError(f"{path} of the run to resume cannot be read ({e}): use another --run-dir") from None
        record["attempts"] = before.get("attempts", []) + record["attempts"]
        record["load"] = {step: load for step, load in before.get("load", {}).items() if int(step) <= done}
    return record


def _config(recipe: Recipe, run_dir: Path) -> dict[str, Any]:
    """The recipe's keys, with RUN_DIR for the run's folder, so that runs in different folders can be compared."""
    own = json.dumps(f"{run_dir}/").removesuffix('"')
    config: dict[str, Any] = json.loads(json.dumps(recipe.model_dump()).replace(own, '"RUN_DIR/'))
    return config


def tree_ids(recipe: Recipe) -> dict[str, str]:
    """Tree ids of the patched modules. Raises UserError unless exactly the pin set's patches are applied here.

    vllm_ascend is only required on NPUs.
    """
    pin_set = RecipePins.of(recipe.pin_set)
    absent = set()
    places = {"--env": sys.prefix}
    checkout = pin_set.entry_point(recipe).folder
    if checkout != ROOT:
        places["--to"] = str(checkout)  # its verl is imported instead of the environment's
    for option, place in places.items():
        for module, state in patch_states(pin_set.name, option, place).items():
            unused = module == "verl" and option == "--env" and "--to" in places
            if module == "vllm_ascend" and state == "not installed" and recipe.cluster.device != "npu":
                absent.add(module)
            elif state != "patched" and not unused:
                apply = "apply.sh" if option == "--env" else "patchset apply --module verl"
                raise UserError(
                    f"{module} in {place} is {state}, not patched: run patches/{apply} {pin_set.name} {option} {place}"
                )
    modules = pin_set.pins["module"].items()
    return {name: module["recorded"]["patched_tree"] for name, module in modules if name not in absent}


def patch_states(pin_set: str, option: str, place: str) -> dict[str, str]:
    """The state of each module according to `patchset status --json`: patched, original, modified, ..."""
    only = ["--module", "verl"] if option == "--to" else []
    command = [sys.executable, str(ROOT / "patches" / "patchset"), "status", pin_set, *only, option, place, "--json"]
    status = subprocess.run(command, capture_output=True, text=True)
    if not status.stdout:
        raise UserError(f"patchset status failed: {status.stderr.strip()}")
    return json.loads(status.stdout)[pin_set]


if __name__ == "__main__":
    sys.exit(main())
