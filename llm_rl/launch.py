# SPDX-License-Identifier: Apache-2.0
"""Run a recipe: check, print what will run, train under verl, follow the step log, and say how it ended.

The run's folder holds run.json (the record), steps.jsonl (verl's step log), engine-*.jsonl and answers-*.jsonl (the
engine's), verl.log, checkpoints/ and, in a run that has these, history/. Started again, a run that was broken off goes on
from its newest checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from sam_core.files import write_json

from llm_rl import config as recipe
from llm_rl import environment, layout, resume, verl
from llm_rl.config import ROOT, ConfigError
from llm_rl.follow import failure, follow, stop, summarize, table
from llm_rl.resume import read_steps
from llm_rl.schema import OLD

MAY_CHANGE = ("steps", "env", "local_ray", "cluster", "checkpoints", "trainer")
"""Keys that a run may go on with other values of."""


class LaunchError(RuntimeError):
    """One sentence: why a run was not started, or how it failed."""


@dataclass(frozen=True)
class Plan:
    """What will run: the recipe and verl's part of it.

    own: llm_rl.config.values; folder: where verl is started; variables: the environment it gets beside this process's
    own; table, warnings: the layout's.
    """

    config: DictConfig
    own: dict[str, Any]
    run_dir: Path
    folder: Path
    argv: list[str]
    variables: dict[str, str]
    table: list[str]
    warnings: list[str]

    def script(self) -> list[str]:
        """Lines of shell that run the same by hand."""
        exports = [f"export {name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return [f"cd {shlex.quote(str(self.folder))}", *exports, f"exec {shlex.join(self.argv)}"]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m llm_rl.launch",
        description="Run a recipe under the patched verl and vLLM of its pin set.",
        epilog="Overrides: sam=off, sam=batch, seed=2, steps=10, sam_options.k=4, checkpoints.every=1 ... (docs/recipes.md)",
    )
    parser.add_argument("config", type=Path, help="the recipe's YAML file")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings that replace those of the file")
    parser.add_argument("--run-dir", type=Path, help="folder for logs and results (default: runs/<name>-sam-<switch>)")
    parser.add_argument("--dry-run", action="store_true", help="print layout, environment and verl's command, and stop")
    args = parser.parse_intermixed_args(argv)
    try:
        config = recipe.load(args.config, args.overrides)
        run_dir = (args.run_dir or ROOT / "runs" / f"{config.name}-sam-{config.sam}").resolve()
        if args.dry_run:
            made = plan(config, run_dir, dry_run=True)
            comments = [f"{config.name}: pin set {config.pin_set}, sam {config.sam}", *made.table]
            comments += [f"warning: {warning}" for warning in made.warnings]
            print("\n".join([*(f"# {line}" for line in comments), *made.script()]))
            return 0
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
        run(config, run_dir)
    except (ConfigError, LaunchError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: the run and what it had started are ended", file=sys.stderr)
        return 130
    return 0


def plan(config: DictConfig, run_dir: Path, dry_run: bool = False) -> Plan:
    """Check a recipe and work out what will run; raise ConfigError. A dry run looks for no Ray cluster."""
    own = recipe.values(config)
    folder = verl.checkout(config.pin_set)
    lines, warnings = layout.report(own, layout.shape(Path(own["model.path"])), recipe.sleeps(config))
    env = OmegaConf.to_container(config.env, resolve=True)
    variables = environment.variables(own, env, run_dir, config.sam_options.threshold)
    if folder_of_history := recipe.history(config, run_dir):
        variables["SAM_ROUTES"] = f"{folder_of_history}/routes.json"
    if folder != ROOT:
        before = [path for path in (os.environ.get("PYTHONPATH"),) if path]
        variables["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT), *before])
    if dry_run:
        ray = os.environ.get("RAY_ADDRESS") or ("local" if own["cluster.device"] == "cpu" else "auto")
    else:
        ray = environment.ray_address(own)
    overrides = recipe.verl_overrides(config, run_dir, variables, ray)
    verl.compose(config.pin_set, own["train.backend"], overrides, folder)
    argv = verl.command(config.pin_set, own["train.backend"], overrides, run_dir)
    variables = {**variables, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    return Plan(config, own, run_dir, folder, argv, variables, lines, warnings)


def run(config: DictConfig, run_dir: Path) -> None:
    """Train as `config` says, or go on where a run in `run_dir` was broken off. Raises ConfigError, LaunchError."""
    trees = tree_ids(config.pin_set)
    for file in (Path(config.model.path, "config.json"), Path(config.data.train_files), Path(config.data.val_files)):
        if not file.is_file():
            raise LaunchError(f"there is no {file}: make or fetch the model and the data first (docs/recipes.md)")
    made = plan(config, run_dir)
    with held(run_dir) as lock:
        every, keep = config.checkpoints.every, config.checkpoints.keep
        done = resume.point(run_dir, every)
        record = begin_record(made, trees, done)
        resume.rewind(run_dir, done, keep)
        write_json(run_dir / "run.json", record)
        print(f"{config.name}: sam {config.sam}, seed {config.seed}, {config.steps} steps; log {run_dir / 'verl.log'}")
        print("\n".join([f"  {line}" for line in made.table] + [f"  warning: {w}" for w in made.warnings]), flush=True)
        if done:
            print(f"  going on after step {done}, from its checkpoint", flush=True)
        problem = train(made, record, lock, done) if done < config.steps else None
        steps = read_steps(run_dir / "steps.jsonl")
        problem = problem or failure(config, steps, 0, run_dir / "verl.log")
        record["status"] = problem or "ok"
        record["summary"] = summarize(steps) if steps else {}
        write_json(run_dir / "run.json", record)
        if problem:
            raise LaunchError(problem)
        print("\n".join(table(record["summary"], len(steps))), flush=True)


def train(made: Plan, record: dict[str, Any], lock: int, done: int) -> str | None:
    """Run verl to its end, `done` steps being done; why it failed, or None."""
    config, log = made.config, made.run_dir / "verl.log"
    with log.open("a" if done else "w") as out:
        out.write(f"pin set {config.pin_set}\n")
        out.writelines(f"tree {module} {tree}\n" for module, tree in record["tree_ids"].items())
        out.write(OmegaConf.to_yaml(config, resolve=True))
        out.write(f"host {json.dumps(record['host'])}\n")
        out.writelines(f"layout {line}\n" for line in made.table)
        out.writelines(f"warning {line}\n" for line in made.warnings)
        out.writelines(f"{line}\n" for line in made.script())
        out.flush()
        begin = out.tell()
        process = subprocess.Popen(
            made.argv,
            cwd=made.folder,
            env={**{k: v for k, v in os.environ.items() if k != "SAM_ROUTES"}, **made.variables},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[lock],  # held as long as the trainer lives, whatever becomes of this process
        )
        try:
            given_up = follow(
                process, made.run_dir / "steps.jsonl", config.steps, config.trainer.step_timeout, record["load"]
            )
        finally:
            stop(process)
    if given_up:
        return f"{given_up}: the run was ended; see {log}"
    return failure(config, read_steps(made.run_dir / "steps.jsonl"), process.returncode, log, begin)


@contextlib.contextmanager
def held(run_dir: Path) -> Iterator[int]:
    """The run's folder, made, and held against a second run in it; a descriptor that holds it on when inherited."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = open(run_dir / ".lock", "w")
    except OSError as e:
        raise LaunchError(f"{run_dir} cannot be used as the run's folder: {e.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LaunchError(
                f"a run is still going on in {run_dir}: wait for it, end it (its trainer is a process of "
                f"`fuser {run_dir / '.lock'}`), or take another --run-dir"
            ) from None
        yield lock.fileno()


