# SPDX-License-Identifier: Apache-2.0
"""llm_rl's plugin of verl: it rebinds only what is as expected, and what that does.

The order of prompts is in test_repeatable.py and test_resume.py.
"""

import asyncio
import importlib.metadata
import logging
import shutil
from types import SimpleNamespace

import pytest
from sam_core.engines.hooks import problem, tree

from llm_rl import verl_plugin
from llm_rl.pin_set import PinSet

INSTALLED = PinSet.verl_package()


def test_verl_finds_both_plugins():
    found = {entry.name: entry.value for entry in importlib.metadata.entry_points(group="verl.plugins")}
    assert found == {"sam": "sam_core.engines.verl.plugin", "sam_rl": "llm_rl.verl_plugin"}


@pytest.mark.parametrize("hook", verl_plugin.HOOKS, ids=lambda hook: f"{hook.owner}.{hook.name}")
def test_a_module_whose_function_changed_is_left_alone_and_named(hook, tmp_path, caplog, monkeypatch):
    assert problem(INSTALLED, hook) is None
    file = tmp_path / hook.file
    file.parent.mkdir(parents=True)
    shutil.copy(INSTALLED / hook.file, file)
    file.write_text(file.read_text().replace(f"def {hook.name}(", f"def other{hook.name}("))
    tree.cache_clear()
    rebound = []
    monkeypatch.setitem(verl_plugin.MODULES, hook.file, rebound.append)
    with caplog.at_level(logging.ERROR, "llm_rl"):
        verl_plugin.imported(tmp_path, hook.file, None)
    (record,) = caplog.records
    assert f"leaves this verl unchanged: {hook} is missing" in record.getMessage() and not rebound
    verl_plugin.imported(INSTALLED, hook.file, None)
    assert rebound == [None]
    with pytest.raises(ValueError, match=r"in the verl of .*: reinstall it with `pip install --force-reinstall "):
        verl_plugin.check(tmp_path)


def test_fully_async_logs_the_metrics_of_a_step_with_it():
    """verl logs them before it has added them; behind the last step it logs what is left."""
    done = []

    class Trainer:
        async def fit_step(self, number):
            self._fit_log_aggregated_training_metrics(number)
            done.append(f"added {number}")

        def _fit_log_aggregated_training_metrics(self, timing):
            done.append(f"logged {timing}")

    metadata = SimpleNamespace(modified_class=Trainer)
    verl_plugin.fully_async(SimpleNamespace(FullyAsyncTrainer=SimpleNamespace(__ray_metadata__=metadata)))
    trainer = Trainer()
    trainer._fit_log_aggregated_training_metrics(0)
    for number in (1, 2):
        asyncio.run(trainer.fit_step(number))
    trainer._fit_log_aggregated_training_metrics(3)
    assert done == ["logged 0", "added 1", "logged 1", "added 2", "logged 2", "logged 3"]


def test_one_step_off_has_a_thread_that_writes_validations():
    done = []

    class Trainer:
        def _create_dataloader(self, *args):
            done.append(args)

        def _init_dump_executor(self):
            done.append("thread")

    verl_plugin.one_step_off(SimpleNamespace(OneStepOffRayTrainer=Trainer))
    Trainer()._create_dataloader(1, 2, 3, 4)
    assert done == [(1, 2, 3, 4), "thread"]
    from verl.experimental.one_step_off_policy.ray_trainer import OneStepOffRayTrainer

    assert OneStepOffRayTrainer._create_dataloader.__wrapped__ and OneStepOffRayTrainer._init_dump_executor
