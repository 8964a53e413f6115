# SPDX-License-Identifier: Apache-2.0
"""Without the package sam_core, a patched engine works as an unpatched one, and refuses settings that need sam_core."""

import json

import pytest
from ascend_engine import OLD, start

ASKED = [
    {},
    {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}},
    {"additional_config": {"sam_verify": "seeded"}},
    {"speculative_config": {"method": "sam"}},
]
NEEDS = "needs the package sam_core, which is not installed here: run ci/setup-env or `pip install ./sam_core`"
PROGRAM = """
import json, os, sys
channel = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
import no_sam_core
no_sam_core.hide()
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.llm_engine import LLMEngine

settings = {"skip_tokenizer_init": True, "enforce_eager": True, "dtype": "float32", "num_gpu_blocks_override": 16}
settings |= {"max_model_len": 64, "max_num_seqs": 4}
sampling = SamplingParams(temperature=0.0, ignore_eos=True, detokenize=False, max_tokens=8)
found = []
for asked in json.loads(sys.argv[2]):
    try:
        engine = LLMEngine.from_engine_args(EngineArgs(model=sys.argv[1], **settings, **asked))
        engine.add_request("a", {"prompt_token_ids": [1, 2, 3, 1, 2, 3]}, sampling)
        while engine.has_unfinished_requests():
            for output in engine.step():
                tokens = [*output.outputs[0].token_ids]
        found.append(tokens)
    except Exception as error:
        found.append(str(error))
print(json.dumps(found), file=channel, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("platform", ["npu"] if OLD else ["npu", "cpu"])
def test_an_engine_without_the_package(model, platform, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    words = [str(tmp_path / "program.py"), str(model), json.dumps(ASKED)]
    out, _ = start(platform, *words, environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}).communicate()
    assert out, "the program failed: see its standard error"
    plain, ngram, seeded, sam = json.loads(out)
    assert len(plain) == 8 and plain == ngram
    assert f"additional_config.sam_verify {NEEDS}" in seeded
    assert f"speculative method 'sam' {NEEDS}" in sam
