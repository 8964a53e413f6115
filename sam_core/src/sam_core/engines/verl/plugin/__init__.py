# SPDX-License-Identifier: Apache-2.0
"""Method `sam` on an unpatched verl: entry point `sam` of `verl.plugins`.

verl imports this module in each of its processes (verl/__init__.py), which is all that it does, and hides what is
raised here. Importing it changes nothing yet: the functions of MODULES rebind what they need once verl itself imports
the module that has it. What is rebound stands in `sam_core.engines.verl.hooks` and is checked before. It acts only in
runs whose engine has method sam (actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config.method=sam), or
samples by seed to be compared with one (...additional_config.sam_verify=seeded).
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

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
"""By file of verl: what rebinds its functions."""


def module_name(file: str) -> str:
    return "verl." + file.removesuffix(".py").replace("/", ".")


class Rebinding:
    """Rebinds the functions of each module of MODULES when verl has imported it.

    Args:
        folder: of the package verl.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = {module_name(file): file for file in MODULES}

    def imported(self, module: ModuleType) -> None:
        """Rebind the functions of a module of verl, unless they are not as expected: then say so.

        Nothing is raised here, as runs without sam go on; one with sam is refused by `refuse`.
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
        """Raise ValueError, one sentence, unless verl fits: an engine asks for method sam."""
        hooks.check(self.folder, version())


@functools.cache
def version() -> str:
    return importlib.metadata.version("verl")


@functools.cache
def complain(problem: str) -> None:
    LOGGER.error(
        "sam_core knows verl %s and does not fit the installed %s: %s; runs with speculative method 'sam' are refused, "
        "others go on",
        hooks.VERL.known,
        version(),
        problem,
    )


def install() -> None:
    """Wait for verl to import what is rebound; a verl with this project's patches is left as it is."""
    spec = importlib.util.find_spec("verl")
    if spec is None or spec.origin is None:
        return
    folder = Path(spec.origin).parent
    if hooks.is_patched(folder):
        LOGGER.debug("this verl has the patches of speculative method 'sam'; the plugin leaves it as it is")
        return
    rebinding = Rebinding(folder)
    TRAINER_CHECKS.append(rebinding.refuse)
    after_import(dict.fromkeys(rebinding.files, rebinding.imported))


install()
