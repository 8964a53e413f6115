# SPDX-License-Identifier: Apache-2.0
"""Take or give back a cluster's lock, a file on its first host, as this run of ansible-playbook.

A lock whose owner's process on this machine has ended is taken over; that of another machine ends `minutes` after its
last sign of life, the file's time, or with `break`. Arguments: host, what (shown to others), minutes, break, path;
state (held, free).
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
    """Prints nothing, or for how long which other line than `begin` + `rest` has held the lock."""
    return ["flock", path, "bash", "-c", SCRIPT, path, state, begin, rest, str(minutes), str(force)]


class ActionModule(ActionBase):
    """Fails with one sentence where another holds the lock."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        args = {"path": "/run/sam-rl.lock", "state": "held", "minutes": 1440, "break": False, **self._task.args}
        # A task runs in a child of ansible-playbook.
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
            since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(holder.get("since", 0)))
            result["failed"] = True
            who = f"{holder.get('user')} on {holder.get('machine')} (process {holder.get('process')})"
            result["msg"] = (
                f"{args['host']}: {who} runs '{holder.get('what')}' on this cluster since {since}, expected no other "
                f"playbook: wait for its end; if that was ended, its lock expires {args['minutes']} minutes after its "
                f"last sign of life, which is {holder['age'] / 60:.0f} minutes ago, or is removed now with "
                "-e validate_inventory_break_lock=true."
            )
        return result


def _lives(holder: dict[str, Any]) -> bool:
    return os.path.exists(f"/proc/{holder.get('process')}")


def _holder(result: dict[str, Any]) -> dict[str, Any] | None:
    """Who holds the lock instead, and the seconds since their last sign of life; None if nobody does."""
    age, _, line = result.get("stdout", "").partition("\n")
    if not age:
        return None
    try:
        return {**json.loads(line), "age": int(age)}
    except ValueError:  # the holder was ended while it wrote
        return {"age": int(age)}
