# SPDX-License-Identifier: Apache-2.0
"""A Python that has imported modules already: `FOLDER/python ARGUMENTS` does what `python ARGUMENTS` does.

A server imports the modules once and forks itself for each call, so that a call takes milliseconds and the processes
share the memory of what is imported. It is for a CPU: a process that has initialized an accelerator cannot be forked.

With `variables(FOLDER)` in a run's environment, the Ray that the run starts uses FOLDER/python for its workers, and
they use it for the processes that multiprocessing spawns.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from fcntl import F_DUPFD_CLOEXEC, F_SETFL, F_SETOWN, fcntl
from pathlib import Path
from typing import Any

ENV_FOLDER = "SAM_FORKS"
"""Environment variable: the folder of the server that starts a run's processes."""
MAX_CALL_BYTES, MAX_CALL_FDS = 1 << 17, 250
FIRST_JOB = "01000000"
"""RAY_JOB_ID in the workers of a Ray that a run has started."""


@contextlib.contextmanager
def server(folder: Path, modules: Sequence[str], environment: Mapping[str, str]) -> Iterator[None]:
    """Start a server and write `folder`/python, which forks processes that have already imported `modules`.

    Calls wait until the imports are done. The server ends when the context or the calling process ends, and Ray's
    workers end with it.

    Args:
        folder: an empty folder; the output of the imports goes to `folder`/log.
        environment: of the server.
    """
    client = [sys.executable, "-IS", str(Path(__file__).with_name("fork_client.py")), str(folder)]
    (folder / "python").write_text(f'#!/bin/sh\nexec {shlex.join(client)} "$@"\n')
    (folder / "python").chmod(0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as calls, (folder / "log").open("w") as log:
        calls.bind(f"{folder}/calls")
        calls.listen(100)
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(calls.fileno()), *modules],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=[calls.fileno()],
            process_group=0,  # Ctrl-C does not reach it
        )
    try:
        yield
    finally:
        process.kill()
        process.communicate()


def variables(folder: Path) -> dict[str, str]:
    """Environment variables of a run whose processes `folder`/python starts."""
    return {ENV_FOLDER: str(folder), "RAY_RUNTIME_ENV_HOOK": f"{__name__}.runtime_env"}


def runtime_env(given: dict[str, Any] | None) -> dict[str, Any]:
    """Add the program of workers to Ray's runtime environment."""
    return {**(given or {}), "py_executable": f"{os.environ[ENV_FOLDER]}/python"}


def serve(calls: socket.socket) -> socket.socket:
    """Fork for each call; returns in the forks, with the connection to the client."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if sys.stdin in select.select([calls, sys.stdin], [], [])[0]:
            sys.exit()  # the caller has ended
        call, _ = calls.accept()
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            calls.close()
            return call
        call.close()


def run(call: socket.socket) -> None:
    """Do what a client asks, as Python would: with its environment, folder, file descriptors and arguments."""
    message, received, _, _ = socket.recv_fds(call, MAX_CALL_BYTES, MAX_CALL_FDS)
    request = json.loads(message)
    received = [call.detach(), *received]
    aside = [fcntl(fd, F_DUPFD_CLOEXEC, max(request["fds"], default=2) + 1) for fd in received]
    for fd in received:
        os.close(fd)
    call = socket.socket(fileno=aside[0])
    for fd, number in zip(aside[1:], request["fds"], strict=True):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    os.setpgid(0, 0)  # the raylet ends the group of a worker
    if ray := sys.modules.get("ray"):
        ray._raylet.Config.initialize("")  # reads the other variables again
    fcntl(call, F_SETOWN, os.getpid())
    fcntl(call, F_SETFL, os.O_ASYNC)  # SIGIO ends this process when the client, which sends nothing else, has ended
    call.send(b"%d" % os.getpid())
    if ENV_FOLDER in os.environ:
        multiprocessing.set_executable(f"{os.environ[ENV_FOLDER]}/python")
    code = 0
    try:
        main(request["arguments"])
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
        raise
    except BaseException:
        code = 1
        raise
    finally:
        call.send(b"%d" % code)


def main(arguments: list[str]) -> None:
    """Run `python arguments`: options of the interpreter (the server has the same), and -c CODE, -m MODULE or FILE."""
    while arguments[0][0] == "-" and arguments[0] not in ("-c", "-m"):
        arguments = arguments[1:]
    sys.argv = arguments
    if arguments[0] == "-c":
        _, code, *words = arguments
        sys.argv, sys.path[0] = ["-c", *words], ""
        exec(code, sys.modules["__main__"].__dict__)
    elif arguments[0] == "-m":
        sys.argv, sys.path[0] = arguments[1:], os.getcwd()
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    # Ray reads these at its import. A worker ends with the process named, and with its client, which the raylet starts.
    os.environ |= {"RAY_JOB_ID": FIRST_JOB, "RAY_RAYLET_PID": str(os.getpid())}
    listening = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()  # imports leave little garbage; collections would take a seventh of the time
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.freeze()  # a collection in a fork would copy the memory of all that is imported
    gc.enable()
    run(serve(listening))
