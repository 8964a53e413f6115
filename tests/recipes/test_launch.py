# SPDX-License-Identifier: Apache-2.0
"""Configurations and the launcher, without starting an engine."""

import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from sam_core.options import Options

from llm_rl import config as recipe
from llm_rl import launch

ROOT = Path(launch.ROOT)
TINY = ROOT / "llm_rl" / "qwen3" / "dapo_qwen3_tiny_cpu.yaml"


def load(*overrides):
    return recipe.load(TINY, list(overrides))


def test_child_replaces_and_adds_to_its_base():
    config = load()
    assert config.sam == "batch"
    assert config.verl.actor_rollout_ref.actor.clip_ratio_high == 0.28  # base
    assert config.verl.actor_rollout_ref.rollout.n == 8  # child
    assert config.env.VLLM_USE_V2_MODEL_RUNNER == "0"


def test_sam_reaches_the_engine_and_off_samples_alike(tmp_path):
    prefix = "+actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config."
    on = recipe.verl_overrides(load("sam_options.k=4", "sam_options.rule=oldest"), tmp_path)
    assert {line for line in on if line.startswith(prefix)} == {
        prefix + line
        for line in (
            "method=sam",
            "num_speculative_tokens=4",
            "sam.rule=oldest",
            "sam.sources=[request,group,history]",
            "sam.switch=batch",
            "sam.threshold=8",
            "sam.memory_bytes=1073741824",
            "sam.min_prob=0.1",
            "sam.verify=seeded",
            "sam.corpus=null",
        )
    }
    seeded = "+actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config.sam_verify=seeded"
    off = recipe.verl_overrides(load("sam=off"), tmp_path)
    assert [*[line for line in on if not line.startswith(prefix)], seeded] == off
    assert [line for line in off if line != seeded] == recipe.verl_overrides(
        load("sam=off", "sam_options.verify=rejection"), tmp_path
    )


def test_recipes_name_every_option_with_the_engines_default():
    assert recipe.options(load("sam_options.verify=rejection")) == Options()
    assert recipe.options(load()).verify == "seeded"
    assert set(load().sam_options) | {"switch"} == {"k", *(f.name for f in dataclasses.fields(Options))}


