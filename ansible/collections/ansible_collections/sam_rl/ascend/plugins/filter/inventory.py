# SPDX-License-Identifier: Apache-2.0
"""The filter that checks an inventory before any host is contacted.

Names, types, choices and required settings are checked by Ansible's own validator against the roles'
meta/argument_specs.yml, all roles at once: Ansible itself would check a role's when the role starts, hours into a run.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ansible.context as cli
import yaml
from ansible.constants import INTERNAL_STATIC_VARS
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.errors import UnsupportedError
from ansible_collections.sam_rl.ascend.plugins.filter.repository import pin_set
from ansible_collections.sam_rl.ascend.plugins.module_utils.host_state import Unreadable
from ansible_collections.sam_rl.ascend.plugins.module_utils.npu import driver_order

REPLACED = {
    "nnodes": "it is the number of hosts in the group npu_hosts",
    "node_rank": "it is the order of the hosts in npu_hosts; the first one is Ray's head",
    "master_addr": "it is cluster_address of the first host of npu_hosts",
    "socket_ifname": "set cluster_interface",
    "npus_per_node": "set dies_per_host",
    "recipe_launch_drain_timeout": "upgrade.yml stops a run at once",
    "container_image_port": "hosts take the image from the shared folder of runs",
}
"""Variables of hand-edited launch scripts and of former releases, with what replaces each."""

HOST_SETTINGS = ("cluster_address", "cluster_interface")
"""Settings that may differ between hosts."""

RAY_PORTS = 10
"""Number of ports, from ray_cluster_first_port on, that Ray itself uses; Ray's workers use the next ports."""

ENVIRONMENTS = ("container_image_env", "container_image_secret_env")
"""Settings that hold environment variables of runs."""

SPECIAL_TAGS = {"all", "always", "never", "tagged", "untagged"}
"""Tags with a special meaning in Ansible."""

NOT_SETTINGS = {"environment", "vars", "playbook_name", "discovered_interpreter_python", "module_setup"}
NOT_SETTINGS |= {"repository", "pins", "recipe_settings"} | INTERNAL_STATIC_VARS
"""Variables that Ansible or playbooks/group_vars set."""


def inventory_problems(hosts: list[str], hostvars: Mapping, repository: str) -> list[str]:
    """Return a sentence for each problem in the inventory of the group npu_hosts."""
    if not hosts:
        return ["the inventory has no host in the group npu_hosts: list the cluster's hosts there, Ray's head first."]
    options, registered = role_options(repository), registered_names(repository)
    settings = {host: _settings(hostvars[host], options, registered) for host in hosts}
    problems: dict[str, list[str]] = {}
    for host in hosts:
        for problem in _argument_problems(settings[host], options) + _ssh_problems(hostvars[host]):
            problems.setdefault(problem, []).append(host)
    if problems:
        return [f"{', '.join(where)}: {problem}" for problem, where in problems.items()]
    if differences := _differences(settings, options):
        return differences
    return _address_problems(settings, hostvars) + _cluster_problems(hosts, settings[hosts[0]], options, repository)


def call_problems(hosts: list[str], repository: str, config: str) -> list[str]:
    """Return a sentence if a playbook was called wrongly. config: path of Ansible's configuration, "" for none."""
    folder, arguments = Path(str(repository), "ansible"), cli.CLIARGS
    if not config or Path(config).resolve() != (folder / "ansible.cfg").resolve():
        return [
            f"Ansible reads {config or 'no configuration'}, expected {folder}/ansible.cfg: call playbooks from "
            f"{folder}."
        ]
    if not hosts:
        named = ", ".join(map(str, arguments.get("inventory") or ())) or "none given"
        return [
            f"the inventory ({named}) has no host in the group npu_hosts: list the cluster's hosts there, Ray's head "
            "first, and give its folder by -i."
        ]
    called = [folder / "playbooks" / Path(name).name for name in arguments.get("args") or ()]
    known = SPECIAL_TAGS.union(*(_tags(path, folder) for path in called if path.is_file()))
    unknown = sorted(set(arguments.get("tags") or ()) - known)
    if not unknown or known == SPECIAL_TAGS:
        return []
    names, choice = (", ".join(words) for words in ([path.name for path in called], sorted(known - SPECIAL_TAGS)))
    return [f"--tags {', '.join(unknown)} selects nothing in {names}: choose from {choice}."]


