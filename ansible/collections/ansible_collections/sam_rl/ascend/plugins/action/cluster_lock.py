# SPDX-License-Identifier: Apache-2.0
"""Take or give back a cluster's lock as this run of ansible-playbook, by the module of the same name.

A lock whose owner's process on this machine has ended is taken over; that of another machine ends `minutes` after its
last sign of life, or with `break`. Arguments: host, what (shown to others), and path, state, minutes, break as of the
module.
"""

from __future__ import annotations

import getpass
import os
import socket
import time
from typing import Any

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Fails with one sentence where another holds the lock."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        args = dict(self._task.args)
        host = args.pop("host")
        # A task runs in a child of ansible-playbook.
        owner = {"user": getpass.getuser(), "machine": socket.gethostname(), "process": os.getppid()}
        args["owner"] = owner | {"what": args.pop("what", "")}

        def call() -> dict[str, Any]:
            return self._execute_module(module_name="sam_rl.ascend.cluster_lock", module_args=args, task_vars=task_vars)

        result = call()
        if (holder := result.get("holder")) and holder.get("machine") == owner["machine"] and not _lives(holder):
            args["break"] = True
            result = call()
        if holder := result.get("holder"):
            since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(holder.get("since", 0)))
            result["failed"] = True
            who = f"{holder.get('user')} on {holder.get('machine')} (process {holder.get('process')})"
            result["msg"] = (
                f"{host}: {who} runs '{holder.get('what')}' on this cluster since {since}, expected no other playbook: "
                f"wait for its end; if it was broken off, its lock ends {args.get('minutes', 1440)} minutes after its "
                f"last sign of life, which is {holder['age'] / 60:.0f} minutes ago, or now with "
                "-e validate_inventory_break_lock=true."
            )
        return result


def _lives(holder: dict[str, Any]) -> bool:
    return os.path.exists(f"/proc/{holder.get('process')}")
