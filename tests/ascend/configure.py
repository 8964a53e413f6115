# SPDX-License-Identifier: Apache-2.0
"""Configures engines without starting them.

usage: configure.py MODEL SPECULATIVE ADDITIONAL   (JSON: lists of speculative_config and of additional_config; "engine"
in the latter has further arguments of the engine, which runs eagerly unless a compilation_config is among them; "path"
has folders of packages to add)
Prints a JSON list of what became of each, then of method sam with a hybrid model: {"method", "k", "sam", "repr"} or
{"error": the sentence}.
"""

import json
import os
import sys
from unittest import mock


def configure(model, speculative, additional):
    from pydantic import ValidationError
    from vllm.engine.arg_utils import EngineArgs

    sys.path += additional.pop("path", [])
    how = additional.pop("engine", {})
    how["enforce_eager"] = "compilation_config" not in how
    arguments = EngineArgs(model=model, skip_tokenizer_init=True, dtype="float32", **how)
    arguments.speculative_config = speculative
    arguments.additional_config = additional
    try:
        made = arguments.create_engine_config().speculative_config
    except ValidationError as error:
        (only,) = error.errors()
        return {"error": only["msg"]}
    except ValueError as error:
        return {"error": str(error)}
    return made and {"method": made.method, "k": made.num_speculative_tokens, "sam": made.sam, "repr": repr(made)}


if __name__ == "__main__":
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    model, *lists = sys.argv[1:]
    results = [configure(model, *both) for both in zip(*map(json.loads, lists), strict=True)]
    with mock.patch("vllm.config.ModelConfig.is_hybrid", True):
        results.append(configure(model, {"method": "sam"}, {}))
    channel.write(json.dumps(results))
    channel.close()
