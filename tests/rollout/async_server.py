# SPDX-License-Identifier: Apache-2.0
"""verl's asynchronous server over vllm-ascend's engine: it answers the prompts twice and ends.

usage: async_server.py MODEL SETTINGS PROMPTS   (JSON: arguments of RolloutConfig; lists of token ids)
With the environment variable WITHOUT_SAM_CORE this process has no package sam_core. One JSON object on stdout: answers
(twice a list of token ids a prompt) and counters (what spec_stats gave after each time).
"""

import asyncio
import json
import os
import sys

from no_sam_core import hide


async def serve(model, settings, prompts):
    from verl.workers.config import HFModelConfig, RolloutConfig
    from verl.workers.rollout.replica import RolloutMode
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServerBase

    server = vLLMHttpServerBase(
        config=RolloutConfig(name="vllm", mode="async", **settings),
        model_config=HFModelConfig(path=model),
        rollout_mode=RolloutMode.STANDALONE,
        workers=[],
        replica_rank=0,
        node_rank=0,
        gpus_per_node=1,
        nnodes=1,
    )
    await server.launch_server()
    out = {"answers": [], "counters": []}
    for turn in range(2):
        done = await asyncio.gather(
            *[server.generate(prompt, {"temperature": 1.0}, f"{turn}-{i}") for i, prompt in enumerate(prompts)]
        )
        out["answers"].append([list(one.token_ids) for one in done])
        out["counters"].append(await server.spec_stats(write=True))
    server.engine.shutdown()
    return out


def main():
    if os.environ.get("WITHOUT_SAM_CORE"):
        hide()
    import ray

    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    channel.write(json.dumps(asyncio.run(serve(sys.argv[1], *map(json.loads, sys.argv[2:])))))
    channel.close()
    ray.shutdown()
    os._exit(0)  # not waiting for the HTTP server


if __name__ == "__main__":
    main()
