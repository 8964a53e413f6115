# SPDX-License-Identifier: Apache-2.0
"""The comparison of two runs, on small run folders made here."""

import json
from itertools import product

import pytest
from run_folders import edit_steps, write_answers, write_run

from llm_rl.reports.__main__ import load, main
from llm_rl.reports.compare import busy_loads
from llm_rl.reports.drafting import step_costs
from llm_rl.reports.pages import markdown, text_table, words
from llm_rl.reports.runs import Run, read_run


def summary_of(folder):
    return load({"off": folder / "off", "on": folder / "on"})[0]


@pytest.fixture
def runs(tmp_path):
    write_run(tmp_path / "off", "off")
    write_run(tmp_path / "on", "batch")
    return tmp_path


def recorded(runs, arm, **fields):
    path = runs / arm / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_summary_counts_all_but_the_first_step(runs):
    summary = summary_of(runs)
    off, on = summary["off"], summary["on"]
    figures = {"rollout_s": (2.5, 2), "step_s": (5.5, 5), "decode_steps": (40, 30), "tokens": (80, 80)}
    figures |= {"tokens_per_step": (1, 80 / 70), "cpu_s": (3, 2)}
    assert {name: (off[name], on[name]) for name in figures} == {name: pytest.approx(figures[name]) for name in figures}
    of_drafts = {"drafted": 30, "accepted": 10, "acceptance_rate": 1 / 3, "switch_on_share": 1 / 3, "draft_ms": 0.2}
    assert {name: on[name] for name in of_drafts} == pytest.approx(of_drafts)
    assert off["acceptance_rate"] is None and off["switch_on_share"] is None
    assert off["rollout_s_per_step"] == pytest.approx([20.5, 2.5, 2.5])
    assert off["rewards"] == pytest.approx([-0.4, -0.3, -0.2]) and on["lengths"] == [13.0] * 3
    assert on["gain"]["round"] is None and on["round_s"] is None
    gains = {"rollout": 0.25, "step": 0.1, "rollout_per_token": 0.25, "tail": 1.0, "engine_steps": 1 / 3, "cpu": 0.5}
    assert {name: gain["gain"] for name, gain in on["gain"].items() if gain} == pytest.approx(gains)
    assert [summary[name] for name in ("pin_set", "tree_ids", "seed", "threshold")] == ["p", {"m": "t"}, 7, 2]
    lines = [" ".join(line.split()) for line in text_table(summary).splitlines()]
    assert lines[:2] == ["SAM off SAM on gain", "engine steps 40 30 -"]
    assert "engine's CPU time, ms per token 37.500 25.000 -" in lines


def test_a_metric_that_is_no_number_in_a_step_is_left_out_there(runs):
    """verl 0.9.1 logs NaN as null, verl 0.6.1 as NaN."""
    path = runs / "on" / "steps.jsonl"
    lines = path.read_text().splitlines()
    for at, value in ((1, None), (2, float("inf"))):
        row = json.loads(lines[at])
        changed = {"critic/rewards/mean": value if at == 1 else -0.2, "response_length/mean": value}
        row["data"] |= changed | {"rollout/spec/draft_ms": value, "rollout/spec/proposed_group": "x"}
        lines[at] = json.dumps(row)
    path.write_text("\n".join(lines) + "\n")
    summary = summary_of(runs)
    assert summary["on"]["rewards"] == pytest.approx([-0.4, None, -0.2]) and summary["on"]["draft_ms"] is None
    table = [" ".join(line.split()) for line in text_table(summary).splitlines()]
    assert "mean reward -0.250 -0.200" in table and "mean answer, tokens 13.0 -" in table
    for language in ("en", "zh"):
        assert "| 2 | -0.300 | - | 13.0 | - | 2.5 | 2.0 |" in markdown(summary, language)


def test_a_busy_machine_is_said_first(runs):
    """The load of the counted steps decides; the first step's load, while engines start, is left out."""

    def loaded(arm, *loads):
        recorded(runs, arm, load=dict(zip("123", loads, strict=True)))
        return summary_of(runs)

    quiet, noisy = {"others": 0.04, "steal": 0.0}, {"others": 0.46, "steal": 0.02}
    assert busy_loads(summary_of(runs)) is None, "runs without a record of it"
    loaded("off", noisy, quiet, quiet)
    summary = loaded("on", noisy, quiet, quiet)
    assert busy_loads(summary) is None and markdown(summary, "en").splitlines()[6] == "## All figures"
    summary = loaded("off", quiet, quiet, noisy)
    said = "The machine was busy: other processes used a share of its CPU time, 25% with SAM off"
    for language, beginning in (("en", said), ("zh", "机器当时繁忙")):
        assert markdown(summary, language).splitlines()[6].startswith(beginning)


