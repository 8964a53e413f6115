# SPDX-License-Identifier: Apache-2.0
"""Tests of the roles: their templates, what they read from hosts, and that no secret leaves a host."""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import typing
from pathlib import Path

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible.parsing.dataloader import DataLoader
from ansible_collections.sam_rl.ascend.plugins.filter import host
from ansible_collections.sam_rl.ascend.plugins.modules import support_archive
from conftest import program
from role_files import ROLES, read, rendered, tasks

from llm_rl.recipe import Backend

IMAGE_LOCKS = sorted(ROLES.parents[1].glob("patches/vllm-*/image.lock"))
BUILD = ROLES / "container_image/files/build.sh"
TREES = {"vllm": "a" * 40, "verl": "b" * 40}
PINS = {"name": "p", "module": {name: {"recorded": {"patched_tree": tree}} for name, tree in TREES.items()}}


def named(settings, *variables):
    """The values of variables of role container_image, templated by Ansible."""
    values = {"pin_set": "p", "container_image_source": {"stdout": "a" * 40}, "container_image_archive": "", **settings}
    values = read("container_image/vars/main.yml") | {"install_root": "/o", "container_image_backend": "fsdp"} | values
    return [rendered(f"container_image_{name}", **values) for name in variables]


def test_sources_are_packed_as_they_are_on_disk(play, tmp_path):
    """Each state of the sources is packed once; files that git does not track are left out."""
    names = ["LICENSE", "NOTICE", "ci/a", "llm_rl/a", "patches/a", "pyproject.toml", "sam_core/a", "sam_lab/a"]
    for name in (*names, "ci/new", "other"):
        (tmp_path / "repository" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "repository" / name).write_text("1")
    pack = [{"tasks": [{"include_role": {"name": "container_image", "tasks_from": "pack"}}]}]
    repository = str(tmp_path / "repository")
    status, said = play(pack, repository=repository)
    assert status == 2 and f"{repository} cannot be packed (fatal: not a git repository" in said
    for words in (["init", "-q"], ["add", "other", *names]):
        subprocess.run(["git", "-C", repository, *words], check=True)
    archives = tmp_path / "repository/.cache/ansible"
    for text, count in (("1", 1), ("1", 1), ("2", 2)):
        (tmp_path / "repository/ci/a").write_text(text)
        assert play(pack, repository=repository)[0] == 0 and len([*archives.iterdir()]) == count
    with tarfile.open(max(archives.iterdir(), key=lambda path: path.stat().st_mtime_ns)) as archive:
        assert [name for name in archive.getnames() if "." in name or not archive.getmember(name).isdir()] == names
        assert archive.extractfile("ci/a").read() == b"2"


RUN = {"recipe": "r", "cluster_address": "1", "ray_port": 2, "install_root": "/o", "recipe_launch_run": "a"}
RUN |= {
    "container_engine": "docker",
    "recipe_launch_write_rate": None,
    "recipe_launch_script": "run.sh",
    "recipe_launch_overrides": [],
    "recipe_launch_dir": "/d/runs/a",
}


def test_the_run_s_unit_passes_words_as_they_are():
    """systemd would interpret backslashes, quotes, $ and % in a command unless the unit escapes them."""
    overrides = ["data.train_files=${oc.env:HOME}/own.parquet", 'a="50% \\ b"', "c=d\ne"]
    unit = rendered("recipe_launch/templates/train.service.j2", **{**RUN, "recipe_launch_overrides": overrides})
    (start,) = re.findall("^ExecStart=(.*)$", unit, re.MULTILINE)
    said = start.partition(' train "run.sh" --run-dir "/d/runs/a" ')[2]
    assert said == r'''"data.train_files=$${oc.env:HOME}/own.parquet" "a=\"50%% \\ b\"" "c=d\ne"'''
    assert '\nExecStopPost=/o/bin/note-exit "/d/runs/a/exit.json"\n' in unit
    assert "\nExecStop=-docker stop --time 90 sam-rl-train\n" in unit, "the client's end leaves the container"
    measured = rendered("recipe_launch/templates/train.service.j2", **{**RUN, "recipe_launch_write_rate": 1.25})
    assert ' --run-dir "/d/runs/a" checkpoints.write_rate=1.25\n' in measured


@pytest.mark.parametrize("store, words", [(0, []), (5_000_000_000, ["--object-store", "5000000000"])])
def test_the_inventory_s_object_store_counts_when_a_recipe_is_compared_with_a_host(store, words):
    compare = tasks("recipe_launch/tasks/check.yml")[
        "Compare what the recipe needs with the disk and memory of the host"
    ]
    values = {**RUN, "recipe_launch_in_env": "/o/bin/in-env", "ray_cluster_object_store": store}
    values["recipe_launch_object_store"] = read("recipe_launch/vars/main.yml")["recipe_launch_object_store"]
    argv = rendered(compare["ansible.builtin.command"]["argv"], **values)
    assert argv == ["/o/bin/in-env", "check", "run.sh", "--check", "--run-dir", "/d/runs/a", *words]


def test_a_run_whose_name_another_s_begins_with_is_another_run():
    check = tasks("recipe_launch/tasks/same_run.yml")["Stop if another run is active"]
    for name, same in (("a", True), ("a-off", False)):
        values = {**RUN, "recipe_launch_dir": f"/d/runs/{name}"}
        unit = rendered("recipe_launch/templates/train.service.j2", **values)
        content = base64.b64encode(unit.encode()).decode()
        asked = {**RUN, "recipe_launch_unit": {"content": content}}
        assert rendered(check["ansible.builtin.assert"]["that"], **asked) is same


