# SPDX-License-Identifier: Apache-2.0
"""Faulty inventories are refused with a sentence for each fault; the sample inventories pass."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.sam_rl.ascend.plugins.filter import inventory as checks
from ansible_collections.sam_rl.ascend.plugins.filter.repository import pin_set

ANSIBLE = Path(__file__).resolve().parents[2]
REPOSITORY = str(ANSIBLE.parent)
PIN_SET = max(path.parent.name for path in Path(REPOSITORY).glob("patches/*/image.in"))
GOOD = {"ansible_user": "root", "hosts_expected": 2, "dies_per_host": 16, "pin_set": PIN_SET}
GOOD |= {"recipe": "dapo_qwen3_tiny_cpu", "container_engine": "docker", "install_root": "/opt/sam-rl"}
GOOD |= {"cluster_network": "10.0.0.0/24", "cluster_interface": "eth0", "work_dir": "/data/sam-rl"}
GOOD |= {"ray_port": 6379, "dashboard_port": 8265, "ascend_driver_version": "26.0.rc1"}
GOOD |= {"container_image_base": f"a@sha256:{64 * '1'}"}
ITEM = {"name": "a", "source": "/a", "gb": 1}


def inventory(hosts=2, first=None, **changes):
    """The variables of each host. A change to None removes a variable; `first` changes only the first host."""
    found = {}
    for number in range(1, hosts + 1):
        own = {"cluster_address": f"10.0.0.{number}", "ansible_host": f"192.0.2.{number}"}
        found[f"h{number}"] = {**GOOD, **own, **changes, **((first or {}) if number == 1 else {})}
    return {host: {k: v for k, v in variables.items() if v is not None} for host, variables in found.items()}


def problems(**changes):
    hosts = inventory(**changes)
    return checks.inventory_problems(list(hosts), hosts, REPOSITORY)


def test_good_inventory():
    assert problems() == []
    assert problems(first={"cluster_interface": "enp189s0f0"}) == []
    assert problems(ascend_driver_version="26.0.RC1.1") == []
    assert problems(host_base_time_servers=["ntp1.site", "fd00::1"], host_base_time_service="chronyd") == []
    assert problems(teardown_data="true", recipe_launch_run="2026-11-25_sam.off") == []


@pytest.mark.parametrize("sample", ["sample-32die", "sample-128die", "bed"])
def test_inventories_of_the_repository(sample):
    folder = ANSIBLE / "inventories" / sample
    shared = yaml.safe_load((folder / "group_vars/npu_hosts/main.yml").read_text())
    own = yaml.safe_load((folder / "hosts.yml").read_text())["npu_hosts"]["hosts"]
    hosts = {host: {**shared, **variables} for host, variables in own.items()}
    for needed in (f"llm_rl/qwen3/run_{shared['recipe']}.sh", f"patches/{shared['pin_set']}"):
        if not Path(REPOSITORY, needed).exists():
            pytest.skip(f"{needed} does not exist")
    found = checks.inventory_problems(list(hosts), hosts, REPOSITORY)
    assert [problem for problem in found if "digest of zeros" not in problem] == []
    assert len(found) == sample.startswith("sample-"), "the digest is the reader's to look up"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hosts": 1}, "the group npu_hosts has 1 hosts, hosts_expected says 2"),
        ({"recipe": None}, "h1, h2: missing required arguments: recipe: correct the inventory"),
        ({"ray_prot": 1}, "h1, h2: the variable ray_prot is not known: did you mean ray_port"),
        ({"NNODES": 2}, "h1, h2: the variable NNODES is not known: it is the number of hosts in the group npu_hosts"),
        ({"container_image_port": 7}, "h1, h2: the variable container_image_port is not known: hosts take th"),
        ({"dies_per_host": "16"}, "h1, h2: dies_per_host is '16', expected int"),
        ({"container_engine": "lxc"}, "h1, h2: value of container_engine must be one of: docker, podman, got: lxc"),
        ({"model_store_items": [{"name": "a", "source": "/a"}]}, "h1, h2: missing required arguments: gb found in mod"),
        ({"model_store_items": [ITEM | {"size": 2}]}, "h1, h2: the variable model_store_items.size is not known: the"),
        ({"work_dir": "data"}, "h1, h2: work_dir is 'data', expected an absolute path"),
        ({"work_dir": "/data;reboot"}, "h1, h2: work_dir is '/data;reboot', expected an absolute path"),
        ({"work_dir": "/data/50%"}, "h1, h2: work_dir is '/data/50%', expected an absolute path"),
        ({"cluster_interface": 'e0" accept'}, "h1, h2: cluster_interface is 'e0\" accept', which is no name of an int"),
        ({"container_image_env": {"A B": 1}}, "h1, h2: container_image_env has the variable 'A B', whose name is not"),
        (
            {"container_image_secret_env": {"KEY": "one\ntwo"}},
            "h1, h2: container_image_secret_env has the variable 'KEY', whose value is not one line of text",
        ),
        ({"install_root": "/"}, "h1, h2: install_root is '/', expected an absolute path below /"),
        ({"ray_port": 80}, "h1, h2: ray_port is 80, expected a port from 1024 to 65535"),
        ({"ray_port": 8265}, "ray_port and dashboard_port are both 8265"),
        ({"ray_cluster_first_port": 30000}, "Ray's ports are 30000 to 20989, expected more than 10 ports, 10 for"),
        ({"recipe_launch_run": "../other"}, "h1, h2: recipe_launch_run is '../other', expected letters, digits, "),
        ({"ansible_ssh_common_args": "-o StrictHostKeyChecking=no"}, "h1, h2: ansible_ssh_common_args disables the ch"),
        ({"first": {"pin_set": "x"}}, f"pin_set differs between hosts ('x' on h1; '{PIN_SET}' on h2)"),
        ({"cluster_address": "10.0.0.1"}, "h2: cluster_address is 10.0.0.1, as on h1"),
        ({"ansible_host": "192.0.2.1"}, "h2: ansible_host is 192.0.2.1, as on h1"),
        ({"first": {"cluster_address": "10.0.1.1"}}, "h1: cluster_address 10.0.1.1 is not in cluster_network 10.0.0.0"),
        ({"first": {"cluster_address": "npu1"}}, "h1: cluster_address or cluster_network is no IPv4 address"),
        ({"first": {"cluster_address": "fd00::1"}}, "h1: cluster_address or cluster_network is no IPv4 address"),
        ({"pin_set": "vllm-1"}, "pin_set is 'vllm-1', which is no pin set with an image for Ascend: choose"),
        ({"recipe": "x"}, "recipe is 'x', but llm_rl/qwen3/ has no run_x.sh"),
        ({"ascend_driver_version": "25.5.1"}, "ascend_driver_version is 25.5.1, expected 26.0.rc1 or newer for pin_se"),
        (
            {"ascend_driver_version": "25.0.RC1.1"},
            "ascend_driver_version is 25.0.RC1.1, expected 26.0.rc1 or newer for ",
        ),
        ({"ascend_driver_version": "newest"}, "ascend_driver_version is 'newest', expected a version such as 26.0.rc1"),
        ({"host_base_time_servers": ["a b"]}, "host_base_time_servers has 'a b', expected a name or an address"),
        (
            {"host_base_time_servers": ["10.0.0.9"], "host_base_time_service": "ntpd"},
            "host_base_time_servers is for chrony, and host_base_time_service is 'ntpd': remove one",
        ),
        ({"container_image_base": None}, "the inventory needs exactly one of container_image_base"),
        ({"container_image_base": "cann:latest"}, "container_image_base is 'cann:latest'"),
        ({"container_image_base": f"a@sha256:{64 * '0'}"}, "container_image_base still has the sample's digest"),
        (
            {"container_image_base": None, "container_image_archive": "/a"},
            "container_image_archive_sha256 is not",
        ),
    ],
)
def test_one_sentence(change, sentence):
    (problem,) = problems(**change)
    assert problem.startswith(sentence) and problem.endswith(".") and problem.count("\n") == 0


def test_the_launcher_says_what_the_recipe_needs(play):
    """The role refuses a recipe that needs more hosts than the inventory has, and overrides that cannot be used."""
    settings = yaml.safe_load((ANSIBLE / "playbooks/group_vars/all.yml").read_text()) | {"repository": REPOSITORY}
    settings["hosts"] = inventory()
    said = [{"debug": {"msg": "{{ recipe_settings.recipe.train.backend }}"}}]
    reads = {"roles": ["validate_inventory"], "tasks": said}
    status, said = play([reads, reads], **settings)
    assert status == 0 and said.count("fsdp2") == 4 and said.count("Ask the launcher for the recipe") == 1, said
    status, said = play([reads], recipe="dapo_qwen3_235b_a22b_128die", **settings)
    sentence = (
        "recipe dapo_qwen3_235b_a22b_128die needs 8 hosts of 16 dies (128 dies), the inventory has 2 of 16: set "
        "cluster.nodes=N in recipe_launch_overrides (its layout fits 8, 16, 32, 64), choose"
    )
    assert status == 2 and sentence in said, said
    customer = {"recipe": "dapo_qwen3_32b_128die_customer", **settings}
    status, said = play([reads], recipe_launch_overrides=["cluster.nodes=2"], **customer)
    assert status == 0, said
    for overrides, sentence in (
        (["cluster.nodes=3"], "with these sizes cluster.nodes may be 2, 4, 8, 16, 32, 64, got 3)"),
        (["sead=2"], "cannot be used (unknown key 'sead': is seed meant? (in override 'sead=2')): correct that"),
    ):
        status, said = play([reads], recipe_launch_overrides=overrides, **customer)
        assert status == 2 and sentence in said and "Reach the host" not in said, said


CALLS = [
    (("train.yml", "--tags", "host"), "--tags host selects nothing in train.yml: choose from all_reduce, train."),
    (("preflight.yml", "--tags", "driver"), "--tags driver selects nothing in preflight.yml: choose from host, npu."),
    (
        ("site.yml", "--tags", "driver,moddels"),
        "--tags moddels selects nothing in site.yml: choose from all_reduce, collect, driver,",
    ),
    (("stage.yml", "--inventory", "{mistyped}"), "/none"),
    (("stage.yml", "--inventory", "{misnamed}"), "has no host in the group npu_hosts: list the cluster's hosts there,"),
    (("cluster.yml", "--inventory", "{misnamed}", "--limit", "h1"), "npu_hosts"),
    (
        ("train.yml", "from {elsewhere}"),
        "Ansible reads no configuration, expected {ansible}/ansible.cfg: call playbooks",
    ),
]


@pytest.mark.parametrize(
    ("words", "sentence"), CALLS, ids=lambda value: " ".join(value) if type(value) is tuple else ""
)
def test_a_call_that_would_do_nothing_is_refused(words, sentence, tmp_path):
    """The call fails before it connects to a host: no message says that a host is unreachable."""
    (tmp_path / "good.yml").write_text(yaml.safe_dump({"npu_hosts": {"hosts": inventory()}}))
    (tmp_path / "misnamed.yml").write_text(yaml.safe_dump({"npu_host": {"hosts": inventory()}}))
    places = {"mistyped": tmp_path / "none", "misnamed": tmp_path / "misnamed.yml", "elsewhere": tmp_path}
    places["ansible"] = ANSIBLE
    elsewhere = words[-1].startswith("from ")
    words = [word.format(**places) for word in words[: len(words) - elsewhere]]
    if "--inventory" not in words:
        words += ["--inventory", str(tmp_path / "good.yml")]
    command = [Path(sys.executable).parent / "ansible-playbook", ANSIBLE / "playbooks" / words[0], *words[1:]]
    environment = {name: value for name, value in os.environ.items() if name != "ANSIBLE_CONFIG"}
    folder = tmp_path if elsewhere else ANSIBLE
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    said = " ".join(f"{done.stdout} {done.stderr}".split())
    assert done.returncode != 0 and sentence.format(**places) in said, said
    assert "UNREACHABLE" not in said


def test_an_unreachable_host_is_named_by_every_playbook():
    """Every playbook imports start.yml first and begins its first play on the hosts with role validate_inventory."""
    for path in sorted((ANSIBLE / "playbooks").glob("*.yml")):
        plays = yaml.safe_load(path.read_text())
        first = next((play for play in plays if play.get("hosts") == "npu_hosts"), None)
        if first:
            asked = [role["role"] for role in first.get("roles", [])]
            asked += [task["ansible.builtin.import_role"]["name"] for task in first.get("tasks", [])[:1] if not asked]
            assert asked[0] == "validate_inventory", path.name
            assert plays[0]["ansible.builtin.import_playbook"] == "start.yml", path.name


def test_an_unreachable_host_is_named(play):
    hosts = inventory()
    for variables in hosts.values():
        variables |= {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_connection": "ssh"}
    hosts["h2"]["ansible_host"] = "127.0.0.2"
    settings = yaml.safe_load((ANSIBLE / "playbooks/group_vars/all.yml").read_text()) | {"repository": REPOSITORY}
    status, said = play([{"roles": ["validate_inventory"]}], hosts=hosts, **settings)
    assert status != 0 and "h1: not reachable as 127.0.0.1 (" in said and "h2: not reachable as 127.0.0.2 (" in said, (
        said
    )


def test_versions_come_from_pins():
    for folder in Path(REPOSITORY, "patches").glob("*/pins.toml"):
        assert pin_set(REPOSITORY, folder.parent.name)["name"] == folder.parent.name
    with pytest.raises(AnsibleFilterError, match="cannot be read"):
        pin_set(REPOSITORY, "nothing")


def test_every_role_documents_every_default():
    for role in sorted((ANSIBLE / "roles").iterdir()):
        options = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
        defaults = role / "defaults/main.yml"
        set_there = yaml.safe_load(defaults.read_text()) or {} if defaults.exists() else {}
        assert set(set_there) <= set(options), role.name
        for name, value in set_there.items():
            stated = options[name].get("default", value)
            assert stated == value, f"{role.name}: {name}"
