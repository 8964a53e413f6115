# SPDX-License-Identifier: Apache-2.0
"""An interrupted installation of the driver starts again, and a pending restart of the host is remembered."""

import pytest
from conftest import program
from role_files import read, rendered, tasks

INSTALLER = 'echo "$(basename "$0" .run)" "$@" >>{log}\nexit "$(cat {status})"'


@pytest.fixture
def settings(as_root, tmp_path):
    installer = {"path": "/none", "sha256": "0"}
    found = {"install_root": str(tmp_path), "dies_per_host": 16}
    found |= {"ascend_driver_version": "2", "ascend_driver_timeout": 60}
    found |= {"ascend_driver_waits": str(tmp_path / "waits"), "ascend_driver_begun": str(tmp_path / "hdk/begun")}
    packages = {"driver": installer, "firmware": installer}
    return found | {"ascend_driver_reboot": False, "ascend_driver_packages": packages}


def test_both_parts_are_installed_or_the_installation_has_not_ended(play, settings, tmp_path):
    listed = read("ascend_driver/tasks/install.yml")
    names = [task["name"] for task in listed]
    plays = [{"tasks": listed[names.index("Record that the installation begins") :]}]
    log, status, folder = tmp_path / "log", tmp_path / "status", tmp_path / "hdk"
    folder.mkdir()
    for part in ("driver", "firmware"):
        program(folder / f"{part}.run", INSTALLER.format(log=log, status=status))
    status.write_text("1")
    assert play(plays, ascend_driver_state={"version": "1"}, **settings)[0] == 2
    assert log.read_text() == "firmware --full\n", "the driver is not installed without the firmware"
    assert (folder / "begun").exists() and not (tmp_path / "waits").exists()
    log.unlink()
    status.write_text("0")
    assert play(plays, ascend_driver_state={"version": None}, **settings)[0] == 0
    user = "--install-username=HwHiAiUser --install-usergroup=HwHiAiUser"
    assert log.read_text() == f"driver --full --quiet {user}\nfirmware --full\n"
    assert not folder.exists() and (tmp_path / "waits").read_text() == "2\n"
    status, said = play([{"tasks": [{"include_role": {"name": "ascend_driver"}}]}], **settings)
    assert status == 2 and "localhost: driver 2 is installed and takes effect after a restart, expected" in said


@pytest.mark.parametrize(
    ("version", "firmware", "records", "installs"),
    [
        ("2.rc1", "7.1", [], False),
        ("2.rc1", "7.0", [], True),
        ("2.rc1", None, [], True),
        ("1", "7.1", [], True),
        (None, "7.1", [], True),
        ("2.rc1", "7.1", ["begun"], True),
        ("1", "7.0", ["waits 2.rc1"], False),
        (None, "7.1", ["waits 2.rc1"], False),
        ("2.rc1", "7.1", ["waits 1"], True),
        ("1", "7.1", ["begun", "waits 2.rc1"], True),
    ],
)
def test_what_is_installed(version, firmware, records, installs):
    """Until the host restarts, npu-smi may print the former version or nothing."""
    values = read("ascend_driver/vars/main.yml")
    state = {"version": version, "dies": [{"chip": 0, "firmware": firmware}, {"chip": 1}]}
    values |= {"ascend_driver_state": state, "ascend_driver_version": "2.RC1", "ascend_firmware_version": "7.1"}
    values |= {"ascend_driver_records": {"stdout": "\n".join(records), "stdout_lines": records}}
    assert rendered(tasks("ascend_driver/tasks/check.yml")["Install"]["when"][0], **values) is installs


@pytest.mark.parametrize(
    ("version", "records", "changes"),
    [("2.rc1", "", False), ("1", "", True), ("2.rc1", "begun", True), ("2.rc1", "waits 2.rc1", True)],
)
def test_an_upgrade_goes_on_with_it(version, records, changes):
    upgrade = next(play for play in read("../playbooks/upgrade.yml") if "tasks" in play)
    (task,) = (task for task in upgrade["tasks"] if task["name"] == "Look whether this host changes")
    values = {"ascend_driver_packages": {}, "ascend_driver_version": "2.RC1", "npu_preflight_npu": {"version": version}}
    assert rendered(task["vars"]["upgrade_driver"], **values, ascend_driver_records={"stdout": records}) is changes
