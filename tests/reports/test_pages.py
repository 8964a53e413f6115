# SPDX-License-Identifier: Apache-2.0
"""The report's pages for complete and incomplete run folders, in both languages, as Markdown and as HTML."""

import re
from xml.etree import ElementTree

import pytest
from run_folders import edit_steps, write_answers, write_run

from llm_rl.reports.__main__ import load
from llm_rl.reports.pages import markdown, page, table

ARMS = ("off", "on", "auto")


@pytest.fixture
def runs(tmp_path):
    for arm, sam in (("off", "off"), ("on", "batch"), ("auto", "auto")):
        write_run(tmp_path / arm, sam, steps=6)
        logged = {"train/num_gen_batches": 2, "timing_s/generate_sequences": 1.25 if sam == "off" else 1.0}
        edit_steps(tmp_path / arm, range(1, 7), **logged)
        answers = {(1, 0, sibling): ("h", [5, 6, 7 + (arm == "auto")], [-0.5, -0.25, -1.0]) for sibling in (0, 1)}
        write_answers(tmp_path / arm, answers)
    return tmp_path


def text_of(folder, language="en", arms=ARMS):
    summary, _ = load({arm: folder / arm for arm in arms})
    return markdown(summary, language)


def test_tables_have_the_figures_of_the_runs(runs):
    text = text_of(runs)
    for part in (
        "| SAM off | 1.25 | 2.50 | 5.50 |",  # the three columns of the article: round, rollout, step
        "| gain, SAM on | +25.0% (+25.0% .. +25.0%) | +25.0% (+25.0% .. +25.0%) | +10.0% (+10.0% .. +10.0%) |",
        "training steps 2 to 6 (the first one starts the engine and is excluded)",
        "| rollout, s per training step | 2.50 | 2.00 | +25.0% (+25.0% .. +25.0%) | 2.00 | +25.0% (",
        "SAM on, the tail per token: +100.0% (95 % interval over steps +100.0% to +100.0%).",
        "| 1,024 and more | 5 | 3.000 | 5 | 3.000 |",
        "| 1 | 50 | 100.00 | 25 | 100.00 | 2.000 | 2.00 |",
        "SAM on: drafting took 0.200 ms of host time per engine step",
        "| `request` | 60 | 25 | 41.7% | 60 | 25 | 41.7% |",
        "SAM on: texts and indexes used at most 6.0 MiB",
        "| 2 | -0.300 | -0.300 | -0.300 | 13.0 | 13.0 | 13.0 | 2.5 | 2.0 | 2.0 |",
        "| 1e-07 | 180 | 75.00% | 180 | 75.00% | 180 | 75.00% |\n| 1e-06 | 60 | 100.00% | 54 | 97.50% |",
        "| 54 | 97.50% |\n| inf | 0 | 100.00% | 6 | 100.00% | 6 | 100.00% |\n\n",
        "6 of 6 tokens sampled with SAM on equal those with SAM off.",
        "4 of 6 tokens sampled with SAM auto equal those with SAM off. The first different token: training step 1",
        "| switch | off | batch | auto |",
    ):
        assert part in text
    assert not re.search("resumed|Missing|No mean round", text)


def test_a_section_without_data_says_what_is_missing(tmp_path):
    for arm, sam in (("off", "off"), ("on", "batch")):
        folder = write_run(tmp_path / arm, sam, engine=False)
        names = ("steps_from_0", "steps_from_1024", "proposed_request", "proposed_group", "index_bytes", "draft_ms")
        gone = [f"rollout/spec/{name}" for name in names]
        gone += [f"rollout_corr/log_prob_diff/{bound}/total" for bound in ("1e-07", "1e-06", "inf")]
        edit_steps(folder, (1, 2, 3), **dict.fromkeys(gone))
    text = text_of(tmp_path, arms=("off", "on"))
    for missing in (
        "no `engine-*.jsonl` that matches its step log",
        "no step log has `rollout/spec/steps_from_*`",
        "no step log has `rollout/spec/proposed_*`",
        "SAM on logged no `rollout/spec/index_bytes`",
        "the runs off and SAM on did not both log their answers",
        "a step log has no `rollout_corr/log_prob_diff/*`",
        "No mean round: this trainer does not generate in rounds",
    ):
        assert missing in text
    assert "The runs sample different answers" in text and "drafting took" not in text
    assert re.findall(r"pictures/\w+", text) == ["pictures/times", "pictures/training"]


