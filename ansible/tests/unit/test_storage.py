# SPDX-License-Identifier: Apache-2.0
"""If the storage does not answer, a playbook ends with an error message before any task waits for the storage."""

import os
import re
import subprocess
import sys

import pytest
import yaml
from ansible_collections.sam_rl.ascend.plugins.filter import preflight
from conftest import ANSIBLE, program
from role_files import read, rendered


@pytest.fixture
def dead(tmp_path):
    """A folder on a file system whose server, this process, never answers."""
    folder = tmp_path / "dead"
    folder.mkdir()
    try:
        server = os.open("/dev/fuse", os.O_RDWR)
    except OSError:
        pytest.skip("needs root and /dev/fuse")
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0"
    mount = ["mount", "--internal-only", "--types", "fuse", "--options", options, "dead", folder]
    done = subprocess.run(mount, pass_fds=[server], capture_output=True, text=True)
    if done.returncode != 0:
        os.close(server)
        pytest.skip(f"needs the right to mount: {done.stderr.strip()}")
    yield folder
    os.close(server)
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_what_counts_as_an_answer():
    variables = read("shared_storage/vars/main.yml") | {"shared_storage_timeout": 9}
    said = "stat: cannot read file system information for '/data/runs': "
    for result, problem in (
        ({"rc": 0, "stderr_lines": []}, ""),
        ({"rc": 0, "stderr_lines": [f"{said}No such file or directory"]}, ""),
        ({"rc": 0, "stderr_lines": [f"{said}Stale file handle"]}, "Stale file handle"),
        ({"msg": "async task did not complete within the requested time"}, "no answer within 9 s"),
    ):
        assert rendered("shared_storage_problem", **variables, shared_storage_answer=result) == problem


def test_a_playbook_says_so(play, dead):
    goes_on = {"role": "shared_storage", "shared_storage_needed": False}
    first = {"roles": [goes_on], "tasks": [{"debug": {"msg": "goes on: {{ shared_storage_problem }}"}}]}
    status, said = play([first, {"roles": [{"role": "shared_storage"}]}], work_dir=str(dead), shared_storage_timeout=1)
    assert status == 2 and "goes on: no answer within 1 s" in said
    assert f"localhost: the storage of {dead} cannot be read (no answer within 1 s), expected the storage that" in said


@pytest.mark.parametrize(
    ("apart", "limit", "sentence"),
    [
        (None, "h2", None),
        ("h2", "h2", "h2: {}/runs is not the folder that h1 has, expected storage that all hosts share,"),
        ("h1", "h1", "h1: {}/runs is not the folder that h2 has, expected storage that all hosts share,"),
    ],
)
def test_a_host_without_the_shared_folder_is_found_alone(play, apart, limit, sentence, tmp_path):
    """--limit selects one host. Both hosts are this machine, but one has another folder mounted at work_dir."""
    work, own = tmp_path / "work", tmp_path / "own"
    for folder in (work / "runs", own / "runs"):
        folder.mkdir(parents=True)
    script = tmp_path / "python"
    mount = 'mount --bind "$0" "$1" && shift && exec "$@"'
    program(script, f"exec unshare --mount sh -c '{mount}' {own} {work} {sys.executable} \"$@\"")
    if apart and subprocess.run([script, "-c", ""], capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount")
    hosts = {host: {"ansible_python_interpreter": str(script)} if host == apart else {} for host in ("h1", "h2")}
    check = {"tasks": [{"include_role": {"name": "npu_preflight", "tasks_from": "runs"}}]}
    status, said = play([check], f"--limit={limit}", hosts=hosts, work_dir=str(work))
    assert status == (2 if sentence else 0), said
    assert not sentence or sentence.format(work) in said
    assert not [*work.glob("**/.sam-rl-shared-*"), *own.glob("**/.sam-rl-shared-*")]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, r"2 hosts write (\S+) GB/s together to {}/runs: a checkpoint of 1 GB takes \S+ minutes"),
        ({"npu_preflight_checkpoint_minutes": 0.0001}, r"takes \S+ minutes, expected at most 0.0001 \(npu_preflight_"),
        ({"state": "active"}, "PLAY RECAP"),
    ],
)
def test_storage_is_measured_by_all_hosts_together(play, settings, sentence, tmp_path):
    """Both hosts are this machine. The test files are removed, and nothing is written while a run is active."""
    program(tmp_path / "systemctl", f"echo {settings.pop('state', 'inactive')}")
    work = tmp_path / "work"
    (work / "runs").mkdir(parents=True)
    values = {"work_dir": str(work), "recipe": "r", "recipe_settings": {"checkpoint_gb": 1, "checkpoints": 4}}
    values |= {"npu_preflight_write_seconds": 0.1, "npu_preflight_write_gb": 0.1, **settings}
    check = {"tasks": [{"include_role": {"name": "npu_preflight", "tasks_from": "storage"}}]}
    status, said = play([check], hosts={"h1": {}, "h2": {}}, path=str(tmp_path), **values)
    assert status == (2 if "expected" in sentence else 0), said
    assert re.search(sentence.format(re.escape(str(work))), said) and ("GB/s" in said) == (sentence != "PLAY RECAP")
    assert [path.name for path in work.rglob("*") if path.is_file()] == []


