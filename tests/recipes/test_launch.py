# SPDX-License-Identifier: Apache-2.0
"""Configurations and the launcher, without starting an engine."""

import dataclasses
import itertools
import json
import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
import zipfile

import psutil
import pyarrow
import pytest
from omegaconf import OmegaConf
from pyarrow import parquet
from sam_core.options import Options

from llm_rl import config, follow, launch, pin_set, resume, verl
from llm_rl.errors import UserError
from llm_rl.pin_set import RecipePins

QWEN3 = launch.ROOT / "llm_rl" / "qwen3"
TINY = QWEN3 / "dapo_qwen3_tiny_cpu.yaml"
SPECULATIVE = "+actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config."
MEGATRON, ASYNC = "train.backend=megatron", "verl.actor_rollout_ref.actor.checkpoint.async_save=true"


@pytest.fixture
def patched(monkeypatch):
    """Skip the check that this environment's modules are patched."""
    monkeypatch.setattr(launch, "tree_ids", lambda recipe: {})


def load(*overrides):
    return config.load(TINY, list(overrides))


def overrides_of(recipe, run_dir, ray="local"):
    return verl.overrides(recipe, RecipePins(recipe.pin_set), run_dir, {"OMP_NUM_THREADS": "1"}, ray)


def test_a_run_reads_its_pin_set_once(tmp_path, monkeypatch):
    RecipePins.of.__func__.cache_clear()
    built, init = [], RecipePins.__init__
    monkeypatch.setattr(RecipePins, "__init__", lambda self, name: built.append(name) or init(self, name))
    launch.plan(load(), tmp_path, dry_run=True)
    assert built == [load().pin_set]


def test_sam_reaches_the_engine_and_off_samples_alike(tmp_path):
    on = overrides_of(load("sam_options.k=4", "sam_options.rule=oldest", "seed=7"), tmp_path)
    assert {"data.seed=7", "actor_rollout_ref.rollout.seed=7"} < set(on)
    options = "rule=oldest sources=[request,group,history,common] switch=auto threshold=8 memory_bytes=1073741824"
    options += " min_prob=0.1 verify=seeded corpus=null history=null"
    lines = ["method=sam", "num_speculative_tokens=4", *(f"sam.{option}" for option in options.split())]
    assert {line for line in on if line.startswith(SPECULATIVE)} == {SPECULATIVE + line for line in lines}
    seeded = "+actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config.sam_verify=seeded"
    off = overrides_of(load("sam=off", "seed=7"), tmp_path)
    assert {*[line for line in on if not line.startswith(SPECULATIVE)], seeded} == set(off)
    rejection = overrides_of(load("sam=off", "sam_options.verify=rejection", "seed=7"), tmp_path)
    assert [line for line in off if line != seeded] == rejection


def test_values_reach_verl_and_the_run_s_recipe_as_they_were_written(tmp_path):
    """YAML or Hydra could read the texts as other types; the numbers are written as in verl's own scripts."""
    texts = [r"^a\.b$", r"a\'b\\", "'", "1e-6", ".5", "null", "é", "a\nb=c, d", "$HOME", "{a: 1}", ""]
    words = [f"env.T{number}={json.dumps(text)}" for number, text in enumerate(texts)]
    values = {"+data.many": [{"a b": 1e-6, "c": r"\boxed{}"}, None, "1e-6"], "critic.optim.lr": 1e-1}
    words += [f"verl.{name}={json.dumps(value)}" for name, value in values.items()]
    recipe = load("train.lr=1e-6", *words)
    composed = OmegaConf.create(launch.plan(recipe, tmp_path, dry_run=True).verl_config)
    assert [composed.ray_kwargs.ray_init.runtime_env.env_vars[f"T{number}"] for number in range(len(texts))] == texts
    assert {name: OmegaConf.select(composed, name.lstrip("+")) for name in values} == values
    assert composed.actor_rollout_ref.actor.optim.lr == recipe.train.lr == 1e-6
    (tmp_path / "recipe.yaml").write_text(launch.recipe_yaml(recipe))
    assert config.load(tmp_path / "recipe.yaml", []) == recipe


