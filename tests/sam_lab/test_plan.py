# SPDX-License-Identifier: Apache-2.0
"""The planner counts every token once, equals a plain loop over steps, and advises nothing that can lose."""

import gzip
import itertools
import json
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llm_rl.shape import SHAPES
from sam_lab.__main__ import main
from sam_lab.cost import DIES, Cost, RunningCost, fitted, roofline
from sam_lab.plan import words
from sam_lab.plan.acceptance import KS, Acceptance, recorded
from sam_lab.plan.lengths import Lengths
from sam_lab.plan.simulate import BINS, EDGES, Engines, Policy
from sam_lab.plan.step import Setup, Tails, deal, engines
from sam_lab.recordings import DATA, read_answers

ROOT = Path(__file__).resolve().parents[2]

RECIPE = str(ROOT / "llm_rl/qwen3/dapo_qwen3_32b_32die.yaml")
GPUS = str(ROOT / "llm_rl/qwen3/dapo_qwen3_8b_8gpu.yaml")
STATES = str(ROOT / "llm_rl/qwen3/dapo_qwen3_5_27b_8gpu.yaml")
BATCH = ("data.train_batch_size", "data.gen_batch_size", "train.ppo_mini_batch_size", "rollout.max_num_seqs")
PLAN = Setup("32b", SHAPES["Qwen3-32B"], 32, 8, 1, 1, 32, 96, 16, 128, 34816, 1.2e6)
ROWS = np.arange(1.0, 200)
COST = Cost(ROWS, 0.02 + 0.001 * np.maximum(0, ROWS - 6), 0.004, 0.002, prefill=1e-5)
FREE = Cost(ROWS, np.full(len(ROWS), 0.02), 0.0, 0.0)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Arguments of a small plan, from a recording of three answers."""
    few = tmp_path_factory.mktemp("recording") / "few.jsonl"
    with gzip.open(DATA / "math-cot-groups8.jsonl.gz", "rt") as lines:
        few.write_text("".join(itertools.islice(lines, 3)))
    return [*(f"{key}=8" for key in BATCH), "--mean", "200", "--draws", "1", "--acceptance", str(few)]


def given(first, later):
    """Acceptance with probability `first` of the first draft token, and `later` of each token after an accepted one."""
    worth = first * later ** np.arange(max(KS))
    gain = np.array([[worth[:k].sum()] * BINS for k in KS])
    drafted = np.array([[float(k)] * BINS for k in KS])
    accepted = (np.random.default_rng(0).random((400, 1)) < worth).sum(1)
    return Acceptance(KS, gain, drafted, np.tile(worth, (BINS, 400, 1)), np.tile(accepted, (BINS, 1)))


def policy_of(seed, slots, threshold):
    """A policy whose gains differ by position and batch and are 0 above the threshold."""
    rng = np.random.default_rng(seed)
    policy = Policy(rng.uniform(0, 2, (slots + 1, BINS)), rng.uniform(0, 3, (slots + 1, BINS)))
    policy.gain[threshold + 1 :], policy.drafted[threshold + 1 :] = 0, 0
    return policy


def load(seed, ranks, count, longest=3000):
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(5, 60, count) for _ in range(ranks)]
    return prompts, [rng.integers(1, longest, count) for _ in range(ranks)]


def step_by_step(prompts, answers, slots, cost, policy):
    """Simulate each step and each request in a plain loop without a memory limit; return seconds and steps."""
    waiting = [list(range(len(a))) for a in answers]
    running = [{} for _ in answers]  # request: position
    clock, steps = 0.0, 0
    while any(waiting) or any(running):
        read = 0
        for rank, queue in enumerate(waiting):
            tokens = 0
            while queue and len(running[rank]) < slots:
                request = queue.pop(0)
                running[rank][request] = 0.0
                tokens += prompts[rank][request]
            read = max(read, tokens)
        clock += cost.prefill * read
        slowest = 0.0
        for rank, now in enumerate(running):
            n = len(now)
            rows = context = drafts = 0.0
            for request, position in now.items():
                bin_, held = sum(position >= edge for edge in EDGES), prompts[rank][request] + position
                rows += 1 + policy.drafted[n, bin_]
                context += held
                drafts += policy.drafted[n, bin_] * held
                now[request] = min(answers[rank][request], position + 1 + policy.gain[n, bin_])
            if n:
                device = np.interp(rows, cost.rows, cost.seconds)
                device += (cost.context * context + cost.draft_context * drafts) / 1000
                slowest = max(slowest, cost.floor, float(device))
            running[rank] = {r: position for r, position in now.items() if position < answers[rank][r] - 1e-6}
        clock += slowest
        steps += 1
    return clock, steps


@pytest.mark.parametrize(("ranks", "floor", "threshold"), [(1, 0.0, 3), (3, 0.026, 0), (3, 0.026, 6)])
def test_equals_a_loop_over_steps(ranks, floor, threshold):
    cost, policy = replace(COST, floor=floor), policy_of(1, 6, threshold)
    prompts, answers = load(2, ranks, 17)
    trace = Engines(prompts, answers, 6).run(cost, policy)
    seconds, steps = step_by_step(prompts, answers, 6, cost, policy)
    assert sum(trace.steps) == steps
    assert trace.total == pytest.approx(seconds, rel=1e-9)
    assert len(trace.steps) < steps / 5


@pytest.mark.parametrize(("ranks", "capacity", "states"), [(1, np.inf, 0), (2, 9000, 0), (2, 15000, 1500)])
def test_every_token_once(ranks, capacity, states):
    prompts, answers = load(3, ranks, 40)
    trace = Engines(prompts, answers, 8, capacity, states=states).run(COST, policy_of(4, 8, 5))
    assert sum(trace.emitted) == pytest.approx(sum(a.sum() for a in answers))
    assert (trace.preempted > 0) == (capacity < np.inf)
    assert trace.total == pytest.approx(sum(trace.seconds))
    most = np.array(trace.running).max()
    assert most <= max(1, (capacity - 16) / (states + 16)), "the memory of states is counted"
    with pytest.raises(ValueError, match="fit"):
        Engines(prompts, answers, 8, 2000 + states, states=states)


def test_states_take_memory_by_the_drafts_that_the_engine_has_room_for():
    plan = replace(PLAN, shape=SHAPES["Qwen3.5-9B"], tensor=1, dies=1, slots=32, capacity=80_000)
    assert [round(plan.states(k) * 32 / 1024) for k in (0, 3, 7, 15)] == [49, 201, 414, 876]  # 32 KiB a token
    lengths = Lengths(900, 0.8, 6000).sample(4, 16, np.random.default_rng(0))
    running = [np.max(engines(plan, lengths, k=k)[0].run(COST, Policy.off(32)).running) for k in (0, 3, 7)]
    assert 32 >= running[0] > running[1] > running[2] > 1
    assert PLAN.states(15) == 0
    two = [np.full(2, 20)], [np.full(2, 3000)]
    ends = [Engines(*two, 2, 9000 - gone, states=states) for gone, states in ((5000, 0), (0, 2500))]
    first, second = (engine.run(COST, Policy.off(2)) for engine in ends)
    assert first.steps[0] == second.steps[0] < 3000 and first.preempted == second.preempted == 1


def test_goes_on_from_where_few_run_while_others_wait():
    """If memory holds fewer requests than the threshold, they draft although others wait."""
    plan = replace(PLAN, gen_prompts=4, slots=32, capacity=6500)
    cost = roofline(plan.shape, 8, 1, DIES["910C"])
    lengths = Lengths(900, 0.8, 6000).sample(4, 16, np.random.default_rng(0))
    policy = given(0.4, 0.6).batch(32, 8, 3)
    tails = Tails.of(plan, cost, engines(plan, lengths), 8)
    assert any(any(engine.queue) for engine in tails.waiting)
    whole = [engine.run(cost, policy) for engine in engines(plan, lengths)]
    round_ = tails.run(policy, 8)
    assert [trace.total for trace in round_.traces] == pytest.approx([trace.total for trace in whole])
    assert round_.tail == pytest.approx(np.mean([trace.tail(8) for trace in whole]))


def test_auto_drafts_where_it_pays():
    acceptance = given(0.6, 0.6)
    contexts = np.full(17, 1.0)
    free, dear = acceptance.auto(16, FREE, contexts), acceptance.auto(16, replace(COST, draft_context=1.0), contexts)
    assert free.gain[1:].min() > 1 and free.gain[1:].mean() > 1.3
    assert not dear.gain.any() and not dear.drafted.any()
    some = acceptance.auto(16, COST, contexts)
    assert some.drafted[1].mean() > some.drafted[16].mean()
    drafting, plain = (Engines(*load(7, 1, 40), 16).run(COST, policy).total for policy in (some, Policy.off(16)))
    assert drafting < plain


def test_auto_prices_steps_as_they_are_simulated():
    """Drafts are free until their rows and contexts together take longer than the host's floor."""
    acceptance, most = given(0.3, 0.6), 15
    covered = acceptance.auto(16, replace(COST, floor=1.0), np.full(17, 2.0))
    assert (covered.drafted[1:9] == most).all()
    partly = acceptance.auto(16, replace(COST, floor=0.2), np.full(17, 2.0)).drafted[5].mean()
    cost = RunningCost(replace(COST, floor=0.2), 5, 2.0)
    assert 1 < partly < most and cost.rows_cost(5 + 5 * partly) == pytest.approx(0.2, rel=0.05)
    one = np.array([5.0 + 5 * partly]), np.array([1e4]), np.zeros(1), np.array([1e4 * partly]), np.zeros(1)
    assert cost.rows_cost(one[0]) == pytest.approx(cost.cost.stretch(1, *one))


