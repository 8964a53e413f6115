#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Read the state of a job: its unit, the new lines of its log, and the peers that do not answer."""

from __future__ import annotations

DOCUMENTATION = r"""
module: job_state
short_description: State of a systemd unit, new lines of its log, and peers that do not answer
options:
  unit: {description: Name of the unit, type: str, required: true}
  log: {description: Its log, type: path, required: true}
  offset: {description: Bytes of the log that were read already; -1 starts with its last lines, type: int, default: 0}
  steps: {description: "verl's step log, for C(step)", type: path}
  peers: {description: "What must answer: host, address, port", type: list, elements: dict, default: []}
"""
RETURN = r"""
active: {description: ActiveState of the unit, type: str, returned: always}
result:
  description: Result of the unit; stopped if a signal ended it, which systemd counts as a success
  type: str
  returned: always
status: {description: Exit status or number of the signal, type: int, returned: always}
lines: {description: Whole lines that are new, type: list, elements: str, returned: always}
offset: {description: Where the next read starts, type: int, returned: always}
free_gb: {description: Free GB where the log is or null without its folder, type: float, returned: always}
step: {description: The newest finished step in C(steps) or 0, type: int, returned: always}
refused: {description: Hosts that refuse the connection, type: list, elements: str, returned: always}
silent: {description: Hosts that give no answer, type: list, elements: str, returned: always}
"""

import concurrent.futures
import json
import os
import subprocess
import threading

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sam_rl.ascend.plugins.module_utils.host_state import REFUSED, free_gb, reachable

BLOCK = 1 << 20
TAIL = 4096
STORAGE_SECONDS = 30


def new_lines(path, offset):
    """Return (whole lines from `offset` on, at most BLOCK bytes; the new offset). Without a file there are no lines."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if offset < 0:
                offset = max(0, size - TAIL)
            elif offset > size:  # the file was truncated
                offset = 0
            file.seek(offset)
            data = file.read(BLOCK)
    except FileNotFoundError:
        return [], max(offset, 0)
    end = data.rfind(b"\n") + 1
    return data[:end].decode("utf-8", "replace").splitlines(), offset + end


def main():
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "log": {"type": "path", "required": True},
            "offset": {"type": "int", "default": 0},
            "steps": {"type": "path"},
            "peers": {"type": "list", "elements": "dict", "default": []},
        },
        supports_check_mode=True,
    )
    names = ("ActiveState", "Result", "ExecMainStatus")
    command = ["systemctl", "show", "--property=" + ",".join(names), module.params["unit"]]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        module.fail_json(msg=f"systemctl does not answer ({done.stderr.strip()}): is systemd running?")
    found = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    peers, log, folder = module.params["peers"], module.params["log"], os.path.dirname(module.params["log"])

    def files():
        free = free_gb(folder) if os.path.isdir(folder) else None
        return *new_lines(log, module.params["offset"]), free, finished_step(module.params["steps"])

    try:
        lines, offset, free, step = within(STORAGE_SECONDS, files)
    except (OSError, concurrent.futures.TimeoutError) as error:
        reason = getattr(error, "strerror", None) or f"no answer within {STORAGE_SECONDS} s"
        module.fail_json(
            msg=f"{folder} cannot be read ({reason}), expected the storage that all hosts share: see `mount` and its "
            f"server; {module.params['unit']} was not stopped: run the playbook again, which joins it."
        )
    status, result = int(found.get("ExecMainStatus") or 0), found.get("Result", "")
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda peer: (peer["host"], no_connection(peer)), peers))
    module.exit_json(
        changed=False,
        active=found.get("ActiveState", ""),
        result="stopped" if result == "success" and status else result,
        status=status,
        lines=lines,
        offset=offset,
        free_gb=free,
        step=step,
        refused=[host for host, reason in answers if reason == REFUSED],
        silent=[host for host, reason in answers if reason not in (None, REFUSED)],
    )


def within(seconds, read):
    """Call read() in a thread; return its result or raise its exception, or TimeoutError after `seconds`."""
    answer: concurrent.futures.Future = concurrent.futures.Future()

    def run():
        try:
            answer.set_result(read())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer.result(seconds)


def finished_step(steps):
    """Return the newest finished step in the last BLOCK bytes of the step log, or 0. Incomplete lines are skipped."""
    try:
        with open(steps or os.devnull, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - BLOCK))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return 0
    found = 0
    for line in lines:
        try:
            row = json.loads(line)
            found = max(found, row["step"]) if "timing_s/step" in row["data"] else found
        except (ValueError, LookupError, TypeError):
            continue
    return found


def no_connection(peer):
    """Return None if the peer's port accepts a connection, else the reason why not."""
    return reachable(str(peer["address"]), int(peer["port"]), timeout=4, refused_is_answer=False)


if __name__ == "__main__":
    main()