def test_the_arms_share_the_seed(tmp_path):
    for sam in ("off", "batch"):
        lines = recipe.verl_overrides(load(f"sam={sam}", "seed=7"), tmp_path)
        assert "data.seed=7" in lines and "actor_rollout_ref.rollout.seed=7" in lines


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("sam=auto", "sam=auto (a budget for every request) is not part of this version"),
        ("sam=maybe", "sam must be off or batch, got 'maybe'"),
        ("sma=off", "unknown key 'sma'"),
        ("steps=0", "steps must be a whole number of at least 1, got 0"),
        ("steps=true", "steps must be a whole number of at least 1, got True"),
        ("verl=3", "verl must be a mapping, got 3"),
        ("name=[1", "override 'name=[1' cannot be used"),
        ("name=a: b: c", "override 'name=a: b: c' cannot be used"),
        ("sam_options.treshold=3", "sam_options: unknown option 'treshold'"),
        ("sam_options.threshold=-1", "sam_options: threshold must be an integer of at least 1, got -1"),
        ("sam_options.sources=[history]", "sam_options: sources has 'history' without 'group'"),
        (
            "sam_options.corpus=/no",
            "sam_options: corpus '/no' cannot be opened (No such file or directory): name a file",
        ),
        (
            "sam_options.verify=block",
            "sam_options: verify 'block' is not available; this version has rejection, seeded",
        ),
        ("sam_options.k=16", "sam_options: num_speculative_tokens must be an integer from 1 to 15, got 16"),
        ("sam_options.switch=batch", "the switch is chosen by sam=off or sam=batch, not in sam_options"),
        ("sam", "override 'sam' is not of the form key=value"),
        ("pin_set=vllm-9", "there is no pin set vllm-9"),
        ("model=/nowhere", "/nowhere has no config.json: make the model first"),
    ],
)
def test_bad_setting_is_one_sentence_and_starts_nothing(override, sentence, tmp_path, capsys):
    run_dir = tmp_path / "run"
    assert launch.main([str(TINY), override, "--run-dir", str(run_dir)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {sentence}")
    assert error.count("\n") == 1
    assert not run_dir.exists()


def test_unpatched_tree_is_refused(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(launch, "patch_states", lambda pin_set: {"vllm": "patched", "verl": "original"})
    assert launch.main([str(TINY), "--run-dir", str(tmp_path)]) == 1
    assert (
        "verl in " in (error := capsys.readouterr().err)
        and " is original, not patched: run patches/apply.sh vllm-0.23 --env " in error
    )


def test_this_environment_is_patched():
    modules = {"vllm", "vllm_ascend", "verl"}
    assert launch.patch_states("vllm-0.23") == dict.fromkeys(modules, "patched")
    assert set(launch.tree_ids("vllm-0.23")) == modules


def test_missing_file_is_one_sentence(tmp_path, capsys):
    assert launch.main([str(tmp_path / "no.yaml")]) == 1
    assert capsys.readouterr().err.startswith(f"error: there is no recipe configuration {tmp_path}")


def test_verl_accepts_every_key(tmp_path):
    """The pinned verl's own configuration tree composes with the recipe's overrides."""
    overrides = recipe.verl_overrides(load(), tmp_path)
    script = (
        "import sys; from hydra import compose, initialize_config_module\n"
        "with initialize_config_module('verl.trainer.config', version_base=None):\n"
        "    c = compose('ppo_trainer', [o for o in sys.argv[1:] if not o.startswith('hydra.')])\n"
        "print(c.algorithm.filter_groups.metric, c.actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config.method)"
    )
    result = subprocess.run([sys.executable, "-c", script, *overrides], capture_output=True, text=True)
    assert result.stdout.split() == ["acc", "sam"], result.stderr


def steps(config, drafted):
    return [{"step": i + 1, "data": {"rollout/spec/drafted": drafted}} for i in range(config.steps)]


def test_speculation_that_is_silently_absent_is_an_error(tmp_path):
    log = tmp_path / "verl.log"
    log.write_text("")
    on, off = load("sam=batch", "steps=6"), load("sam=off", "steps=6")
    assert launch.failure(on, steps(on, 5), 0, log) is None
    assert launch.failure(off, steps(off, 0), 0, log) is None
    assert launch.failure(on, steps(on, 0), 0, log).startswith(
        "speculation was asked for (sam=batch) but no draft was verified in 6 steps"
    )
    assert launch.failure(off, steps(off, 5), 0, log).startswith("sam=off, but 30 draft tokens were verified")


class Verl:
    """Stands in for the trainer: a process that logs two steps without a draft and ends well."""

    def __init__(self, model):
        model.mkdir()
        for file in ("config.json", "train.parquet"):
            (model / file).touch()
        self.model = model

    def command(self, config, run_dir):
        step = {"rollout/spec/drafted": 0, "timing_s/gen": 1.0}
        lines = "".join(json.dumps({"step": n, "data": step}) + "\n" for n in (1, 2))
        return [sys.executable, "-c", f"open({str(run_dir / 'steps.jsonl')!r}, 'w').write({lines!r})"]


def test_a_run_without_a_single_draft_fails_and_its_record_says_so(monkeypatch, tmp_path, capsys):
    verl = Verl(tmp_path / "model")
    monkeypatch.setattr(launch, "command", verl.command)
    arguments = [str(TINY), "steps=2", f"model={verl.model}"]
    assert launch.main([*arguments, "--run-dir", str(tmp_path / "on")]) == 1
    assert "speculation was asked for (sam=batch) but no draft was verified in 2 steps" in capsys.readouterr().err
    assert "no draft was verified" in json.loads((tmp_path / "on" / "run.json").read_text())["status"]
    assert launch.main([*arguments, "sam=off", "--run-dir", str(tmp_path / "off")]) == 0
    assert json.loads((tmp_path / "off" / "run.json").read_text())["status"] == "ok"


STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
TRAINER = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {stubborn!r} + "time.sleep(600)"])
with open({pids!r}, "w") as f:
    print(child.pid, file=f)
time.sleep(600)
"""
LAUNCHER = """
import sys, time
from llm_rl import launch
clock = time.monotonic
launch.time.monotonic = lambda: 15 * clock()  # 20 s pass in little more than one
launch.command = lambda config, run_dir: [sys.executable, {trainer!r}]
sys.exit(launch.main({arguments!r}))
"""


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_launcher_leaves_no_process(sign, tmp_path):
    """The trainer ignores SIGTERM and has a child that does so too: both are gone when the launcher is."""
    verl, pids, trainer = Verl(tmp_path / "model"), tmp_path / "pids", tmp_path / "trainer.py"
    trainer.write_text(STUBBORN + TRAINER.format(stubborn=STUBBORN, pids=str(pids)))
    arguments = [str(TINY), f"model={verl.model}", "--run-dir", str(tmp_path / "run")]
    script = LAUNCHER.format(trainer=str(trainer), arguments=arguments)
    launcher = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job has it ignored
    )
    end = time.monotonic() + 60
    while not (pids.is_file() and pids.read_text().endswith("\n")):
        assert launcher.poll() is None and time.monotonic() < end
        time.sleep(0.1)
    launcher.send_signal(sign)
    error = launcher.communicate(timeout=60)[1]
    assert launcher.returncode == (130 if sign == signal.SIGINT else 143), error
    assert "Traceback" not in error
    child = int(pids.read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_a_run_that_ends_early_names_the_cause(tmp_path):
    log = tmp_path / "verl.log"
    log.write_text(
        "\x1b[36m(TaskRunnerV1 pid=7)\x1b[0m Traceback (most recent call last):\n"
        "ValueError: max_model_len (1152) is too long\n"
        "ray.exceptions.RayTaskError(ValueError): ray::run()\n"
    )
    config = load("steps=6")
    assert launch.failure(config, [], 1, log) == (
        f"verl ended with status 1 after 0 of 6 steps: ValueError: max_model_len (1152) is too long; see {log}"
    )


def test_half_written_last_line_of_the_step_log_is_left_for_later(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_text(json.dumps({"step": 1, "data": {}}) + '\n{"step": 2, "da')
    assert [step["step"] for step in launch.read_steps(path)] == [1]


def test_siblings_of_a_prompt_share_a_replica():
    from llm_rl.router import PromptRouter

    router = PromptRouter({f"s{i}": object() for i in range(4)})
    prompts = [[1, 2, i] for i in range(8)]
    homes = [{router.acquire_server(f"{i}-{j}", prompt_ids=p)[0] for j in range(8)} for i, p in enumerate(prompts)]
    assert all(len(home) == 1 for home in homes)
    assert len(set.union(*homes)) == 4  # and prompts spread over replicas
    assert router.acquire_server("3-0", prompt_ids=[1, 2, 3, 99])[0] in homes[3]  # a later turn follows its first
    assert router.require_acquire_fields() == ["prompt_ids"]
