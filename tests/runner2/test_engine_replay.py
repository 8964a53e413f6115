# SPDX-License-Identifier: Apache-2.0
"""Each arm of a replay on the second runner gives the recorded answers; `auto` verifies fewer tokens than planned."""

import json
import os
import random

import pytest
from test_plugin import HERE, run

ROOT = HERE.parents[1]
SMALL = "--shape tiny --groups 2 --per-group 2 --batches 1 --learn 0 --k 5 --max-seqs 8"
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([str(HERE / "interpreter"), str(ROOT)]),
    "VLLM_PLUGINS": "sam,device",
    "TORCHDYNAMO_DISABLE": "1",
}


def record(file, seed, groups=2, per_group=2):
    """Write answers of 60 tokens that repeat 15 tokens; about one token in ten is replaced by a random one."""
    draw = random.Random(seed)
    with file.open("w") as lines:
        for group in range(groups):
            prompt, text = (draw.choices(range(64), k=n) for n in (12, 15))
            for _ in range(per_group):
                answer = [token if draw.random() < 0.9 else draw.randrange(64) for token in text * 4]
                lines.write(json.dumps({"prompt_ids": prompt, "response_ids": answer, "prompt_id": group}) + "\n")


@pytest.mark.slow
def test_every_arm_gives_the_recorded_answers(tmp_path):
    record(answers := tmp_path / "answers.jsonl", 1)
    record(others := tmp_path / "others.jsonl", 2)
    words = [*SMALL.split(), "--arms", "plain", "sam:3", "auto", "--out", str(tmp_path)]
    printed = run(["-m", "sam_lab", "engine-replay"], str(answers), str(others), *words, **ENVIRONMENT)
    assert printed.count("ms of a step that reads no prompt") == 2
    for file in (answers, others):
        result = json.loads((tmp_path / file.stem / "engine-replay.json").read_text())
        assert result["wrong"] == [] and result["silent"] == [] and result["settings"]["second_runner"]
        assert result["settings"]["answers"] == str(file) and list(result["arms"]) == ["plain", "sam:3", "auto"]
        for name, values in result["arms"].items():
            assert (values["drafted"] > 0) == (values["accepted"] > 0) == (name != "plain"), name
        runs = json.loads((tmp_path / file.stem / "steps.json").read_text())
        assert {run["batch"] for run in runs} == {0}
        steps = {run["arm"]: [step for step in run["steps"] if not step["prefill"]] for run in runs}
        for name, of_arm in steps.items():
            rows, planned = (sum(step[what] for step in of_arm) for what in ("rows", "planned"))
            assert (rows < planned) == (name == "auto"), name
            assert rows == sum(step["running"] + step["drafted"] for step in of_arm), name
