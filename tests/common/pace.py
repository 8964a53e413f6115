# SPDX-License-Identifier: Apache-2.0
"""An engine's core, in a process of its own, that makes an output only while its caller waits for one: what lies
between two outputs is then the same on a busy machine and on an idle one."""

import contextlib
import time


def allow(core, outputs):
    """A method that vLLM's EngineCoreProc gets and its client calls: make this many outputs and wait; None: go on.

    Requests that its client added before are in its scheduler. A pause goes on until nothing is in flight.
    """
    if not hasattr(core, "outputs_left"):
        step = core.step_fn

        def step_if_allowed():
            paused = hasattr(core, "is_scheduler_paused") and core.is_scheduler_paused()  # vLLM 0.11 knows no pause
            if core.outputs_left == 0 and not paused:
                time.sleep(0.0005)
                return None, False
            made, executed = step()
            if made and core.outputs_left:
                core.outputs_left -= 1
            return made, executed

        core.step_fn = step_if_allowed
    core.outputs_left = outputs


@contextlib.contextmanager
def kept_with(engine):
    """While this holds, the core of a vLLM LLMEngine makes one output for each of `engine.step()`."""
    client = engine.engine_core
    if not hasattr(client, "call_utility"):  # a core in this process steps when it is asked for an output
        yield
        return
    client.call_utility("allow", 0)
    while not client.outputs_queue.empty():
        engine.step()
    get = client.get_output

    def ask_and_get():
        client.call_utility("allow", 1)
        return get()

    client.get_output = ask_and_get
    try:
        yield
    finally:
        client.get_output = get
        client.call_utility("allow", None)