def test_saving_a_checkpoint_is_no_part_of_a_step(runs):
    """verl 0.9.1 includes saving in a step's time; verl 0.6.1, whose steps have rounds, does not."""
    before = summary_of(runs)["off"]["step_s"]
    edit_steps(runs / "off", (2, 3), **{"timing_s/save_checkpoint": 0.5})
    assert summary_of(runs)["off"]["step_s"] == pytest.approx(before - 0.5)
    edit_steps(runs / "off", (2, 3), **{"train/num_gen_batches": 1})
    assert summary_of(runs)["off"]["step_s"] == pytest.approx(before)


def test_padding_counts_as_verified_but_not_for_acceptance(runs):
    spec("on", padding=5, padding_accepted=1)(runs)
    summary = summary_of(runs)
    assert summary["on"]["drafted"] == 30 and summary["on"]["acceptance_rate"] == pytest.approx(8 / 20)
    assert ["padding", "among", "them", "0", "10"] in [line.split() for line in text_table(summary).splitlines()]


def test_costs_of_steps_are_medians_and_steps_after_idleness_have_none():
    rows = [(0, 0.0, 0.0, 5, 5, 0, 0), *((0, 0.0, seconds, 5, 5, 0, 0) for seconds in (0.01, 0.02, 0.9))]
    rows += [(0, 0.0, 0.04, 8, 20, 24, 12), (1, 0.0, 0.05, 9, 9, 0, 0)]
    five, nine = step_costs(Run({}, [{}, {}], [[(0, 0.0, 7.0, 5, 5, 0, 0)], rows]), first=1)
    assert list(five.values()) == [5, 8, 3, 20, 1, 40, 2.5]
    assert (nine["min_running"], nine["max_running"], nine["plain_ms"], nine["drafted_ms"]) == (9, 16, 50, None)


def test_runs_without_a_tail_or_engine_log(runs):
    for arm in ("off", "on"):
        (runs / arm / "engine-0.jsonl").unlink()
        spec(arm, tail_s=0, tail_tokens=0)(runs)
    summary = summary_of(runs)
    assert summary["on"]["gain"]["tail"] is None and summary["on"]["step_costs"] == []
    assert "tail, ms per token" not in text_table(summary)


def test_a_step_logged_in_parts_is_one_step(runs):
    """Each step's line is cut in two parts, in either order, and one more part precedes the first step."""
    before = read_run(runs / "on")
    path = runs / "on" / "steps.jsonl"
    parts = [{"step": 0, "data": {"val/score": 0.5}}]
    for entry in map(json.loads, path.read_text().splitlines()):
        metrics = list(entry["data"].items())
        cut = [entry | {"data": dict(part)} for part in (metrics[:3], metrics[3:])]
        parts += cut[:: (-1) ** entry["step"]]
    path.write_text("".join(json.dumps(part) + "\n" for part in parts))
    assert read_run(runs / "on") == before


def test_replicas_are_merged_and_foreign_engine_rows_are_not_used(runs):
    folder = runs / "on"
    rows = (folder / "engine-0.jsonl").read_text().splitlines(keepends=True)
    for replica in (0, 1):
        (folder / f"engine-{replica}.jsonl").write_text("".join(rows[replica::2]))
    run = read_run(folder)
    assert [len(part) for part in run.engine] == [15, 15, 15]
    assert {row[0] for row in run.engine[1]} == {0, 1}
    (folder / "engine-1.jsonl").write_text("")
    assert read_run(folder).engine == []


def set_tokens(folder, tokens):
    for number, of_step in enumerate(tokens, 1):
        edit_steps(folder, (number,), **{"rollout/spec/tokens": of_step})


def test_replicas_that_go_on_while_they_are_counted(runs):
    """In an asynchronous trainer, a step's tokens may end within a row; still, each row belongs to one step."""
    set_tokens(runs / "on", (41, 39, 40))
    run = read_run(runs / "on")
    assert [len(part) for part in run.engine] == [16, 14, 15]
    assert len({row for part in run.engine for row in part}) == 45


