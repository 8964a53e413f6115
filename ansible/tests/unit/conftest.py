# SPDX-License-Identifier: Apache-2.0
"""Make the collection importable as ansible_collections.sam_rl.ascend.plugins, as in Ansible, and run plays."""

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
    """play(plays, *words, hosts=None, path="", **settings) runs plays on this machine; returns (exit status, output).

    words: arguments of ansible-playbook, such as --inventory (default: only localhost); hosts: the hosts of the group
    npu_hosts; path: a folder that is put first in PATH.
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
    """Skip the test unless it runs as root: the role creates files that root owns."""
    if os.geteuid() != 0:
        pytest.skip("the role makes files of root")