def begin_record(made: Plan, trees: dict[str, str], done: int) -> dict[str, Any]:
    """run.json at the start of a run, or of what is left of it after `done` steps; raise LaunchError where it differs."""
    config, path = made.config, made.run_dir / "run.json"
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    record: dict[str, Any] = {
        "name": config.name,
        "pin_set": config.pin_set,
        "tree_ids": trees,
        "seed": config.seed,
        "sam": config.sam,
        "k": config.sam_options.k,
        "threshold": config.sam_options.threshold,
        "steps": config.steps,
        "config": OmegaConf.to_container(config, resolve=True),
        "host": environment.host(),
        "layout": made.table,
        "attempts": [{"after_step": done, "started": now}],
        "load": {},
        "status": "running",
    }
    if done:
        try:
            before = json.loads(path.read_text())
            same = ("tree_ids", *(f"config.{key}" for key in record["config"] if key not in MAY_CHANGE))
            for name in same:
                old, new = (
                    (r["config"][name[7:]] if name.startswith("config.") else r[name]) for r in (before, record)
                )
                if old != new:
                    raise LaunchError(
                        f"{made.run_dir} holds {done} steps of a run with another {name.removeprefix('config.')}: "
                        "go on with the same, or take another --run-dir"
                    )
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise LaunchError(f"{path} of the run to go on with cannot be read ({e}): take another --run-dir") from None
        record["attempts"] = before.get("attempts", []) + record["attempts"]
        record["load"] = {step: load for step, load in before.get("load", {}).items() if int(step) <= done}
    return record


def tree_ids(pin_set: str) -> dict[str, str]:
    """Tree ids of the patched modules; LaunchError unless this environment has exactly the pin set's patches."""
    modules = verl.pins(pin_set)["module"]
    targets = {"--env": sys.prefix}
    if pin_set == OLD:
        targets["--to"] = str(verl.checkout(pin_set))  # whose verl is imported
    for option, place in targets.items():
        for module, state in patch_states(pin_set, option, place).items():
            if state != "patched" and not (pin_set == OLD and option == "--env" and module == "verl"):
                apply = "apply.sh" if option == "--env" else "patchset apply --module verl"
                raise LaunchError(
                    f"{module} in {place} is {state}, not patched: run patches/{apply} {pin_set} {option} {place}"
                )
    return {name: module["recorded"]["patched_tree"] for name, module in modules.items()}


def patch_states(pin_set: str, option: str, place: str) -> dict[str, str]:
    """What `patchset status --json` finds there: patched, original, modified, ... for each module."""
    only = ["--module", "verl"] if option == "--to" else []
    status = subprocess.run(
        [sys.executable, ROOT / "patches" / "patchset", "status", pin_set, *only, option, place, "--json"],
        capture_output=True,
        text=True,
    )
    if not status.stdout:
        raise LaunchError(f"patchset status failed: {status.stderr.strip()}")
    return json.loads(status.stdout)[pin_set]


if __name__ == "__main__":
    sys.exit(main())
