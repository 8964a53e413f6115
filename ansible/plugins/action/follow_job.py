# SPDX-License-Identifier: Apache-2.0
"""Follow a job on its host until it ends: show its new log lines, watch the hosts it runs on, and give up in time.

The module job_state makes each look. Returned: `outcome` is ended, lost (hosts in `lost` did not answer twice in a
row) or timeout; `result` and `status` are those of the unit.
"""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

SHOWN = 40
"""Lines a look; of more the last ones are shown."""
GRACE = 3
"""Looks without an answer from the job's own host before it counts as lost."""


class ActionModule(ActionBase):
    """Arguments: unit, log, offset, peers as of job_state; host; poll and timeout in seconds."""

    _requires_connection = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        args = dict(self._task.args)
        host, poll, timeout = args.pop("host"), float(args.pop("poll")), float(args.pop("timeout"))
        deadline = time.monotonic() + timeout
        display, before, silent = Display(), set(), 0
        while True:
            state = self._look(args, task_vars)
            if state is None:
                silent += 1
                if silent >= GRACE:
                    return {"changed": False, "outcome": "lost", "lost": [host], "result": "unknown", "status": -1}
                time.sleep(poll)
                continue
            if state.get("failed"):
                return state
            silent, args["offset"] = 0, state["offset"]
            left_out = len(state["lines"]) - SHOWN
            if left_out > 0:
                display.display(f"{host}: ... {left_out} more lines in {args['log']}")
            for line in state["lines"][-SHOWN:]:
                display.display(f"{host}: {line}")
            end = {"changed": False, "result": state["result"], "status": state["status"], "lost": []}
            if state["active"] not in ("active", "activating", "deactivating", "reloading"):
                return {**end, "outcome": "ended"}
            if lost := before & set(state["lost"]):
                return {**end, "outcome": "lost", "lost": sorted(lost)}
            before = set(state["lost"])
            if time.monotonic() >= deadline:
                return {**end, "outcome": "timeout"}
            time.sleep(poll)

    def _look(self, args: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any] | None:
        """The result of job_state, None where its host does not answer."""
        try:
            state = self._execute_module(module_name="job_state", module_args=args, task_vars=task_vars)
        except AnsibleConnectionFailure:
            return None
        return None if state.get("unreachable") else state
