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
from sam_core.engines.vllm.config import LOGGER
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

    from sam_core.engines.vllm.hooks import is_patched

    if is_patched(Path(vllm.__file__).parent):
        LOGGER.debug("this vLLM has the patches of speculative method 'sam'; the plugin leaves it unchanged")
        return
    from vllm.engine.arg_utils import EngineArgs

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


def asks_for_sam(engine_args: Any) -> bool:
    """Whether vLLM's EngineArgs name method sam, by `--spec-method` or in `--speculative-config`."""
    given = engine_args.speculative_config
    method = given.get("method") if isinstance(given, dict) else None
    return "sam" in (method, getattr(engine_args, "spec_method", None))
