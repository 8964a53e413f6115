# SPDX-License-Identifier: Apache-2.0
"""verl's rollouts where the package sam_core is not installed.

usage: without_sam_core.py sync|async MODEL SETTINGS PROMPTS   (JSON: arguments of RolloutConfig; lists of token ids)
       without_sam_core.py load MODULES                        (JSON: names)
One JSON object on stdout, {"error": text} or: sync, what rollout_server's generate returns, with `logged`, names of what
compute_data_metrics makes of a batch; async, what async_server's serve returns; load, the modules that it has imported.
"""

import asyncio
import importlib
import json
import os
import sys
import traceback

from no_sam_core import hide


def sync(model, settings, prompts):
    import torch
    from rollout_server import Server
    from verl import DataProto
    from verl.trainer.ppo.metric_utils import compute_data_metrics

    done = Server(model, settings).generate(prompts)
    names = ("token_level_scores", "token_level_rewards", "advantages", "returns", "responses", "response_mask")
    batch = DataProto.from_dict(
        {name: torch.ones(2, 3) for name in names} | {"prompts": torch.ones(2, 3), "attention_mask": torch.ones(2, 6)},
        meta_info=done["meta_info"],
    )
    return done | {"logged": list(compute_data_metrics(batch, use_critic=False))}


def load(modules):
    for name in json.loads(modules):
        importlib.import_module(name)
    return {"loaded": json.loads(modules)}


def server(model, settings, prompts):
    import ray
    from async_server import serve

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    return asyncio.run(serve(model, settings, prompts))


if __name__ == "__main__":
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    hide()
    mode, model, *rest = sys.argv[1:]
    try:
        answer = {"sync": sync, "async": server, "load": load}[mode](model, *map(json.loads, rest))
    except Exception:
        answer = {"error": traceback.format_exc()}
    channel.write(json.dumps(answer))
    channel.close()
    os._exit(0)