MAY_CHANGE = ["steps", "env", "checkpoints", "trainer"]


def asked(overrides, before, ended="", tracker=None):
    """Variables of role recipe_launch on the head; `before` are the overrides with which the run was started."""
    values = read("recipe_launch/vars/main.yml")
    request = {"script": "run.sh", "overrides": before, "pin_set": "p"}
    files = [json.dumps(request), json.dumps({"result": ended}), tracker]
    contents = [{"content": base64.b64encode(text.encode()).decode()} if text else {} for text in files]
    values |= {**RUN, "recipe_launch_overrides": overrides, "recipe_launch_before": {"results": contents}}
    return {**values, "pin_set": "p", "work_dir": "/d", "recipe_settings": {"may_change": MAY_CHANGE}}


@pytest.mark.parametrize(
    ("overrides", "before", "same"),
    [
        (["seed=1"], ["seed=2"], False),
        ([], ["seed=2"], False),
        (["steps=200", "seed=1", "checkpoints.keep=2"], ["seed=1", "checkpoints.keep=5", "steps=100"], True),
        (["trainer.step_timeout=9", "env.A=1"], [], True),
        (["stepsize=9"], [], False),
    ],
)
def test_a_run_goes_on_with_settings_that_the_launcher_lets_change(overrides, before, same):
    task = tasks("recipe_launch/tasks/request.yml")["Stop if the run was started with other settings"]
    values = {**asked(overrides, before), **task["vars"]}
    assert rendered(task["ansible.builtin.assert"]["that"], **values) is same
    values["recipe_launch_before"] = {"results": [{}, {}, {}]}
    assert rendered(task["ansible.builtin.assert"]["that"], **values) is True, "a new run"


def test_what_a_run_was_asked_for_is_recorded_when_it_starts():
    """A start writes the request; joining a run does not, as a finished run is compared with its request. The record of
    the previous end is removed before, so that a start cut short has no end on record."""
    names = [task["name"] for task in tasks("recipe_launch/tasks/follow.yml")["Start the run"]["block"]]
    order = ["Remove the record of how the run ended before", "Write the settings of the run", "Start the unit"]
    assert [name for name in names if name in order] == order


@pytest.mark.parametrize(
    ("overrides", "before", "ended", "starts"),
    [
        (["steps=6"], ["steps=6"], "success", False),
        (["steps=8"], ["steps=6"], "success", True),
        (["checkpoints.keep=3"], [], "success", False),
        (["steps=6"], ["steps=6"], "exit-code", True),
    ],
)
def test_a_run_that_has_succeeded_goes_on_with_other_steps_alone(overrides, before, ended, starts):
    values = asked(overrides, before, ended)
    (task,) = (task for name, task in tasks("recipe_launch/tasks/main.yml").items() if name.startswith("Start or"))
    assert rendered(task["when"][-1], **values) is starts
    name = "Stop if it has ended without a checkpoint and is asked for other steps"
    fits = tasks("recipe_launch/tasks/prepare.yml")[name]["ansible.builtin.assert"]["that"]
    assert rendered(fits, **values) is (ended != "success" or not starts)
    assert rendered(fits, **asked(overrides, before, ended, "6")) is True


def test_an_upgrade_stops_no_run_that_would_start_again_from_nothing():
    block = tasks("recipe_launch/tasks/continuable.yml")["Check that the active run can be continued"]["block"]
    (task,) = (task for task in block if task["name"] == "Stop if it has no checkpoint")
    for tracker in (None, "6"):
        assert rendered(task["ansible.builtin.assert"]["that"], **asked([], [], tracker=tracker)) is bool(tracker)


def run_in(folder, script, *words):
    """Run a script in a new mount namespace, where $0 is `folder`, a new file system; return the printed lines."""
    command = ["unshare", "--mount", "bash", "-ec", f'mount -t tmpfs new "$0"; cd "$0"; {script}', folder, *words]
    if subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "a", folder], capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


FILES = ["runs/a/request.json", "runs/a/b/weights", "metrics/a.prom", "models/m/weights", "models/m.complete"]
FOREIGN = [
    "runs/theirs/notes",
    "data/theirs.parquet",
    "models/theirs.complete",
    "models/theirs/weights",
    "metrics/c.prom",
]
REMOVE = ROLES / "model_store/files/remove-created.sh"


@pytest.mark.parametrize("mounted", [False, True])
def test_teardown_removes_what_the_playbooks_created(mounted, tmp_path):
    """If work_dir is a mount point, its content is removed but the folder stays. A second call finds nothing."""
    script = f"mkdir work up; {'mount -t tmpfs work work; ' if mounted else ''}cd work; "
    script += (
        'mkdir -p {runs/a/b,models/m,data,metrics}; touch "$@"; printf "%s\\n" . models data runs metrics models/m/ '
    )
    script += f'../up/ / >.sam-rl-created; cd "$0"; bash {REMOVE} "$0/work"; echo; bash {REMOVE} "$0/work"; ls "$0"'
    printed = run_in(tmp_path, script, *FILES)
    gone = {"runs/a", "metrics/a.prom", "models/m", "models/m.complete", "runs", "models", "metrics", "data"}
    gone |= set() if mounted else {f"{tmp_path}/work"}
    assert set(printed[: printed.index("")]) == {f"removed {name}" for name in gone} | {"left ../up/", "left /"}
    assert printed[printed.index("") + 1 :] == (["up", "work"] if mounted else ["up"])