def _tags(path: Path, folder: Path) -> set[str]:
    """Return the tags in a playbook, in the playbooks that it imports, and in the tasks of their roles."""
    text = path.read_text()
    tags = {tag.strip() for found in re.findall(r"\btags: \[([^\]]*)\]", text) for tag in found.split(",")}
    for name in re.findall(r"\bimport_playbook: (\S+)", text):
        tags |= _tags(path.parent / name, folder)
    for role, part in re.findall(r"\b(?:role|name): (\w+)$(?:\n +tasks_from: (\w+)$)?", text, re.MULTILINE):
        for tasks in folder.glob(f"roles/{role}/tasks/{part or '*'}.yml"):
            tags |= _tags(tasks, folder)
    return tags


def role_options(repository: str) -> dict[str, dict[str, Any]]:
    """Return the options of all roles by name, from their meta/argument_specs.yml."""
    options: dict[str, dict[str, Any]] = {}
    for path in sorted(Path(str(repository), "ansible", "roles").glob("*/meta/argument_specs.yml")):
        for spec in yaml.safe_load(path.read_text())["argument_specs"].values():
            options.update(spec.get("options") or {})
    return options


def registered_names(repository: str) -> set[str]:
    """Return the names that tasks register, because hostvars has these too in later plays of a run."""
    names: set[str] = set()
    folder = Path(str(repository), "ansible")
    for path in [*folder.glob("roles/*/tasks/*.yml"), *folder.glob("playbooks/*.yml")]:
        names.update(re.findall(r"^ +register: +(\w+)", path.read_text(), re.MULTILINE))
    return names


def _settings(variables: Mapping, options: Mapping, registered: Iterable[str]) -> dict[str, Any]:
    """Return the settings of a host; the value of an unknown setting is None."""
    names = {str(name) for name in variables} - NOT_SETTINGS - set(registered)
    names = {name for name in names if not name.startswith(("ansible_", "vault_"))}
    return {name: variables[name] if name in options else None for name in sorted(names)}


def _argument_problems(settings: Mapping, options: Mapping) -> list[str]:
    """Return the errors of Ansible's validator, and problems of types and values that the validator accepts."""
    result = ArgumentSpecValidator(options).validate(settings)
    problems = [_unknown_name(name, options) for name in sorted(result.unsupported_parameters, key=str)]
    for error in result.errors.errors:
        if not isinstance(error, UnsupportedError):
            problems.append(f"{error.msg}: correct the inventory.")
    if problems:
        return problems
    for name in settings:
        value, kind = settings[name], options[name].get("type", "str")
        if kind == "bool":
            continue
        expected: Any = (int, float) if kind == "float" else type(result.validated_parameters[name])
        if not isinstance(value, expected) or isinstance(value, bool):
            problems.append(f"{name} is {_short(value)}, expected {kind}: correct it in the inventory.")
        elif kind == "path" and not re.fullmatch(r"(/[\w.+@-]+)+/?", value, re.ASCII):
            problems.append(
                f"{name} is {_short(value)}, expected an absolute path below / of letters, digits, '.', '_', '+', '@' "
                "and '-': choose another."
            )
        elif name == "cluster_interface" and not re.fullmatch(r"[\w.:@-]{1,15}", value, re.ASCII):
            problems.append(f"{name} is {_short(value)}, which is no name of an interface: see `ip link` on the hosts.")
        elif name in ENVIRONMENTS:
            problems += _variable_problems(name, value)
        elif kind == "int" and name.endswith("_port") and not 1024 <= value <= 65535:
            problems.append(f"{name} is {value}, expected a port from 1024 to 65535.")
        elif name == "recipe_launch_run" and not re.fullmatch(r"[A-Za-z0-9][\w.-]*", value, re.ASCII):
            problems.append(
                f"{name} is {_short(value)}, expected letters, digits, '.', '_' and '-', a letter or digit first: "
                "name the run so."
            )
    return problems


