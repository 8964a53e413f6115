# SPDX-License-Identifier: Apache-2.0
"""End-to-end DAPO: verl's trainer, vLLM's engine, the tiny Qwen3, two training steps with SAM and two without."""

import contextlib
import hashlib
import json
import re
import subprocess
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from types import SimpleNamespace

import pandas
import psutil
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from sam_core.noise import Noise
from sam_core.seeds import request_key, request_seed
from transformers import AutoModelForCausalLM, AutoTokenizer

from llm_rl import launch
from llm_rl.qwen3 import tiny_model
from llm_rl.reports.__main__ import main as report
from llm_rl.reports.answers import compare_answers, read_answers
from sam_core import Pool

SCRIPT = launch.ROOT / "llm_rl" / "qwen3" / "run_dapo_qwen3_tiny_cpu.sh"
DASHBOARD = launch.ROOT / "ansible/roles/monitoring/templates/dashboard.json.j2"


def train_until_killed(folder, *overrides):
    """Start a run and kill it with Ray's processes once its second step has logged answers.

    The run has a lower CPU priority than this process, which must see the answers in time on a busy host. The engine's
    log gets another row, as if the engine had logged a part of the second step.
    """
    command = ["nice", SCRIPT, *overrides, "--run-dir", folder]
    launcher = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    steps = folder / "steps.jsonl"
    while not any("\n[2," in path.read_text() for path in folder.glob("answers-*.jsonl")):
        assert launcher.poll() is None
        time.sleep(0.02)
    others = psutil.Process(launcher.pid).children(recursive=True)
    for process in (launcher, *others):
        process.kill()
    psutil.wait_procs(others)
    assert launcher.wait() == -9
    assert len(launch.read_steps(steps)) == 1, "the second step was over too soon"
    rows = folder / "engine-0.jsonl"
    text = rows.read_text()
    rows.write_text(text + text.splitlines(keepends=True)[-1])
    tracker = folder / "checkpoints" / "latest_checkpointed_iteration.txt"
    assert tracker.read_text() == "1"
    tracker.write_text("")  # the state after a kill while the file is written


def scrape(folder, ended):
    """Return the last samples, by name, that Prometheus would have scraped from the run's files and its engines."""
    found = {}

    def keep(text):
        families = text_string_to_metric_families(text)
        found.update((sample.name, sample) for family in families for sample in family.samples)

    while not ended.wait(0.3):
        with contextlib.suppress(OSError, HTTPException, ValueError):  # the file or the engine has gone
            for file in folder.glob("*.prom"):
                keep(file.read_text())
            for file in folder.glob("*.json"):
                ((address,),) = (group["targets"] for group in json.loads(file.read_text()))
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
                    keep(answer.read().decode())
    return found


ON = ["sam=auto", "steps=2", "checkpoints.every=1"]


def finished(folder):
    return SimpleNamespace(
        folder=folder,
        answers=read_answers(folder),
        record=json.loads((folder / "run.json").read_text()),
        steps=launch.read_steps(folder / "steps.jsonl"),
        rows=[json.loads(line) for line in (folder / "engine-0.jsonl").read_text().splitlines()],
        log=(folder / "verl.log").read_text(),
    )


@pytest.fixture(scope="session")
def run(train, tmp_path_factory):
    """A run with SAM and seeded validations, and the samples that Prometheus would have scraped from it."""
    folder, metrics = tmp_path_factory.mktemp("dapo"), tmp_path_factory.mktemp("metrics")
    ended = threading.Event()
    with ThreadPoolExecutor() as pool:
        scraped = pool.submit(scrape, metrics, ended)
        try:
            train(folder, *ON, validate=True, SAM_RL_METRICS=str(metrics))
        finally:
            ended.set()
    run = finished(folder)
    run.scraped, run.left = scraped.result(), [*metrics.iterdir()]
    return run


def test_two_steps_are_trained(run):
    assert [step["step"] for step in run.steps] == [1, 2] and run.record["status"] == "ok"
    assert all(step["data"]["actor/grad_norm"] > 0 for step in run.steps)
    assert run.log.splitlines()[:2] == ["pin set vllm-0.23", f"tree vllm {run.record['tree_ids']['vllm']}"]


