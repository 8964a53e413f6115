# SPDX-License-Identifier: Apache-2.0
"""Runs a playbook on the bed with ansible-runner and collects its events."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ansible_runner
from hosts import Bed

ROOT = Path(__file__).resolve().parents[3]
LOGS = ROOT / ".cache/bed/logs"


@dataclasses.dataclass
class Result:
    """The result of a playbook. `failures` are (host, task, message), `changed` are (host, task)."""

    status: str
    seconds: float
    output: str
    failures: list[tuple[str, str, str]]
    changed: list[tuple[str, str]]
    messages: list[str]
    tasks: dict[str, float]

    @property
    def sentence(self) -> str:
        """The message of the first failure."""
        return self.failures[0][2] if self.failures else ""

    def must_pass(self) -> Result:
        assert self.status == "successful", self.output[-6000:]
        return self

    def must_fail(self) -> Result:
        assert self.status == "failed", f"{self.status}\n{self.output[-6000:]}"
        assert self.failures, f"no task failed by itself\n{self.output[-6000:]}"
        return self


class Site:
    """A copy of the repository and the inventory that is run from it. A test may change both."""

    def __init__(self, folder: Path, bed: Bed, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self.bed = bed
        self.settings = dict(settings)
        self.repository = folder / "repository"
        self.runs = 0

    def checkout(self) -> None:
        """Copy the repository's files from the working tree, except for files that git ignores."""
        words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]
        names = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
        for name in filter(None, names):
            if (ROOT / name).is_file():
                (self.repository / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.repository / name)
        for file in (ROOT / "ansible/tests/bed/recipe").iterdir():
            if file.is_file():
                shutil.copy2(file, self.repository / "llm_rl/qwen3")
        subprocess.run(["git", "-C", self.repository, "init", "--quiet"], check=True)
        self.commit()

    def commit(self) -> None:
        """Commit the changes of the copy."""
        git = ["git", "-C", self.repository, "-c", "user.name=bed", "-c", "user.email=bed@localhost"]
        for words in (["add", "--all"], ["commit", "--quiet", "--message", "The bed's copy"]):
            subprocess.run([*git, *words], check=True)

    def inventory(self, **settings: Any) -> dict:
        """Return the inventory with `settings` changed; None removes a variable."""
        changed = {**self.settings, "hosts_expected": len(self.bed.hosts), **settings}
        options = f"-o UserKnownHostsFile={self.bed.known_hosts} -o StrictHostKeyChecking=yes"
        changed |= {"ansible_user": "root", "ansible_ssh_private_key_file": str(self.bed.key)}
        changed |= {"ansible_ssh_common_args": options, "ansible_python_interpreter": "/usr/bin/python3"}
        hosts = {}
        for host in self.bed.hosts:
            addresses = {"ansible_host": host.address, "cluster_address": host.address}
            hosts[host.name] = {**addresses, "cluster_interface": host.interface}
        return {"npu_hosts": {"hosts": hosts, "vars": {k: v for k, v in changed.items() if v is not None}}}

    def play(
        self,
        playbook: str,
        *words: str,
        hosts: Mapping[str, Mapping] | None = None,
        spares: Iterable[str] = (),
        **settings: Any,
    ) -> Result:
        """Runs playbooks/PLAYBOOK.yml; `words` are arguments of ansible-playbook.

        `hosts` changes variables of single hosts; `spares` are in the group npu_spares instead.
        """
        self.runs += 1
        private = self.folder / "runner"
        shutil.rmtree(private, ignore_errors=True)  # without arguments, the runner would use the last run's
        private.mkdir()
        inventory = self.inventory(**settings)
        for name, changed in (hosts or {}).items():
            inventory["npu_hosts"]["hosts"].setdefault(name, {}).update(changed)
        for name in spares:
            group = inventory.setdefault("npu_spares", {"hosts": {}})
            group["hosts"][name] = inventory["npu_hosts"]["hosts"].pop(name)
        file = self.folder / "inventory.json"
        file.write_text(json.dumps(inventory))
        begin = time.monotonic()
        done = ansible_runner.run(
            private_data_dir=str(private),
            project_dir=str(self.repository / "ansible"),
            playbook=f"playbooks/{playbook}.yml",
            inventory=str(file),
            cmdline=" ".join(words),
            ident=f"{self.runs:02}-{playbook}",
            quiet=True,
            envvars=self._environment(),
        )
        seconds = time.monotonic() - begin
        result = Result(done.status, seconds, Path(done.stdout.name).read_text(), [], [], [], {})
        for event in done.events:
            self._note(event, result)
        result.failures.sort()  # hosts that fail at the same task do so in no order
        self._keep(result)
        return result

    def _environment(self) -> dict[str, str]:
        return {
            "ANSIBLE_CONFIG": str(self.repository / "ansible/ansible.cfg"),
            "ANSIBLE_HOME": str(self.folder / "ansible"),
            "ANSIBLE_TIMEOUT": "8",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.bed.folder / "cp"),  # a socket's path may have 108 characters
            "PATH": os.environ["PATH"],
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def type(self, command: str) -> str:
        """Runs a shell command in folder `ansible`, with the bed's inventory as inventories/mine; returns stdout."""
        folder = self.repository / "ansible"
        mine = folder / "inventories/mine"
        mine.mkdir(exist_ok=True)
        (mine / "hosts.yml").write_text(json.dumps(self.inventory()))
        environment = os.environ | self._environment()
        done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        return done.stdout

    def _keep(self, result: Result) -> None:
        """Writes the slowest tasks and the playbook's output to a file in LOGS."""
        tasks = sorted(result.tasks.items(), key=lambda item: -item[1])
        slowest = "".join(f"{seconds:6.1f} s  {name}\n" for name, seconds in tasks[:15])
        file = LOGS / f"{self.runs:02}.log"
        file.write_text(f"{result.status}, {result.seconds:.1f} s\n{slowest}\n{result.output}")

    @staticmethod
    def _note(event: dict, result: Result) -> None:
        kind, data = event["event"], event.get("event_data", {})
        answer = data.get("res") or {}
        answers = [item for item in answer.get("results", []) if isinstance(item, dict)] or [answer]
        host, task = data.get("host", ""), data.get("task", "")
        if kind == "runner_on_failed" and not data.get("ignore_errors"):
            text = " ".join(str(item.get("msg", "")) for item in answers if item.get("failed") or item is answer)
            result.failures.append((host, task, " ".join(text.split())))
        if kind in ("runner_on_ok", "runner_on_failed"):
            if answer.get("changed"):
                result.changed.append((host, task))
            result.messages += [str(item["msg"]) for item in answers if "msg" in item]
            seconds = float(data.get("duration") or 0)
            result.tasks[task] = max(result.tasks.get(task, 0.0), seconds)
