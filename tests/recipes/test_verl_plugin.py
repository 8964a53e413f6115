# SPDX-License-Identifier: Apache-2.0
"""llm_rl's plugin of verl: it rebinds only functions that are as expected, and sets the timeouts of groups.

test_repeatable.py and test_resume.py test the order of prompts, test_modes.py the changes for trainer modes.
"""

import functools
import importlib.metadata
import logging
import shutil
from datetime import timedelta
from types import SimpleNamespace

import pytest
from sam_core.engines.hooks import problem, tree

from llm_rl import verl_plugin
from llm_rl.pin_set import RecipePins

INSTALLED = RecipePins.verl_package()


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


@pytest.mark.parametrize(("seconds", "waits", "minutes"), [("7314", 7314, [122]), (None, 1800, [])])
def test_groups_wait_as_long_as_collectives(seconds, waits, minutes, monkeypatch):
    """Groups of verl and of Megatron get HCCL's timeout; without HCCL they keep PyTorch's half an hour."""
    import torch
    import torch.distributed as dist
    from verl.utils import distributed

    settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    for name, value in {**settings, "HCCL_EXEC_TIMEOUT": seconds}.items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    monkeypatch.setattr(dist.distributed_c10d, "default_pg_timeout", timedelta(minutes=30))
    verl_plugin.distributed(distributed)
    distributed.initialize_global_process_group_ray(timeout_second=None, backend="cpu:gloo")
    try:
        for group in (dist.group.WORLD, dist.new_group(backend="gloo")):
            assert group._get_backend(torch.device("cpu")).options._timeout.total_seconds() == waits
    finally:
        dist.destroy_process_group()
    given = []
    mpu = SimpleNamespace(initialize_model_parallel=lambda **words: given.append(words))
    Engine = type("Engine", (), {"_init_device_mesh": lambda self: mpu.initialize_model_parallel(use_sharp=False)})
    verl_plugin.megatron(SimpleNamespace(MegatronEngine=Engine, mpu=mpu))
    Engine()._init_device_mesh()
    assert given == [{"use_sharp": False, **dict.fromkeys(["distributed_timeout_minutes"][: len(minutes)], *minutes)}]
    assert not isinstance(mpu.initialize_model_parallel, functools.partial)