def test_validations_with_one_seed_give_the_same_answers(run, validations):
    """More than 90 % of the answers stay equal although the weights change; in test_modes.py the weights stay."""
    logged, counted = validations(run.folder)
    assert logged == counted and counted.keys() == {1, 2}
    assert min(counted.values()) > 0.9


def test_history_is_the_replicas_own(run):
    folder = run.folder / "history" / "replica-0" / "engine-0"
    assert Pool.describe(folder / "pool")["texts"] > 20
    assert (folder / "switch.json").exists()
    assert len(json.loads((run.folder / "history" / "routes.json").read_text())) > 10


def test_step_log_has_the_speculation_metrics(run):
    for step in run.steps:
        data = {k.removeprefix("rollout/spec/"): v for k, v in step["data"].items() if k.startswith("rollout/spec/")}
        assert data["drafted"] > 0 and data["accepted"] > 0
        assert 0 < data["switch_on_share"] <= 1
        assert step["data"]["rollout/spec_accept_rate"] == data["accepted"] / data["drafted"]
        assert 1 < step["data"]["rollout/spec_accept_length"] <= 1 + data["accepted"]
        assert data["tokens_per_step"] == pytest.approx(data["tokens"] / data["request_steps"])
        # tokens accepted after the end of an answer are not emitted
        assert data["request_steps"] < data["tokens"] <= data["request_steps"] + data["accepted"]
        assert data["draft_ms"] > 0 and data["tail_s"] > 0 and data["index_bytes"] > 0
        assert 1e-3 * data["decode_steps"] < data["cpu_s"] < 8 * data["busy_s"]
        sources = ("request", "group", "history", "corpus", "common")
        assert data["drafted"] <= data["proposed"] <= sum(data[f"proposed_{source}"] for source in sources)
        assert data["accepted_group"] > 0 and data["accepted_request"] > 0
        assert all(data[f"accepted_{source}"] <= data[f"proposed_{source}"] for source in sources)
        steps, tokens = (
            sum(v for k, v in data.items() if k.startswith(f"{what}_from_")) for what in ("steps", "tokens")
        )
        assert 0 < steps < data["request_steps"] and steps < tokens <= steps + data["accepted"]
    assert run.steps[0]["data"]["rollout/spec/switch_on_share"] < 1, "off while it learns what steps cost"
    assert sum(row[4] for row in run.rows) == sum(step["data"]["rollout/spec/drafted"] for step in run.steps)


def test_prometheus_finds_what_the_dashboard_shows(run):
    """The run exports each metric of vLLM and verl on the dashboard; the test bed checks the other exporters. vLLM
    exports sam_switch_on within a second of drafting."""
    samples = run.scraped
    wanted = set(re.findall(r"\b(?:vllm:|verl_)\w+", DASHBOARD.read_text()))
    assert len(wanted) > 10 and wanted <= samples.keys()
    engines = {samples[f"vllm:{name}"].labels["engine"] for name in ("sam_switch_on", "num_requests_running")}
    assert engines == {"0"}
    assert samples["vllm:spec_decode_num_accepted_tokens_total"].value > 0
    assert samples["verl_training_step"].value == 2 and samples["verl_training_step"].labels == {"run": run.folder.name}
    assert run.left == []


