# SPDX-License-Identifier: Apache-2.0
"""The comparison of two runs, on small run folders made here."""

import json

import pytest

from llm_rl.reports import compare

THRESHOLD = 2


def engine_rows(start, seconds, drafting):
    """One rollout of 3 requests and 40 tokens: 10 steps of 3, then 10 of 1 (5 of 2 tokens each when drafting)."""
    rows, now = [[start, 0.0, 0, 0, 0, 0]], start
    for running in [3] * 10 + [1] * (5 if drafting else 10):
        drafts = drafting and running <= THRESHOLD
        rows.append([now, seconds, running, running * (2 if drafts else 1), 3 * drafts, 1 * drafts])
        now += seconds
    return rows


def write_run(folder, sam, steps=3, engine=True, **record):
    """A run folder whose first training step is ten times as slow as the others."""
    on = sam != "off"
    folder.mkdir()
    run = {
        "pin_set": "p",
        "tree_ids": {"m": "t"},
        "seed": 7,
        "sam": sam,
        "threshold": THRESHOLD,
        "k": 3,
        "steps": steps,
    }
    (folder / "run.json").write_text(json.dumps(run | {"status": "ok"} | record))
    lines, rows, start = [], [], 1000.0
    for number in range(1, steps + 1):
        slow = 10 if number == 1 else 1
        of_step = engine_rows(start, 0.1 * slow, on)
        busy = sum(row[1] for row in of_step)
        start += busy + 5
        rows += of_step
        tail = [row for row in of_step if 0 < row[2] <= THRESHOLD]
        data = {
            "timing_s/gen": busy + 0.5,
            "timing_s/step": busy + 3.5,
            "critic/rewards/mean": -0.5 + 0.1 * number,
            "response_length/mean": 13.0,
            "rollout/spec/decode_steps": len(of_step) - 1,
            "rollout/spec/request_steps": sum(row[2] for row in of_step),
            "rollout/spec/tokens": sum(row[3] for row in of_step),
            "rollout/spec/drafted": sum(row[4] for row in of_step),
            "rollout/spec/accepted": sum(row[5] for row in of_step),
            "rollout/spec/tail_s": sum(row[1] for row in tail),
            "rollout/spec/tail_tokens": sum(row[3] for row in tail),
        }
        if on:
            data |= {"rollout/spec/switch_on_share": 1 / 3, "rollout/spec/draft_ms": 0.2}
        lines.append(json.dumps({"step": number, "data": data}))
    (folder / "steps.jsonl").write_text("".join(line + "\n" for line in lines))
    if engine:
        (folder / "engine-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def write_answers(folder, answers, name="answers-1.jsonl"):
    """`answers`: {(step, prompt, sibling): (prompt's hash, tokens, log-probabilities)}."""
    (folder / name).write_text("".join(json.dumps([*place, *answer]) + "\n" for place, answer in answers.items()))


def edit_step(folder, number, **changes):
    """Change metrics of one line of steps.jsonl; None takes a metric away."""
    path = folder / "steps.jsonl"
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    data = entries[number - 1]["data"] | changes
    entries[number - 1]["data"] = {name: value for name, value in data.items() if value is not None}
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def run_compare(tmp_path):
    return compare.main(
        ["--off", str(tmp_path / "off"), "--on", str(tmp_path / "on"), "--out", str(tmp_path / "report")]
    )


@pytest.fixture
def runs(tmp_path):
    write_run(tmp_path / "off", "off")
    write_run(tmp_path / "on", "batch")
    return tmp_path


def test_summary_counts_all_but_the_first_step(runs, capsys):
    assert run_compare(runs) == 0
    summary = json.loads((runs / "report" / "summary.json").read_text())
    off, on = summary["off"], summary["on"]
    assert off["rollout_s"] == pytest.approx(2.5) and on["rollout_s"] == pytest.approx(2.0)
    assert off["step_s"] == pytest.approx(5.5) and on["step_s"] == pytest.approx(5.0)
    assert off["rollout_s_per_step"] == pytest.approx([20.5, 2.5, 2.5])
    assert (off["decode_steps"], on["decode_steps"]) == (40, 30)
    assert (off["tokens"], on["tokens"]) == (80, 80)
    assert (on["drafted"], on["accepted"], on["acceptance_rate"]) == (30, 10, pytest.approx(1 / 3))
    assert off["tokens_per_step"] == 1 and on["tokens_per_step"] == pytest.approx(80 / 70)
    assert off["acceptance_rate"] is None and off["switch_on_share"] is None
    assert on["switch_on_share"] == pytest.approx(1 / 3) and on["draft_ms"] == pytest.approx(0.2)
    assert off["rewards"] == pytest.approx([-0.4, -0.3, -0.2]) and on["lengths"] == [13.0] * 3
    assert summary["gain"] == pytest.approx({"rollout": 0.25, "step": 0.1, "rollout_per_token": 0.25, "tail": 1.0})
    assert summary["decode_steps_ratio"] == pytest.approx(4 / 3)
    assert summary["tail_speedup"] == pytest.approx(2) and summary["tail_speedup_is_per_token"]
    assert {name: summary[name] for name in ("pin_set", "tree_ids", "seed", "threshold", "k")} == {
        "pin_set": "p",
        "tree_ids": {"m": "t"},
        "seed": 7,
        "threshold": 2,
        "k": 3,
    }
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["SAM", "off", "SAM", "on", "gain"]
    assert lines[1].split()[-3:] == ["2.50", "2.00", "+25.0%"]


def test_writes_three_files_and_nothing_else(runs):
    assert run_compare(runs) == 0
    assert sorted(path.name for path in (runs / "report").iterdir()) == ["report.md", "report.png", "summary.json"]
    assert (runs / "report" / "report.png").read_bytes().startswith(b"\x89PNG")
    text = (runs / "report" / "report.md").read_text()
    assert "| rollout, s a training step | 2.50 | 2.00 | +25.0% |" in text
    assert "training steps 2 to 3 (the first one starts the engine and is left out)" in text


def test_tail_is_compared_per_token(runs):
    """The off run's tail here has twice the tokens in the time they take: nothing changes but the length."""
    for number in (2, 3):
        edit_step(runs / "off", number, **{"rollout/spec/tail_s": 2.0, "rollout/spec/tail_tokens": 20})
    assert run_compare(runs) == 0
    assert json.loads((runs / "report" / "summary.json").read_text())["tail_speedup"] == pytest.approx(2)


def test_runs_without_tail_tokens_or_engine_log(tmp_path):
    for name, sam in (("off", "off"), ("on", "batch")):
        folder = write_run(tmp_path / name, sam, engine=False)
        for number in (1, 2, 3):
            edit_step(folder, number, **{"rollout/spec/tail_tokens": None})
    assert run_compare(tmp_path) == 0
    summary = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert summary["tail_speedup"] == pytest.approx(2) and not summary["tail_speedup_is_per_token"]
    assert summary["on"]["tail_tokens"] is None


def test_a_single_training_step_counts(tmp_path):
    write_run(tmp_path / "off", "off", steps=1)
    write_run(tmp_path / "on", "batch", steps=1)
    assert run_compare(tmp_path) == 0
    assert json.loads((tmp_path / "report" / "summary.json").read_text())["first_step_counted"] == 1


def test_engine_rows_are_cut_into_training_steps(runs):
    run = compare.read_run(runs / "on")
    assert [len(part) for part in run.engine] == [15, 15, 15]
    assert [sum(row[4] for row in part) for part in run.engine] == [40, 40, 40]
    assert all(part[0][3] == 3 and part[-1][3] == 1 for part in run.engine)


def test_replicas_are_merged_and_foreign_engine_rows_are_not_used(runs):
    folder = runs / "on"
    rows = [json.loads(line) for line in (folder / "engine-0.jsonl").read_text().splitlines()]
    for replica, of_replica in enumerate((rows[0::2], rows[1::2])):
        (folder / f"engine-{replica}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in of_replica))
    run = compare.read_run(folder)
    assert [len(part) for part in run.engine] == [15, 15, 15]
    assert {row[0] for row in run.engine[1]} == {0, 1}
    (folder / "engine-1.jsonl").write_text("")
    assert compare.read_run(folder).engine == []


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({"seed": 8}, "the runs differ in seed: 7 off, 8 on"),
        ({"pin_set": "q"}, "the runs differ in pin_set"),
        ({"tree_ids": {"m": "u"}}, "the runs differ in tree_ids"),
        ({"threshold": 8}, "the runs differ in threshold"),
        ({"config": {"verl": {"data": {"n": 4}}}}, "the runs differ in config.verl; only sam and sam_options may"),
        ({"status": "exit 1"}, "is no finished run: its run.json has status 'exit 1'"),
    ],
)
def test_refuses_runs_that_do_not_compare(tmp_path, capsys, record, sentence):
    write_run(tmp_path / "off", "off")
    write_run(tmp_path / "on", "batch", **record)
    assert_refused(tmp_path, capsys, sentence)


