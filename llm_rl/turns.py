# SPDX-License-Identifier: Apache-2.0
"""Trainers that alternate: each begins a training step when the demo (llm_rl.demo) tells it to.

Loaded as a verl plugin, VERL_USE_EXTERNAL_MODULES=llm_rl.turns. SAM_TURNS is the path of the demo's socket. Without it,
or after the demo has ended, a trainer does not wait.
"""

import contextlib
import functools
import os
import socket

from verl.utils.skip import SkipManager

_begin_step = SkipManager.set_step
"""verl's trainers call it before the first training step and after each step, with the number of the next step."""


@functools.cache
def _demo() -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["SAM_TURNS"])
    return connection


def begin_step(step: int) -> None:
    _begin_step(step)
    if "SAM_TURNS" in os.environ:
        with contextlib.suppress(OSError):
            print("waits for its turn", flush=True)
            _demo().sendall(b"%d\n" % step)
            _demo().recv(1)
            print("its turn has come", flush=True)


SkipManager.set_step = begin_step
