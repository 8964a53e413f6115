# SPDX-License-Identifier: Apache-2.0
"""Follow a job on its host until it ends: show its new log lines and watch the hosts that it runs on.

The module job_state reads the state. Returned: `outcome` is ended (`lost` are the hosts that did not answer when a job
had failed), lost (the hosts in `lost` refused the connection twice in a row, or gave no answer for `silence` seconds),
or timeout; `result` and `status` are those of the unit, `step` is the newest finished step that was read.
"""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

MAX_LINES = 40
"""Maximum number of log lines that are shown after each read; the last ones are shown."""


class ActionModule(ActionBase):
    """Arguments: unit, log, offset, steps and peers of job_state; host; poll, silence and timeout in seconds."""

    _requires_connection = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        args = dict(self._task.args)
        host = args.pop("host")
        poll, silence, timeout = (float(args.pop(name)) for name in ("poll", "silence", "timeout"))
        deadline = time.monotonic() + timeout
        display = Display()
        refused: set[str] = set()
        since: dict[str, float] = {}  # time of the first read without an answer, by host
        step = 0
        while True:
            now, state = time.monotonic(), self._read_state(args, task_vars)
            if state is None:
                since = {host: since.get(host, now)}
                if now - since[host] >= silence:
                    end = {"changed": False, "result": "unknown", "status": -1, "step": step}
                    return {**end, "outcome": "lost", "lost": [host]}
                time.sleep(poll)
                continue
            if state.get("failed"):
                return state
            args["offset"], step = state["offset"], state["step"]
            left_out = len(state["lines"]) - MAX_LINES
            if left_out > 0:
                display.display(f"{host}: ... {left_out} more lines in {args['log']}")
            for line in state["lines"][-MAX_LINES:]:
                display.display(f"{host}: {line}")
            end = {"changed": False, "lost": [], **{key: state[key] for key in ("result", "status", "free_gb", "step")}}
            if state["active"] not in ("active", "activating", "deactivating", "reloading"):
                lost = [] if state["result"] == "success" else sorted(state["refused"] + state["silent"])
                return {**end, "outcome": "ended", "lost": lost}
            since = {peer: since.get(peer, now) for peer in state["silent"]}
            gone = refused & set(state["refused"]) | {peer for peer in since if now - since[peer] >= silence}
            if gone:
                return {**end, "outcome": "lost", "lost": sorted(gone)}
            refused = set(state["refused"])
            if time.monotonic() >= deadline:
                return {**end, "outcome": "timeout"}
            time.sleep(poll)

    def _read_state(self, args: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the result of job_state, or None if the host does not answer."""
        try:
            state = self._execute_module(module_name="sam_rl.ascend.job_state", module_args=args, task_vars=task_vars)
        except AnsibleConnectionFailure:
            return None
        return None if state.get("unreachable") else state