def _variable_problems(name: str, variables: Mapping) -> list[str]:
    """Return sentences on variables that a shell or container engine cannot accept; the sentences show no value."""
    problems = []
    for variable, value in variables.items():
        has = f"{name} has the variable {_short(variable)}, whose"
        if not re.fullmatch(r"[A-Za-z_]\w*", str(variable), re.ASCII):
            problems.append(f"{has} name is not of letters, digits and '_': correct it.")
        if value is None or isinstance(value, (Mapping, list)) or set("\n\r\0") & set(str(value)):
            problems.append(f"{has} value is not one line of text: correct it.")
    return problems


def _unknown_name(name: str | tuple[str, ...], options: Mapping) -> str:
    """Return the sentence about an unknown variable, or about an unknown key of a variable (a tuple of names)."""
    close = difflib.get_close_matches(name, options, 1) if isinstance(name, str) else []
    name = name if isinstance(name, str) else ".".join(name)
    hint = f"did you mean {close[0]}" if close else "the roles' meta/argument_specs.yml list all variables"
    hint = REPLACED.get(name.lower(), hint)
    return f"the variable {name} is not known: {hint}; remove or rename it."


def _ssh_problems(variables: Mapping) -> list[str]:
    arguments = str(variables.get("ansible_ssh_common_args", ""))
    if not re.search(r"StrictHostKeyChecking\s*=?\s*(no|off)", arguments, re.IGNORECASE):
        return []
    return [
        "ansible_ssh_common_args disables the check of host keys: remove that and put the keys into known_hosts.",
    ]


def _short(value: Any) -> str:
    return repr(value if isinstance(value, (bool, int, float)) else str(value))[:60]


def _differences(settings: Mapping[str, Mapping], options: Mapping) -> list[str]:
    """Return problems of settings that differ between hosts; only the settings in HOST_SETTINGS may differ."""
    problems = []
    for name in options:
        values: dict[str, list[str]] = {}
        for host, known in settings.items():
            values.setdefault(_short(known[name]) if name in known else "unset", []).append(host)
        if len(values) > 1 and name not in HOST_SETTINGS:
            listed = "; ".join(f"{value} on {', '.join(hosts)}" for value, hosts in values.items())
            problems.append(f"{name} differs between hosts ({listed}): set it once, for the whole group npu_hosts.")
    return problems


def _address_problems(settings: Mapping[str, Mapping], hostvars: Mapping) -> list[str]:
    problems = []
    for name in ("ansible_host", "cluster_address"):
        owners: dict[str, str] = {}
        for host in settings:
            address = str(hostvars[host].get(name, host))
            if address in owners:
                problems.append(f"{host}: {name} is {address}, as on {owners[address]}: give every host its own.")
            owners[address] = host
    for host, known in settings.items():
        address, network = known["cluster_address"], known["cluster_network"]
        try:
            inside = ipaddress.IPv4Address(address) in ipaddress.IPv4Network(network)
        except ValueError as error:
            problems.append(
                f"{host}: cluster_address or cluster_network is no IPv4 address ({error}): correct it; packet rules "
                "and checks know no other."
            )
            continue
        if not inside:
            problems.append(
                f"{host}: cluster_address {address} is not in cluster_network {network}: correct one of them."
            )
    return problems


