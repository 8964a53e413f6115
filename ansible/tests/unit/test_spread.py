# SPDX-License-Identifier: Apache-2.0
"""Handing the image to the hosts, on this machine with programs in place of the engine and systemd."""

import sys

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


def test_what_an_interrupted_call_left_is_not_handed_out(play, as_root, tmp_path):
    """Its archive may be of another image, or a part; its server is still there."""
    programs, share, serves, served = (tmp_path / name for name in ("bin", "root/share", "serves", "served"))
    programs.mkdir()
    share.mkdir(parents=True)
    for name, script in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{script.format(serves=serves, served=served)}\n")
        (programs / name).chmod(0o755)
    (share / "image.tar").write_text("another one\n")
    serves.touch()
    (tmp_path / "hosts").write_text("[npu_hosts]\nlocalhost\n")
    settings = {"ansible_python_interpreter": sys.executable, "install_root": str(tmp_path / "root")}
    settings |= {"container_engine": "docker", "container_image_name": "this one", "container_image_there": {"rc": 1}}
    spread = {"include_role": {"name": "container_image", "tasks_from": "spread"}}
    words = f"--inventory={tmp_path / 'hosts'}"
    status, said = play([{"tasks": [spread]}], words, path=programs, cluster_address="127.0.0.1", **settings)
    assert status == 0, said
    assert served.read_text() == "this one\n"
    assert not serves.exists() and not share.exists()