def test_names_the_setting_that_differs(tmp_path, capsys):
    write_run(tmp_path / "off", "off", config={"sam": "off", "verl": {"data": {"n": 4, "m": 1}}})
    write_run(tmp_path / "on", "batch", config={"sam": "batch", "verl": {"data": {"n": 8, "m": 1}}})
    assert_refused(tmp_path, capsys, "the runs differ in config.verl.data.n;")


def test_refuses_runs_of_different_length(tmp_path, capsys):
    write_run(tmp_path / "off", "off", steps=2)
    write_run(tmp_path / "on", "batch")
    assert_refused(tmp_path, capsys, "the runs differ in length: 2 training steps off, 3 on")


def test_refuses_a_short_step_log(runs, capsys):
    path = runs / "on" / "steps.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    assert_refused(runs, capsys, "steps.jsonl has 2 training steps where 3 belong")


def test_refuses_an_on_run_that_never_speculated(tmp_path, capsys):
    write_run(tmp_path / "off", "off")
    write_run(tmp_path / "on", "off")
    assert_refused(tmp_path, capsys, "speculation was silently absent")


def test_refuses_an_off_run_that_speculated(tmp_path, capsys):
    write_run(tmp_path / "off", "batch")
    write_run(tmp_path / "on", "batch")
    assert_refused(tmp_path, capsys, "the off run verified 45 draft tokens")


