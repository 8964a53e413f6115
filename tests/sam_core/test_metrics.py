# SPDX-License-Identifier: Apache-2.0
"""The counters that the drafter reports to an engine's front ends; tests/engine tests the front ends' metrics."""

import re
from pathlib import Path

import pytest
from sam_core.engines.vllm import metrics
from sam_core.proposer import SamProposer


def test_every_counter_of_the_drafter_has_its_metric():
    counters = {key for _, _, counters in metrics.COUNTERS.values() for key in counters.values()}
    reported = SamProposer(3, None, max_model_len=64).report().keys()
    gauges = {key for _, key in metrics.GAUGES.values()}
    assert counters | gauges == reported - {"proposed"}  # the sum over the sources


@pytest.mark.parametrize("page", ["options.md", "options.zh.md"])
def test_every_metric_is_documented(page):
    text = (Path(__file__).resolve().parents[2] / "docs" / page).read_text()
    listed = "".join(re.findall(r"^- .*`vllm:sam_(?:.*\n?)+?(?=- |\n)", text, re.MULTILINE))
    names = {"vllm:sam" + name for name in re.findall(r"`(?:vllm:sam)?(_\w+)`", listed)}
    assert names == {metrics.PREFIX + name for name in (*metrics.COUNTERS, *metrics.GAUGES)}
    labels = {label for _, label, _ in metrics.COUNTERS.values() if label}
    assert labels and all(f"`{label}`" in listed for label in labels)
