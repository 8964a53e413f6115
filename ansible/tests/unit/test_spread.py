# SPDX-License-Identifier: Apache-2.0
"""The hosts get the image from the first host. All hosts are this machine; a program stands in for the engine."""

import pytest
from conftest import program

ENGINE = """case $1 in
    save) [ ! -e "$3" ] && echo "$4" >"$3" ;;
    load) cat "$3" >>{loaded} ;;
esac"""


@pytest.mark.parametrize("limit", ["all", "h2"])
def test_hosts_without_the_image_take_it_from_the_first_one(play, limit, tmp_path):
    """A partial file that an interrupted call has left is not loaded, and no file stays in the shared folder."""
    program(tmp_path / "docker", ENGINE.format(loaded=tmp_path / "loaded"))
    (tmp_path / "work/runs").mkdir(parents=True)
    copy = tmp_path / "work/runs/.image-KEY.tar"
    copy.write_text("a part\n")
    hosts = {name: {"container_image_there": {"rc": rc}} for name, rc in (("h1", 1), ("h2", 1), ("h3", 0))}
    settings = {"work_dir": str(tmp_path / "work")}
    settings |= {"container_engine": "docker", "container_image_name": "this one", "container_image_key": "KEY"}
    spread = {"include_role": {"name": "container_image", "tasks_from": "spread"}}
    status, said = play([{"tasks": [spread]}], f"--limit={limit}", hosts=hosts, path=tmp_path, **settings)
    assert status == 0, said
    assert (tmp_path / "loaded").read_text() == "this one\n", "by h2 alone"
    assert list((tmp_path / "work/runs").iterdir()) == []
