# SPDX-License-Identifier: Apache-2.0
"""Engines where the package sam_core is not installed, in this process, one after the other.

usage: without_sam_core.py MODEL ARGUMENTS   (JSON: a list of further arguments of EngineArgs)
Prints a JSON list of what each answered to [1, 2, 3, 1, 2, 3]: token ids, or {"error": the last line}.
"""

import json
import os
import sys

from no_sam_core import hide


def answer(model, arguments):
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    sampling = SamplingParams(temperature=0.0, ignore_eos=True, detokenize=False, max_tokens=8)
    settings = {"max_model_len": 64, "max_num_seqs": 4, "num_gpu_blocks_override": 16, "dtype": "float32"} | arguments
    try:
        engine = LLMEngine.from_engine_args(
            EngineArgs(model=model, skip_tokenizer_init=True, enforce_eager=True, **settings)
        )
        engine.add_request("a", {"prompt_token_ids": [1, 2, 3, 1, 2, 3]}, sampling)
        while engine.has_unfinished_requests():
            for output in engine.step():
                found = list(output.outputs[0].token_ids)
        return found
    except Exception as error:
        return {"error": str(error)}


if __name__ == "__main__":
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    hide()
    channel.write(json.dumps([answer(sys.argv[1], arguments) for arguments in json.loads(sys.argv[2])]))
    channel.close()
    os._exit(0)