def test_every_answer_is_logged(run):
    """Each prompt has eight answers, not all equal. The next test checks their places by their seeds."""
    for step in run.steps:
        answers = {place[1:]: answer for place, answer in run.answers.items() if place[0] == step["step"]}
        prompts = range(max(8, len(answers) // 8))
        assert set(answers) == {(prompt, sibling) for prompt in prompts for sibling in range(8)}
        assert sum(len(answer.tokens) for answer in answers.values()) == step["data"]["rollout/spec/tokens"]
        assert all(len({(*answers[prompt, i].tokens,) for i in range(8)}) > 1 for prompt in prompts)


def test_every_token_is_what_the_target_samples(run):
    """transformers, with the step's weights and the request's noise, samples the same tokens in at least 95 % of each
    step's answers; rounding may change the others."""
    target = AutoModelForCausalLM.from_pretrained(tiny_model.FOLDER).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_model.FOLDER)
    chats = pandas.read_parquet(tiny_model.FOLDER / "train.parquet")["prompt"]
    options = {"add_generation_prompt": True, "return_dict": False}
    prompts = {prompt_hash(ids): ids for ids in (tokenizer.apply_chat_template([*chat], **options) for chat in chats)}
    for step in (1, 2):
        if step == 2:
            saved = run.folder / "checkpoints/global_step_1/actor/model_world_size_1_rank_0.pt"
            weights = torch.load(saved, weights_only=False, map_location="cpu")
            target.load_state_dict({name: value.to_local() for name, value in weights.items()})
        equal = []
        for (of_step, *place), answer in run.answers.items():
            if of_step == step:
                prompt, length = prompts[answer.prompt_hash], len(answer.tokens)
                with torch.inference_mode():
                    logits = target(torch.tensor([prompt + answer.tokens])).logits[0, len(prompt) - 1 : -1].float()
                keys = length * [request_key(request_seed(run.record["seed"], step, *place))]
                positions = range(len(prompt), len(prompt) + length)
                sampled = Noise(keys, positions, None, "cpu").sample(logits.softmax(-1))
                equal.append(sampled.tolist() == answer.tokens)
                log_probs = logits.log_softmax(-1)[range(length), answer.tokens]
                torch.testing.assert_close(log_probs, torch.tensor(answer.log_probs), rtol=0, atol=1e-3)
        assert len(equal) >= 64 and sum(equal) >= 0.95 * len(equal)


def prompt_hash(ids):
    return hashlib.blake2b(json.dumps(ids).encode(), digest_size=8).hexdigest()


def assert_same(answers, off):
    """Assert that at least 95 % of each step's answers are equal; rounding may change the others."""
    for step in compare_answers(read_answers(off), answers)["steps"]:
        assert step["answers"] >= 64 and step["tokens"] > 2000
        assert step["answers_equal"] >= 0.95 * step["answers"]
        assert step["log_prob_difference"] < 1e-3


@pytest.mark.slow
def test_without_sam_the_answers_are_the_same(run, off, tmp_path):
    assert_same(run.answers, off)
    assert report(["report", f"--off={off}", f"--on={run.folder}", f"--out={tmp_path / 'report'}"]) == 0
    assert "Missing" not in (tmp_path / "report" / "report.md").read_text()


@pytest.mark.slow
def test_a_killed_run_goes_on_after_its_checkpoint(train, off, tmp_path):
    """The resumed run schedules asynchronously, which tests/recipes/asynchronous enables in vLLM's CPU backend."""
    train_until_killed(tmp_path, *ON)
    printed = train(tmp_path, *ON, site="asynchronous").stdout
    run = finished(tmp_path)
    assert "resuming from the checkpoint of step 1" in printed and "step 1/2" not in printed
    assert re.findall(r"\(EngineCore .*Asynchronous scheduling is (\w+)", run.log) == ["disabled", "enabled"]
    assert [attempt["after_step"] for attempt in run.record["attempts"]] == [0, 1]
    assert sum(row[3] for row in run.rows) == sum(step["data"]["rollout/spec/tokens"] for step in run.steps)
    assert run.record["summary"]["tokens"] == run.steps[1]["data"]["rollout/spec/tokens"]
    assert run.record["load"].keys() == {"2"}, "a launcher records the load of its own steps"
    (found,) = re.findall(r"history: (\d+) answers to \d+ prompts", run.log)
    assert Pool.describe(tmp_path / "history/replica-0/engine-0/pool")["texts"] > int(found) > 50
    assert_same(run.answers, off)


def test_rollout_log_probs_agree_with_the_trainers(run):
    """Wrong logits, or weights that were not updated, would make the log-probabilities differ."""
    for step in run.steps:
        assert step["data"]["rollout_corr/log_ppl_abs_diff"] < 1e-4
        name = "rollout_corr/log_prob_diff/"
        logged = {key.removeprefix(name): n for key, n in step["data"].items() if key.startswith(name)}
        tokens = {bound.removesuffix("/total"): n for bound, n in logged.items()}
        assert [*tokens][-1] == "inf" and tokens["0.1"] == tokens["inf"] == 0
        assert 64 < sum(tokens.values()) <= step["data"]["rollout/spec/tokens"] and tokens["1e-05"] > 0
        assert sum(tokens.values()) == pytest.approx(64 * step["data"]["response_length/mean"]), "each token trained on"