def test_a_step_without_engine_rows(runs):
    """An asynchronous trainer may train only on answers of earlier steps, so that no engine runs in a step."""
    for arm in ("off", "on"):
        set_tokens(runs / arm, (40, 80, 0))
    assert [len(part) for part in read_run(runs / "on").engine] == [15, 30, 0]
    assert summary_of(runs)["on"]["gain"]["rollout_per_token"]["gain"] == pytest.approx(0.25)
    set_tokens(runs / "off", (40, 0, 80))
    assert summary_of(runs)["on"]["gain"]["rollout_per_token"] is None


def timed(folder, *seconds):
    """Return summary, gain and verdict of two runs: from step 2 on, rollouts took 2.5 s, and `seconds` with SAM."""
    for arm, sam in (("off", "off"), ("on", "batch")):
        write_run(folder / arm, sam, steps=1 + len(seconds))
    for number, of_step in enumerate(seconds, 2):
        edit_steps(folder / "on", (number,), **{"timing_s/gen": of_step})
    summary = summary_of(folder)
    said = words().verdict(summary, {**summary["on"], "name": "on"})
    return summary, summary["on"]["gain"]["rollout_per_token"], said


def test_a_gain_is_a_median_of_pairs_with_an_interval(tmp_path):
    """A step that other work slowed twentyfold distorts neither the gain nor its interval."""
    summary, gain, said = timed(tmp_path, 1.9, 1.95, 2.0, 2.05, 50.0, 2.1, 2.0, 1.9, 2.05)
    assert gain["gain"] == pytest.approx(2.5 / 2 - 1) and gain["shown"]
    assert 0 < gain["low"] < gain["gain"] < gain["high"] < 2.5 / 1.9
    assert summary == summary_of(tmp_path), "the same draws each time"
    assert said.startswith(
        "In training steps 2 to 10 on took 135 engine steps, SAM off 180, with 1.14 tokens per request and step."
    )
    tail = "The tail per token: +100.0% (95 % interval over steps +100.0% to +100.0%)."
    assert f"{tail} The rollout per token: +25.0%" in said


def test_no_gain_is_shown_whose_interval_includes_0(tmp_path):
    summary, gain, said = timed(tmp_path, 1.5, 3.5, 1.6, 3.4, 2.4, 3.3, 1.7)
    assert gain["low"] < 0 < gain["gain"] < gain["high"] and not gain["shown"]
    interval = f"its 95 % interval over steps, {gain['low']:+.1%} to {gain['high']:+.1%}, includes 0."
    assert f"rollout per token: no gain is shown, as {interval}" in said
    for text in (said, text_table(summary), markdown(summary, "en"), markdown(summary, "zh")):
        assert f"{gain['gain']:+.1%}" not in text


def test_a_loss_is_shown_and_no_gain_of_few_steps(tmp_path):
    assert timed(tmp_path, *[5.0] * 5)[1]["shown"]
    _, gain, said = timed(tmp_path, 2.0, 2.0, 2.0, 2.0)
    assert gain == {"gain": pytest.approx(0.25), "low": None, "high": None, "shown": False}
    assert "no gain is shown, as there are too few steps" in said


def record(**fields):
    return lambda runs: recorded(runs, "on", **fields)


def spec(arm, **changes):
    return lambda runs: edit_steps(runs / arm, (1, 2, 3), **{f"rollout/spec/{name}": x for name, x in changes.items()})


def text(file, content):
    return lambda runs: (runs / file).write_text(content)


REFUSED = [
    (record(seed=8), "the runs differ in seed: 7 off, 8 on"),
    (record(pin_set="q"), "the runs differ in pin_set"),
    (record(config={"verl": {"data": {"n": 4}}}), "the runs differ in config.verl; only sam and sam_options may"),
    (record(status="exit 1"), "is not a finished run: its run.json has status 'exit 1'"),
    (lambda runs: write_run(runs / "off", "off", steps=1), "differ in length: 1 training steps off, 3 on"),
    (spec("on", drafted=0, accepted=0), "it ran without speculation"),
    (text("off/run.json", "{"), "run.json is not JSON"),
    (lambda runs: (runs / "off/steps.jsonl").unlink(), "steps.jsonl has 0 training steps, expected "),
    (text("on/engine-0.jsonl", "[1, 2]\n"), "is not an engine step: it must have six numbers"),
    (text("on/answers-1.jsonl", "[1, 2]\n"), "answers-1.jsonl, line 1, is not an answer: it must"),
    (spec("on", drafted=float("nan")), "has no number for rollout/spec/drafted in step 1"),
    (spec("off", tokens=0), "the off run counted no tokens from tr"),
    (spec("off", drafted=15), "the off run verified 45 draft tokens"),
]