ARTICLE = {"name": "dapo-qwen3-32b-32die", "config": {"model": {"path": "/m/Qwen3-32B"}}}
ARTICLE["config"]["cluster"] = {"nodes": 2, "dies_per_node": 16, "device": "npu"}


def test_a_report_begins_with_what_it_found_and_with_what_ran(tmp_path):
    """The article's seconds are shown next to the run's if the recipe is the article's."""
    for arm, sam in (("off", "off"), ("on", "batch")):
        write_run(tmp_path / arm, sam, **ARTICLE)
    text = text_of(tmp_path, arms=("off", "on"))
    lines = text.splitlines()
    found = "In training steps 2 to 3 SAM on took 30 engine steps, SAM off 40, with 1.14 tokens per request and step."
    assert lines[2].startswith(found)
    assert lines[4] == "Recipe dapo-qwen3-32b-32die, model Qwen3-32B, 2 x 16 npu, pin set p, k = 3, 3 training steps."
    assert "| the article, off | 3,904.22 | 4,159.06 | 4,730.86 |" in lines
    assert "| the article, gain | +10.02% | +9.64% | +8.13% |" in lines


def test_a_resumed_run_says_so(tmp_path):
    write_run(tmp_path / "off", "off", attempts=[{"after_step": 0}])
    write_run(tmp_path / "on", "batch", attempts=[{"after_step": n} for n in (0, 1, 2)])
    text = text_of(tmp_path, arms=("off", "on"))
    assert "| resumed after steps (the next one is slower) | - | 1, 2 |" in text and "the article, off" not in text


def test_both_languages_say_the_same(runs):
    """Both have the same figures and pictures; no Chinese in English; some in each Chinese line but tables."""
    english, chinese = texts = [text_of(runs, language) for language in ("en", "zh")]
    numbers = [[re.findall(r"[\d.]+", row) for row in re.findall(r"^\|.*", text, re.MULTILINE)] for text in texts]
    assert numbers[0] == numbers[1]
    assert re.findall(r"\]\(.*?\)", english) == [each.replace(".zh", "") for each in re.findall(r"\]\(.*?\)", chinese)]
    assert not re.search(r"[\u4e00-\u9fff]", english)
    for line in re.findall(r"^[^|\n].*", chinese, re.MULTILINE):
        assert re.search(r"[\u4e00-\u9fff]", line), line


@pytest.mark.parametrize("language", ["en", "zh"])
def test_html_is_whole_and_loads_nothing(runs, language):
    summary, _ = load({arm: runs / arm for arm in ARMS})
    content = markdown(summary, language)
    names = re.findall(r"\]\((.*?)\)", content)
    text = page(content, language, {name: b"<svg/>" for name in names}, {"other": "other.html"})
    closed = re.sub(r"<(meta|img)([^>]*)>", r"<\1\2/>", text.removeprefix("<!doctype html>"))
    tags = [*ElementTree.fromstring(closed).iter()]
    assert [tag.attrib["href"] for tag in tags if "href" in tag.attrib] == ["other.html"]
    loads = [value for tag in tags for name, value in tag.attrib.items() if name.startswith("src") or tag.tag == "link"]
    assert len(names) == 4 and loads == ["data:image/svg+xml;base64,PHN2Zy8+"] * 4
    assert f'<html lang="{language}">' in text and text.count("<table>") == content.count("\n| --- |") == 11
    assert not re.search(r"@import|url\(|<script", text)


def test_texts_are_escaped():
    content = "# a < b\n\n<b>`x & y`\n\n" + table("| head |", [["h|h"], ["1 < 2"]])
    text = page(content, "en", {}, {})
    assert "<title>a &lt; b</title>" in text and "&lt;b&gt;<code>x &amp; y</code>" in text and "1 &lt; 2" in text
    assert "| h\\|h |" in content and "<td>h|h</td>" in text
