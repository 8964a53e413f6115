# SPDX-License-Identifier: Apache-2.0
"""Filters that read what the repository records, so that no version is written a second time, and check an inventory."""

from __future__ import annotations

import difflib
import ipaddress
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleFilterError

REPLACED = {
    "nnodes": "the hosts of the group npu_hosts count",
    "node_rank": "the order of the group npu_hosts counts; its first host is Ray's head",
    "master_addr": "cluster_address of the first host of npu_hosts counts",
    "socket_ifname": "cluster_interface counts",
    "npus_per_node": "dies_per_host counts",
}
"""Variables of hand-edited launch scripts, and what stands for them here."""

TYPES = {"str": str, "path": str, "int": int, "float": (int, float), "bool": bool, "list": list, "dict": dict}


def pin_set(repository: str, name: str) -> dict[str, Any]:
    """What patches/NAME/pins.toml records."""
    path = Path(str(repository), "patches", str(name), "pins.toml")
    try:
        return tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise AnsibleFilterError(f"pin_set {name!r}: {path} cannot be read ({error})") from None


def recipe_needs(repository: str, name: str) -> dict[str, Any]:
    """`cluster` of the recipe NAME and of its bases: nodes, dies_per_node, device; empty where nothing is said."""
    folder = Path(str(repository), "llm_rl", "qwen3")
    needs: dict[str, Any] = {}
    file: str | None = f"{name}.yaml"
    while file:
        config = yaml.safe_load((folder / file).read_text()) or {}
        needs = {**(config.get("cluster") or {}), **needs}
        file = config.get("base")
    return needs


def specified(repository: str) -> dict[str, dict[str, Any]]:
    """Options of all roles by name, as their meta/argument_specs.yml say."""
    options: dict[str, dict[str, Any]] = {}
    for path in sorted(Path(str(repository), "ansible", "roles").glob("*/meta/argument_specs.yml")):
        for spec in yaml.safe_load(path.read_text())["argument_specs"].values():
            for name, option in (spec.get("options") or {}).items():
                options[name] = {**option, **options.get(name, {})}
    return options


def registered(repository: str) -> set[str]:
    """Names that tasks of the roles register: within one run hostvars has them beside the inventory's."""
    names: set[str] = set()
    for path in Path(str(repository), "ansible", "roles").glob("*/tasks/*.yml"):
        names.update(re.findall(r"^ +register: +(\w+)", path.read_text(), re.MULTILINE))
    return names


def inventory_problems(hosts: list[str], hostvars: Mapping, repository: str) -> list[str]:
    """What is wrong with the inventory of the group npu_hosts, one sentence each; needs no connection to any host."""
    if not hosts:
        return ["the inventory has no host in the group npu_hosts: list the cluster's hosts there, Ray's head first."]
    specs, results = specified(repository), registered(repository)
    values = {host: _values(hostvars[host], specs) for host in hosts}
    found: dict[str, list[str]] = {}
    for host in hosts:
        for problem in _unknown(set(hostvars[host]) - results, specs) + _wrong(values[host], specs):
            found.setdefault(problem, []).append(host)
    if found:
        return [f"{', '.join(where)}: {problem}" for problem, where in found.items()]
    return _shared(values, specs) or _addresses(values) + _cluster(hosts, values[hosts[0]], repository)


def _values(variables: Mapping, specs: Mapping) -> dict[str, Any]:
    return {name: variables[name] for name in [*specs, "ansible_host", "ansible_ssh_common_args"] if name in variables}


def _unknown(variables: set[str], specs: Mapping) -> list[str]:
    """Sentences on names that no role knows. Those that Ansible itself sets or reads are left alone."""
    own = {"environment", "groups", "group_names", "hostvars", "omit", "playbook_dir", "vars", "playbook_name"}
    own |= {
        "repository",
        "pins",
        "role_name",
        "role_path",
        "role_names",
        "role_uuid",
        "play_hosts",
        "inventory_hostname",
    }
    own |= {
        "inventory_hostname_short",
        "inventory_file",
        "inventory_dir",
        "discovered_interpreter_python",
        "module_setup",
    }
    problems = []
    for name in sorted(str(name) for name in variables):
        if name in specs or name in own or name.startswith(("ansible_", "vault_")):
            continue
        if name.lower() in REPLACED:
            hint = REPLACED[name.lower()]
        else:
            close = difflib.get_close_matches(name, specs, 1)
            hint = f"did you mean {close[0]}?" if close else "the roles' meta/argument_specs.yml list what there is"
        problems.append(f"the variable {name} is not known: {hint.removesuffix('?')}; take it out or rename it.")
    return problems


def _wrong(values: Mapping, specs: Mapping) -> list[str]:
    problems = []
    for name, option in specs.items():
        kind = option.get("type", "str")
        if name not in values:
            if option.get("required"):
                what = option.get("description", "")
                problems.append(f"the variable {name} is missing ({_first(what)}): set it in the inventory.")
            continue
        value = values[name]
        if kind == "bool" and str(value).lower() in ("true", "false"):
            continue  # as -e NAME=true gives it
        if not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "bool"):
            problems.append(f"{name} is {_short(value)}, expected {kind}: correct it in the inventory.")
        elif option.get("choices") and value not in option["choices"]:
            known = ", ".join(option["choices"])
            problems.append(f"{name} is {_short(value)}, expected one of {known}: correct it in the inventory.")
        elif kind == "path" and (not value.startswith("/") or len(Path(value).parts) < 2 or re.search(r"\s", value)):
            problems.append(f"{name} is {_short(value)}, expected an absolute path below / without spaces.")
        elif kind == "int" and name.endswith("_port") and not 1024 <= value <= 65535:
            problems.append(f"{name} is {value}, expected a port from 1024 to 65535.")
    if re.search(
        r"StrictHostKeyChecking\s*=?\s*(no|off)", str(values.get("ansible_ssh_common_args", "")), re.IGNORECASE
    ):
        problems.append(
            "ansible_ssh_common_args switches the check of host keys off: "
            "take that out and put the keys into known_hosts."
        )
    return problems


