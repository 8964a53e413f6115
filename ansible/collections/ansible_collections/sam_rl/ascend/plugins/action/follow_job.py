# SPDX-License-Identifier: Apache-2.0
"""Follow a job on its host until it ends: show its new log lines and watch the hosts that it runs on.

The module job_state reads the state. Returned: `outcome` is ended (`lost` are the hosts that did not answer when a job had
failed), lost (the hosts in `lost` did not answer twice in a row), timeout, or, with `watch`, written (a new checkpoint whose
step is logged); `result` and `status` are those of the unit.
"""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

MAX_LINES = 40
"""Log lines shown after each read; of more, the last ones."""
MAX_SILENT_READS = 3
"""Reads without an answer from the job's own host after which it counts as lost."""


class ActionModule(ActionBase):
    """Arguments: unit, log, offset, watch, steps, peers as of job_state; host; poll and timeout in seconds."""

    _requires_connection = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        args = dict(self._task.args)
        host, poll, timeout = args.pop("host"), float(args.pop("poll")), float(args.pop("timeout"))
        deadline = time.monotonic() + timeout
        display, before, silent = Display(), set(), 0
        watched: list[int | None] = []
        while True:
            state = self._read_state(args, task_vars)
            if state is None:
                silent += 1
                if silent >= MAX_SILENT_READS:
                    return {"changed": False, "outcome": "lost", "lost": [host], "result": "unknown", "status": -1}
                time.sleep(poll)
                continue
            if state.get("failed"):
                return state
            silent, args["offset"] = 0, state["offset"]
            left_out = len(state["lines"]) - MAX_LINES
            if left_out > 0:
                display.display(f"{host}: ... {left_out} more lines in {args['log']}")
            for line in state["lines"][-MAX_LINES:]:
                display.display(f"{host}: {line}")
            end = {"changed": False, "lost": [], **{key: state[key] for key in ("result", "status", "free_gb")}}
            if state["active"] not in ("active", "activating", "deactivating", "reloading"):
                return {**end, "outcome": "ended", "lost": [] if state["result"] == "success" else state["lost"]}
            if lost := before & set(state["lost"]):
                return {**end, "outcome": "lost", "lost": sorted(lost)}
            before = set(state["lost"])
            watched = watched or [state["watched"]]
            if state["watched"] not in (None, watched[0]):
                return {**end, "outcome": "written"}
            if time.monotonic() >= deadline:
                return {**end, "outcome": "timeout"}
            time.sleep(poll)

    def _read_state(self, args: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any] | None:
        """The result of job_state, or None if its host does not answer."""
        try:
            state = self._execute_module(module_name="sam_rl.ascend.job_state", module_args=args, task_vars=task_vars)
        except AnsibleConnectionFailure:
            return None
        return None if state.get("unreachable") else state