def test_teardown_leaves_what_was_there(tmp_path):
    """Here a team owns work_dir, and the playbooks created two folders and a copy of a model in it."""
    script = 'mkdir -p {runs/{a/b,theirs},models/{m,theirs},data,metrics}; touch "$@"; '
    script += (
        'printf "%s\\n" models runs models/m/ >.sam-rl-created; chown 1234 data; '
        + f'bash {REMOVE} "$0"; find . -type f'
    )
    printed = run_in(tmp_path, script, *FILES, *FOREIGN)
    left = ["data/theirs.parquet", "metrics/c.prom", "models/theirs", "models/theirs.complete", "runs/theirs"]
    assert [line for line in printed if line.startswith("left ")] == [f"left {name}" for name in left]
    assert sorted(printed[-6:]) == sorted(["./.sam-rl-created", *(f"./{name}" for name in FOREIGN)])


def test_teardown_is_refused_while_a_run_is_active(play, tmp_path):
    program(tmp_path / "systemctl", "echo active")
    whole = next(
        play
        for play in DataLoader().load_from_file(str(ROLES.parent / "playbooks/teardown.yml"))
        if play["name"] == "Tear down"
    )
    names = [task["name"] for task in whole["tasks"]]
    first = names.index("Read the state of the run")
    assert all("Check" in name for name in names[:first])
    tasks = [*whole["tasks"][first : first + 2], {"debug": {"msg": "goes on"}}]
    called = {"hosts": {"h1": {}, "h2": {}}, "path": str(tmp_path)}
    status, said = play([{"tasks": tasks}], "--limit=h2", **called)
    assert status == 2 and "goes on" not in said
    assert "h1: a run is active, expected none: wait for its end, or stop it by" in said
    program(tmp_path / "systemctl", "echo inactive")
    assert play([{"tasks": tasks}], "--limit=h2", **called)[0] == 0


def test_folders_of_work_dir_keep_their_owner(play, as_root, tmp_path):
    """With root_squash, root cannot change a team's folders. Only the folders that the task creates are recorded."""
    work = tmp_path / "work"
    (work / "models").mkdir(parents=True)
    for folder in (work, work / "models"):
        os.chown(folder, 1234, 1234)
        folder.chmod(0o2775)
    role = {"include_role": {"name": "shared_storage", "tasks_from": "folders"}, "name": "create"}
    wanted = {"shared_storage_folders": [".", "models", "data", "runs"], "work_dir": str(work)}
    for changed in (1, 0):
        status, said = play([{"tasks": [role]}], **wanted)
        assert status == 0 and f"changed={changed}" in said, said
    for folder in (work, work / "models"):
        assert (folder.stat().st_uid, folder.stat().st_mode & 0o7777) == (1234, 0o2775)
    assert (work / ".sam-rl-created").read_text() == "data\nruns\n"
    status, said = play([{"tasks": [role]}], **{**wanted, "work_dir": "/proc/none"})
    assert status == 2 and "localhost: /proc/none cannot be used (mkdir: cannot create directory" in said


def test_nothing_gives_root_what_lies_in_work_dir():
    """No task sets the owner or group of a path below work_dir: an export with root_squash would refuse the change."""
    for path in ROLES.glob("*/tasks/*.yml"):
        for block in re.split(r"\n(?= *- name: )", path.read_text()):
            if re.search(r"(path|dest): .*\{\{ (work_dir|recipe_launch_dir|model_store_folder)", block):
                assert not re.search(r"^ +(owner|group):", block, re.MULTILINE), f"{path}: {block}"


def test_nothing_of_ray_lies_below_tmp():
    """A restart of the host, or systemd's cleaner of old files, would remove files in /tmp that an idle Ray needs."""
    for path in [*ROLES.glob("*/templates/*"), *ROLES.glob("*/tasks/*.yml")]:
        assert "/tmp/" not in path.read_text(), path


def test_ray_stays_bound_to_mounted_storage():
    check = tasks("ray_cluster/tasks/main.yml")["Stop if that is gone"]["ansible.builtin.assert"]
    for mount, bound, right in (("", "", True), ("a", "", True), ("b", "a", True), ("", "a", False)):
        values = {"ray_cluster_mount": {"stdout": mount}, "ray_cluster_bound": {"stdout": bound}}
        assert rendered(check["that"], **values) is right, (mount, bound)


def test_an_environment_made_from_something_else_has_another_name():
    settings = [
        {"container_image_base": "a@sha256:1"},
        {"container_image_base": "a@sha256:2"},
        {"container_image_archive": "/a.tar", "container_image_archive_sha256": "1"},
    ]
    names = [named(one, "key", "folder", "wanted") for one in settings]
    assert names == [named(one, "key", "folder", "wanted") for one in settings]
    for one in zip(*names, strict=True):
        assert len(set(one)) == len(one)
    assert all(re.fullmatch("p-a{12}-[0-9a-f]{8}", key) for key, _, _ in names)


