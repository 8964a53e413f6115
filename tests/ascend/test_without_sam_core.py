# SPDX-License-Identifier: Apache-2.0
"""A patched engine without the package sam_core: it does what an unpatched one does, and says what it cannot."""

import json
from pathlib import Path

import pytest
from ascend_engine import OLD, start

NGRAM = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 1, "prompt_lookup_max": 2}
NEEDS = "needs the package sam_core, which is not installed here: run ci/setup-env or `pip install ./sam_core`"


@pytest.mark.parametrize("platform", ["npu"] if OLD else ["npu", "cpu"])
def test_an_engine_without_the_package(model, platform):
    asked = [
        {},
        {"speculative_config": NGRAM},
        {"additional_config": {"sam_verify": "seeded"}},
        {"speculative_config": {"method": "sam"}},
    ]
    here = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    words = [str(Path(__file__).with_name("without_sam_core.py")), str(model), json.dumps(asked)]
    out, _ = start(platform, *words, environment=here).communicate()
    assert out, "without_sam_core.py failed: see its standard error"
    plain, ngram, seeded, sam = json.loads(out)
    assert len(plain) == 8 and plain == ngram
    assert f"additional_config.sam_verify {NEEDS}" in seeded["error"]
    assert f"speculative method 'sam' {NEEDS}" in sam["error"]