def test_lengths():
    lengths = Lengths(9000, 0.9, 34816)
    sample = lengths.sample(200, 16, np.random.default_rng(0))
    assert sample.mean() == pytest.approx(9000, rel=0.02) and sample.min() >= 1
    assert 0.01 < (sample == 34816).mean() < 0.1
    logs = np.log(sample)
    assert logs.mean(axis=1).var() > 0.3 * logs.var()
    for bad in ({"mean": 40000}, {"spread": 0}, {"spread": 5}):
        with pytest.raises(ValueError):
            replace(lengths, **bad)


def test_routing():
    lengths = np.arange(1, 6 * 4 + 1).reshape(6, 4)
    dealt = deal(lengths, 3)
    assert sorted(np.concatenate(dealt).tolist()) == list(range(1, 25))
    assert all(len({(length - 1) // 4 for length in rank.tolist()}) == 2 for rank in dealt)


def test_roofline():
    shape, device = SHAPES["Qwen3-32B"], DIES["910C"]
    cost = roofline(shape, 8, 1, device, eager=False)
    read = 2 * shape.parameters / 8 / (device.bandwidth * device.weights_share)
    assert read < cost.rows_cost(1) < 2 * read
    assert cost.rows_cost(4000) > 3 * cost.rows_cost(1)
    assert cost.context == pytest.approx(1000 * 32 * 1024 / (device.bandwidth * device.context_share))
    assert roofline(shape, 8, 1, device).rows_cost(1) == pytest.approx(64 * 14 * device.launch)


def test_acceptance_of_a_recording():
    answers = read_answers(DATA / "math-cot-groups8.jsonl.gz")
    alone = recorded(answers, "request", {"sources": ["request"]}, (1, 3), max_tokens=8000)
    together = recorded(answers, "group", {}, (1, 3), max_tokens=8000)
    # Alone, a request learns from those before it what follows; siblings that run at the same time cannot.
    for table in (alone, together):
        assert 0 < table.gain[0, 0] < table.gain[1, 0] < table.drafted[1, 0] <= 3
    assert (np.diff(together.worth, axis=2) <= 0).all() and together.accepted.max() == 3
    assert together.worth[0].sum(axis=1).mean() == pytest.approx(together.accepted[0].mean(), rel=0.25)
    assert together.scaled(0.5).gain == pytest.approx(0.5 * together.gain)
    often = together.scaled(20)
    auto = often.auto(8, FREE, np.zeros(9))
    assert (often.gain <= often.drafted).all() and (auto.gain <= auto.drafted).all() and auto.drafted[1:].min() > 0


def test_the_cost_of_a_step_is_fitted_to_a_replay(small, tmp_path, capsys):
    path, steps = tmp_path / "steps.json", []
    for running, drafted in itertools.product(range(1, 33), (0, 3)):
        rows, context = running * (1 + drafted), 500 * running
        step = {"running": running, "rows": rows, "drafted": drafted * running, "context": context, "prefill": False}
        steps.append(step | {"s": 0.08 + 0.007 * rows + 4e-6 * context})
    path.write_text(json.dumps([{"arm": "plain", "batch": 0, "steps": steps}]))
    assert fitted(steps).step(20, 10_000, 0, False) == pytest.approx(0.08 + 0.14 + 0.04, rel=0.05)
    assert main(["plan", GPUS, *small, "--cost", str(path)]) == 0
    assert f"cost of a step: fitted to {path}\n" in capsys.readouterr().out
    path.write_text("[]")
    assert main(["plan", GPUS, *small, "--cost", str(path)]) == 2
    assert "steps.json is not the steps.json of an engine-replay" in capsys.readouterr().err


def test_a_verifying_step_costs_more_with_drafts_alone():
    dear, one = replace(COST, verify=0.01), np.ones(1)
    for context, draft in ((one, 0 * one), (one, one)):
        more = dear.stretch(5, 4 * one, context, 0 * one, draft, 0 * one)
        without = COST.stretch(5, 4 * one, context, 0 * one, draft, 0 * one)
        assert more - without == pytest.approx(0.05 * draft[0])
        some = dear.stretch(5, 4 * one, context, 0 * one, draft, 0 * one, share=0.2)
        assert some - without == pytest.approx(0.01 * draft[0]), "one step of five has drafts"
    assert RunningCost(dear, 4, 0.0).rows_cost([4, 5]) == pytest.approx(COST.rows_cost([4, 5]) + [0, 0.01])
    device = replace(DIES["910C"], verify=1e-3)
    assert roofline(SHAPES["Qwen3-32B"], 8, 1, device).verify == pytest.approx(0.064)


def test_recipe(tmp_path, capsys, monkeypatch):
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: 1000 * clock())  # progress is printed every 30 s
    out, picture = tmp_path / "plan.json", tmp_path / "plan.png"
    small = ["data.gen_batch_size=32", "rollout.max_num_seqs=16", "--mean", "300"]
    assert main(["plan", RECIPE, *small, "--draws", "3", "--json", str(out), "--picture", str(picture)]) == 0
    found, (said, progress) = json.loads(out.read_text()), capsys.readouterr()
    for stage in ("replaying the recording, context request, k = 15", "policies", "world 3 of 3"):
        assert stage in progress
    assert found["own"] == [8, 3]
    for name, figures in found["figures"].items():
        for what, value in figures.items():
            low, high = found["ranges"][name][what]
            assert low <= value <= high, (name, what)
    assert found["ranges"]["best"]["rollout_gain"][0] >= found["ranges"]["batch"]["rollout_gain"][0] - 0.02
    assert found["ranges"]["auto"]["rollout_gain"][0] > 0.99, "auto pauses where verification costs more than it brings"
    assert "Recommendation" in said and found["recommendation"][0] in said
    assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    "low, auto, model, advice",
    [
        (0.99, 1.04, "Qwen3-8B", "Use the recipe's threshold 8"),
        (0.99, 1.09, "Qwen3-8B", "Use sam=auto"),
        (0.99, 1.09, "Qwen3.5-9B", "Use the recipe's threshold 8"),
        (0.9, 1.0, "Qwen3-8B", "Leave speculation off"),
    ],
)
def test_what_can_lose_is_not_advised(low, auto, model, advice):
    """A switch that can lose is not advised, however large its median gain, nor one that recipes refuse."""
    gains = {"off": (1.0, 1.0, 1.0), "batch": (low, 1.05, 1.1), "best": (0.7, 1.4, 1.5), "auto": (1.0, auto, 1.1)}
    figures = {name: {"rollout_gain": g[1], "tail_share": 0.5, "preempted": 0} for name, g in gains.items()}
    ranges = {name: {"rollout_gain": g[::2]} for name, g in gains.items()}
    result = {"figures": figures, "ranges": ranges, "own": (8, 3), "best": (128, 2)}
    said = words.recommend(replace(PLAN, shape=SHAPES[model]), result, 1 << 20, 9000.0)
    assert said[0].startswith(advice)
    assert any("-42.9 % to 33.3 % from the 10th to the" in line for line in said), "what the best switch may lose"
    assert "Raise sam_options.memory_bytes: the groups that run on an engine need about 0.3" in said[-1]


@pytest.mark.parametrize(
    ("recipe", "more", "said"),
    [
        (GPUS, [], "\ncost of a step: H100, measured steps"),
        (GPUS, ["rollout.tensor_model_parallel_size=2"], "\ncost of a step: H100 SXM, a roofline"),
        (STATES, [], "of which a request's states take 9,576 (k = 3), 2,349 without\n"),
    ],
)
def test_a_plan_for_gpus_says_what_it_counts_with(small, capsys, recipe, more, said):
    assert main(["plan", recipe, *more, *small]) == 0
    printed = capsys.readouterr().out
    assert said in printed and " 8 GPUs, " in printed and not re.search(r"\bdies?\b", printed)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "the following arguments are required: recipe"),
        ([RECIPE, "--draws", "0"], "argument --draws: invalid positive number value: '0'"),
        ([RECIPE, "--kept", "0"], "--kept must be above 0 and at most 1, got 0"),
        ([RECIPE, "--spread", "-1"], "--spread must be above 0, got -1"),
        ([RECIPE, "--mean", "-5"], "--mean -5: an answer has"),
        ([RECIPE, "--cost", "nosuch.json"], "nosuch.json: No such file"),
        ([RECIPE, "--json", "nowhere/x.json"], "nowhere/x.json: No such file or directory"),
        ([RECIPE, "--json", "x", "--picture", "x"], "x is also an input or another output"),
        ([RECIPE, "rollout.expected_length=null"], "how long answers are"),
        ([RECIPE, "cluster.device=cpu"], "cluster.device is cpu, for which there is no cost model"),
    ],
)
def test_refused(arguments, message, capsys):
    try:
        status = main(["plan", *arguments])
    except SystemExit as usage:
        status = usage.code
    assert status == 2 and message in capsys.readouterr().err
