# SPDX-License-Identifier: Apache-2.0
"""vLLM's second runner on the CPU: Triton's interpreter runs its kernels.

Streams and events are placeholders there, so work is done when it is launched. To the drafter it seems unfinished for
as long as a device could need: what a step sampled reaches the host with its event. A wait for it, or a read from the
device, ends the engine.
"""

import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "interpreter"))
os.environ.update(
    VLLM_PLUGINS="",
    TRITON_INTERPRET="1",
    OMP_NUM_THREADS="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_CPU_CI_ENV="1",  # no warm-up
    VLLM_ENABLE_V1_MULTIPROCESSING="1",
    VLLM_ALLOW_INSECURE_SERIALIZATION="1",  # collective_rpc of a function
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
)

import noting_pool
import pytest
import tiny_qwen3
from cpu_engine import Engine
from thinking import reasoning

SEEDED = {"verify": "seeded", "threshold": 6, "min_prob": 0}


def pool_stats(worker):
    """Runs in a worker: counters of the drafter's Pool."""
    return worker.model_runner.speculator.proposer.pool.stats()


def note_answers(worker):
    """Runs in a worker: from now on notes the answers that the drafter indexes."""
    noting_pool.note_answers(worker.model_runner.speculator.proposer)


def noted_answers(worker):
    """Runs in a worker: what was noted since note_answers."""
    return noting_pool.noted_answers(worker.model_runner.speculator.proposer)


@pytest.fixture(scope="session", autouse=True)
def device():
    """Asynchronous scheduling, which the CPU backend switches off, and a device that is not always done."""
    import numpy as np
    import torch
    from sam_core.engines.vllm.runner2_device import DeviceSpeculator
    from triton_interpreter.speed import speed_up
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.sample.ops import topk_topp_sampler
    from vllm.v1.worker.cpu import shm  # replaces torch's streams and events
    from vllm.v1.worker.gpu.async_utils import AsyncOutput

    check, rng, begun = CpuPlatform.check_and_update_config, random.Random(0), [0]

    def keep_asynchronous(vllm_config):
        asynchronous = vllm_config.scheduler_config.async_scheduling
        check(vllm_config)
        vllm_config.scheduler_config.async_scheduling = asynchronous

    class Event(shm._EventPlaceholder):
        """Done when the engine has waited for it, or when it was asked for often enough.

        The engine begins a step once it has had all outputs but the last, so the drafter waits for nothing if it has
        been told that an output is there, or if that is the last but one.
        """

        step = 0

        def __init__(self, *args, **kwargs):
            super().__init__()
            self.done, self.copies, self.synchronize = False, [], self._synchronize
            self.told = False

        def query(self):
            if rng.random() < 0.4:
                self.finish()
            self.told = self.done
            return self.done

        def _synchronize(self):
            reader = sys._getframe(2).f_globals["__name__"]
            had = self.told or begun[0] - self.step >= 2
            assert had or reader != "sam_core.engines.vllm.runner2_device", "the drafter waits for the device"
            self.finish()

        def finish(self):
            for copy, source in self.copies:
                copy[:] = source
            self.done, self.copies = True, []

    launch = AsyncOutput.__init__

    def launch_copies(output, *args, **kwargs):
        launch(output, *args, **kwargs)
        output.copy_event.step = begun[0]
        for name in ("sampled_token_ids", "num_sampled_tokens_np"):
            source = getattr(output, name)
            copy = np.full_like(source, 1)
            output.copy_event.copies.append((copy, source))
            setattr(output, name, copy)

    update_requests = DeviceSpeculator.update_requests

    def begin(*args):
        begun[0] += 1
        update_requests(*args)

    AsyncOutput.__init__, DeviceSpeculator.update_requests = launch_copies, begin
    topk_topp_sampler.HAS_TRITON = False  # the interpreter cannot run this kernel
    CpuPlatform.check_and_update_config = staticmethod(keep_asynchronous)
    torch.Event = torch.cuda.Event = Event
    speed_up()
    watch_reads()


def watch_reads():
    """A read from the device while the asynchronous drafter drafts raises."""
    from sam_core.engines.vllm.runner2_device import DeviceSpeculator
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            name = function.overloadpacket.__name__
            assert name not in ("_local_scalar_dense", "nonzero", "equal", "masked_select"), f"{name} reads the device"
            return function(*args, **(kwargs or {}))

    draft = DeviceSpeculator.draft

    def watched(*args):
        with Watch():
            draft(*args)

    DeviceSpeculator.draft = watched


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return save(tmp_path_factory, seed=0)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The same model with other weights."""
    return save(tmp_path_factory, seed=1)


def save(tmp_path_factory, seed):
    folder = tmp_path_factory.mktemp("qwen3")
    tiny_qwen3.save(folder, seed, num_attention_heads=2, num_key_value_heads=1, head_dim=32)
    return folder


def start(model, sam=None, **settings):
    sizes = {"max_model_len": 256, "max_num_seqs": 8, "max_num_batched_tokens": 256}
    return Engine(model, sam, **(sizes | {"reasoning_config": reasoning()} | settings))


@pytest.fixture(scope="session")
def plain(model, device):
    """The second runner without speculation: the reference."""
    engine = start(model)
    assert engine.engine.vllm_config.use_v2_model_runner
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def synchronous(model, device):
    engine = start(model, SEEDED | {"min_prob": 0.1}, async_scheduling=False)
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def asynchronous(model, device):
    """In a cache of so few blocks that requests are preempted; prompts in chunks of 48 tokens; drafts up to 6
    requests."""
    engine = start(
        model,
        SEEDED,
        max_num_batched_tokens=48,
        block_size=32,
        num_gpu_blocks_override=11,
        enable_prefix_caching=False,
    )
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def prompts():
    """8 prompts of 5 to 40 tokens; the second half repeats the first."""
    return tiny_qwen3.repeated_prompts(4)
