# SPDX-License-Identifier: Apache-2.0
"""How the verl of a pin set is started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llm_rl.recipe import ROOT


@dataclass(frozen=True)
class EntryPoint:
    """How verl is started, and where its configuration is.

    module, arguments: `python -m module arguments overrides`; folder: working directory, the repository or a checkout
    of verl that replaces the installed package; config_folder, config_name, search_path: Hydra's configuration and a
    second folder to search for it.
    """

    module: str
    config_folder: Path
    config_name: str
    arguments: tuple[str, ...] = ()
    folder: Path = ROOT
    search_path: Path | None = None
