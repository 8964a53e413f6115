# SPDX-License-Identifier: Apache-2.0
"""What is refused in an inventory, with which sentence, and that the sample inventories pass."""

from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.sam_rl.ascend.plugins.filter import inventory as checks
from ansible_collections.sam_rl.ascend.plugins.filter.repository import pin_set

ANSIBLE = Path(__file__).resolve().parents[2]
REPOSITORY = str(ANSIBLE.parent)
PIN_SET = max(path.parent.name for path in Path(REPOSITORY).glob("patches/*/recipe.toml"))
GOOD = {"ansible_user": "root", "hosts_expected": 2, "dies_per_host": 16, "pin_set": PIN_SET}
GOOD |= {"recipe": "dapo_qwen3_tiny_cpu", "container_engine": "none", "install_root": "/opt/sam-rl"}
GOOD |= {"cluster_network": "10.0.0.0/24", "cluster_interface": "eth0", "work_dir": "/data/sam-rl"}
GOOD |= {"ray_port": 6379, "dashboard_port": 8265, "ascend_driver_version": "26.0.rc1"}
DOCKER, ITEM = {"container_engine": "docker"}, {"name": "a", "source": "/a", "gb": 1}


def inventory(hosts=2, first=None, **changes):
    """{host: variables}; a change to None takes a variable out, `first` changes the first host alone."""
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
    assert checks.inventory_problems(list(hosts), hosts, REPOSITORY) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hosts": 0}, "the inventory has no host in the group npu_hosts"),
        ({"hosts": 1}, "the group npu_hosts has 1 hosts, hosts_expected says 2"),
        ({"recipe": None}, "h1, h2: missing required arguments: recipe: correct the inventory"),
        ({"ray_prot": 1}, "h1, h2: the variable ray_prot is not known: did you mean ray_port"),
        ({"NNODES": 2}, "h1, h2: the variable NNODES is not known: the hosts of the group npu_hosts count"),
        ({"dies_per_host": "16"}, "h1, h2: dies_per_host is '16', expected int"),
        ({"container_engine": "lxc"}, "h1, h2: value of container_engine must be one of: docker, podman, none, got: l"),
        ({"model_store_items": [{"name": "a", "source": "/a"}]}, "h1, h2: missing required arguments: gb found in mod"),
        ({"model_store_items": [ITEM | {"size": 2}]}, "h1, h2: the variable model_store_items.size is not known: the"),
        ({"work_dir": "data"}, "h1, h2: work_dir is 'data', expected an absolute path"),
        ({"install_root": "/"}, "h1, h2: install_root is '/', expected an absolute path below /"),
        ({"ray_port": 80}, "h1, h2: ray_port is 80, expected a port from 1024 to 65535"),
        ({"ray_port": 8265}, "ray_port and dashboard_port are both 8265"),
        ({"ray_cluster_first_port": 30000}, "Ray's ports are 30000 to 20989, expected 10 of Ray's own and those of"),
        ({"recipe_launch_run": "../other"}, "h1, h2: recipe_launch_run is '../other', expected letters, digits, "),
        ({"ansible_ssh_common_args": "-o StrictHostKeyChecking=no"}, "h1, h2: ansible_ssh_common_args disables the ch"),
        ({"first": {"pin_set": "x"}}, f"pin_set differs between hosts ('x' on h1; '{PIN_SET}' on h2)"),
        ({"cluster_address": "10.0.0.1"}, "h2: cluster_address is 10.0.0.1, as on h1"),
        ({"ansible_host": "192.0.2.1"}, "h2: ansible_host is 192.0.2.1, as on h1"),
        ({"first": {"cluster_address": "10.0.1.1"}}, "h1: cluster_address 10.0.1.1 is not in cluster_network 10.0.0.0"),
        ({"first": {"cluster_address": "npu1"}}, "h1: cluster_address or cluster_network is not an address"),
        ({"pin_set": "vllm-1"}, "pin_set is 'vllm-1', which is no folder of patches/"),
        ({"recipe": "x"}, "recipe is 'x', but llm_rl/qwen3/ has no run_x.sh"),
        ({"ascend_driver_version": "25.5.1"}, "ascend_driver_version is 25.5.1, expected 26.0.rc1 or newer for pin_se"),
        ({"ascend_driver_version": "newest"}, "ascend_driver_version is 'newest', expected a version such as 26.0.rc1"),
        (DOCKER, "container_engine needs exactly one of container_image_base"),
        (DOCKER | {"container_image_base": "cann:latest"}, "container_image_base is 'cann:latest'"),
        (DOCKER | {"container_image_archive": "/a"}, "container_image_archive_sha256 is not"),
    ],
)
def test_one_sentence(change, sentence):
    (problem,) = problems(**change)
    assert problem.startswith(sentence) and problem.endswith(".") and problem.count("\n") == 0


def test_the_launcher_says_what_the_recipe_needs(play, tmp_path):
    """By an inventory with too few hosts for a recipe, then for a recipe that is none."""
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"npu_hosts": {"hosts": inventory(), "vars": {}}}))
    settings = yaml.safe_load((ANSIBLE / "playbooks/group_vars/all.yml").read_text()) | {"repository": REPOSITORY}
    said = [{"debug": {"msg": "{{ recipe_settings.recipe.train.backend }}"}}]
    reads = {"roles": ["validate_inventory"], "tasks": said}
    words = f"--inventory={tmp_path / 'hosts.yml'}"
    status, said = play([reads, reads], words, **settings)
    assert status == 0 and said.count("fsdp2") == 4 and said.count("Ask the launcher for the recipe") == 1, said
    status, said = play([reads], words, recipe="dapo_qwen3_235b_a22b_128die", **settings)
    sentence = (
        "recipe dapo_qwen3_235b_a22b_128die needs 8 hosts of 16 dies (128 dies), the inventory has 2 of 16: choose"
    )
    assert status == 2 and sentence in said, said


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
