# SPDX-License-Identifier: Apache-2.0
"""The operator check over the stand-in, and that it notices differences."""

import json
import random

from ascend_engine import start
from tiny_qwen3 import VOCAB

from llm_rl.check_operators import compare


def test_decoding_and_verification_agree(model, tmp_path):
    rng = random.Random(3)
    rows = [{"prompt_token_ids": [rng.randrange(VOCAB - 1) for _ in range(20)]} for _ in range(3)]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--model", str(model), "--prompts", str(prompts), "--dtype", "float32", "--tokens", "48"]
    words += ["--engine", json.dumps({"num_gpu_blocks_override": 64})]
    process = start("npu", "-m", "llm_rl.check_operators", *words, "--out", str(tmp_path / "out"))
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    found = json.loads((tmp_path / "out" / "check-operators.json").read_text())
    assert found["tokens"] == 3 * 48 and found["diverged_answers"] == 0
    assert found["accepted"] > 0.9 * found["drafted"] > 90
    assert found["largest"] <= 1e-4 and f"tokens            {found['tokens']}" in printed
    assert (tmp_path / "out" / "check-operators.png").stat().st_size > 1000


def answer(tokens, *logprobs):
    return {"tokens": tokens, "logprobs": list(logprobs)}


def test_differences_are_seen_up_to_the_token_that_differs():
    decoded = [answer([1, 2, 3], -1.0, -2.0, -3.0), answer([4, 5, 6], -1.0, -1.0, -1.0)]
    verified = [answer([1, 2, 3], -1.0, -2.5, -3.0), answer([4, 9, 6], -1.25, -7.0, -8.0)]
    assert compare(decoded, verified) == {"differences": [0.0, -0.5, 0.0, -0.25], "diverged": 1}
