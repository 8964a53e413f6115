# SPDX-License-Identifier: Apache-2.0
"""Makes an engine's core, in a separate process, produce an output only while its caller waits for one, so that the
work between two outputs does not depend on the machine's load."""

import contextlib
import time


def allow(core, outputs):
    """Produce this many outputs, then wait; None: never wait. A method for vLLM's EngineCoreProc that its client calls.

    Requests that the client added before the call are in the scheduler. A pause continues until nothing is in flight.
    """
    if not hasattr(core, "outputs_left"):
        step = core.step_fn

        def step_if_allowed():
            paused = hasattr(core, "is_scheduler_paused") and core.is_scheduler_paused()  # vLLM 0.11 has no pause
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
    """Within this context, the core of a vLLM LLMEngine produces one output for each `engine.step()`."""
    client = engine.engine_core
    if not hasattr(client, "call_utility"):  # a core in this process only steps on request
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