RAY = {"ray_cluster_head": "h", "inventory_hostname": "h", "ray_cluster_asks": True, "container_engine": "docker"}
RAY |= {"ray_cluster_mount": {"stdout": ""}, "ray_cluster_first_port": 20000, "ray_cluster_last_port": 20989}
RAY |= {"ray_cluster_cpus": 0, "ray_cluster_object_store": 0, "dashboard_port": 1, "dies_per_host": 16}


def test_logs_of_a_month_ago_are_removed_when_ray_starts(tmp_path):
    values = {**RUN, **RAY, "ray_cluster_environment": {}, "ray_cluster_variables": {"stat": {}}}
    (line,) = re.findall("^ExecStartPre=-(.*)$", rendered("ray_cluster/templates/ray.service.j2", **values), re.M)
    for age, name in ((40, "lib/sam-rl-ray/old/a"), (40, "lib/sam-rl-ray/new/b"), (1, "log/sam-rl/new/c")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - 86400 * age,) * 2)
    (tmp_path / "lib/sam-rl-ray/new/d").touch()
    subprocess.run(line.replace("/var", str(tmp_path)).split(), check=True)
    left = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(left) == ["lib/sam-rl-ray/new/d", "log/sam-rl/new/c"]
    assert not (tmp_path / "lib/sam-rl-ray/old").exists()


def test_ray_s_unit_changes_with_the_variables_of_runs():
    """A changed unit restarts Ray, so that its workers get new variables. The unit shows only part of their SHA-256."""
    task = tasks("ray_cluster/tasks/main.yml")["Read the SHA-256 of its variables"]
    folder, wanted = named({"container_image_base": "a"}, "folder", "wanted")
    values = {**RUN, **task["vars"], "ray_cluster_environment": {"content": base64.b64encode(wanted.encode()).decode()}}
    assert rendered(task["ansible.builtin.stat"]["path"], **values) == f"{folder}/env"
    values |= RAY
    units = set()
    for digit in "bbc":
        values[task["register"]] = {"stat": {"checksum": digit * 64}}
        units.add(rendered("ray_cluster/templates/ray.service.j2", **values))
    assert len(units) == 2 and not any("b" * 17 in unit for unit in units)


@pytest.mark.parametrize(
    ("path", "manager", "wanted"),
    [
        ("host_base/tasks/main.yml", "dnf5", {"chrony", "git", "nftables", "python3", "rsync"}),
        ("ascend_driver/tasks/install.yml", "apt", {"make", "dkms", "gcc", "linux-headers-5-1"}),
        ("ascend_driver/tasks/install.yml", "dnf", {"make", "gcc", "kernel-headers-5-1", "kernel-devel-5-1"}),
    ],
)
def test_packages_of_a_family(path, manager, wanted):
    (task,) = (task for task in read(path) if "ansible.builtin.package" in task)
    values = {**read(f"{path.partition('/')[0]}/defaults/main.yml"), **task["vars"]}
    values["ansible_facts"] = {"kernel": "5-1", "pkg_mgr": manager}
    assert set(rendered(task["ansible.builtin.package"]["name"], **values)) == wanted


def test_time_servers_are_added_and_taken_out_again(play, tmp_path):
    """The existing line of chrony's settings stays, and a second call changes nothing."""
    file, called = tmp_path / "chrony.conf", tmp_path / "called"
    program(tmp_path / "systemctl", f"echo $* >>{called}")
    values = read("host_base/vars/main.yml") | {"host_base_chrony": [str(file), str(tmp_path / "none")]}
    values |= {"ansible_facts": {"pkg_mgr": "apt"}, "host_base_clock": {"stdout_lines": ["chrony.service", "loaded"]}}
    values["host_base_clock"]["stdout"] = "chrony.service\nloaded"
    remove = list(tasks("host_base/tasks/remove.yml").values())
    (first,) = (number for number, task in enumerate(remove) if task["name"] == "Look for chrony's settings")
    name, removes = [tasks("host_base/tasks/main.yml")["Name the time servers"]], remove[first : first + 2]
    file.write_text("pool 2.debian.pool.ntp.org iburst\n")
    for listed, servers, changed in (
        (name, ["10.0.0.9", "ntp.site"], 1),
        (name, ["10.0.0.9", "ntp.site"], 0),
        (name, ["ntp.site"], 1),
        (removes, ["ntp.site"], 2),
        (removes, ["ntp.site"], 0),
    ):
        plays = [{"vars": values, "tasks": listed, "handlers": read("host_base/handlers/main.yml")}]
        status, said = play(plays, path=str(tmp_path), host_base_time_servers=servers)
        assert status == 0 and f"changed={changed} " in said, said
        found = re.findall("^server (.*) iburst prefer$", file.read_text(), re.MULTILINE)
        assert found == (servers if listed == name else [])
    assert file.read_text() == "pool 2.debian.pool.ntp.org iburst\n"
    assert called.read_text() == "try-restart chronyd.service\n"


def test_the_image_of_an_archive():
    ours = "localhost/sam-rl:p-aaaaaaaaaaaa"
    for image, found in ((ours, ours), (f"{ours}-12345678", f"{ours}-12345678"), (f"{ours}-megatron-12345678", "")):
        loaded = {"stdout": f"Copying blob\nLoaded image: {image}"}
        assert named({"container_image_archive": "/a.tar", "container_image_loaded": loaded}, "new") == [found]


