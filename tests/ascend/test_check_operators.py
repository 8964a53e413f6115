# SPDX-License-Identifier: Apache-2.0
"""The operator check over the stand-in."""

import json
import random

import pytest
from ascend_engine import OLD, start
from tiny_qwen3 import VOCAB


@pytest.mark.slow
@pytest.mark.skipif(not OLD, reason="tests/evaluation has it on vLLM's own platform")
def test_decoding_and_verification_agree(model, tmp_path):
    rng = random.Random(3)
    rows = [{"prompt_token_ids": [rng.randrange(VOCAB - 1) for _ in range(20)]} for _ in range(3)]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--model", str(model), "--prompts", str(prompts), "--dtype", "float32", "--tokens", "48"]
    words += ["--engine", json.dumps({"num_gpu_blocks_override": 64})]
    process = start("npu", "-m", "llm_rl.check_operators", *words, "--out", str(tmp_path / "out"))
    printed, _ = process.communicate()
    assert process.returncode == 0, printed
    found = json.loads((tmp_path / "out" / "check-operators.json").read_text())
    assert found["tokens"] == 3 * 48 and found["diverged_answers"] == 0
    assert found["accepted"] > 0.9 * found["drafted"] > 90
    assert found["largest"] <= 1e-4 and f"tokens            {found['tokens']}" in printed