def test_refuses_a_run_without_tokens(runs, capsys):
    for number in (2, 3):
        edit_step(runs / "off", number, **{"rollout/spec/tokens": 0})
    assert_refused(runs, capsys, "the off run counted no tokens from training step 2 on")


@pytest.mark.parametrize("name", ["run.json", "steps.jsonl"])
def test_refuses_missing_and_broken_files(runs, capsys, name):
    path = runs / "off" / name
    path.write_text(path.read_text()[:-30])
    assert_refused(runs, capsys, "not JSON")
    path.unlink()
    assert_refused(runs, capsys, f"{name} cannot be read: No such file or directory")


@pytest.mark.parametrize("value", [None, "fast", float("nan")])
def test_refuses_a_step_without_a_needed_number(runs, capsys, value):
    edit_step(runs / "on", 2, **{"timing_s/gen": value})
    assert_refused(runs, capsys, "steps.jsonl, line 2, has no number for timing_s/gen")


def test_refuses_a_broken_engine_log(runs, capsys):
    with (runs / "on" / "engine-0.jsonl").open("a") as file:
        file.write("[1, 2]\n")
    assert_refused(runs, capsys, "is not an engine step: six numbers belong there")


def test_without_answers_the_texts_are_called_different(runs, capsys):
    assert run_compare(runs) == 0
    assert json.loads((runs / "report" / "summary.json").read_text())["sampled"] is None
    assert "sample different answers" in (runs / "report" / "report.md").read_text()
    assert "sampled with SAM on equal" not in capsys.readouterr().out


def sampled_alike():
    """Two steps of two prompts with two answers of three tokens."""
    places = [(step, prompt, sibling) for step in (1, 2) for prompt in (0, 1) for sibling in (0, 1)]
    return {place: (f"h{place[1]}", [5, 6, 7], [-0.5, -0.25, -1.0]) for place in places}


def compare_sampled(runs, change):
    """The comparison's `sampled`, of a run and one whose answers `change` has changed; report.md and what was printed."""
    on = sampled_alike()
    change(on)
    write_answers(runs / "off", sampled_alike())
    half = len(on) // 2
    write_answers(runs / "on", dict(list(on.items())[:half]))
    write_answers(runs / "on", dict(list(on.items())[half:]), name="answers-22.jsonl")
    assert run_compare(runs) == 0
    return json.loads((runs / "report" / "summary.json").read_text())["sampled"]


