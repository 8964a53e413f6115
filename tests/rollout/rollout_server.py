# SPDX-License-Identifier: Apache-2.0
"""One rank of verl's synchronous rollout (the class that verl's workers hold), or verl's asynchronous server, on
vllm-ascend's engine.

usage: rollout_server.py Server|AsyncServer MODEL SETTINGS   (JSON: arguments of RolloutConfig; rank and world size as
torchrun gives them)
Each line on stdin is a JSON object, the same for every rank: {"method": name, **arguments of the server's method}. The
answer is a line on stdout, {"result": ...} or {"error": text}. All other output goes to stderr.
"""

import asyncio
import gc
import json
import os
import sys
import traceback
from contextlib import nullcontext, suppress
from unittest import mock


class Server:
    def __init__(self, model, settings):
        import torch
        import torch_npu  # noqa: F401  the stand-in registers the device
        from torch.distributed.device_mesh import init_device_mesh
        from verl.workers.config import HFModelConfig, RolloutConfig, SamplingConfig
        from verl.workers.rollout.base import get_rollout_class

        gc.unfreeze()  # the objects inherited by the fork
        self.model = model
        val_kwargs = SamplingConfig(**settings.pop("val_kwargs", {}))
        config = RolloutConfig(name="vllm", val_kwargs=val_kwargs, **settings)
        torch.distributed.init_process_group("gloo")
        shape = (torch.distributed.get_world_size() // config.tensor_model_parallel_size, -1, 1)
        ranks = torch.arange(torch.distributed.get_world_size()).reshape(shape)
        self.mesh = init_device_mesh("cpu", tuple(ranks.shape), mesh_dim_names=("dp", "infer_tp", "infer_pp"))
        self.rollout = get_rollout_class("vllm", "sync")(config, HFModelConfig(path=model), self.mesh)

    def generate(self, prompts, sampling=None, **meta_info):
        """Answer prompts of token ids as a trainer asks: `n` rows per prompt, of which this rank answers its share.

        sampling: sampling parameters of the rollout to override during this call.

        Returns prompts, answers: token ids of each row without padding; log_probs of the tokens of each answer, or
        None; meta_info of the batch; asked: [seed, logprobs, extra_args] of each request as the engine got it; frozen:
        the number of objects exempt from garbage collection at the first request, and at the end; sent: the number of
        broadcasts from the first rank of the tensor-parallel group to the others.
        """
        import torch
        from verl import DataProto
        from vllm.distributed.parallel_state import get_tp_group

        width = self.rollout.config.prompt_length
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = (ids != 0).long()
        tensors = {"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
        batch = DataProto.from_dict(tensors, meta_info={"eos_token_id": 63} | meta_info)
        batch = batch.repeat(self.rollout.config.n, interleave=True)
        batch = batch.chunk(self.mesh["dp"].size())[self.mesh["dp"].get_local_rank()]
        asked, frozen = [], []
        engine = self.rollout.inference_engine.llm_engine
        add = engine.add_request

        def watched(name, prompt, params, *args, **kwargs):
            frozen[:] = frozen or [gc.get_freeze_count()]
            asked.append([params.seed, params.logprobs, params.extra_args])
            return add(name, prompt, params, *args, **kwargs)

        group = get_tp_group()
        with (
            mock.patch.object(engine, "add_request", watched),
            mock.patch.object(group, "broadcast_object", wraps=group.broadcast_object) as send,
            mock.patch.multiple(self.rollout.sampling_params, **(sampling or {})) if sampling else nullcontext(),
        ):
            done = self.rollout.generate_sequences(batch)
        frozen.append(gc.get_freeze_count())
        lengths = done.batch["attention_mask"][:, width:].sum(-1).tolist()

        def rows(name):
            return [row[:n] for row, n in zip(done.batch[name].tolist(), lengths, strict=True)]

        return {
            "prompts": [[token for token in row if token] for row in done.batch["prompts"].tolist()],
            "answers": rows("responses"),
            "log_probs": rows("rollout_log_probs") if "rollout_log_probs" in done.batch else None,
            "meta_info": done.meta_info,
            "asked": asked,
            "frozen": frozen,
            "sent": send.call_count,
        }

    def generate_uneven(self, prompts, lengths, **sampling):
        """Answer different prompts on each data-parallel rank. prompts, lengths: for each rank, a list of prompts'
        token ids and a list of the answers' numbers of tokens; sampling: further arguments of SamplingParams.

        Returns answers: token ids of this rank's answers. The rest are numbers: steps with requests; dummies: dummy
        batches; drafted: proposed draft tokens; rows: rows of each of this rank's experts, in all layers; operators:
        calls of the operators that exchange tokens.
        """
        import torch_npu
        from torch_npu.experts import ROWS
        from vllm import SamplingParams

        llm, rank = self.rollout.inference_engine, self.mesh["dp"].get_local_rank()
        core = llm.llm_engine.engine_core
        requests = [{"prompt_token_ids": prompt} for prompt in prompts[rank]]
        plain = {"temperature": 0.0, "ignore_eos": True, "detokenize": False} | sampling
        wanted = [SamplingParams(max_tokens=length, **plain) for length in lengths[rank]]
        for i, params in enumerate(wanted, sum(map(len, prompts[:rank]))):
            params.seed = sampling["seed"] + i if "seed" in sampling else None
        before, rows, calls = self.drafted(), ROWS.copy(), torch_npu.CALLS.copy()
        with (
            mock.patch.object(core, "get_output", wraps=core.get_output) as steps,
            mock.patch.object(core, "execute_dummy_batch", wraps=core.execute_dummy_batch) as dummies,
        ):
            done = llm.generate(requests, wanted, use_tqdm=False)
        calls = torch_npu.CALLS - calls
        operators = {"one": "init_routing_v2", "fused": "distribute_dispatch_v2", "all_to_all": "token_permute"}
        return {
            "answers": [list(answer.outputs[0].token_ids) for answer in done],
            "steps": steps.call_count,
            "dummies": dummies.call_count,
            "drafted": self.drafted() - before,
            "rows": [(ROWS - rows)[expert] for expert in sorted(ROWS)],
            "operators": {name: calls[f"npu_moe_{operator}"] for name, operator in operators.items()},
        }

    def drafted(self):
        if self.rollout.inference_engine.llm_engine.vllm_config.speculative_config is None:
            return 0
        return self.rollout.inference_engine.collective_rpc("sam_stats")[0]["proposed"]

    def frozen_after_an_error(self, prompts):
        """Return the number of objects exempt from garbage collection after a rollout whose engine refuses requests."""
        engine = self.rollout.inference_engine.llm_engine
        with mock.patch.object(engine, "add_request", side_effect=RuntimeError), suppress(RuntimeError):
            self.generate(prompts)
        return gc.get_freeze_count()

    def frozen_by_a_worker(self):
        """Return the number of exempt objects after each step of a round of the asynchronous rollout's worker."""
        from verl.workers.rollout.vllm_rollout.vllm_rollout_spmd import vLLMAsyncRollout

        worker = object.__new__(vLLMAsyncRollout)
        worker.config, worker.sleep_level, worker.inference_engine = mock.Mock(free_cache_engine=True), 1, mock.Mock()
        frozen = []
        for step in (worker.resume(["weights"]), worker.resume(["kv_cache"]), worker.release()):
            asyncio.run(step)
            frozen.append(gc.get_freeze_count())
        return frozen

    def next_step(self):
        """Release, train (here: scale the weights by 1.1), load the weights and resume, as a trainer does between
        rollouts. Return whether the weights' memory was gone in between."""
        network = self.network()
        asyncio.run(self.rollout.release())
        worker = self.rollout.inference_engine.llm_engine.model_executor.driver_worker.worker
        gone = all(weights.isnan().all().item() for weights in worker.model_runner.model.parameters())
        asyncio.run(self.rollout.resume(["weights"]))
        asyncio.run(self.rollout.update_weights((name, 1.1 * tensor) for name, tensor in network.state_dict().items()))
        asyncio.run(self.rollout.resume(["kv_cache"]))
        return gone

    def log_probs(self, prompts, answers):
        """Return the log-probabilities that the model itself gives the answers' tokens, one list per answer."""
        import torch

        network, out = self.network(), []
        for prompt, answer in zip(prompts, answers, strict=True):
            with torch.no_grad():
                logits = network(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
            out.append(logits.log_softmax(-1)[range(len(answer)), answer].tolist())
        return out

    def network(self):
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.model, dtype="float32")


class AsyncServer:
    """verl's asynchronous server without verl's workers; the engine starts its own."""

    def __init__(self, model, settings):
        import ray
        from verl.workers.config import HFModelConfig, RolloutConfig
        from verl.workers.rollout.replica import RolloutMode
        from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServerBase

        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
        self.loop = asyncio.new_event_loop()
        given = {"model_config": HFModelConfig(path=model), "rollout_mode": RolloutMode.STANDALONE, "workers": []}
        given |= {"replica_rank": 0, "node_rank": 0, "gpus_per_node": 1, "nnodes": 1}
        self.server = vLLMHttpServerBase(config=RolloutConfig(name="vllm", mode="async", **settings), **given)
        self.loop.run_until_complete(self.server.launch_server())

    def generate(self, prompts, name):
        """Return the token ids of an answer to each prompt, and then the spec_stats. The requests are called `name` and
        a number."""

        async def answer():
            named = [(prompt, f"{name}-{i}") for i, prompt in enumerate(prompts)]
            done = await asyncio.gather(*(self.server.generate(p, {"temperature": 1.0}, name) for p, name in named))
            return [list(one.token_ids) for one in done], await self.server.spec_stats(write=True)

        return self.loop.run_until_complete(answer())

    def stop(self):
        import ray

        self.server.engine.shutdown()
        ray.shutdown()


def main():
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(result):
        channel.write(json.dumps(result) + "\n")

    try:
        server = globals()[sys.argv[1]](sys.argv[2], json.loads(sys.argv[3]))
        answer({"result": "ready"})
        for line in sys.stdin:
            request = json.loads(line)
            answer({"result": getattr(server, request.pop("method"))(**request)})
    except Exception:
        answer({"error": traceback.format_exc()})
        raise


if __name__ == "__main__":
    main()
