# SPDX-License-Identifier: Apache-2.0
"""Compare requests.toml of the current environment's pin set with its vLLM."""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STATUSES = ("drafted", "excluded", "refused", "untested")


def table():
    return tomllib.loads((ROOT / "patches" / Path(sys.prefix).name / "requests.toml").read_text())


def names(section, *statuses):
    """The names in a section with these statuses, or with any, including repetitions."""
    return [name for group in table()[section] for status in statuses or STATUSES for name in group.get(status, ())]


def every_field_has_one_row():
    """Raise AssertionError if a field of the installed SamplingParams has no row, or a row has no field."""
    from vllm import SamplingParams

    fields = set(SamplingParams.__struct_fields__)
    rows = names("parameters") + table()["internal"]
    assert len(set(rows)) == len(rows), "a parameter has two rows in requests.toml"
    assert fields - set(rows) == set(), "requests.toml lacks fields of SamplingParams"
    assert set(names("parameters")) - fields == set(), "requests.toml has rows of which SamplingParams has no field"