def _first(text: str | list) -> str:
    return (text if isinstance(text, str) else text[0]).rstrip(".")


def _short(value: Any) -> str:
    return repr(value if isinstance(value, (bool, int, float)) else str(value))[:60]


def _shared(values: Mapping[str, Mapping], specs: Mapping) -> list[str]:
    """All settings but a host's own address are the cluster's: they must be the same on every host."""
    problems = []
    for name in specs:
        if name == "cluster_address":
            continue
        found: dict[str, list[str]] = {}
        for host, known in values.items():
            found.setdefault(_short(known[name]) if name in known else "unset", []).append(host)
        if len(found) > 1:
            said = "; ".join(f"{value} on {', '.join(hosts)}" for value, hosts in found.items())
            problems.append(f"{name} differs between hosts ({said}): set it once, for the whole group npu_hosts.")
    return problems


def _addresses(values: Mapping[str, Mapping]) -> list[str]:
    problems = []
    for name in ("ansible_host", "cluster_address"):
        seen: dict[str, str] = {}
        for host, known in values.items():
            address = str(known.get(name, host))
            if address in seen:
                problems.append(f"{host}: {name} is {address}, as on {seen[address]}: give every host its own.")
            seen[address] = host
    for host, known in values.items():
        try:
            inside = ipaddress.ip_address(known["cluster_address"]) in ipaddress.ip_network(known["cluster_network"])
        except ValueError as error:
            problems.append(f"{host}: cluster_address or cluster_network is not an address ({error}): correct it.")
            continue
        if not inside:
            problems.append(
                f"{host}: cluster_address {known['cluster_address']} is not in cluster_network "
                f"{known['cluster_network']}: correct one of them."
            )
    return problems


def _cluster(hosts: list[str], values: Mapping, repository: str) -> list[str]:
    """Counts, pin set, recipe and image, on which all hosts agree by now."""
    problems = []
    if values["hosts_expected"] != len(hosts):
        problems.append(
            f"the group npu_hosts has {len(hosts)} hosts, hosts_expected says {values['hosts_expected']}: "
            "list the missing hosts, or correct hosts_expected."
        )
    ports = [values[name] for name in ("ray_port", "dashboard_port")]
    if len(set(ports)) < len(ports):
        problems.append(f"ray_port and dashboard_port are both {ports[0]}: give each its own.")
    if not Path(str(repository), "patches", values["pin_set"], "pins.toml").is_file():
        known = sorted(path.parent.name for path in Path(str(repository)).glob("patches/*/pins.toml"))
        problems.append(
            f"pin_set is {values['pin_set']!r}, which is no folder of patches/: choose {' or '.join(known)}."
        )
    return problems + _recipe(hosts, values, repository) + _image(values)


def _recipe(hosts: list[str], values: Mapping, repository: str) -> list[str]:
    folder = Path(str(repository), "llm_rl", "qwen3")
    recipe = values["recipe"]
    known = sorted(path.stem.removeprefix("run_") for path in folder.glob("run_*.sh"))
    if recipe not in known:
        return [f"recipe is {recipe!r}, which llm_rl/qwen3/ has no run_{recipe}.sh for: choose {' or '.join(known)}."]
    needs = recipe_needs(repository, recipe)
    if needs.get("device") == "cpu" or "nodes" not in needs:
        return []
    wanted = (needs["nodes"], needs.get("dies_per_node", 16))
    if wanted == (len(hosts), values["dies_per_host"]):
        return []
    return [
        f"recipe {recipe} needs {wanted[0]} hosts of {wanted[1]} dies ({wanted[0] * wanted[1]} dies), the inventory has "
        f"{len(hosts)} of {values['dies_per_host']}: choose another recipe or correct the inventory."
    ]


def _image(values: Mapping) -> list[str]:
    if values["container_engine"] == "none":
        return []
    problems = []
    base, archive = (values.get(f"container_image_{name}", "") for name in ("base", "archive"))
    if bool(base) == bool(archive):
        problems.append(
            "container_engine needs exactly one of container_image_base (to build the image) and "
            "container_image_archive (to load it): set one."
        )
    if base and not re.fullmatch(r"[\w./:-]+@sha256:[0-9a-f]{64}", base):
        problems.append(
            f"container_image_base is {base!r}, expected NAME@sha256:DIGEST: a tag can change, give the digest."
        )
    if archive and not re.fullmatch(r"[0-9a-f]{64}", values.get("container_image_archive_sha256", "")):
        problems.append("container_image_archive_sha256 is not the 64 digits of a SHA-256: set it to the archive's.")
    return problems


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, Any]:
        return {"pin_set": pin_set, "recipe_needs": recipe_needs, "inventory_problems": inventory_problems}