def test_recipes_name_every_option_with_the_engines_default():
    assert load("sam_options.verify=rejection").options == Options()
    assert load().options.verify == "seeded"
    assert set(load().sam_options) | {"switch"} == {"k", *(f.name for f in dataclasses.fields(Options))}


@pytest.mark.parametrize(
    ("overrides", "folder"),
    [
        (["checkpoints.every=1"], "history"),
        (["checkpoints.every=1", "sam_options.history=/else"], "/else"),
        (["checkpoints.every=0"], None),
        (["checkpoints.every=1", "sam=off"], None),
        (["checkpoints.every=1", "sam_options.sources=[request]"], None),
    ],
)
def test_a_run_with_checkpoints_keeps_its_history_and_the_router_s(overrides, folder, tmp_path):
    recipe = load(*overrides)
    folder = folder and str(tmp_path / folder)
    assert recipe.history(tmp_path) == folder
    lines = [line for line in overrides_of(recipe, tmp_path) if line.startswith(f"{SPECULATIVE}sam.history=")]
    assert lines == ([] if recipe.sam == "off" else [f"{SPECULATIVE}sam.history={folder or 'null'}"])
    planned = launch.plan(recipe, tmp_path, dry_run=True)
    assert planned.variables.get("SAM_ROUTES") == (folder and f"{folder}/routes.json")


def test_a_joined_ray_gets_no_settings_of_a_local_one(tmp_path):
    local, joined = (overrides_of(load(), tmp_path, ray) for ray in ("local", "10.0.0.1:6379"))
    prefix = "ray_kwargs.ray_init."
    assert {f"{prefix}num_cpus=64", f"+{prefix}num_gpus=2", f"+{prefix}address=local"} <= set(local)
    lines = [f"+{prefix}address='10.0.0.1:6379'", f"+{prefix}runtime_env.env_vars.OMP_NUM_THREADS='1'"]
    assert [line for line in joined if prefix in line] == lines


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ("sam=maybe", "sam must be one of off, batch, auto, got 'maybe'"),
        ("sma=off", "unknown key 'sma': is sam meant? (in override 'sma=off')"),
        ("nope=1", "unknown key 'nope'; docs/recipe-keys.md lists the keys (in override 'nope=1')"),
        ("train.max_num_seqs=3", "unknown key 'train.max_num_seqs': is rollout.max_num_seqs meant?"),
        ("rollout=3", "rollout is a group of keys, not a key"),
        ("steps=0", "steps must be a whole number of at least 1, got 0"),
        ("steps=null", "steps is not set"),
        ("train.recompute=1", "train.recompute must be true or false, got 1"),
        ("rollout.temperature=hot", "rollout.temperature must be a number of at least 0, got 'hot'"),
        ("verl=3", "verl must be a mapping, got 3"),
        ("verl.actor_rollout_ref.rollout.n=3", "verl.actor_rollout_ref.rollout.n is set by rollout.n: use that"),
        ("verl.trainer.foo=3", "verl 0.9.1 has no key trainer.foo: correct it, or write verl.trainer.+foo to add it"),
        ("verl.trainer.+nnodes=3", "verl.+trainer.nnodes is set by cluster.nodes: use that"),
        ("verl.trainer.+balance_batch=false", "verl 0.9.1 has the key trainer.balance_batch already: write verl.train"),
        ("verl.@foo=3", "verl 0.9.1 rejects the recipe: Config group override must be a string or a list. Got int\n"),
        ("env.=3", "env. is not a valid key: write letters, digits, _ and - between dots"),
        ("verl.trainer.save_freq=3", "verl.trainer.save_freq follows from other keys of the recipe"),
        (f"{MEGATRON} checkpoints.every=1 {ASYNC}", "verl.actor_rollout_ref.actor.checkpoint.async_save: verl 0.9.1"),
        ("data.gen_batch_size=20", "data.gen_batch_size 20 is not a multiple of data.train_batch_size 8"),
        ("train.max_tokens_per_die=9", "set one of train.micro_batch_size and train.max_tokens_per_die"),
        ("trainer.logger=[console]", "trainer.logger lacks file, whose log the launcher follows"),
        ("cluster.nodes=3", "the training's data parallel size is 3, which does not divide the number of"),
        ("name=[1", "override 'name=[1' cannot be used"),
        ("[=1", "override '[=1' cannot be used"),
        ('env={"A":1,"A":2}', 'override \'env={"A":1,"A":2}\' cannot be used: found duplicate key A'),
        ("sam_options.treshold=3", "sam_options: unknown option 'treshold'"),
        ("sam_options.switch=batch", "the switch is chosen by sam=off, sam=batch or sam=auto, not in sam_options"),
        ("sam", "override 'sam' is not of the form key=value"),
        ("pin_set=vllm-9", f"pin_set must be one of {', '.join(pin_set.names())}, got 'vllm-9'"),
        ("model.path=/nowhere", "there is no /nowhere/config.json: make or fetch the model and the data first"),
        ("trainer.mode=one_step_off steps=3", "trainer.mode one_step_off of verl 0.9.1 has no dynamic sampling: set"),
        (
            "trainer.mode=separate_async train.ppo_mini_batch_size=3",
            "data.train_batch_size 8 is not a multiple of train.",
        ),
        ("trainer.mode=colocate_async checkpoints.every=1", "trainer.mode colocate_async is not resumed after"),
        ("algorithm.adv_estimator=gae", "algorithm.adv_estimator gae and verl.critic.enable train a critic, which"),
        ("verl.critic.enable=true", "algorithm.adv_estimator gae and verl.critic.enable train a critic, which"),
        (r"env.X=\${HOME}", "verl 0.9.1 rejects the recipe: Interpolation key 'HOME' not found"),
    ],
)
def test_bad_setting_is_one_sentence_and_starts_nothing(overrides, sentence, tmp_path, capsys, patched):
    assert launch.main(arguments(tmp_path, *overrides.split())) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {sentence}") and error.count("\n") == 1, error
    assert not (tmp_path / "run").exists()


