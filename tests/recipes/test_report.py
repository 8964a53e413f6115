# SPDX-License-Identifier: Apache-2.0
"""The report's files and pictures for small run folders; tests/reports tests their text."""

import base64
import json
import re
from xml.etree import ElementTree

import pytest
from run_folders import edit_steps, write_run

from llm_rl.reports.__main__ import main

PICTURES = ("acceptance", "rollout", "times", "training")


def report(folder, *arms):
    for arm in arms:
        write_run(folder / arm, {"on": "batch"}.get(arm, arm))
    return [*(f"--{arm}={folder / arm}" for arm in arms), "--out", str(folder / "report")]


def test_writes_the_report_and_nothing_else(tmp_path, capsys):
    args = report(tmp_path, "off", "on", "auto")
    folder = tmp_path / "report"
    (folder / "pictures").mkdir(parents=True)
    for name in ("pictures/kept.svg", "report.md", "kept.txt"):
        (folder / name).touch()
    assert main(["report", *args]) == 0
    drawn = {suffix: {f"pictures/{name}{suffix}.svg" for name in PICTURES} for suffix in ("", ".zh")}
    pages = {f"report{suffix}" for suffix in (".html", ".md", ".zh.html", ".zh.md")}
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert files.keys() == {*pages, "summary.json", "kept.txt", "pictures/kept.svg", *drawn[""], *drawn[".zh"]}
    assert json.loads(files["summary.json"]).keys() >= {"off", "on", "auto"}
    for suffix, names in drawn.items():
        assert set(re.findall(r"\]\((.*?)\)", files[f"report{suffix}.md"].decode())) == names
        inline = re.findall(r'base64,([^"]*)"', files[f"report{suffix}.html"].decode())
        assert {base64.b64decode(data) for data in inline} == {files[name] for name in names}
        for name in names:
            labels = "".join(ElementTree.fromstring(files[name]).itertext())
            assert bool(re.search("[\u4e00-\u9fff]", labels)) == bool(suffix), name
            assert bool(re.search(r"\b(step|seconds|mean|running)\b", labels)) != bool(suffix), name
    lines = capsys.readouterr().out.splitlines()
    for line, arm in zip(lines, ("on", "auto"), strict=False):
        assert line.startswith(f"In training steps 2 to 3 SAM {arm} took 30 engine steps, SAM off 40")
    assert lines[3].split() == ["engine", "steps", "40", "30", "-", "30", "-"] and lines[-1].startswith("report: ")


def test_a_last_step_in_which_no_engine_ran(tmp_path):
    """An asynchronous trainer may end with a step without tokens; the picture of requests shows the step before."""
    args = report(tmp_path, "off", "on")
    for arm in ("off", "on"):
        edit_steps(tmp_path / arm, (2,), **{"rollout/spec/tokens": 80})
        edit_steps(tmp_path / arm, (3,), **{"rollout/spec/tokens": 0})
    assert main(["report", *args]) == 0
    assert (tmp_path / "report" / "pictures" / "rollout.svg").exists()


def test_the_article_s_curves_stand_next_to_the_run_s(tmp_path):
    args = report(tmp_path, "off", "on")
    folder, drawn = tmp_path / "report", []
    for option in ([], ["--article"]):
        assert main(["report", *args, *option]) == 0
        drawn.append({(path.stem, path.read_bytes()) for path in (folder / "pictures").iterdir()})
        for text in ((folder / name).read_text() for name in ("report.md", "report.zh.md")):
            assert ("1434 s" in text and "1.35" in text and "cann-recipes-train" in text) == bool(option)
    changed = {"acceptance", "rollout", "training"}
    assert {name for name, _ in drawn[1] - drawn[0]} == changed | {f"{name}.zh" for name in changed}


def test_poor_run_folders_make_a_report_too(tmp_path):
    args = report(tmp_path, "off")
    folder = write_run(tmp_path / "on", "batch", steps=3, engine=False)
    names = ("steps_from_0", "steps_from_1024", "proposed_request", "proposed_group", "index_bytes")
    edit_steps(folder, (1, 2, 3), **{f"rollout/spec/{name}": None for name in names})
    edit_steps(folder, (2,), **dict.fromkeys(("critic/rewards/mean", "response_length/mean"), float("nan")))
    assert main(["report", f"--on={folder}", *args]) == 0
    assert {path.stem for path in (tmp_path / "report" / "pictures").glob("*.zh.svg")} == {"times.zh", "training.zh"}


def test_a_run_with_speculation_is_needed(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["report", *report(tmp_path, "off")])
    assert "give --on RUN_DIR, --auto RUN_DIR, or both" in capsys.readouterr().err


def test_nothing_is_left_where_the_report_cannot_be_written(tmp_path, capsys):
    args = report(tmp_path, "off", "on")
    (tmp_path / "report").write_text("a file")
    assert main(["report", *args]) == 1
    assert "error: the report cannot be written to" in capsys.readouterr().err
    assert (tmp_path / "report").read_text() == "a file"