def test_ray_s_ports_are_reserved_and_watched_wherever_they_are():

    def value_of(role, name, **values):
        return rendered(name, **read(role), **values)

    usual = {"recipe_settings": {"recipe": {"cluster": {"hccl_ports": None}}}}
    moved = {**usual, "ray_cluster_first_port": 30000, "ray_cluster_last_port": 30999}
    ports = value_of("host_base/defaults/main.yml", "host_base_reserved_ports", **usual)
    name = "net.ipv4.ip_local_reserved_ports"
    assert host.sysctl_changes(f"{name} = 20000-20989", {name: ports}) == []
    assert value_of("host_base/defaults/main.yml", "host_base_reserved_ports", **moved) == "30000-30999"
    assert value_of("recipe_launch/vars/main.yml", "recipe_launch_watch_port") == 20000
    assert value_of("recipe_launch/vars/main.yml", "recipe_launch_watch_port", ray_cluster_first_port=30000) == 30000


def test_the_site_s_reserved_ports_stay():
    """The role keeps ports that the site reserved before or after its last call, but not those that the role wrote."""
    first = host.site_ports("now: 1-3,50\n")
    assert first == "1-3,50"
    assert host.joined_ports([first, "20000-20989,20990,3"]) == "1-3,50,20000-20990"
    again = "now: 1-3,50,777,20000-20990\nsite: 1-3,50\nwritten: 1-3,50,20000-20990\n"
    assert host.site_ports(again) == "1-3,50,777"
    assert host.site_ports("now: 20000-20990\nsite: \nwritten: 20000-20990") == "" == host.joined_ports(["", ""])


def test_sysctl_changes():
    printed = "vm.swappiness = 60\nnet.core.somaxconn = 65535\nnet.ipv4.ip_local_reserved_ports = 2-3,1\nother = 1\n"
    wanted = {"vm.swappiness": "0", "net.core.somaxconn": "65535", "net.ipv4.ip_local_reserved_ports": "1,2-3"}
    wanted["gone"] = "1"
    assert host.sysctl_changes(printed, wanted) == [["vm.swappiness", "0"]]


def test_tree_problems():
    good = json.dumps({"p": {"vllm": "patched", "verl": "not installed"}})
    assert host.tree_problems(f"a warning\n{good}", "h", PINS, ["vllm"]) == []
    (missing,) = host.tree_problems(good, "h", PINS, ["vllm", "verl"])
    assert missing.startswith("h: verl is not installed, expected tree bbbbbbbbbbbb of pin set p (patched)")
    (changed,) = host.tree_problems(json.dumps({"p": {"vllm": "modified", "verl": "patched"}}), "h", PINS, [])
    assert changed.startswith("h: vllm is modified, expected tree aaaaaaaaaaaa")
    assert "nothing that can be read" in host.tree_problems("", "h", PINS, [])[0]


def test_ray_problems():
    nodes = [{"address": "1", "alive": True, "npu": 16}, {"address": "2", "alive": False, "npu": 16}]
    nodes += [{"address": "3", "alive": True, "npu": 8}, {"address": "9", "alive": True, "npu": 0}]
    expected = {"a": "1", "b": "2", "c": "3"}
    lost, short, foreign = host.ray_problems(json.dumps(nodes), expected, 16)
    assert lost.startswith("b: Ray has no living node at 2")
    assert short.startswith("c: Ray has 8 NPU at 3, expected 16")
    assert foreign.startswith("Ray has a node at 9, which is not among npu_hosts")
    assert host.ray_problems(json.dumps(nodes[:1]), {"a": "1"}, 16) == []
    assert "lets no job start" in host.ray_problems("", expected, 16)[0]


def test_target_problems():
    def target(job, host, health, error=""):
        labels = {"job": job, "host": host} if host else {"job": job, "instance": "1.1.1.1:5"}
        return {"labels": labels, "scrapeUrl": f"http://{host}:9100/metrics", "health": health, "lastError": error}

    targets = [target("hosts", "a", "up"), target("hosts", "b", "unknown"), target("npus", "a", "down", "refused")]
    targets.append(target("engines", "", "down", "refused"))  # engines come and go
    early, refused = host.target_problems(json.dumps({"data": {"activeTargets": targets}}), "a")
    assert early.startswith("b: Prometheus on a gets no metrics from http://b:9100/metrics (not asked yet): see ")
    assert "(refused): see `journalctl -u sam-rl-npu-exporter` on the host" in refused
    assert host.target_problems(json.dumps({"data": {"activeTargets": targets[:1]}}), "a") == []
    assert host.target_problems("", "a")[0].startswith("a: Prometheus does not answer")


def end(outcome, **changes):
    """A result of follow_job with `without_folder`, which role recipe_launch adds."""
    return {"outcome": outcome, "result": "exit-code", "status": 3, "lost": [], "without_folder": [], **changes}


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (end("lost", lost=["b"]), "was stopped because Ray on b no longer answers, expected all"),
        (
            end("lost", lost=["b", "c"], without_folder=["c"]),
            "was stopped because c no longer has /data/runs/r, expect",
        ),
        (end("timeout"), "still runs after 9 s, expected its end"),
        (end("ended", lost=["b"]), "ended because Ray on b no longer answers, expected all"),
        (end("ended", result="stopped", status=15), "was ended by signal 15 (15: `systemctl stop`), expected"),
        (end("ended", result="stopped", status=143), "was ended by signal 15 (15: `systemctl stop`), expected"),
        (end("ended", free_gb=None), "ended because h no longer has /data/runs/r, expected the storage that all hosts"),
        (
            end("ended", free_gb=0.01),
            "ended with exit-code, status 3, and the disk of /data/runs/r is full (0.0 GB free)",
        ),
        (end("ended", free_gb=500.0), "ended with exit-code, status 3, expected"),
    ],
)
def test_run_problem(end, said):
    assert host.run_problem(end, "h", "/data/runs/r", 9).startswith(f"h: the run r {said}")