def test_saving_in_the_background_is_allowed_where_nothing_is_saved_so():
    for changes in (f"{MEGATRON} checkpoints.every=0 {ASYNC}", f"checkpoints.every=1 {ASYNC}"):
        RecipePins("vllm-0.23").check(load(*changes.split()))


def test_a_public_data_file_is_noticed_before_anything_starts(tmp_path, capsys, patched):
    file = tmp_path / "aime-2024.parquet"
    rows = parquet.read_table(load().data.val_files)
    parquet.write_table(pyarrow.concat_tables([rows] * 32), file)
    assert launch.main(arguments(tmp_path, f"data.val_files={file}")) == 1
    assert f"error: {file} has {32 * len(rows):,} rows of {len(rows)} prompts" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


MANAGER = "verl.reward.reward_manager.source=importlib verl.reward.reward_manager.module.path=pkg://mine"


@pytest.mark.parametrize(
    ("key", "source", "overrides", "status"),
    [
        ("train_files", "my_company/invoices", "", 1),
        ("train_files", "math_dapo", "", 0),  # verl has a reward for it
        ("train_files", "my_company/invoices", MANAGER, 0),
        ("train_files", "my_company/invoices", "verl.reward.reward_model.enable=true", 0),
        ("val_files", "my_company/invoices", "trainer.test_freq=5", 1),
        ("val_files", "my_company/invoices", "", 0),  # by default no run validates
    ],
)
def test_data_of_a_source_without_a_reward_is_refused(key, source, overrides, status, tmp_path, capsys, patched):
    """--check refuses the data only if the run scores them with verl's own reward."""
    file = tmp_path / "data.parquet"
    rows = parquet.read_table(load().data.val_files).slice(0, 2)
    column = rows.column_names.index("data_source")
    parquet.write_table(rows.set_column(column, "data_source", pyarrow.array(["openai/gsm8k", source])), file)
    assert launch.main([*arguments(tmp_path, f"data.{key}={file}", *overrides.split()), "--check"]) == status
    said = f"error: {file} has rows of data_source 'my_company/invoices', for which there is no reward: prepare it"
    assert capsys.readouterr().err[: len(said)] == said * status


