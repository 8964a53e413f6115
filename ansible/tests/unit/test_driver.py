# SPDX-License-Identifier: Apache-2.0
"""An installation of the driver that has not ended is begun again, and a restart that is due is not forgotten."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

ANSIBLE = Path(__file__).resolve().parents[2]
ROLE = ANSIBLE / "roles/ascend_driver"
INSTALLER = '#!/bin/sh\necho "$(basename "$0")" >>{log}\nexit "$(cat {status})"\n'


@pytest.fixture
def play(tmp_path):
    """Runs tasks on this machine; (status, what Ansible said)."""
    if os.geteuid() != 0:
        pytest.skip("the role makes files of root")
    settings = {"ansible_python_interpreter": sys.executable, "install_root": str(tmp_path), "dies_per_host": 16}
    settings |= {"ascend_driver_version": "2", "ascend_driver_timeout": 60, "ascend_driver_reboot": False}
    settings |= {"ascend_driver_waits": str(tmp_path / "waits"), "ascend_driver_begun": str(tmp_path / "hdk/begun")}
    installer = {"path": "/none", "sha256": "0"}
    settings |= {"ascend_driver_packages": {"driver": installer, "firmware": installer}}

    def run(tasks, **others):
        (tmp_path / "play.yml").write_text(
            yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}])
        )
        words = [Path(sys.executable).parent / "ansible-playbook", "--connection=local", "--inventory", "localhost,"]
        done = subprocess.run(
            [*words, "-e", json.dumps({**settings, **others}), tmp_path / "play.yml"],
            env={**os.environ, "ANSIBLE_CONFIG": str(ANSIBLE / "ansible.cfg")},
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.returncode, " ".join(done.stdout.split())

    return run


def test_both_parts_are_installed_or_the_installation_has_not_ended(play, tmp_path):
    tasks = yaml.safe_load((ROLE / "tasks/install.yml").read_text())
    names = [task["name"] for task in tasks]
    tasks = tasks[names.index("Record that the installation begins") :]
    log, status, folder = tmp_path / "log", tmp_path / "status", tmp_path / "hdk"
    folder.mkdir()
    for part in ("driver", "firmware"):
        (folder / f"{part}.run").write_text(INSTALLER.format(log=log, status=status))
        (folder / f"{part}.run").chmod(0o755)
    status.write_text("1")
    assert play(tasks, ascend_driver_state={"version": "1"})[0] == 2
    assert log.read_text().split() == ["firmware.run"], "the driver is not installed without the firmware"
    assert (folder / "begun").exists() and not (tmp_path / "waits").exists()
    log.unlink()
    status.write_text("0")
    assert play(tasks, ascend_driver_state={"version": None})[0] == 0
    assert log.read_text().split() == ["driver.run", "firmware.run"]
    assert not folder.exists() and (tmp_path / "waits").read_text() == "2\n"


@pytest.mark.parametrize(
    ("version", "records", "installs"),
    [
        ("2", [], False),
        ("1", [], True),
        (None, [], True),
        ("2", ["begun"], True),
        ("1", ["waits 2"], False),
        (None, ["waits 2"], False),
        ("2", ["waits 1"], True),
        ("1", ["begun", "waits 2"], True),
    ],
)
def test_what_is_installed(version, records, installs):
    """Before the restart npu-smi may still say the former version, or nothing."""
    loader = DataLoader()
    values = loader.load_from_file(str(ROLE / "vars/main.yml"), trusted_as_template=True)
    listed = loader.load_from_file(str(ROLE / "tasks/check.yml"), trusted_as_template=True)
    (task,) = (task for task in listed if task["name"] == "Install")
    values |= {"ascend_driver_state": {"version": version}, "ascend_driver_version": "2"}
    values |= {"ascend_driver_records": {"stdout": "\n".join(records), "stdout_lines": records}}
    templar = Templar(loader, variables=values)
    assert templar.template(trust_as_template(f"{{{{ {task['when'][0]} }}}}")) is installs


@pytest.mark.parametrize(
    ("version", "records", "changes"), [("2", "", False), ("1", "", True), ("2", "begun", True), ("2", "waits 2", True)]
)
def test_an_upgrade_goes_on_with_it(version, records, changes):
    loader = DataLoader()
    play, *_ = loader.load_from_file(str(ANSIBLE / "playbooks/upgrade.yml"), trusted_as_template=True)
    (task,) = (task for task in play["tasks"] if task["name"] == "Look whether this host changes")
    values = {"ascend_driver_packages": {}, "ascend_driver_version": "2", "upgrade_version": version}
    templar = Templar(loader, variables={**values, "ascend_driver_records": {"stdout": records}})
    assert templar.template(task["vars"]["upgrade_driver"]) is changes


def test_a_restart_that_is_due_is_asked_for_until_it_is_made(play, tmp_path):
    role = [{"include_role": {"name": "ascend_driver"}}]
    (tmp_path / "waits").write_text("2\n")
    status, said = play(role)
    assert status == 2 and "localhost: driver 2 is installed and takes effect after a restart, expected" in said