@pytest.mark.parametrize(
    ("end", "before", "tried", "again"),
    [
        (end("lost", lost=["b"]), 5, 0, True),
        (end("lost", lost=["b"]), 5, 2, False),
        (end("lost", lost=["b"], without_folder=["b"]), 5, 0, True),
        (end("ended", lost=["b"]), 5, 0, True),
        (end("ended"), 4, 0, True),
        (end("ended"), 5, 0, False),
        (end("ended", free_gb=0.1), 4, 0, False),
        (end("ended", free_gb=None), 4, 0, False),
        (end("ended", result="stopped", status=15), 4, 0, False),
        (end("ended", result="success", status=0), 4, 0, False),
        (end("timeout"), 4, 0, False),
    ],
)
def test_a_run_is_resumed_if_it_gets_farther_or_has_lost_a_host(end, before, tried, again):
    """An operator must act if a run fails at the same step again, for example on a checkpoint that cannot be loaded."""
    assert host.goes_on({"step": 5, "free_gb": 500.0, **end}, before, tried, 2) is again


def test_spare_hosts_take_the_places_of_failed_ones():
    variables = {
        name: {"ansible_host": f"192.0.2.{number}", "cluster_address": f"10.0.0.{number}", "cluster_interface": "e0"}
        for number, name in enumerate(["a", "b", "c", "s1", "s2"], 1)
    }
    variables["c"]["ansible_host"] = variables["s1"]["ansible_host"]  # s1 is in use already
    del variables["s2"]["cluster_interface"]
    (found,) = host.replacements(["b", "c"], ["a", "b", "c"], ["s1", "s2"], variables)
    assert (found["host"], found["spare"]) == ("b", "s2")
    assert found["variables"] == {"ansible_host": "192.0.2.5", "cluster_address": "10.0.0.5", "cluster_interface": "e0"}
    assert host.replacements(["b"], ["a", "b"], [], variables) == []


def test_a_spare_host_is_used_at_once_and_in_later_calls(play, tmp_path):
    program(tmp_path / "systemctl", f"echo $* >>{tmp_path}/called")
    python = {"ansible_python_interpreter": sys.executable}
    hosts = {name: {"cluster_address": f"10.0.0.{n}", "cluster_interface": "e0"} for n, name in enumerate("abs")}
    groups = {"npu_hosts": {"hosts": {name: hosts[name] for name in "ab"}}, "npu_spares": {"hosts": {"s": hosts["s"]}}}
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory/hosts.json").write_text(json.dumps(groups))
    replace = {"include_role": {"name": "recipe_launch", "tasks_from": "replace"}}
    address = {"debug": {"msg": "b is {{ hostvars.b.cluster_address }} at {{ hostvars.b.ansible_host }}"}}
    words = [f"--inventory={tmp_path / 'inventory'}", "--limit=npu_hosts"]
    failed = {"recipe_launch_failed": {"msg": ["b"]}, **python}
    status, said = play([{"tasks": [replace, address]}], *words, path=tmp_path, **failed)
    assert status == 0 and "b is 10.0.0.2 at s" in said, said
    assert (tmp_path / "called").read_text() == "disable --now sam-rl-ray.service\n"
    status, said = play([{"tasks": [address]}], *words, **python)
    assert status == 0 and "b is 10.0.0.2 at s" in said, said


def test_secret_variables_are_masked_wherever_they_are(tmp_path):
    """Secrets are masked in all texts, whatever their variables' names; very short ones only where their variable is
    set. Text that looks like a secret is masked too."""
    hook = "https://open.example/hook/0123-abcd"
    secrets = {"FEISHU_WEBHOOK": hook, "DB": "x", "PHRASE": "two words, one; 'three'", "LONG": f"{hook}/and-more"}
    secrets["PIN"] = 12345
    (tmp_path / "other").write_text(
        "WANDB_API_KEY=abc123\npassword: 'top secret'\nurl=http://me:hunter2@proxy:3128/x\n"
        "Authorization: Bearer xyz.1\n"
        "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\ntoken_count=5 tokens 7 of 9\n"
        '{"hf_token": "hf_1", "steps": 4}\n'
    )
    log, environment = tmp_path / "launch.log", tmp_path / "env"
    log.write_text(f"posting to {hook}\nconnected with 12345: two words, one; 'three'\nA=x\n")
    environment.write_text("HCCL_BUFFSIZE=200\n" + "".join(f"{name}={value}\n" for name, value in secrets.items()))
    dest = tmp_path / "out/a.tar.gz"
    settings = {"dest": str(dest), "top": "h", "files": [f"{tmp_path}/*"], "secrets": secrets}
    settings["commands"] = {"said.txt": ["echo", hook]}
    with patch_module_args(settings), pytest.raises(SystemExit) as end:
        support_archive.main()
    assert end.value.code in (0, None)
    with tarfile.open(dest) as archive:
        texts = {Path(member.name).name: archive.extractfile(member).read().decode() for member in archive}
    assert texts["launch.log"] == "posting to ***\nconnected with ***: ***\nA=x\n"
    assert texts["env"] == "HCCL_BUFFSIZE=200\n" + "".join(f"{name}=***\n" for name in secrets)
    assert texts["said.txt"] == "***\n"
    assert not re.search("abc123|top secret|hunter2|xyz.1|AAAA|hf_1", texts["other"])
    assert all(kept in texts["other"] for kept in ("http://me:***@proxy:3128/x", "tokens 7 of 9", '"steps": 4'))


