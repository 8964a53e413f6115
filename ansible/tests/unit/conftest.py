# SPDX-License-Identifier: Apache-2.0
"""Make the collection importable as ansible_collections.sam_rl.ascend.plugins, as in Ansible, and run plays."""

import json
import multiprocessing
import os
import sys
from pathlib import Path

import pytest

ANSIBLE = Path(__file__).resolve().parents[2]
os.environ["ANSIBLE_CONFIG"] = str(ANSIBLE / "ansible.cfg")  # Ansible reads it when it is imported

from ansible.cli.playbook import PlaybookCLI  # noqa: E402
from ansible.plugins.loader import init_plugin_loader  # noqa: E402

init_plugin_loader([str(ANSIBLE / "collections")])

FORK = multiprocessing.get_context("fork")
"""ansible-playbook runs in a fork of the tests, which have imported Ansible already."""


def program(path, text):
    """Write a shell program."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def play(tmp_path, capfd, monkeypatch):
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
        words = ["ansible-playbook", "--connection=local", *words, "-e", json.dumps(settings), file]
        capfd.readouterr()
        with monkeypatch.context() as patch:
            patch.setenv("PATH", f"{path}:{os.environ['PATH']}")
            process = FORK.Process(target=PlaybookCLI.cli_executor, args=([str(word) for word in words],))
            process.start()
        process.join()
        return process.exitcode, " ".join(capfd.readouterr().out.split())

    return run


@pytest.fixture
def as_root():
    """Skip the test unless it runs as root: the role creates files that root owns."""
    if os.geteuid() != 0:
        pytest.skip("the role makes files of root")
