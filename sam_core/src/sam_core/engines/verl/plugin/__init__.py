# SPDX-License-Identifier: Apache-2.0
"""Method `sam` on an unpatched verl: entry point `sam` of `verl.plugins`.

verl imports this module in each of its processes (verl/__init__.py) and hides any exception. The import itself changes
nothing: the functions in MODULES rebind what they need after verl imports the module in question. All rebound functions
are listed in `sam_core.engines.verl.hooks` and checked before. They act only in runs whose engine has method sam
(actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config.method=sam), or samples by seed for a comparison with
one (...additional_config.sam_verify=seeded).
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from sam_core.engines.hooks import installed
from sam_core.engines.verl import hooks
from sam_core.engines.verl.after_import import after_import
from sam_core.engines.verl.plugin import agents, engine, trainers
from sam_core.engines.vllm.config import TRAINER_CHECKS

LOGGER = logging.getLogger("sam_core.verl")

MODULES: dict[str, Callable[[ModuleType], None]] = {
    hooks.SERVER: engine.install,
    hooks.AGENTS: agents.install,
    hooks.AGENTS_V1: agents.install_v1,
    hooks.FULLY_ASYNC: trainers.install_fully_async,
    hooks.MANAGER: trainers.install_router,
    hooks.TRAINER_V1: trainers.install_v1,
    hooks.TRAINER: trainers.install_v0,
    hooks.ONE_STEP_OFF: trainers.install_one_step_off,
    hooks.METRICS: trainers.install_metrics,
    hooks.CONFIG: agents.install_config,
}
"""Maps a file of verl to the function that rebinds names in it."""


def module_name(file: str) -> str:
    return "verl." + file.removesuffix(".py").replace("/", ".")


class Rebinding:
    """Rebinds the functions of each module in MODULES after verl has imported it.

    Args:
        folder: that of the package verl.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = {module_name(file): file for file in MODULES}

    def imported(self, module: ModuleType) -> None:
        """Rebind the functions of a module of verl, or log an error if they are not as expected.

        Nothing is raised, since runs without sam continue; `refuse` refuses a run with sam.
        """
        file = self.files[module.__name__]
        found = hooks.VERL.problems(self.folder, (hook for hook in hooks.HOOKS if hook.file == file))
        if found:
            complain(found[0])
        else:
            MODULES[file](module)
        if file == hooks.SERVER:
            engine.install_pause(module)

    def refuse(self) -> None:
        """Raise ValueError, one sentence, unless verl fits; called when an engine requests method sam."""
        hooks.check(self.folder, version())


@functools.cache
def version() -> str:
    return importlib.metadata.version("verl")


@functools.cache
def complain(problem: str) -> None:
    LOGGER.error(
        "sam_core knows verl %s and does not fit the installed %s: %s; runs with speculative method 'sam' are refused, "
        "other runs continue",
        hooks.VERL.known,
        version(),
        problem,
    )


def install() -> None:
    """Rebind modules as verl imports them; leave a verl with this project's patches unchanged."""
    if (folder := installed("verl")) is None:
        return
    if hooks.is_patched(folder):
        LOGGER.debug("this verl has the patches of speculative method 'sam'; the plugin leaves it unchanged")
        return
    rebinding = Rebinding(folder)
    TRAINER_CHECKS.append(rebinding.refuse)
    after_import(dict.fromkeys(rebinding.files, rebinding.imported))


install()
