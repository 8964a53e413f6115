# SPDX-License-Identifier: Apache-2.0
"""verl's server of an engine, in this process without Ray: weights, requests, interruptions, counters."""

import asyncio
import os
import threading
import time
from types import SimpleNamespace
from unittest import mock

import pytest
from conftest import INSTALLED, TINY, overrides, tiny

PROMPT = [5, 6, 7, 8, 9, 5, 6, 7, 8]


class Server:
    """A vLLMHttpServer of replica 3, whose event loop runs in a thread."""

    def __init__(self, engine_kwargs):
        import forked  # noqa: F401
        import ray
        from hydra import compose, initialize_config_dir
        from verl.workers.rollout.replica import RolloutMode
        from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

        ray.get_runtime_context = lambda: SimpleNamespace(get_job_id=lambda: "job")
        ray.util.get_node_ip_address = lambda: "127.0.0.1"
        settings = tiny(engine_kwargs)
        del settings["ray_kwargs"]
        with initialize_config_dir(str(INSTALLED / "trainer" / "config"), version_base=None):
            config = compose("ppo_trainer", [*overrides(settings)]).actor_rollout_ref
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        where = {"node_rank": 0, "gpus_per_node": 1, "nnodes": 1, "cuda_visible_devices": "0"}
        mode = {"rollout_mode": RolloutMode.HYBRID, "workers": [None], "replica_rank": 3}
        self.server = self.call(self.make(vLLMHttpServer, config.rollout, config.model, **mode, **where))
        self.call(self.server.launch_server())

    async def make(self, kind, config, model_config, **settings):
        return kind(config=config, model_config=model_config, **settings)

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    async def update(self):
        """Send the model's weights to the server as a trainer in another process does."""
        from safetensors.torch import load_file
        from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender

        receiving = asyncio.ensure_future(
            self.server.collective_rpc("update_weights_from_ipc", kwargs={"use_shm": True})
        )
        handle = "ipc:///tmp/rl-colocate-zmq-job-replica-3-rank-0.sock"
        sender = BucketedWeightSender(zmq_handle=handle, bucket_size_mb=64, use_shm=True)
        weights = iter(load_file(TINY / "model.safetensors").items())
        await asyncio.to_thread(asyncio.run, sender.async_send_weights(weights))
        await receiving
        await self.server.clear_kv_cache()

    async def generate(self, tokens=24, group="g"):
        """Return token ids and stop reason of three answers to each of two prompts."""

        async def ask(prompt, seed):
            params = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True, "seed": seed}
            params |= {"max_tokens": tokens, "extra_args": {"sam_group": f"{group}{prompt}"}}
            name = f"{prompt}-{seed}-{time.monotonic()}"
            return await self.server.generate([*PROMPT, prompt], params, request_id=name)

        outputs = await asyncio.gather(*(ask(prompt, 10 * prompt + i) for prompt in (3, 4) for i in range(3)))
        return [(list(map(int, output.token_ids)), output.stop_reason) for output in outputs]

    def stop(self):
        self.server.engine.shutdown()


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    return tmp_path_factory.mktemp("history")


@pytest.fixture(scope="module")
def servers(history):
    """Two servers: one with method sam, and one without it for comparison."""
    sam = {"verify": "seeded", "history": str(history)}
    kinds = ({"speculative_config": {"method": "sam", "sam": sam}}, {"additional_config": {"sam_verify": "seeded"}})
    with mock.patch.dict(os.environ):  # verl sets the server's devices in it
        servers = [Server(kind) for kind in kinds]
        for server in servers:
            server.call(server.update())
        yield servers
        for server in servers:
            server.stop()


def test_answers_are_those_without_sam_and_drafts_are_accepted(servers, history):
    sam, plain = ([server.call(server.generate()) for _ in range(2)] for server in servers)
    assert sam == plain and sam[0] == sam[1], "drafts from the first round change nothing"
    counts, without = (server.call(server.server.spec_stats()) for server in servers)
    assert counts["accepted"] > 0 and counts["sam_accepted_history"] + counts["sam_accepted_group"] > 0
    assert counts["decode_steps"] < without["decode_steps"] and without["drafts"] == 0
    assert counts["tokens"] == without["tokens"] == sum(len(tokens) for round in plain for tokens, _ in round)
    assert servers[0].call(servers[0].server.spec_stats())["tokens"] == 0


def test_interrupted_requests_go_on(servers):
    """A trainer aborts the running requests to send new weights; the server then answers new requests."""

    async def interrupt(server):
        running = asyncio.ensure_future(server.generate(tokens=100, group="interrupted"))
        await asyncio.sleep(1)
        done = await server.server.abort_all_requests()
        await server.server.resume_generation()
        return done["aborted_count"], await running

    for server in servers:
        aborted, answers = server.call(interrupt(server))
        assert aborted > 0 and any(reason == "aborted" for _, reason in answers)
        assert len(server.call(server.generate())) == 6