STATE = {"written_gb": 5.0, "seconds": 10.0, "free_gb": 13000.0, "counted_gb": 100.0, "error": ""}
WANT = {"run": "r", "folder": "/d/runs", "hosts": 2, "checkpoint_gb": 3291.0, "checkpoints": 4, "minutes": 60}


@pytest.mark.parametrize(
    ("state", "want", "problems"),
    [
        ({}, {"checkpoints": 3}, []),
        (
            {},
            {},
            ["h1: 13,000 GB are free for /d/runs, expected 13,064 for checkpoints of the run r \\(4 x 3,291"],
        ),
        (
            {},
            {"checkpoints": 3, "minutes": 54.8},
            ["2 hosts write 1 GB/s .* 3,291 GB takes 54.9 minutes"],
        ),
        ({"free_gb": 0.0}, {"checkpoint_gb": None, "checkpoints": None}, []),
        (
            {"error": "Read-only file system"},
            {},
            [r"nothing can be written to /d/runs by h1 \(Read-only file system\)"],
        ),
    ],
)
def test_storage_of_235b(state, want, problems):
    hostvars = {
        host: {"npu_preflight_storage": {**STATE, "seconds": seconds}} for host, seconds in (("h1", 9), ("h2", 10))
    }
    rate = preflight.write_rate(["h1", "h2"], hostvars)
    assert rate == 1 and preflight.write_rate(["h1", "h3"], {**hostvars, "h3": {}}) is None
    found = preflight.storage_problems({"h1": {**STATE, **state}}, rate, {**WANT, **want})
    assert len(found) == len(problems) and all(map(re.match, problems, found)), found


@pytest.mark.parametrize(("role", "then"), [("ray_cluster", "Write the units"), ("recipe_launch", "Prepare the run")])
def test_roles_look_for_it_before_they_use_it(role, then):
    text = (ANSIBLE / "roles" / role / "tasks/main.yml").read_text()
    assert 0 < text.find("tasks_from: runs\n") < text.index(f"- name: {then}")


def uses_work_dir(role):
    files = [*(ANSIBLE / "roles" / role).glob("[tv]a[rs]*s/*.yml"), *(ANSIBLE / "roles" / role).glob("templates/*")]
    return any("work_dir" in file.read_text() for file in files)


@pytest.mark.parametrize("path", sorted((ANSIBLE / "playbooks").glob("*.yml")), ids=lambda path: path.stem)
def test_every_playbook_asks_first(path):
    """A playbook runs shared_storage, or npu_preflight (which includes it), before any other role uses work_dir."""
    names = []
    for play in yaml.safe_load(path.read_text()):
        names += [role["role"] for role in play.get("roles", [])]
        names += re.findall(r"'name': '(\w+)'", str(play.get("tasks", [])))
    asks = [number for number, name in enumerate(names) if name in ("shared_storage", "npu_preflight")]
    waits = [number for number, name in enumerate(names) if number not in asks and uses_work_dir(name)]
    assert not waits or min(asks, default=len(names)) < waits[0], names[waits[0]]


def test_preflight_asks_before_it_looks():
    names = re.findall(r"shared_storage|work_dir", (ANSIBLE / "roles/npu_preflight/tasks/main.yml").read_text())
    assert names[0] == "shared_storage"