def _cluster_problems(hosts: list[str], settings: Mapping, options: Mapping, repository: str) -> list[str]:
    """Problems with the settings of the cluster, which the caller has checked to be equal on all hosts.

    These are the number of hosts, ports, pin set, driver, recipe, time and image.
    """
    problems = []
    if settings["hosts_expected"] != len(hosts):
        problems.append(
            f"the group npu_hosts has {len(hosts)} hosts, hosts_expected says {settings['hosts_expected']}: "
            "list the missing hosts, or correct hosts_expected."
        )
    if settings["ray_port"] == settings["dashboard_port"]:
        problems.append(f"ray_port and dashboard_port are both {settings['ray_port']}: give each its own.")
    names = ("ray_cluster_first_port", "ray_cluster_last_port")
    first, last = (settings.get(name, options[name]["default"]) for name in names)
    if last < first + RAY_PORTS:
        problems.append(
            f"Ray's ports are {first} to {last}, expected more than {RAY_PORTS} ports, {RAY_PORTS} for Ray itself and "
            f"the rest for its workers: set {' and '.join(names)}."
        )
    if not Path(str(repository), "patches", settings["pin_set"], "image.in").is_file():
        known = sorted(path.parent.name for path in Path(str(repository)).glob("patches/*/image.in"))
        problems.append(
            f"pin_set is {settings['pin_set']!r}, which is no pin set with an image for Ascend: choose "
            f"{' or '.join(known)}."
        )
        return problems
    problems += _driver_problems(settings, repository) + _recipe_problems(settings, repository)
    return problems + _time_problems(settings) + _image_problems(settings, repository)


def _time_problems(settings: Mapping) -> list[str]:
    service, servers = settings.get("host_base_time_service", "auto"), settings.get("host_base_time_servers", [])
    problems = [
        f"host_base_time_servers has {_short(server)}, expected a name or an address: correct it."
        for server in servers
        if not re.fullmatch(r"[\w.:-]+", str(server), re.ASCII)
    ]
    if servers and service not in ("auto", "chrony", "chronyd"):
        problems.append(
            f"host_base_time_servers is for chrony, and host_base_time_service is {service!r}: remove one of them and "
            "name the servers in that service's own settings."
        )
    return problems


def _driver_problems(settings: Mapping, repository: str) -> list[str]:
    """Return a problem if the driver is older than upstream's for the pin set's CANN; newer ones run older CANNs."""
    oldest = pin_set(repository, settings["pin_set"])["runtime"].get("npu", {}).get("driver")
    if not oldest or not settings["dies_per_host"]:
        return []
    version = settings["ascend_driver_version"]
    try:
        if driver_order(version) >= driver_order(oldest):
            return []
    except Unreadable:
        return [
            f"ascend_driver_version is {version!r}, expected a version such as {oldest}: correct it in the inventory."
        ]
    return [
        f"ascend_driver_version is {version}, expected {oldest} or newer for pin_set {settings['pin_set']}: upgrade "
        "the driver (ascend_driver_packages), or choose an older pin_set."
    ]


def _recipe_problems(settings: Mapping, repository: str) -> list[str]:
    recipe, scripts = settings["recipe"], Path(str(repository), "llm_rl", "qwen3").glob("run_*.sh")
    known = sorted(path.stem.removeprefix("run_") for path in scripts)
    if recipe in known:
        return []
    return [f"recipe is {recipe!r}, but llm_rl/qwen3/ has no run_{recipe}.sh: choose {' or '.join(known)}."]


def _image_problems(settings: Mapping, repository: str) -> list[str]:
    problems = []
    base, archive = (settings.get(f"container_image_{name}", "") for name in ("base", "archive"))
    if bool(base) == bool(archive):
        problems.append(
            "the inventory needs exactly one of container_image_base (to build the image) and "
            "container_image_archive (to load it): set one."
        )
    if base and not re.fullmatch(r"[\w./:-]+@sha256:[0-9a-f]{64}", base):
        problems.append(
            f"container_image_base is {base!r}, expected NAME@sha256:DIGEST: a tag can change, give the digest."
        )
    elif re.search("sha256:0{64}", base):
        image = pin_set(repository, settings["pin_set"])["runtime"].get("npu", {}).get("image")
        problems.append(
            f"container_image_base still has the sample's digest of zeros, expected that of {image}: look it up in "
            "your registry and set it in the inventory."
        )
    if archive and not re.fullmatch(r"[0-9a-f]{64}", settings.get("container_image_archive_sha256", "")):
        problems.append("container_image_archive_sha256 is not the 64 digits of a SHA-256: set it to the archive's.")
    return problems


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, Any]:
        return {"inventory_problems": inventory_problems, "call_problems": call_problems}
