# SPDX-License-Identifier: Apache-2.0
"""vLLM's second runner on the CPU: Triton's interpreter runs its kernels.

Streams and events are placeholders on the CPU, so work is done when it is launched. For the drafter it stays unfinished
for as long as a device could need: sampled tokens reach the host only with the event of their step. The engine fails if
the drafter waits for the event or reads from the device. Each step advances a clock, which gives the device's time.

In spawned processes vLLM loads this module as a plugin.
"""

import functools
import random
import sys
from unittest import mock

STEP_MS, ROW_MS, DRAFT_MS = 10.0, 0.35, 0.5
"""Milliseconds of a step of the device: fixed, per token, and for drafting."""


@functools.cache
def simulate_device():
    """Allow asynchronous scheduling, which the CPU backend switches off, and simulate a device that takes time."""
    import numpy as np
    import torch
    from sam_core.engines.vllm.pauses import Pauses
    from sam_core.engines.vllm.runner2 import Speculator
    from triton import language
    from vllm.platforms.cpu import CpuPlatform
    from vllm.triton_utils import tldevice
    from vllm.v1.sample.ops import topk_topp_sampler
    from vllm.v1.worker.cpu import shm  # replaces torch's streams and events
    from vllm.v1.worker.gpu import async_utils

    from triton_interpreter.speed import speed_up

    check, rng, begun, copying = CpuPlatform.check_and_update_config, random.Random(0), [0], []
    clock, concurrent = [0.0], [2]

    def keep_asynchronous(vllm_config):
        asynchronous = vllm_config.scheduler_config.async_scheduling
        check(vllm_config)
        vllm_config.scheduler_config.async_scheduling = asynchronous

    class Event(shm._EventPlaceholder):
        """An event that is done after the engine has waited for it, or after a random number of queries.

        The engine begins a step when it has all outputs but the last one, or all if it schedules synchronously. So the
        drafter may only synchronize with an event that a query has reported as done, or with one of an older step.
        """

        step = 0

        def __init__(self, *args, **kwargs):
            super().__init__()
            self.done, self.copies = False, []
            self.record, self.synchronize = self._record, self._synchronize
            self.told = False

        def query(self):
            if rng.random() < 0.4:
                self.finish()
            self.told = self.done
            return self.done

        def _synchronize(self):
            reader = sys._getframe(2).f_globals["__name__"]
            had = self.told or begun[0] - self.step >= concurrent[0]
            assert had or reader != "sam_core.engines.vllm.runner2", "the drafter waits for the device"
            self.finish()

        def elapsed_time(self, end):
            assert end.done, "the drafter reads a time that is not there"
            return end.ms - self.ms

        def finish(self):
            for copy, source in self.copies:
                copy[:] = source
            self.done, self.copies = True, []

        def _record(self, *args):
            self.step, self.ms = begun[0], clock[0]
            self.copies += copying
            copying.clear()

    def copy_later(tensor):
        source = tensor.numpy().copy()
        copy = np.full_like(source, 1)
        copying.append((copy, source))
        return copy

    update_requests = Speculator.update_requests

    def begin(speculator, *args):
        begun[0] += 1
        concurrent[0] = speculator.max_concurrent
        update_requests(speculator, *args)

    launched = Pauses.launched

    def launch(pauses, input_batch):
        launched(pauses, input_batch)
        clock[0] += STEP_MS + ROW_MS * input_batch.num_tokens + DRAFT_MS * (not pauses.pause)

    Pauses.launched = launch
    async_utils.async_copy_to_np, Speculator.update_requests = copy_later, begin
    topk_topp_sampler.HAS_TRITON = False  # the interpreter cannot run this kernel
    tldevice.log1p = lambda x: language.log(x.to(language.float64) + 1).to(x.dtype)  # it has none; for vLLM up to 0.30
    CpuPlatform.check_and_update_config = staticmethod(keep_asynchronous)
    torch.Event = torch.cuda.Event = Event
    speed_up()
    watch_reads()
    allow_adaptive_verification()


def allow_adaptive_verification():
    """Replace what a CPU lacks for adaptive verification: graphs, an attention backend that supports it, trial runs at
    the engine's start, Inductor. Releases of vLLM check these in different places."""
    import vllm.v1.worker.gpu.spec_decode.adaptive_verification as adaptive
    from sam_core.engines.vllm.plugin import front
    from sam_core.engines.vllm.verification import Verification
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu import model_runner
    from vllm.v1.worker.gpu.async_utils import StepTimingSample

    simulate_device.why_not_adaptive, front.why_not_adaptive = front.why_not_adaptive, lambda vllm_config: None
    VllmConfig._validate_adaptive_verification = lambda self: None
    adaptive.get_varlen_cudagraph_unsupported_backend = lambda *args, **kwargs: None
    adaptive.AttentionCGSupport = mock.Mock(ALWAYS=mock.ANY)  # up to 0.30
    model_runner.resolve_adaptive_cudagraph_mode = lambda mode, **kwargs: mode
    adaptive._assign_draft_token_budget_compiled = adaptive._assign_draft_token_budget
    init = Verification.__init__

    def start(self, *args):
        init(self, *args)
        trials = [*self.batches_to_profile([*range(1, 65)])]
        assert not any(trial["context_len"] for trial in trials), "draft tokens share the context of their request"
        sizes = [trial["num_tokens"] for trial in trials]
        self.set_initial_cost_curves([StepTimingSample(STEP_MS + ROW_MS * n, DRAFT_MS, n, n, True) for n in sizes])

    Verification.__init__ = start


def watch_reads():
    """Raise an error when the asynchronous drafter reads from the device while it drafts."""
    from sam_core.engines.vllm.runner2 import Speculator
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            name = function.overloadpacket.__name__
            assert name not in ("_local_scalar_dense", "nonzero", "equal", "masked_select"), f"{name} reads the device"
            return function(*args, **(kwargs or {}))

    draft = Speculator._draft

    def watched(*args):
        with Watch():
            draft(*args)

    Speculator._draft = watched