def test_equal_answers_are_counted(runs, capsys):
    sampled = compare_sampled(runs, lambda on: None)
    row = {"answers": 4, "answers_equal": 4, "tokens": 12, "tokens_equal": 12, "log_prob_difference": 0.0}
    assert sampled["steps"] == [{"step": step, **row, "only_off": 0, "only_on": 0} for step in (1, 2)]
    assert sampled["first_difference"] is None
    text = "24 of 24 tokens sampled with SAM on equal those with it off."
    assert text + "\n" in capsys.readouterr().out
    report = (runs / "report" / "report.md").read_text()
    assert text in report and "| 2 | 4 | 4 | 12 | 12 | 0.0e+00 | 0 | 0 |" in report
    assert "sample different answers" not in report


@pytest.mark.parametrize(
    ("step", "log_probs", "cause", "why"),
    [
        (1, [-0.5, -0.250002, -3.0], "forward", "the weights were the same, but a pass over several positions rounds"),
        (2, [-0.5, -0.250002, -3.0], "forward", "the weights were the same"),
        (2, [-0.5, -0.251, -3.0], "training", "the weights of the two runs were no longer the same (log-prob"),
        (2, None, "unknown", "the runs logged no log-probabilities"),
    ],
)
def test_first_difference_is_located_and_explained(runs, capsys, step, log_probs, cause, why):
    def change(on):
        on[step, 1, 0] = ("h1", [5, 6, 9, 9], log_probs and [*log_probs, -1.0])
        on[2, 1, 1] = ("h1", [8, 8], None)
        on[1, 0, 0] = ("h0", [5, 6, 7], log_probs and [-0.5, -0.250001, -1.0])
        if log_probs is None:
            for place, (asked, tokens, _) in on.items():
                on[place] = (asked, tokens, None)

    sampled = compare_sampled(runs, change)
    first = sampled["first_difference"]
    assert {name: first[name] for name in ("step", "prompt", "answer", "position", "token_off", "token_on")} == {
        "step": step,
        "prompt": 1,
        "answer": 0,
        "position": 2,
        "token_off": 7,
        "token_on": 9,
    }
    assert first["cause"] == cause
    assert [row["tokens"] for row in sampled["steps"]] == [12 + (step == 1), 11 + (step == 2)]
    assert [row["tokens_equal"] for row in sampled["steps"]] == [12 - (step == 1), 9 - (step == 2)]
    printed = capsys.readouterr().out
    assert f"training step {step}, prompt 1, answer 0, position 2" in printed
    assert "token 7 off, token 9 on" in printed and why in printed


def test_other_prompts_and_answers_of_one_run_alone(runs, capsys):
    def change(on):
        on[2, 0, 0] = ("h5", *on[2, 0, 0][1:])
        on[2, 2, 0] = on.pop((2, 1, 1))

    sampled = compare_sampled(runs, change)
    assert sampled["first_difference"]["cause"] == "prompts" and sampled["first_difference"]["position"] == 0
    row = sampled["steps"][1]
    assert [row[name] for name in ("answers", "answers_equal", "tokens_equal", "only_off", "only_on")] == [
        3,
        2,
        6,
        1,
        1,
    ]
    assert "the runs asked different prompts there" in capsys.readouterr().out


def test_answer_that_ends_early_differs_at_its_end(runs, capsys):
    def change(on):
        on[1, 0, 1] = ("h0", [5, 6], [-0.5, -0.25])

    first = compare_sampled(runs, change)["first_difference"]
    assert (first["position"], first["token_off"], first["token_on"]) == (2, 7, None)
    assert "token 7 off, the end on" in capsys.readouterr().out


def test_refuses_broken_answers(runs, capsys):
    (runs / "on" / "answers-1.jsonl").write_text("[1, 2]\n")
    assert_refused(runs, capsys, "answers-1.jsonl, line 1, is not an answer: six values belong there")


def assert_refused(folder, capsys, sentence):
    assert run_compare(folder) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert sentence in error
    assert not (folder / "report").exists()
