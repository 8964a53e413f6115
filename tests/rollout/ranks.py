# SPDX-License-Identifier: Apache-2.0
"""Run verl's synchronous rollout with one process per rank, on the stand-in for torch_npu."""

import contextlib
import json
import select
from pathlib import Path
from types import MappingProxyType

import ascend_engine
from ports import PORTS

HERE = Path(__file__).resolve().parent
ascend_engine.PATHS.append(str(HERE.parent / "common"))
ascend_engine.MODULES += ["verl.workers.rollout.base", "verl.workers.config"]
PATIENCE = 400
"""Seconds to wait for an answer; ranks that are out of step would wait for each other until gloo's timeout."""
SETTINGS = {"tensor_model_parallel_size": 1, "prompt_length": 16, "response_length": 48, "dtype": "float32"}
SETTINGS |= {"load_format": "auto", "max_num_batched_tokens": 2048}
SETTINGS["free_cache_engine"] = False  # sleep mode needs the device's own allocator


def start(*arguments, **environment):
    """Start a Python process on the stand-in; its stdin and stdout are text pipes."""
    here = {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    return ascend_engine.start("npu", *arguments, environment=here | environment)


class Rollout:
    """One job of `ranks` rollout_server.py processes. Raises AssertionError if a rank ends or does not answer."""

    def __init__(self, model, ranks=1, engine=None, kind="Server", environment=MappingProxyType({}), **settings):
        engine = {"num_gpu_blocks_override": 64, "block_size": 128} | (engine or {})
        settings = SETTINGS | {"engine_kwargs": {"vllm": engine}} | settings
        job = {"WORLD_SIZE": str(ranks), "MASTER_PORT": str(next(PORTS)), **environment}
        words = [str(HERE / "rollout_server.py"), kind, str(model), json.dumps(settings)]
        self.ranks = [start(*words, **job, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(ranks)]
        self.answers()

    def answers(self):
        """Return each rank's answer."""
        results = []
        for rank in self.ranks:
            answer = f'{{"error": "a rank gave no answer in {PATIENCE} s: does it wait for another?"}}'
            if select.select([rank.stdout], [], [], PATIENCE)[0]:
                answer = rank.stdout.readline() or '{"error": "a rank ended without an answer: see its errors"}'
            answer = json.loads(answer)
            if "error" in answer:
                self.stop()
                raise AssertionError(answer["error"])
            results.append(answer["result"])
        return results

    def ask(self, method, **arguments):
        for rank in self.ranks:
            rank.stdin.write(json.dumps({"method": method, **arguments}) + "\n")
            rank.stdin.flush()
        return self.answers()

    def stop(self):
        for rank in self.ranks:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                rank.kill()
            rank.wait()


def metrics(done):
    """Return the metrics that a trainer logs of the ranks' `generate` results."""
    from sam_core.engines.verl.rollout_log import rollout_metrics

    return rollout_metrics({name: row for rank in done for name, row in rank["meta_info"].items()})


def sam(**options):
    return {"speculative_config": {"method": "sam", "num_speculative_tokens": 3, "sam": {"switch": "batch"} | options}}