@pytest.mark.parametrize(
    ("base", "child", "sentence"),
    [
        ("data: {seed: 3}\n", "", "unknown key 'data.seed': is seed meant?"),
        ("- 3\n", "steps: 2\n", "must be a mapping of keys"),
        ("steps: [\n", "steps: 2\n", "is not valid YAML"),
    ],
)
def test_a_wrong_file_or_base_is_named(base, child, sentence, tmp_path, capsys):
    (tmp_path / "base.yaml").write_text(base)
    (tmp_path / "child.yaml").write_text("base: base.yaml\n" + child)
    assert launch.main([str(tmp_path / "child.yaml"), "--dry-run"]) == 1
    assert sentence in capsys.readouterr().err


def test_playbooks_get_the_recipe_as_json(capsys):
    assert launch.main([str(TINY), "seed=2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert config.validate(told["recipe"], "--json") == load("seed=2") and "steps" in told["may_change"]
    large = ["profile=article", "model.path=/nowhere/Qwen3-235B-A22B"]
    assert launch.main([str(TINY.parent / "dapo_qwen3_235b_a22b_128die.yaml"), *large, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (round(told["checkpoint_gb"]), told["checkpoints"]) == (3291, 4)


def test_only_the_patched_trees_that_a_recipe_needs_run(monkeypatch, tmp_path, capsys):
    """All three trees of this environment are patched; a recipe for GPUs needs no vllm-ascend."""
    states = dict.fromkeys(("vllm", "vllm_ascend", "verl"), "patched")
    assert launch.patch_states("vllm-0.23", "--env", sys.prefix) == states
    assert set(launch.tree_ids(load())) == {*states}
    monkeypatch.setattr(launch, "patch_states", lambda *args: states)
    states["vllm_ascend"] = "not installed"
    assert set(launch.tree_ids(load("cluster.device=cuda"))) == {"vllm", "verl"}
    with pytest.raises(UserError, match="vllm_ascend in .* is not installed"):
        launch.tree_ids(load("cluster.device=npu"))
    states["verl"] = "original"
    assert launch.main([str(TINY), "--run-dir", str(tmp_path)]) == 1
    assert " is original, not patched: run patches/apply.sh vllm-0.23 --env " in capsys.readouterr().err


def test_missing_file_is_one_sentence(tmp_path, capsys):
    assert launch.main([str(tmp_path / "no.yaml")]) == 1
    assert capsys.readouterr().err.startswith(f"error: there is no recipe configuration {tmp_path}")


@pytest.mark.parametrize(
    ("python", "sentence"),
    [
        ("/nope", "there is no program /nope: set PYTHON to an interpreter, or unset it and run"),
        ("./bare", " cannot import "),
    ],
)
def test_a_wrong_interpreter_is_one_sentence(python, sentence, tmp_path):
    """The interpreter may be missing or lack the packages."""
    (bare := tmp_path / "bare").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    script = QWEN3 / "run_dapo_qwen3_tiny_cpu.sh"
    done = subprocess.run([script, "--dry-run"], cwd=tmp_path, env={"PYTHON": python}, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    assert sentence in done.stderr and "ci/setup-env vllm-0.23" in done.stderr


@pytest.mark.parametrize(
    ("sam", "drafted", "sentence"),
    [
        (
            "batch",
            0,
            "(sam=batch) but no draft was verified in 6 steps: the engine ran without it, or never had at most",
        ),
        ("auto", 0, "the engine ran without it, or never had a draft that pays off (sam=batch drafts"),
        ("off", 5, "sam=off, but 30 draft tokens were verified"),
    ],
)
def test_speculation_that_is_silently_absent_is_an_error(sam, drafted, sentence, tmp_path):
    steps = [{"step": i, "data": {"rollout/spec/drafted": drafted}} for i in range(1, 7)]
    assert sentence in follow.failure(load(f"sam={sam}", "steps=6"), steps, 0, tmp_path / "verl.log")


def arguments(folder, *overrides, run="run"):
    """Make the model files that the launcher looks for; return its arguments for the tiny recipe, run in `folder`."""
    model = folder / "model"
    model.mkdir(exist_ok=True)
    shape = {
        "model_type": "qwen3",
        "num_hidden_layers": 1,
        "hidden_size": 8,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
    }
    (model / "config.json").write_text(json.dumps(shape | {"intermediate_size": 8, "vocab_size": 8}))
    for file in ("train.parquet", "test.parquet"):
        (model / file).touch()
    return [str(TINY), f"model.path={model}", *overrides, "--run-dir", str(folder / run)]


def fake_verl(draftless_steps):
    """Return a stand-in for verl's command: a process that logs steps without a draft and exits with 0."""

    def command(entry, overrides, run_dir):
        step = {"rollout/spec/drafted": 0, "timing_s/gen": 1.0, "timing_s/step": 2.0, "critic/rewards/mean": None}
        lines = "".join(json.dumps({"step": n, "data": step}) + "\n" for n in draftless_steps)
        return [sys.executable, "-c", f"open({str(run_dir / 'steps.jsonl')!r}, 'a').write({lines!r})"]

    return command


def test_a_run_without_a_single_draft_fails_and_its_record_says_so(monkeypatch, tmp_path, capsys, patched):
    monkeypatch.setattr(launch.verl, "command", fake_verl([1, 2]))
    assert launch.main(arguments(tmp_path, "steps=2", run="on")) == 1
    assert "speculation was requested (sam=auto) but no draft was verified in 2 steps" in capsys.readouterr().err
    assert "no draft was verified" in json.loads((tmp_path / "on" / "run.json").read_text())["status"]
    assert launch.main(arguments(tmp_path, "steps=2", "sam=off", run="off")) == 0
    output = capsys.readouterr().out
    record = json.loads((tmp_path / "off" / "run.json").read_text())
    assert record["status"] == "ok" and record["attempts"][0]["after_step"] == 0
    assert record["summary"]["step_s"] == 2.0 and "step, s                     2.0" in output
    assert record["summary"]["reward"] is None and "reward -  length -" in output, "verl writes null for NaN"
    same = load("steps=2", f"model.path={tmp_path / 'model'}", "sam=off")
    assert config.load(tmp_path / "off" / "recipe.yaml", []) == same
    composed = OmegaConf.load(tmp_path / "off" / "verl.yaml")
    assert composed.trainer.total_training_steps == 2 and composed.data.train_files.endswith("train.parquet")


def test_a_run_goes_on_only_as_what_it_was_as_check_says_before(monkeypatch, tmp_path, capsys, patched):
    monkeypatch.setattr(launch.verl, "command", fake_verl([1, 2]))
    assert launch.main(arguments(tmp_path, "steps=2", "sam=off")) == 0
    folder = tmp_path / "run/checkpoints/global_step_2"
    (folder / "actor").mkdir(parents=True)
    (tmp_path / "run/checkpoints/global_step_3").mkdir()
    for file in ("data", "actor/model_world_size_1_rank_0"):
        zipfile.ZipFile(folder / f"{file}.pt", "w").close()
    more = arguments(tmp_path, "steps=3", "sam=off", "checkpoints.every=2")
    assert launch.main([*more, "--check"]) == 0
    assert "warning: the checkpoint of step 3 is not complete: it lacks data.pt\n" in capsys.readouterr().out
    for other, said in (
        (["seed=2"], "holds 2 steps of a run with another seed: continue"),
        (
            ["cluster.dies_per_node=2"],
            "which the recipe's world size 2 cannot load: set cluster.nodes x cluster.dies_per_node to 1, or",
        ),
        (["--object-store", str(1 << 50)], "use more hosts"),
    ):
        assert launch.main([*more, "--check", *other]) == 1
        assert said in capsys.readouterr().err
    monkeypatch.setattr(launch.verl, "command", fake_verl([3]))
    scan, scans = resume.checkpoints, []
    monkeypatch.setattr(resume, "checkpoints", lambda run_dir: scans.append(run_dir) or scan(run_dir))
    files = [tmp_path / "run" / name for name in ("recipe.yaml", "verl.yaml")]
    for file in files:
        os.link(file, tmp_path / file.name)
    assert launch.main(more) == 0
    assert len(scans) == 1, "each opens the files of all ranks"
    assert not any(os.path.samefile(file, tmp_path / file.name) for file in files), "written in place"
    record = tmp_path / "run/run.json"
    assert [attempt["after_step"] for attempt in json.loads(record.read_text())["attempts"]] == [0, 2]
    monkeypatch.setattr(launch, "tree_ids", lambda recipe: {"verl": "2"})
    assert launch.main([*more, "--check"]) == 1
    assert "holds 2 steps of a run with another tree_ids: continue" in capsys.readouterr().err
    record.write_text("{")
    assert launch.main([*more, "--check"]) == 1
    assert "run.json of the run to resume cannot be read" in capsys.readouterr().err


def test_errors_of_the_display_do_not_end_a_run(tmp_path, capsys):
    """A metric of a wrong type, a log line that is not JSON and an exception of `publish` only cause warnings."""
    log, seen = tmp_path / "steps.jsonl", tmp_path / "seen"
    step = {"step": 1, "data": {"timing_s/step": 2.0, "critic/rewards/mean": None, "rollout/spec/drafted": "x"}}
    first, *others = [json.dumps(step), "{", json.dumps(step | {"step": 2})]
    code = f"import os, time\nfile = open({str(log)!r}, 'a', 1)\nprint({first!r}, file=file)\n"
    code += f"while not os.path.exists({str(seen)!r}): time.sleep(0.1)\n"
    code += f"for line in {others}: print(line, file=file)"

    def publish(steps):
        if steps:
            seen.touch()
        return 1 / 0

    with subprocess.Popen([sys.executable, "-c", code]) as process:
        assert follow.follow(process, log, 2, math.inf, {}, publish) is None
    shown = capsys.readouterr().out
    assert (
        process.returncode == 0
        and "rollout - s  step 2.0 s  - tokens per request and step  reward -  length -" in shown
    )
    for warning in ("ZeroDivisionError: division by zero", f"{log}, line 2, is not JSON: repair it, or use another"):
        assert shown.count(f"  warning: {warning}") == 1


def test_a_start_says_what_it_waits_for(tmp_path, monkeypatch, capsys):
    """Before its first step, the launcher infers from this attempt's log what the run waits for."""
    monkeypatch.setattr(follow, "LOOK", 0.0)
    log, steps = tmp_path / "verl.log", tmp_path / "steps.jsonl"
    log.write_text("Training Progress: of the attempt before\n")
    texts = ["a TaskRunnerV1", "(vLLMHttpServer pid=1)", "Training Progress: 0/2", "waits for its turn"]
    texts += ["its turn has come", json.dumps({"step": 1, "data": {"timing_s/step": 1.0}})]
    code = "import sys, time\nfor text in sys.argv[3:]:\n time.sleep(1.5)\n"
    code += " print(text, file=open(sys.argv[1 + text.startswith('{')], 'a'))\ntime.sleep(1.5)"
    with subprocess.Popen([sys.executable, "-c", code, str(log), str(steps), *texts]) as process:
        assert follow.follow(process, steps, 1, math.inf, {}, lambda steps: None) is None
    shown = capsys.readouterr().out.partition("  step 1/1 ")
    waits = [line.partition("waits for: ")[2] for line in shown[0].splitlines()[1:]]
    expected = ["Ray", "the trainer", "the engine", "the first step", "its turn", "the first step"]
    assert [what for what, _ in itertools.groupby(waits)] == expected and "waits" not in shown[2]


def test_a_step_without_progress_ends_the_run(tmp_path, monkeypatch):
    """Engine steps and checkpoint growth restart the limit; the first step and pauses like earlier ones are exempt."""
    monkeypatch.setattr(follow, "LOOK", 0.0)
    log, engine, saved = (tmp_path / name for name in ("steps.jsonl", "engine-0.jsonl", "checkpoints/a/b"))
    saved.parent.mkdir(parents=True)
    engine.touch()
    begin = time.monotonic()
    times = {"timing_s/step": 1.2, "timing_s/gen": 1.0}
    step = json.dumps({"step": 1, "data": times})
    code = f"""import time; from pathlib import Path
time.sleep(2); open({str(log)!r}, "a").write({step!r} + chr(10))
for path in ({str(engine)!r}, {str(saved)!r}):
    for _ in range(4): time.sleep(0.5); Path(path).touch()
time.sleep(60)"""
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        problem = follow.follow(process, log, 2, math.inf, {}, lambda steps: None, 1.0)
        process.kill()
    assert 6.5 < time.monotonic() - begin < 20
    assert re.fullmatch(
        r"no engine made a step and no checkpoint grew for \d s \(limit 1 s, trainer.hang_timeout\) after step 1 of 2",
        problem,
    )
    assert follow._quiet({"timing_s/step": 9.0, "timing_s/gen": 4.0, "timing_s/save_checkpoint": 2.0}) == 7.0


def test_a_run_whose_ray_starts_late_is_started_again(monkeypatch, tmp_path, capsys, patched):
    """The run is restarted at most twice, and not at all after another error."""
    late = "Exception: The current node timed out during startup. This could happen because the raylet failed"
    for said, starts in ((late, 3), ("ValueError: no", 1)):
        code = f"raise SystemExit({said!r})"
        monkeypatch.setattr(launch.verl, "command", lambda *args, code=code: [sys.executable, "-c", code])
        assert launch.main(arguments(tmp_path, run=f"run-{starts}")) == 1
        assert (tmp_path / f"run-{starts}/verl.log").read_text().count(f"\n{said}\n") == starts
        shown = capsys.readouterr()
        assert shown.out.count("warning: Ray did not start in time: starting the run again") == starts - 1
        assert f"verl ended with status 1 after 0 of 4 steps: {said}" in shown.err


def test_a_step_that_takes_too_long_ends_the_run(monkeypatch, tmp_path, capsys, patched):
    monkeypatch.setattr(launch.verl, "command", lambda *args: [sys.executable, "-c", "import time; time.sleep(600)"])
    assert launch.main(arguments(tmp_path, "trainer.step_timeout=1")) == 1
    said = "no step was finished in 1 s (trainer.step_timeout) after step 0 of 4: the run was ended"
    assert said in capsys.readouterr().err
    assert "trainer.step_timeout" in json.loads((tmp_path / "run" / "run.json").read_text())["status"]


# A trainer that writes its child's process id; both ignore SIGTERM.
TRAINER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if child := os.fork():
    print(child, file=open(sys.argv[1], "w"))
time.sleep(600)
"""


def start_launcher(folder, words):
    """Start a launcher of TRAINER in a process, with its errors in `folder`/errors; return it and TRAINER's child."""

    def run():
        sys.stderr = errors
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        clock = time.monotonic
        time.monotonic = lambda: 15 * clock()  # 20 s pass in 1.3 s
        launch.verl.command = lambda *args: [sys.executable, "-c", TRAINER, str(pids)]
        sys.exit(launch.main(words))

    pids = folder / "pids"
    launcher = multiprocessing.get_context("fork").Process(target=run)
    with open(folder / "errors", "w") as errors:
        launcher.start()
    while not (pids.is_file() and pids.read_text().endswith("\n")):
        assert launcher.is_alive()
        time.sleep(0.1)
    return launcher, psutil.Process(int(pids.read_text()))


@pytest.mark.parametrize(("sign", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_launcher_leaves_no_process(sign, status, tmp_path, patched):
    launcher, child = start_launcher(tmp_path, arguments(tmp_path))
    os.kill(launcher.pid, sign)
    launcher.join()
    error = (tmp_path / "errors").read_text()
    assert launcher.exitcode == status and "Traceback" not in error, error
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_two_runs_do_not_share_a_folder(monkeypatch, tmp_path, capsys, patched):
    """A run is refused while the trainer of a killed launcher is alive."""
    words = arguments(tmp_path, "sam=off", "steps=1")
    launcher, child = start_launcher(tmp_path, words)
    orphans = [child, child.parent()]
    launcher.kill()
    launcher.join()
    monkeypatch.setattr(launch.verl, "command", fake_verl([1]))
    assert launch.main(words) == 1
    assert "error: a run is still active in" in capsys.readouterr().err
    for orphan in orphans:
        orphan.kill()
    psutil.wait_procs(orphans)
    assert launch.main(words) == 0


def test_a_run_that_ends_early_names_the_cause(tmp_path):
    log = tmp_path / "verl.log"
    log.write_text(
        "\x1b[36m(TaskRunnerV1 pid=7)\x1b[0m Traceback (most recent call last):\n"
        "ValueError: max_model_len (1152) is too long\n"
        "ray.exceptions.RayTaskError(ValueError): ray::run()\n"
    )
    said = f"verl ended with status 1 after 0 of 6 steps: ValueError: max_model_len (1152) is too long; see {log}"
    assert follow.failure(load("steps=6"), [], 1, log) == said
    with log.open("a") as file:
        file.write("RuntimeError: no trajectories. Enable trainer.v1.sampler.sync_refill_failed_groups to replace\n")
    assert follow.failure(load("steps=6"), [], 1, log) == said, "verl's advice is a consequence"
    cause = "NotImplementedError: Reward function is not implemented for data_source='x'"
    log.write_text(f"{cause}\nKeyError: 'prompts'\n{log.read_text()}KeyError: 'step'\nActorDiedError: it died\n")
    assert follow.failure(load("steps=6"), [], 1, log) == said.replace(
        "ValueError: max_model_len (1152) is too long", cause
    )


def test_a_run_s_folder_is_for_its_owner_and_group(tmp_path):
    with launch.lock_folder(tmp_path / "runs" / "a"):
        assert (tmp_path / "runs" / "a").stat().st_mode & 0o007 == 0


USERS_OF_LOCKS = """
import pathlib, sys
from llm_rl import errors, launch
from llm_rl.evaluation import generate
for user in (launch.lock_folder(pathlib.Path(sys.argv[1])), generate._results(pathlib.Path(sys.argv[1], "x"), {})):
    try:
        with user:
            pass
    except errors.UserError as e:
        print(e)
"""


def test_a_file_system_without_locks(tmp_path, no_locks):
    words = [sys.executable, "-c", USERS_OF_LOCKS, tmp_path]
    done = subprocess.run(words, env=os.environ | no_locks(tmp_path), capture_output=True, text=True)
    run, results = done.stdout.splitlines()
    said = f"{tmp_path} is on a file system without locks (Function not implemented): have it mounted with locks"
    assert run.startswith(said) and run.endswith("or name a folder elsewhere as --run-dir")
    assert results.startswith(said) and results.endswith("or name a folder elsewhere for --out")


@pytest.mark.parametrize(
    ("name", "fits"), [("32b_32die", [2, 4, 8]), ("32b_128die_customer", [2, 4, 8]), ("235b_a22b_128die", [8, 16])]
)
def test_the_launcher_says_which_numbers_of_hosts_fit(name, fits, capsys):
    file = str(QWEN3 / f"dapo_qwen3_{name}.yaml")
    assert launch.main([file, f"cluster.nodes={fits[1]}", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["hosts"] == fits[1] and [n for n in said["fitting_nodes"] if n <= fits[-1]] == fits
    assert launch.main([file, "cluster.nodes=3", "--json"]) == 1
    assert f"cluster.nodes may be {fits[0]}, {fits[1]}, " in capsys.readouterr().err
