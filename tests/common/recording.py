# SPDX-License-Identifier: Apache-2.0
"""Small recordings for the tests."""

import json
import random


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def line(prompt="p", response=(1, 2, 3), prompt_ids=(7,), **more):
    return {"prompt_ids": list(prompt_ids), "response_ids": list(response), "prompt_id": prompt} | more


def recording(path, prompts=5, answers=4, seed=1):
    """Answers that repeat themselves and each other: walks over few tokens, drawn again from a common stem."""
    rng, rows = random.Random(seed), []
    for prompt in range(prompts):
        stem = [rng.randrange(6) for _ in range(40)]
        for number in range(answers):
            response = [token if rng.random() < 0.9 else rng.randrange(6) for token in stem * rng.randrange(1, 4)]
            rows.append(line(f"p{prompt}", response, stem[:5], epoch=number // 2))
    return write(path, rows)
