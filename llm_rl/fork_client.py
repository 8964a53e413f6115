# SPDX-License-Identifier: Apache-2.0
"""Usage: fork_client.py FOLDER ARGUMENTS   Let the server of llm_rl.forks run `python ARGUMENTS`, and exit as it does.

Imports few modules, because every process of a run starts with it.
"""

import json
import os
import signal
import socket
import sys

FIRST_JOB = "01000000"  # llm_rl.forks.FIRST_JOB

if os.environ.get("RAY_JOB_ID", FIRST_JOB) != FIRST_JOB:  # a Ray that has had other jobs
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
fds = []
for number in map(int, os.listdir("/proc/self/fd")):
    try:
        if os.get_inheritable(number):
            fds.append(number)
    except OSError:  # that of /proc/self/fd
        pass
call = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try:
    call.connect(f"{sys.argv[1]}/calls")
    request = {"arguments": sys.argv[2:], "environment": dict(os.environ), "folder": os.getcwd(), "fds": fds}
    socket.send_fds(call, [json.dumps(request).encode()], fds)
    pid = int(call.recv(20))
except (OSError, ValueError):
    with open(f"{sys.argv[1]}/log") as log:
        reason = log.read().strip().splitlines()[-1:] or ["its server has ended"]
    sys.exit(f"error: {sys.argv[1]}/python: {reason[0]}")
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda sign, _: os.kill(pid, sign))
code = 128 + signal.SIGKILL
while answer := call.recv(20):
    code = int(answer)
sys.exit(code)
