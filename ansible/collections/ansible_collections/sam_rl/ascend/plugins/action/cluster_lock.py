# SPDX-License-Identifier: Apache-2.0
"""Take or release the lock of a cluster, a file on its first host, for this run of ansible-playbook.

If the process that holds a lock ran on this machine and has ended, the lock is taken over. Any lock expires `minutes`
after its last sign of life, the modification time; `break` removes it at once. Arguments: host, what (shown to others),
minutes, break, path, state (held, free).
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import time
from typing import Any

from ansible.plugins.action import ActionBase

SCRIPT = """
    holder=$(cat "$0")
    if [[ $1 == free ]]; then
        [[ $holder != "$2"* ]] || : >"$0"
    elif [[ -z $holder || $5 == True || $(find "$0" -mmin "+$4") ]]; then
        echo "$2$3" >"$0"
    elif [[ $holder == "$2"* ]]; then
        touch "$0"
    else
        echo $(($(date +%s) - $(stat --format=%Y "$0")))
        echo "$holder"
    fi
"""


def command(path: str, state: str, begin: str, rest: str, minutes: int, force: bool) -> list[str]:
    """Return the command that takes (held) or releases (free) the lock of the run that `begin` identifies.

    If another run holds the lock, the command prints the seconds since that run's last sign of life, and its line.
    """
    return ["flock", path, "bash", "-c", SCRIPT, path, state, begin, rest, str(minutes), str(force)]


class ActionModule(ActionBase):
    """Fails with one sentence if another run holds the lock."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        args = {"path": "/run/sam-rl.lock", "state": "held", "minutes": 1440, "break": False, **self._task.args}
        # Each task runs in a child process of ansible-playbook.
        owner = {"user": getpass.getuser(), "machine": socket.gethostname(), "process": os.getppid()}
        begin = json.dumps(owner)[:-1] + ", "
        rest = json.dumps({"what": args.get("what", ""), "since": time.time()})[1:]

        def call(force: bool) -> dict[str, Any]:
            words = {"argv": command(args["path"], args["state"], begin, rest, args["minutes"], force)}
            done = self._execute_module(module_name="ansible.builtin.command", module_args=words, task_vars=task_vars)
            return {**done, "changed": False}

        result = call(bool(args["break"]))
        holder = _holder(result)
        if holder and holder.get("machine") == owner["machine"] and not _lives(holder):
            result = call(True)
            holder = _holder(result)
        if holder:
            result["failed"] = True
            result["msg"] = (
                f"{args['host']}: {_described(holder)}: wait until it has ended. If its process is gone, the lock "
                f"expires {args['minutes']} minutes after its last sign of life, which was {holder['age'] / 60:.0f} "
                "minutes ago; to remove it now, add -e validate_inventory_break_lock=true."
            )
        return result


def _described(holder: dict[str, Any]) -> str:
    if "since" not in holder:
        return "another playbook, whose record is incomplete, changes this cluster"
    since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(holder["since"]))
    who = f"{holder['user']} on {holder['machine']} (process {holder['process']})"
    return f"{who} has been running '{holder['what']}' on this cluster since {since}"


def _lives(holder: dict[str, Any]) -> bool:
    return os.path.exists(f"/proc/{holder.get('process')}")


def _holder(result: dict[str, Any]) -> dict[str, Any] | None:
    """Return the record of another holder with `age`, the seconds since its last sign of life; None without one."""
    age, _, line = result.get("stdout", "").partition("\n")
    if not age:
        return None
    try:
        return {**json.loads(line), "age": int(age)}
    except ValueError:  # the holder ended while it wrote its record
        return {"age": int(age)}
