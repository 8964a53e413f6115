# SPDX-License-Identifier: Apache-2.0
"""Handing the image to the hosts, which are this machine, with a program in place of the engine."""

import json
import sys

import pytest

ENGINE = """#!/bin/sh
case $1 in
    save) [ ! -e "$3" ] && echo "$4" >"$3" ;;
    load) cat "$3" >>{loaded} ;;
esac
"""


@pytest.mark.parametrize("limit", ["all", "h2"])
def test_hosts_without_the_image_take_it_from_the_first_one(play, limit, tmp_path):
    """Not what an interrupted call has left, which may be a part; nothing stays."""
    (tmp_path / "docker").write_text(ENGINE.format(loaded=tmp_path / "loaded"))
    (tmp_path / "docker").chmod(0o755)
    (tmp_path / "work/runs").mkdir(parents=True)
    copy = tmp_path / "work/runs/.image-KEY.tar"
    copy.write_text("a part\n")
    hosts = {name: {"container_image_there": {"rc": rc}} for name, rc in (("h1", 1), ("h2", 1), ("h3", 0))}
    (tmp_path / "hosts.json").write_text(json.dumps({"npu_hosts": {"hosts": hosts}}))
    settings = {"ansible_python_interpreter": sys.executable, "work_dir": str(tmp_path / "work")}
    settings |= {"container_engine": "docker", "container_image_name": "this one", "container_image_key": "KEY"}
    spread = {"include_role": {"name": "container_image", "tasks_from": "spread"}}
    words = f"--inventory={tmp_path / 'hosts.json'}", f"--limit={limit}"
    status, said = play([{"tasks": [spread]}], *words, path=tmp_path, **settings)
    assert status == 0, said
    assert (tmp_path / "loaded").read_text() == "this one\n", "by h2 alone"
    assert list((tmp_path / "work/runs").iterdir()) == []
