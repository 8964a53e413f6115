# SPDX-License-Identifier: Apache-2.0
"""The functions of verl that method `sam` relies on; their sources are checked before any is rebound.

`python -m sam_core.engines.verl.hooks [FOLDER]` checks the installed verl, or another copy of its package, and prints
each hook. verl is not imported. To support a new release, begin here.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

from sam_core.engines import hooks
from sam_core.engines.hooks import Hook

RELEASES = ("0.9.1",)
"""Releases of verl in which all hooks fit, ascending."""
SERVER = "workers/rollout/vllm_rollout/vllm_async_server.py"
ROUTER = "workers/rollout/router.py"
MANAGER = "workers/rollout/llm_server.py"
AGENTS = "experimental/agent_loop/agent_loop.py"
AGENTS_V1 = "trainer/ppo/v1/agent_loop_tq.py"
TRAINER_V1 = "trainer/ppo/v1/trainer_base.py"
TRAINER = "trainer/ppo/ray_trainer.py"
ONE_STEP_OFF = "experimental/one_step_off_policy/ray_trainer.py"
FULLY_ASYNC = "experimental/fully_async_policy/fully_async_rollouter.py"
METRICS = "utils/debug/metrics.py"
CONFIG = "workers/config/rollout.py"

HOOKS = (
    # the process of an engine
    Hook(
        SERVER,
        "vLLMHttpServer",
        "__init__",
        "self config model_config",
        ("self.replica_rank = replica_rank", 'os.environ["VERL_REPLICA_RANK"] = str(replica_rank)'),
        "",
    ),
    Hook(
        SERVER,
        "vLLMHttpServer",
        "launch_server",
        "self",
        ("self._preprocess_engine_kwargs(engine_kwargs)", "**engine_kwargs"),
        "",
    ),
    Hook(
        SERVER,
        "vLLMHttpServer",
        "_preprocess_engine_kwargs",
        "self engine_kwargs",
        (),
        "give each replica its own history",
    ),
    Hook(
        SERVER,
        "vLLMHttpServer",
        "run_server",
        "self args",
        (
            "fn_args = set(dict(inspect.signature(AsyncLLM.from_vllm_config).parameters).keys())",
            "AsyncLLM.from_vllm_config(vllm_config=vllm_config, usage_context=usage_context, **kwargs)",
            "self.engine = engine_client",
        ),
        "",
    ),
    Hook(
        SERVER,
        "vLLMHttpServer",
        "abort_all_requests",
        "self",
        ("self.engine.pause_generation(wait_for_inflight_requests=False, clear_cache=",),
        "",
    ),
    # the processes of agent loops
    Hook(
        AGENTS,
        "AgentLoopWorker",
        "generate_sequences",
        "self batch",
        ("kwargs = {k: v[i] for k, v in batch.non_tensor_batch.items()", "trace=trace_this_sample, **kwargs)"),
        "",
    ),
    Hook(
        AGENTS_V1,
        "AgentLoopWorkerTQ",
        "generate_sequences",
        "self batch",
        ("isinstance(v, torch.Tensor): prompt[k] = v[i]", "self._run_prompt(prompt, sampling_params,"),
        "",
    ),
    Hook(
        AGENTS_V1,
        "AgentLoopWorkerTQ",
        "_run_prompt",
        "self prompt sampling_params trajectory",
        ("self._run_agent_loop(run_sampling_params, trajectory=trajectory, trace=trace, session_id=i, **prompt)",),
        "",
    ),
    Hook(
        AGENTS,
        "AgentLoopWorker",
        "_run_agent_loop",
        "self sampling_params trajectory agent_name trace",
        ("agent_loop.run(sampling_params, **kwargs)", "trajectory['validate']"),
        "name groups, give seeds",
    ),
    Hook(AGENTS, "AgentLoopWorker", "_compute_score", "self outputs kwargs", (), "log answers"),
    # the processes of trainers
    Hook(
        AGENTS,
        "AgentLoopManager",
        "generate_sequences",
        "self prompts",
        ("chunkes = prompts.chunk(len(self.agent_loop_workers))",),
        "number prompts",
    ),
    Hook(
        AGENTS_V1,
        "AgentLoopManagerTQ",
        "generate_sequences",
        "self prompts",
        ("chunkes = prompts.chunk(len(self.agent_loop_workers))",),
        "number prompts",
    ),
    Hook(
        FULLY_ASYNC,
        "FullyAsyncAgentLoopManager",
        "generate_sequences_single",
        "self prompts",
        ("worker.generate_sequences.remote(prompts)",),
        "number prompts",
    ),
    Hook(
        MANAGER,
        "LLMServerManager",
        "_init_global_load_balancer",
        "self",
        ("self._load_balancer_cls", "self.rollout_config, 'full_determinism', False"),
        "send the answers to a prompt to one replica",
    ),
    Hook(ROUTER, "GlobalRequestLoadBalancer", "__init__", "self servers max_cache_size", (), ""),
    Hook(
        MANAGER,
        "LLMServerClient",
        "_acquire_server",
        "self request_id",
        ("require_acquire_fields.remote()", "acquire_server.remote(request_id=request_id, **fields)"),
        "",
    ),
    Hook(
        TRAINER_V1,
        "PPOTrainer",
        "_consume_sync_metrics",
        "self",
        (),
        "log rollout/spec/*",
    ),
    Hook(
        TRAINER_V1,
        "PPOTrainer",
        "fit",
        "self",
        ("self.on_step_end() metrics.update(self._consume_sync_metrics())", "val_metrics = self._validate()"),
        "",
    ),
    Hook(TRAINER_V1, "PPOTrainer", "_rollout_server_managers", "self", (), ""),
    Hook(
        TRAINER_V1,
        "PPOTrainer",
        "_validate",
        "self",
        (
            "self.agent_loop_manager.generate_sequences(batch)",
            "self._maybe_log_val_generations(inputs=sample_inputs, outputs=sample_outputs, scores=sample_scores)",
        ),
        "leave validation out of rollout/spec/*, restart the numbers of its prompts",
    ),
    Hook(
        TRAINER,
        "RayPPOTrainer",
        "_validate",
        "self",
        (
            "self.async_rollout_manager.generate_sequences(",
            "self._maybe_log_val_generations(inputs=sample_inputs, outputs=sample_outputs, scores=sample_scores)",
        ),
        "leave validation out of rollout/spec/*, restart the numbers of its prompts",
    ),
    Hook(
        ONE_STEP_OFF,
        "OneStepOffRayTrainer",
        "_fit_generate",
        "self batch_data_future continuous_iterator",
        ("await batch_data_future", "metrics = self.metrics"),
        "log rollout/spec/*",
    ),
    Hook(
        FULLY_ASYNC,
        "FullyAsyncRollouter",
        "reset_staleness",
        "self",
        ("return timing_raw",),
        "log rollout/spec/*",
    ),
    Hook(
        METRICS,
        "",
        "calculate_debug_metrics",
        "data",
        ('data.batch["rollout_log_probs"]', 'data.batch["old_log_probs"]', "log_prob_mask[:, -response_length:]"),
        "log a histogram of log-probability differences",
    ),
)


def is_patched(folder: Path) -> bool:
    """Whether this copy of verl's package has this project's patches for method sam."""
    tree = hooks.tree(folder / "workers" / "config" / "rollout.py")
    return tree is not None and any(isinstance(each, ast.FunctionDef) and each.name == "uses_sam" for each in tree.body)


VERL = hooks.Hooks("verl", "verl", RELEASES, HOOKS, "workers", is_patched)


@cache
def check(folder: Path, version: str) -> None:
    """Raise ValueError, one sentence, unless all hooks fit this copy of verl's package."""
    key = "actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config"
    VERL.check(folder, version, f"install verl {RELEASES[-1]}, or leave {key} out")


if __name__ == "__main__":
    sys.exit(VERL.main("sam_core.engines.verl.hooks"))