@pytest.mark.parametrize(("change", "sentence"), REFUSED, ids=[sentence for _, sentence in REFUSED])
def test_refuses_broken_runs_and_those_that_do_not_compare(runs, capsys, change, sentence):
    change(runs)
    arms = [f"--{arm}={runs / arm}" for arm in ("off", "on")]
    assert main(["report", *arms, "--out", str(runs / "report")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and sentence in error
    assert not (runs / "report").exists()


def compare_sampled(runs, change):
    """Return `sampled` of two runs (2 steps, 2 prompts, 2 answers of 3 tokens); `change` edits the second's answers."""
    off = {place: (f"h{place[1]}", [5, 6, 7], [-0.5, -0.25, -1.0]) for place in product((1, 2), (0, 1), (0, 1))}
    write_answers(runs / "off", off)
    on = off.copy()
    change(on)
    write_answers(runs / "on", dict([*on.items()][::2]))
    write_answers(runs / "on", dict([*on.items()][1::2]), name="answers-22.jsonl")
    return summary_of(runs)["on"]["sampled"]


def test_equal_answers_are_counted(runs):
    sampled = compare_sampled(runs, lambda on: None)
    row = {"answers": 4, "answers_equal": 4, "tokens": 12, "tokens_equal": 12, "log_prob_difference": 0.0}
    assert sampled["steps"] == [{"step": step, **row, "only_off": 0, "only_on": 0} for step in (1, 2)]
    assert sampled["first_difference"] is None
    assert words().equal_tokens(sampled, "SAM on") == "24 of 24 tokens sampled with SAM on equal those with SAM off."


@pytest.mark.parametrize(
    ("step", "log_probs", "cause", "reason"),
    [
        (1, [-0.5, -0.250002, -3.0], "forward", "the weights were the same, but a pass over several positions rounds"),
        (2, [-0.5, -0.251, -3.0], "training", "the weights of the two runs were no longer the same (log-prob"),
        (2, None, "unknown", "the runs logged no log-probabilities"),
    ],
)
def test_first_difference_is_located_and_explained(runs, step, log_probs, cause, reason):
    def change(on):
        on[step, 1, 0] = ("h1", [5, 6, 9, 9], log_probs and [*log_probs, -1.0])
        on[2, 1, 1] = ("h1", [8, 8], None)
        on[1, 0, 0] = ("h0", [5, 6, 7], log_probs and [-0.5, -0.250001, -1.0])
        if log_probs is None:
            on.update({place: (asked, tokens, None) for place, (asked, tokens, _) in on.items()})

    sampled = compare_sampled(runs, change)
    first = sampled["first_difference"]
    place = {"step": step, "prompt": 1, "answer": 0, "position": 2, "token_off": 7, "token_on": 9, "cause": cause}
    assert place.items() <= first.items()
    assert [row["tokens"] for row in sampled["steps"]] == [12 + (step == 1), 11 + (step == 2)]
    assert [row["tokens_equal"] for row in sampled["steps"]] == [12 - (step == 1), 9 - (step == 2)]
    assert (first["log_prob_off"], first["log_prob_on"]) == ((-1.0, -3.0) if log_probs else (-1.0, None))
    text = words().equal_tokens(sampled, "SAM on")
    assert f"training step {step}, prompt 1, answer 0, position 2" in text
    assert "token 7 (log-probability -1.0000000) off, token 9" in text and reason in text


def test_other_prompts_and_answers_of_one_run_alone(runs):
    def change(on):
        on[2, 0, 0] = ("h5", *on[2, 0, 0][1:])
        on[2, 2, 0] = on.pop((2, 1, 1))

    sampled = compare_sampled(runs, change)
    assert sampled["first_difference"]["cause"] == "prompts" and sampled["first_difference"]["position"] == 0
    counts = {"answers": 3, "answers_equal": 2, "tokens_equal": 6, "only_off": 1, "only_on": 1}
    assert counts.items() <= sampled["steps"][1].items()
    assert "the runs had different prompts there" in words().equal_tokens(sampled, "SAM on")
