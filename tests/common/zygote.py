# SPDX-License-Identifier: Apache-2.0
"""Fork Python processes from one that has imported vLLM: a start takes milliseconds instead of ten seconds of imports.

Usage as a program: zygote.py FD MODULE ...   It imports the modules, then forks a child for each request on socket FD.
"""

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path

LONGEST = 1 << 17  # bytes of a request


class Zygote:
    """The process to fork, with the environment in which it imports `modules`."""

    def __init__(self, environment, modules):
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *modules],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def start(self, environment, *arguments):
        """Start a Process that runs `python *arguments` (a file or -m, and words) in the current folder."""
        (stdin, to_child), (from_child, stdout), (status, end) = os.pipe(), os.pipe(), os.pipe()
        request = json.dumps({"arguments": arguments, "environment": environment, "folder": os.getcwd()}).encode()
        assert len(request) < LONGEST, f"arguments of {len(request)} bytes: put them into a file"
        given = [stdin, stdout, 2, end]
        socket.send_fds(self.socket, [request], given)
        pid = json.loads(self.socket.recv(100) or "null")
        for fd in (stdin, stdout, end):
            os.close(fd)
        assert pid, "the process that was to be forked has ended: see its standard error"
        return Process(pid, os.fdopen(to_child, "w"), os.fdopen(from_child), status)


class Process:
    """Like a subprocess.Popen with pipes of text."""

    def __init__(self, pid, stdin, stdout, status):
        self.pid, self.stdin, self.stdout, self.returncode = pid, stdin, stdout, None
        self._status = status

    def wait(self):
        if self.returncode is None:
            self.returncode = int(os.read(self._status, 100) or -1)
            os.close(self._status)
        return self.returncode

    def communicate(self):
        self.stdin.close()
        printed = self.stdout.read()
        self.wait()
        return printed, None

    def kill(self):
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


def run(request, fds):
    """In the child: run the requested program as the main program, and exit."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
        os.close(fd)
    program, *words = request["arguments"]
    code = 0
    try:
        if program == "-m":
            sys.argv = words
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = [program, *words]
            sys.path.insert(0, str(Path(program).parent))
            runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(fds[3], str(code).encode())
    os._exit(code)


def serve(requests):
    """Fork a child for each request until the tests end."""
    ended, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children = set()
    while True:
        ready, _, _ = select.select([requests, ended], [], [])
        if ended in ready:
            os.read(ended, 1000)
            children = {pid for pid in children if not os.waitpid(pid, os.WNOHANG)[0]}
        if requests in ready:
            request, fds, _, _ = socket.recv_fds(requests, LONGEST, 4)
            if not request:
                return
            if not (pid := os.fork()):
                for fd in (requests.fileno(), ended, woken):
                    os.close(fd)
                run(json.loads(request), fds)
            children.add(pid)
            for fd in fds:
                os.close(fd)
            requests.send(json.dumps(pid).encode())


if __name__ == "__main__":
    for module in sys.argv[2:]:
        importlib.import_module(module)
    # An engine collects garbage at its start. Imported objects are no garbage, and reading them would copy their pages.
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))
