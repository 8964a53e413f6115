# SPDX-License-Identifier: Apache-2.0
"""Handing the image to the hosts, on this machine with programs in place of the engine and systemd."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ANSIBLE = Path(__file__).resolve().parents[2]
PLAY = """
- hosts: npu_hosts
  gather_facts: false
  tasks:
    - ansible.builtin.include_role: {name: container_image, tasks_from: spread}
"""
PROGRAMS = {
    "docker": '[ ! -e "$3" ] && echo "$4" >"$3"',
    "systemd-run": """
        [ ! -e {serves} ] || {{ echo Unit sam-rl-image.service was already loaded >&2; exit 1; }}
        touch {serves}
        for word; do case $word in --directory=*) cp "${{word#--directory=}}/image.tar" {served} ;; esac; done""",
    "systemctl": """
        case "$*" in
            *stop*) rm {serves} ;;
            *) [ -e {serves} ] && echo LoadState=loaded && echo ActiveState=active || echo LoadState=not-found ;;
        esac""",
}


def test_what_an_interrupted_call_left_is_not_handed_out(tmp_path):
    """Its archive may be of another image, or a part; its server is still there."""
    if os.geteuid() != 0:
        pytest.skip("the role makes files of root")
    programs, share, serves, served = (tmp_path / name for name in ("bin", "root/share", "serves", "served"))
    programs.mkdir()
    share.mkdir(parents=True)
    for name, script in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{script.format(serves=serves, served=served)}\n")
        (programs / name).chmod(0o755)
    (share / "image.tar").write_text("another one\n")
    serves.touch()
    (tmp_path / "hosts").write_text("[npu_hosts]\nlocalhost\n")
    (tmp_path / "play.yml").write_text(PLAY)
    settings = {"ansible_python_interpreter": sys.executable, "install_root": str(tmp_path / "root")}
    settings |= {"container_engine": "docker", "container_image_name": "this one", "container_image_there": {"rc": 1}}
    words = [Path(sys.executable).parent / "ansible-playbook", "--connection=local", "--inventory", tmp_path / "hosts"]
    words += ["-e", json.dumps({**settings, "cluster_address": "127.0.0.1"}), tmp_path / "play.yml"]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ANSIBLE / "ansible.cfg")}
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert served.read_text() == "this one\n"
    assert not serves.exists() and not share.exists()
