# SPDX-License-Identifier: Apache-2.0
"""Evaluations with SAM off and on, written by `python -m llm_rl.evaluation compare --out FILE`."""

from llm_rl.errors import UserError
from llm_rl.reports.runs import read_json

FIELDS = ("questions", "answers_to_each", "temperature", "off", "on", "difference", "p_value", "differs")


def read(path):
    """The evaluation in `path`, with the file's name as "name". Raises UserError if the file has no evaluation."""
    evaluation = read_json(path)
    if not isinstance(evaluation, dict) or any(name not in evaluation for name in FIELDS):
        raise UserError(f"{path} is not an evaluation: write it with `llm_rl.evaluation compare OFF ON --out FILE`")
    return evaluation | {"name": path.stem}
