# SPDX-License-Identifier: Apache-2.0
"""Makes the collection importable as Ansible imports it, ansible_collections.sam_rl.ascend.plugins, and runs plays."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ansible.plugins.loader import init_plugin_loader

ANSIBLE = Path(__file__).resolve().parents[2]
init_plugin_loader([str(ANSIBLE / "collections")])


def program(path, text):
    """Write a shell program."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def play(tmp_path):
    """play(plays, *words, hosts=None, path="", **settings): (exit status, words that Ansible said) of plays on this
    machine.

    words: of ansible-playbook, such as --inventory (default: localhost alone); hosts: those of the group npu_hosts;
    path: a folder of programs that go first.
    """

    def run(plays, *words, hosts=None, path="", **settings):
        file = tmp_path / "play.yml"
        if hosts:
            group = {"hosts": hosts, "vars": {"ansible_python_interpreter": sys.executable}}
            (tmp_path / "hosts.json").write_text(json.dumps({"npu_hosts": group}))
            words = [f"--inventory={tmp_path / 'hosts.json'}", *words]
        file.write_text(json.dumps([{"hosts": "all", "gather_facts": False, **play} for play in plays]))
        if not any(str(word).startswith("--inventory") for word in words):
            settings.setdefault("ansible_python_interpreter", sys.executable)
            words = ["--inventory=localhost,", *words]
        program = [Path(sys.executable).parent / "ansible-playbook", "--connection=local"]
        environment = {"ANSIBLE_CONFIG": str(ANSIBLE / "ansible.cfg"), "PATH": f"{path}:{os.environ['PATH']}"}
        command = [*program, *words, "-e", json.dumps(settings), file]
        done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
        return done.returncode, " ".join(done.stdout.split())

    return run


@pytest.fixture
def as_root():
    """For roles that make files of root."""
    if os.geteuid() != 0:
        pytest.skip("the role makes files of root")