def test_the_newest_logs_are_taken_up_to_a_size(tmp_path):
    """Logs of all Ray sessions are packed, newest first. Files behind the link session_latest are packed only once."""
    for age, name in enumerate(("session_2/logs/worker-1.out", "session_1/logs/worker-2.out", "cann/debug/plog/a.log")):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("x" * 400_000)
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    (tmp_path / "session_latest").symlink_to("session_2")
    (tmp_path / "device").write_text("x" * 400_000)
    patterns = [[f"{tmp_path}/session_*/logs/**/*.out", f"{tmp_path}/cann/**/*.log"], [f"{tmp_path}/device"]]
    for total, names in ((1, ["worker-1.out", "worker-2.out"]), (2, ["worker-1.out", "worker-2.out", "a.log"])):
        names.append("device")  # has its own share
        settings = {"dest": str(tmp_path / "a.tar.gz"), "top": "h", "newest": patterns, "newest_mb": total}
        with patch_module_args(settings), pytest.raises(SystemExit):
            support_archive.main()
        with tarfile.open(tmp_path / "a.tar.gz") as archive:
            assert [Path(member.name).name for member in archive] == names


VALUES = {"SECRET": "a $(touch run) `touch run` ; touch run", "QUOTES": """it's "so" \\ #""", "NUMBER": 7}


def test_variables_of_runs_arrive_as_they_are():
    """An engine takes each line literally. No other variable names a host's interface: through Ray's runtime_env,
    processes on all hosts get the head's variables."""
    values = {"work_dir": "/d", "cluster_interface": "eth7", "container_image_env": {"TP_SOCKET_IFNAME": "e1"}}
    text = rendered("container_image/templates/env.j2", container_image_secret_env=VALUES, **values)
    found = dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#"))
    assert {name: found[name] for name in VALUES} == {name: str(value) for name, value in VALUES.items()}
    assert found["TP_SOCKET_IFNAME"] == "e1"
    named = {name: value for name, value in found.items() if "eth7" in value}
    assert named == {"HCCL_SOCKET_IFNAME": "=eth7", "GLOO_SOCKET_IFNAME": "eth7"}, "HCCL takes eth7 for a prefix"
    assert found["ASCEND_PROCESS_LOG_PATH"].startswith("/var/log/sam-rl/"), "a folder that containers share"


