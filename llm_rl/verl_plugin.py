# SPDX-License-Identifier: Apache-2.0
"""Changes to verl 0.9.1 that recipes need and verl has no setting for: an entry point of `verl.plugins`.

verl imports this module in each of its processes. When verl imports a module with HOOKS, its functions are rebound if
all these hooks are as in verl 0.9.1; otherwise an error is logged, and the launcher refuses the run.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

from sam_core.engines.hooks import installed, problem, read_table, rebind
from sam_core.engines.verl.after_import import after_import
from sam_core.engines.verl.plugin import module_name

LOGGER = logging.getLogger("llm_rl")
HOOKS = read_table(Path(__file__).with_name("verl_hooks.txt"))


class Prompts:
    """A dataloader that keeps the batches that were requested but not used for training.

    With dynamic sampling a step requests more prompts than it trains on. verl drops the rest; here the next step begins
    with them, also after a resume, as they are part of the state. So runs with equal answers train on the same prompts.

    asked: batches that the current step has requested, in order.
    """

    def __init__(self, dataloader: Any) -> None:
        self._dataloader = dataloader
        self._returned: list[Any] = []
        self.asked: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataloader, name)

    def __len__(self) -> int:
        return len(self._dataloader)

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._dataloader)
        while self._returned or (batch := next(batches, None)) is not None:
            self.asked.append(self._returned.pop(0) if self._returned else batch)
            yield self.asked[-1]

    def take(self, uids: set[str]) -> None:
        """End a step that trains on these prompts; batches requested after the last of them are returned again."""
        while self.asked and uids.isdisjoint(self.asked[-1]["uid"]):
            self._returned.insert(0, self.asked.pop())
        self.asked = []

    def state_dict(self) -> dict[str, Any]:
        return {**self._dataloader.state_dict(), "returned_prompts": self._returned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._returned = state.pop("returned_prompts", [])
        self._dataloader.load_state_dict(state)


def trainer(module: ModuleType) -> None:
    """Change verl.trainer.ppo.v1.trainer_base: keep unused prompts, and limit the prompts of a step."""
    rebind(module.PPOTrainer, "_init_dataloader", _init_dataloader)
    rebind(module.PPOTrainer, "_build_replay_buffer", _build_replay_buffer)
    rebind(module.PPOTrainer, "_add_prompts_to_generate", _add_prompts_to_generate)


def _init_dataloader(init: Callable[[Any], None]) -> Callable[[Any], None]:
    def init_dataloader(self: Any) -> None:
        init(self)
        if self.trainer_mode == "sync":
            self.train_dataloader = Prompts(self.train_dataloader)

    return init_dataloader


def _build_replay_buffer(build: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def build_replay_buffer(self: Any) -> Any:
        """Also read the key `trainer.v1.sampler.poll_interval` in seconds; timing_s/gen is a multiple of it."""
        buffer = build(self)
        buffer.poll_interval = self.config.trainer.v1.sampler.get("poll_interval", buffer.poll_interval)
        if self.trainer_mode == "sync":
            sample = buffer.sample

            def take_sample(*args: Any, **kwargs: Any) -> Any:
                batch, metrics = sample(*args, **kwargs)
                if batch.partition_id == "train":
                    self.train_dataloader.take({key.split("_")[0] for key in batch.keys})
                return batch, metrics

            buffer.sample = take_sample
        return buffer

    return build_replay_buffer


def _add_prompts_to_generate(add: Callable[[Any, int], int]) -> Callable[[Any, int], int]:
    def add_prompts_to_generate(self: Any, num_prompts: int) -> int:
        """Raise ValueError if a step requests more than max_num_gen_batches times the prompts in flight, as recipe/dapo
        of verl 0.6.1 did. Otherwise a step of a model that solves all of its data, or none, would never end."""
        groups = self.config.algorithm.get("filter_groups") or {}
        if self.trainer_mode == "sync" and groups.get("enable", False):
            limit = groups.get("max_num_gen_batches", 0) * groups.get("max_inflight_gen_batches", 1)
            limit *= self.config.data.train_batch_size
            asked = sum(len(batch["uid"]) for batch in self.train_dataloader.asked)
            if 0 < limit < asked + num_prompts:
                raise ValueError(
                    f"training step {self.global_steps} has asked {asked} prompts and still lacks prompts whose "
                    "answers have different scores; algorithm.filter_groups.max_num_gen_batches allows no more: use "
                    "other data or another model"
                )
        return add(self, num_prompts)

    return add_prompts_to_generate


def replay_buffer(module: ModuleType) -> None:
    """Change verl.trainer.ppo.v1.replay_buffer: sample prompts and answers in the order of their requests, not of their
    random names."""
    buffer = module.ReplayBuffer

    def _select_prompt_uids(self: Any, partition_id: str, sampleable_keys: set[str], batch_size: int) -> Any:
        steps = dict(self.prompt_global_steps[partition_id])
        ordered = sorted((uid for uid in steps if uid in sampleable_keys), key=steps.__getitem__)
        return ordered[:batch_size], dict(self.partitions[partition_id]), steps

    def materialize(original: Callable[..., Any]) -> Callable[..., Any]:
        def _materialize_batch(self: Any, partition_id: str, uids: list[str], partition: dict[str, Any]) -> Any:
            place = {uid: i for i, uid in enumerate(uids)}

            def order(key: str) -> tuple[int, int, int]:
                uid, session, index = key.split("_")
                return place.get(uid, -1), int(session), int(index)

            return original(self, partition_id, uids, {key: partition[key] for key in sorted(partition, key=order)})

        return _materialize_batch

    buffer._select_prompt_uids = _select_prompt_uids
    rebind(buffer, "_materialize_batch", materialize)


def tracking(module: ModuleType) -> None:
    """Change verl.utils.tracking: a resumed run appends to its step log, which verl would overwrite."""

    def start(init: Callable[..., None]) -> Callable[..., None]:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            module.__dict__["open"] = lambda file, mode, **options: open(file, "ab", **options)  # noqa: SIM115
            try:
                init(self, *args, **kwargs)
            finally:
                del module.__dict__["open"]

        return __init__

    rebind(module.FileLogger, "__init__", start)


def separate_async(module: ModuleType) -> None:
    """Change verl.trainer.ppo.v1.trainer_separate_async, which passes an argument of print to a logger if
    hybrid_engine=False."""

    class Logger(logging.LoggerAdapter):  # type: ignore[type-arg]
        def process(self, msg: Any, kwargs: Any) -> Any:
            kwargs.pop("flush", None)
            return msg, kwargs

    module.__dict__["logger"] = Logger(module.__dict__["logger"], {})


def fully_async(module: ModuleType) -> None:
    """Change verl.experimental.fully_async_policy.fully_async_trainer, which logs the metrics of a step before it
    collects them, so that a run of N steps logs N - 1."""
    owner = module.FullyAsyncTrainer.__ray_metadata__.modified_class

    def run(fit_step: Callable[..., Any]) -> Callable[..., Any]:
        async def log_behind(self: Any, *args: Any, **kwargs: Any) -> Any:
            self.logs_of_step = []
            try:
                return await fit_step(self, *args, **kwargs)
            finally:
                logs, self.logs_of_step = self.logs_of_step, None
                for log in logs:
                    log()

        return log_behind

    def keep(log: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def _fit_log_aggregated_training_metrics(self: Any, timing: Any) -> None:
            if getattr(self, "logs_of_step", None) is None:
                log(self, timing)
            else:
                self.logs_of_step.append(functools.partial(log, self, timing))

        return _fit_log_aggregated_training_metrics

    rebind(owner, "fit_step", run)
    rebind(owner, "_fit_log_aggregated_training_metrics", keep)


def one_step_off(module: ModuleType) -> None:
    """Change verl.experimental.one_step_off_policy.ray_trainer, which lacks the thread that writes a validation's
    answers."""

    def with_thread(create: Callable[..., None]) -> Callable[..., None]:
        def _create_dataloader(self: Any, *args: Any) -> None:
            create(self, *args)
            self._init_dump_executor()

        return _create_dataloader

    rebind(module.OneStepOffRayTrainer, "_create_dataloader", with_thread)


def distributed(module: ModuleType) -> None:
    """Change verl.utils.distributed, whose groups wait 30 minutes: a checkpoint may take longer."""
    if seconds := collective_timeout():
        module.torch.distributed.distributed_c10d.default_pg_timeout = timedelta(seconds=seconds)


def megatron(module: ModuleType) -> None:
    """Change verl.workers.engine.megatron.transformer_impl: Megatron's groups have their own timeout."""

    def with_timeout(initialize: Callable[[Any], None]) -> Callable[[Any], None]:
        def _init_device_mesh(self: Any) -> None:
            seconds, original = collective_timeout(), module.mpu.initialize_model_parallel
            minutes = {"distributed_timeout_minutes": -(-seconds // 60)} if seconds else {}
            module.mpu.initialize_model_parallel = functools.partial(original, **minutes)
            try:
                initialize(self)
            finally:
                module.mpu.initialize_model_parallel = original

        return _init_device_mesh

    rebind(module.MegatronEngine, "_init_device_mesh", with_timeout)


def collective_timeout() -> int | None:
    """Seconds that HCCL waits in a collective; None off an NPU."""
    seconds = os.environ.get("HCCL_EXEC_TIMEOUT")
    return int(seconds) if seconds else None


MODULES: dict[str, Callable[[ModuleType], None]] = {
    "trainer/ppo/v1/trainer_base.py": trainer,
    "trainer/ppo/v1/replay_buffer.py": replay_buffer,
    "utils/tracking.py": tracking,
    "trainer/ppo/v1/trainer_separate_async.py": separate_async,
    "experimental/fully_async_policy/fully_async_trainer.py": fully_async,
    "experimental/one_step_off_policy/ray_trainer.py": one_step_off,
    "utils/distributed.py": distributed,
    "workers/engine/megatron/transformer_impl.py": megatron,
}
"""The functions above by file of verl."""


def check(folder: Path) -> None:
    """Raise ValueError with one sentence unless all hooks fit the verl package in `folder`."""
    if found := next(filter(None, (problem(folder, hook) for hook in HOOKS)), None):
        raise ValueError(
            f"{found} in the verl of {folder}, which differs from verl 0.9.1 as released: reinstall it with "
            "`pip install --force-reinstall --no-deps verl==0.9.1`"
        )


def imported(folder: Path, file: str, module: ModuleType) -> None:
    """Rebind the functions of a module of verl; log an error instead if they are not as expected."""
    problems = (problem(folder, hook) for hook in HOOKS if hook.file == file)
    if found := next(filter(None, problems), None):
        LOGGER.error("llm_rl supports verl 0.9.1 only and leaves this verl unchanged: %s", found)
    else:
        MODULES[file](module)


def install() -> None:
    """Rebind functions as verl imports their modules; verl 0.6.1, which has patches, stays unchanged."""
    folder = installed("verl")
    if folder and (folder / "trainer/ppo/v1").is_dir():
        after_import({module_name(file): functools.partial(imported, folder, file) for file in MODULES})


install()
