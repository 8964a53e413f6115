# SPDX-License-Identifier: Apache-2.0
"""What a pin set says of its verl's start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llm_rl.recipe import ROOT


@dataclass(frozen=True)
class EntryPoint:
    """How verl is started, and where its configuration is.

    module, arguments: `python -m module arguments overrides`; folder: where it is started, the repository or a checkout
    of verl that is used instead of the installed package; config_folder, config_name: Hydra's configuration, and
    search_path: a second folder of it.
    """

    module: str
    config_folder: Path
    config_name: str
    arguments: tuple[str, ...] = ()
    folder: Path = ROOT
    search_path: Path | None = None
