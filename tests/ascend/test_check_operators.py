# SPDX-License-Identifier: Apache-2.0
"""Tests of the operator check (llm_rl.check_operators) on the stand-in for torch_npu."""

import json
import shutil
from pathlib import Path

import pytest
from ascend_engine import OLD, start

TINY = Path(__file__).resolve().parents[2] / "llm_rl" / "qwen3" / "tiny"


@pytest.mark.slow
@pytest.mark.skipif(not OLD, reason="tests/evaluation has it on vLLM's own platform")
def test_decoding_and_verification_agree(tmp_path):
    model = shutil.copytree(TINY, tmp_path / "model")
    # the transformers of vLLM 0.11 cannot read a tokenizer config of transformers 5
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    words = ["--model", str(model), "--dtype", "float32", "--tokens", "48"]
    words += ["--engine", json.dumps({"num_gpu_blocks_override": 64})]
    process = start("npu", "-m", "llm_rl.check_operators", *words, "--out", str(tmp_path / "out"))
    printed, _ = process.communicate()
    assert process.returncode == 0, printed
    found = json.loads((tmp_path / "out" / "check-operators.json").read_text())
    assert found["tokens"] == 4 * 48 and found["diverged_answers"] == 0
    assert found["accepted"] > 0.9 * found["drafted"] > 90
    assert found["largest"] <= 1e-4 and f"tokens            {found['tokens']}" in printed
