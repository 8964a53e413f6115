# SPDX-License-Identifier: Apache-2.0
"""Data preparation without Parquet: public schemas, bad rows and duplicates."""

import pytest

from llm_rl.data import files, prepare, schemas
from llm_rl.errors import UserError

DAPO = {
    "data_source": "math_dapo",
    "prompt": [{"content": "Solve it.\n\nWhat is 1 + 1?\n\nAnswer on its own line.", "role": "user"}],
    "ability": "MATH",
    "reward_model": {"ground_truth": "2", "style": "rule-lighteval/MATH_v2"},
    "extra_info": {"index": "9a9b6eb4-a1cb-49d1-8c1e-62eaf2f74079"},
}
GSM8K = {"question": "Ann has 1,000 pens and 5 more. How many?", "answer": "1000+5=<<1000+5=1005>>1005\n#### 1,005"}
MATH500 = {"problem": "What is $\\frac12$ of 3?", "answer": "\\frac{3}{2}", "unique_id": "test/prealgebra/1.json"}
AIME = {"id": 60, "problem": "Find $m + n$.", "solution": "...", "answer": "204", "url": "", "year": "2024"}


def dapo(answer):
    prompt = [{"content": "What is 1 + 1?", "role": "user"}]
    return DAPO | {"prompt": prompt, "reward_model": {"ground_truth": answer, "style": "rule"}}


def convert(name, rows, skip_bad=False):
    read = [(f"line {number}", row) for number, row in enumerate(rows, 1)]
    return prepare.convert(read, schemas.SETS[name], skip_bad)


@pytest.mark.parametrize(
    ("name", "row", "source", "truth", "asks"),
    [
        ("dapo-math-17k", DAPO, "math_dapo", "2", "Answer on its own line."),
        ("gsm8k", GSM8K, "openai/gsm8k", "1005", 'after "####"'),
        ("math500", MATH500, "HuggingFaceH4/MATH-500", "\\frac{3}{2}", "\\boxed{}"),
        ("aime2024", AIME, "aime2024", "204", 'after "Answer:"'),
        ("aime2024", dapo("033"), "aime2024", "33", "1 + 1"),
    ],
)
def test_public_schemas(name, row, source, truth, asks):
    ((made,), counts) = convert(name, [row])
    assert list(made) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    (message,) = made["prompt"]
    assert (made["data_source"], made["reward_model"]["ground_truth"], message["role"]) == (source, truth, "user")
    assert asks in message["content"] and counts["bad_rows"] == counts["duplicates_removed"] == 0


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    [
        ("dapo-math-17k", "is not JSON", "is not JSON"),
        ("dapo-math-17k", GSM8K, "has no field 'data_source'"),
        ("dapo-math-17k", DAPO | {"prompt": "What is 1 + 1?"}, "has no list of one chat message in 'prompt'"),
        ("dapo-math-17k", DAPO | {"prompt": [{"content": "x", "role": "system"}]}, "role 'system' instead of 'user'"),
        ("dapo-math-17k", dapo(" "), "has no text in 'ground_truth'"),
        (
            "dapo-math-17k",
            DAPO | {"data_source": "openai/gsm8k"},
            "has data_source 'openai/gsm8k', so it does not belong to",
        ),
        (
            "aime2024",
            dapo("5") | {"data_source": "openai/gsm8k"},
            "has data_source 'openai/gsm8k', so it does not belong to",
        ),
        ("gsm8k", {"question": "How many?", "answer": "5"}, "without ####"),
        ("aime2024", AIME | {"answer": "1000"}, "an AIME answer is 0 to 999"),
    ],
)
def test_bad_rows_are_named_by_line_and_skipped_only_on_request(name, row, reason, capsys):
    good = {"dapo-math-17k": DAPO, "gsm8k": GSM8K, "aime2024": AIME}[name]
    with pytest.raises(UserError, match="1 of 2 rows are bad: repair the source, or skip them with --skip-bad"):
        convert(name, [good, row])
    said = capsys.readouterr().err
    assert "bad row: line 2 " in said and reason in said
    rows, counts = convert(name, [good, row], skip_bad=True)
    assert len(rows) == 1 and counts["bad_rows"] == 1 and reason in counts["first_bad_rows"][0]


def test_a_prompt_with_two_answers_is_bad(capsys):
    rows = [dapo("2"), dapo("2"), dapo("3")]
    with pytest.raises(UserError, match="1 of 3 rows are bad"):
        convert("dapo-math-17k", rows)
    assert "line 3 has the prompt of line 1 with another answer: '3', not '2'" in capsys.readouterr().err
    made, counts = convert("dapo-math-17k", rows, skip_bad=True)
    assert made[0]["reward_model"]["ground_truth"] == "2" and counts["duplicates_removed"] == 1


def test_lines_that_are_no_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n\n{"a": \n[1]\n"\xff"\n')
    read = list(files.rows(path))
    assert read[0] == ("line 1", {"a": 1})
    assert [(place, row[:7]) for place, row in read[1:]] == [(f"line {n}", "is not ") for n in (3, 4, 5)]
    with pytest.raises(UserError, match="cannot be read: No such file"):
        list(files.rows(tmp_path / "none"))
