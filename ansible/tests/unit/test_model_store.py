# SPDX-License-Identifier: Apache-2.0
"""Which files count as a complete copy, with a program in place of rsync."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

ANSIBLE = Path(__file__).resolve().parents[2]
TASKS = ANSIBLE / "roles/model_store/tasks"
RSYNC = """#!/bin/sh
# Copies like rsync; with the file `cut` beside it, one file, and then it fails.
while [ $# -gt 2 ]; do shift; done
[ ! -e "$0.cut" ] || { cp "$1first" "$2"; echo cut >&2; exit 30; }
rm -rf "$2"* && cp "$1"* "$2"
"""


@pytest.fixture
def stage(tmp_path):
    """Copies the item `m` from a source, its first file alone if `cut`; the texts of its files."""
    if os.geteuid() != 0:
        pytest.skip("the role makes files of root")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "rsync").write_text(RSYNC)
    (programs / "rsync").chmod(0o755)
    variables = yaml.safe_load((TASKS / "main.yml").read_text())[-1]["vars"]
    task = {"include_role": {"name": "model_store", "tasks_from": "item"}, "vars": variables}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "tasks": [task]}]))
    words = [Path(sys.executable).parent / "ansible-playbook", "--connection=local", "--inventory", "localhost,"]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ANSIBLE / "ansible.cfg")}
    environment["PATH"] = f"{programs}:{environment['PATH']}"

    def run(source, cut=False):
        settings = {"work_dir": str(tmp_path / "work"), "cluster_interface": "lo"}
        settings |= {"ansible_python_interpreter": sys.executable}
        settings |= {"model_store_item": {"name": "m", "source": str(tmp_path / source), "gb": 0.0}}
        (programs / "rsync.cut").touch() if cut else (programs / "rsync.cut").unlink(missing_ok=True)
        done = subprocess.run(
            [*words, "-e", json.dumps(settings), tmp_path / "play.yml"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == (2 if cut else 0), done.stdout
        return [(tmp_path / "work/m" / name).read_text() for name in ("first", "second")]

    return run


def test_a_copy_that_another_one_was_begun_over_is_not_complete(stage, tmp_path):
    for folder, text in (("a", "a"), ("b", "b"), ("work/m", "a")):
        (tmp_path / folder).mkdir(parents=True)
        for name in ("first", "second"):
            (tmp_path / folder / name).write_text(text)
    (tmp_path / "work/m.complete").write_text(f"{tmp_path}/a\n")
    assert stage("b", cut=True) == ["b", "a"]
    assert stage("a") == ["a", "a"]


@pytest.mark.parametrize(
    ("complete", "file", "copies"), [("/a", "/m/f", False), ("/b", "/m/f", True), ("/a", "", True)]
)
def test_what_is_copied(complete, file, copies):
    """What has another source's record, or none, or no file."""
    loader = DataLoader()
    (block,) = (
        task
        for task in loader.load_from_file(str(TASKS / "item.yml"), trusted_as_template=True)
        if "block" in task and "Copy" in task["name"]
    )
    values = {"model_store_item": {"source": "/a"}, "model_store_complete": complete, "model_store_file": file}
    templar = Templar(loader, variables=values)
    assert all(templar.template(trust_as_template(f"{{{{ {one} }}}}")) for one in block["when"]) is copies
