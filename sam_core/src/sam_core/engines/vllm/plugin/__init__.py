# SPDX-License-Identifier: Apache-2.0
"""Method `sam` on an unpatched vLLM with the second runner: entry point `sam` of `vllm.general_plugins`.

vLLM calls `register` in each of its processes. It rebinds `EngineArgs.create_speculative_config` and `init_speculator`,
which changes nothing for other methods. All else is rebound when an engine requests `sam`: by `front` in the process
that configures it, by `core` where it schedules, by `worker` where it samples. All rebound names are listed in
`sam_core.engines.vllm.hooks` and checked before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sam_core.engines.hooks import rebind
from sam_core.engines.vllm.config import LOGGER, names_sam
from sam_core.engines.vllm.plugin.speculator import register_speculator


@functools.cache
def register() -> None:
    """Offer method sam. It never raises, since an exception would prevent vLLM from starting, even without sam."""
    try:
        _register()
    except Exception as error:
        LOGGER.warning("speculative method 'sam' is not available: %s: %s", type(error).__name__, error)


def _register() -> None:
    import vllm
    from vllm.engine.arg_utils import EngineArgs

    from sam_core.engines.vllm.hooks import is_patched

    if is_patched(Path(vllm.__file__).parent):
        LOGGER.debug(
            "this vLLM has the patches of speculative method 'sam'; the plugin only refuses what they do not do"
        )
        rebind(EngineArgs, "create_speculative_config", _refuse_combination)
        return

    def with_sam(create: Callable[..., Any]) -> Callable[..., Any]:
        def create_speculative_config(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not asks_for_sam(self):
                return create(self, *args, **kwargs)
            from pydantic import ValidationError

            from sam_core.engines.vllm.plugin import front

            try:
                return front.create_speculative_config(self, *args, **kwargs)
            except ValidationError as error:  # raise here for the shortest traceback
                raise ValueError(front.sentence(error)) from None

        return create_speculative_config

    rebind(EngineArgs, "create_speculative_config", with_sam)
    register_speculator()


def _refuse_combination(create: Callable[..., Any]) -> Callable[..., Any]:
    def create_speculative_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = self.speculative_config
        if asks_for_sam(self) and isinstance(given, dict) and (method := given.get("method", "sam")) != "sam":
            raise ValueError(
                f"speculative method {method!r} drafts together with 'sam' in vLLM's second runner only: use an "
                "unpatched vLLM with the plugin, or one of the two"
            )
        return create(self, *args, **kwargs)

    return create_speculative_config


def asks_for_sam(engine_args: Any) -> bool:
    """Whether vLLM's EngineArgs ask for sam, by method `sam` or the key `sam` next to another method."""
    given = engine_args.speculative_config
    return getattr(engine_args, "spec_method", None) == "sam" or isinstance(given, dict) and names_sam(given)
