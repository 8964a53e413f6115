# SPDX-License-Identifier: Apache-2.0
"""Tests which files count as a complete copy; a program stands in for rsync."""

import hashlib
import os

import pytest
from conftest import program
from role_files import read, rendered, tasks

RSYNC = """
# Copies like rsync; with the file `cut` next to it, one file, and then it fails.
while [ $# -gt 2 ]; do shift; done
[ ! -e "$0.cut" ] || { cp "$1first" "$2"; echo cut >&2; exit 30; }
rm -rf "$2"* && cp "$1"* "$2"
"""
ITEM = {"include_role": {"name": "model_store", "tasks_from": "item"}}
PLAYS = [{"tasks": [{**ITEM, "vars": read("model_store/tasks/main.yml")[-1]["vars"]}]}]


def test_a_copy_that_another_one_was_begun_over_is_not_complete(play, as_root, tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    program(programs / "rsync", RSYNC)
    for folder, text in (("a", "a"), ("b", "b"), ("work/m", "a")):
        (tmp_path / folder).mkdir(parents=True)
        for name in ("first", "second"):
            (tmp_path / folder / name).write_text(text)
    (tmp_path / "work/m.complete").write_text(f"{tmp_path}/a\n")

    def stage(source, status):
        one = {"name": "m", "source": str(tmp_path / source), "gb": 0.0}
        done = play(PLAYS, path=programs, work_dir=str(tmp_path / "work"), model_store_item=one)
        assert done[0] == status, done[1]
        return [(tmp_path / "work/m" / name).read_text() for name in ("first", "second")]

    (programs / "rsync.cut").touch()
    assert stage("b", 2) == ["b", "a"]
    (programs / "rsync.cut").unlink()
    assert stage("a", 0) == ["a", "a"]


@pytest.mark.parametrize(
    ("complete", "file", "copies"), [("/a", "/m/f", False), ("/b", "/m/f", True), ("/a", "", True)]
)
def test_what_is_copied(complete, file, copies):
    """A model is copied if it has no record, if its record names another source, or if its folder has no file."""
    (block,) = (task for name, task in tasks("model_store/tasks/item.yml").items() if name.startswith("Copy"))
    values = {"model_store_item": {"source": "/a"}, "model_store_complete": complete, "model_store_file": file}
    assert all(rendered(one, **values) for one in block["when"]) is copies


def test_files_are_compared_with_the_manifest_when_they_change(play, as_root, tmp_path):
    folder, manifest = tmp_path / "work/m", tmp_path / "sums"
    folder.mkdir(parents=True)
    for name in ("one", "a b"):
        (folder / name).write_text(name)
    manifest.write_text("".join(f"{hashlib.sha256(n.encode()).hexdigest()}  {n}\n" for n in ("one", "a b")))

    def said(status):
        one = {"name": "m", "gb": 0.0, "manifest": str(manifest)}
        done = play(PLAYS, work_dir=str(tmp_path / "work"), model_store_item=one)
        assert done[0] == status, done[1]
        return done[1]

    said(0)
    record = os.stat(f"{folder}.verified").st_ino
    said(0)
    assert os.stat(f"{folder}.verified").st_ino == record, "read again"
    (folder / "a b").write_text("changed")
    assert "localhost: 1 files of m differ from the manifest (first: a b: FAILED), expected none: remove" in said(2)
    (folder / "a b").unlink()
    assert "(first: a b: FAILED open or read)" in said(2)
    sums = manifest.read_text()
    for line in ("no sums", f"{'0' * 64}  /etc/hosts"):
        manifest.write_text(f"{sums}{line}\n")
        assert "m cannot be compared with its manifest (line 3 is not `sha256 path` with a path in the" in said(2)