def in_env(folder, engine="docker", stand_in='echo "$@"', devices="/dev"):
    """Write in-env and a stand-in for its engine to a folder. Return call(name), which runs in-env."""
    values = {"install_root": "/o", "work_dir": "/d", "pin_set": "p", "container_image_name": "i:t"}
    values |= {"container_engine": engine, "container_image_folder": str(folder)}
    text = rendered("container_image/templates/in-env.j2", **values)
    (folder / "in-env").write_text(re.sub("/dev/(?=davinci|devmm|hisi)", f"{devices}/", text))
    (folder / "in-env").chmod(0o755)
    program(folder / engine, stand_in)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}

    def call(name):
        command = [folder / "in-env", name, "true"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    return call


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_limits_of_an_engine(engine, tmp_path):
    said = in_env(tmp_path, engine)("check")
    # By default podman allows 2048 tasks, and SELinux lets no container read mounted folders.
    assert "--pids-limit -1 --security-opt label=disable" in said
    assert ("--ulimit memlock=-1" in said) == (engine == "docker")
    created = "mkdir -p /var/lib/sam-rl-ray" in (tmp_path / "in-env").read_text()
    assert created, "podman does not create the folder of a mount"


def test_two_short_commands_do_not_end_each_other(tmp_path):
    """Each short command gets a new container name; the containers of Ray and of the run have fixed names."""
    name = in_env(tmp_path, stand_in='while [ "$1" != --name ]; do shift || exit; done; echo "$2"')
    assert name("ray") == "sam-rl-ray" and name("train") == "sam-rl-train"
    first, second = name("status"), name("status")
    assert first != second and all(re.fullmatch(r"sam-rl-status-\d+", found) for found in (first, second))


def test_only_ray_and_commands_named_npu_get_the_dies(tmp_path):
    """The driver lets only one container use a die."""
    names = ["davinci0", "davinci15", "davinci_manager", "devmm_svm", "hisi_hdc"]
    call = in_env(tmp_path, devices=tmp_path)
    for name in names:
        (tmp_path / name).touch()
    for name in ("ray", "npu", "train", "check", "report"):
        found = re.findall(rf"--device {tmp_path}/(\S+)", call(name))
        assert found == (names if name in ("ray", "npu") else [])


def test_compiled_kernels_outlive_a_container(tmp_path):
    """The kernels are kept in a folder of the host. A start of Ray removes the locks that killed processes left."""
    folder, call = tmp_path / "kernels", in_env(tmp_path)
    (folder / "npu_matmul").mkdir(parents=True)
    for name in ("lock", "npu_matmul.so"):
        (folder / "npu_matmul" / name).touch()
    for name, left in (("check", {"lock", "npu_matmul.so"}), ("ray", {"npu_matmul.so"})):
        assert f"--env TORCH_EXTENSIONS_DIR={folder} --volume {folder}:{folder} " in call(name)
        assert {path.name for path in (folder / "npu_matmul").iterdir()} == left


def build_words(**settings):
    """The command that builds the image, and the environment variables of its process."""
    (build,) = (
        task for task in tasks("container_image/tasks/build.yml")["Build the image"]["block"] if "block" in task
    )
    (task,) = (task for task in build["block"] if task["name"] == "Build it")
    values = read("container_image/vars/main.yml") | read("container_image/defaults/main.yml")
    values |= {"container_engine": "docker", "install_root": "/o", "pin_set": "p", "container_image_name": "i"}
    values |= {"container_image_base": "b", "container_image_backend": "megatron", **settings}
    values["pins"] = {"runtime": {"npu": {"megatron_lm": "1" * 40, "mindspeed": "2" * 40}}}
    return rendered(task["ansible.builtin.command"]["argv"], **values), rendered(task["environment"], **values)


def test_no_password_is_an_argument_of_the_build():
    """Arguments of the build are visible in the list of processes and in the image's history."""
    proxy = {"https_proxy": "http://me:hunter2@proxy:3128", "no_proxy": ".inside"}
    words, environment = build_words(container_image_index="https://index.example", container_image_proxy=proxy)
    assert "--build-arg=PIP_INDEX_URL=https://index.example" in words and environment == proxy
    assert {"--build-arg=https_proxy", "--build-arg=no_proxy"} <= set(words) and "hunter2" not in str(words)
    for name in ("index", "mindspeed", "megatron_lm"):
        words, environment = build_words(**{f"container_image_{name}": "https://me:hunter2@index.example"})
        assert "hunter2" not in str(words) and environment == {"DOCKER_BUILDKIT": "1"}
        assert "--secret=id=sources,src=/o/build-sources" in words
        file = rendered("container_image/templates/Containerfile.j2", container_image_secret=True)
        assert "ARG PIP" not in file and "--mount=type=secret,id=sources" in file


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print('a warning of a library')", None),
        ("import not_there.at_all", "cannot import engine_of_verl (ModuleNotFoundError: No module named 'not_there')"),
        ("import os; os.abort()", "cannot import json, engine_of_verl ("),
    ],
)
def test_the_image_s_modules_are_imported(play, text, said, tmp_path):
    """If a module cannot be imported, the message names it and the reason."""
    (tmp_path / "engine_of_verl.py").write_text(text)
    program(tmp_path / "in-env", f'cd {tmp_path}; shift 2; exec {sys.executable} "$@"')
    settings = {"recipe": "r", "pins": {"runtime": {"npu": {"imports": {"megatron": ["json", "engine_of_verl"]}}}}}
    settings |= {"container_image_in_env": str(tmp_path / "in-env"), "container_image_backend": "megatron"}
    check = {"tasks": [{"include_role": {"name": "container_image", "tasks_from": "imports"}}]}
    status, output = play([check], **settings)
    assert status == (2 if said else 0), output
    assert not said or f"localhost: the environment {said}" in output


@pytest.mark.parametrize("lock", IMAGE_LOCKS, ids=lambda lock: lock.parent.name)
@pytest.mark.parametrize("backend", typing.get_args(Backend))
def test_every_backend_has_its_imports(lock, backend):
    values = {"container_image_backend": backend, "pins": tomllib.loads(lock.with_name("pins.toml").read_text())}
    (names,) = named(values, "imported")
    assert ("fsdp" in names[-1]) == (backend != "megatron")


@pytest.mark.parametrize("lock", IMAGE_LOCKS, ids=lambda lock: lock.parent.name)
def test_megatron_is_built_from_commits_of_any_branch(lock, tmp_path):
    """The build clones pinned commits, as branches can move; a clone has other branches only as those of origin. The
    address of origin is not kept."""
    npu = tomllib.loads(lock.with_name("pins.toml").read_text())["runtime"]["npu"]
    assert all(re.fullmatch("[0-9a-f]{40}", npu[name]) for name in ("megatron_lm", "mindspeed"))
    origin, copy = tmp_path / "origin", tmp_path / "copy"
    git = f"git -C {origin} -c user.name=test -c user.email=test@localhost"
    script = f"git init -q -b main {origin}; {git} commit -q --allow-empty -m main; {git} checkout -q -b core_r0.16.0; "
    script += f"{git} commit -q --allow-empty -m branch; {git} rev-parse HEAD; {git} checkout -q main"
    commit = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, check=True).stdout.strip()

    def clone(commit):
        (functions,) = re.findall(r"^fail\(\).*?^clone\(\).*?^\}$", BUILD.read_text(), re.MULTILINE | re.DOTALL)
        script = f"set -euo pipefail\n{functions}\nclone {origin} {commit} {copy}; git -C {copy} log --format=%s; "
        script += f"git -C {copy} remote"
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True)

    missing = "3" * 40
    assert f"error: the repository of {copy} has no commit {missing}: update" in clone(missing).stderr
    shutil.rmtree(copy)
    assert clone(commit).stdout.split() == ["branch", "main"]
