# SPDX-License-Identifier: Apache-2.0
"""The metrics of an engine's front ends add up what the drafter reports, each report to one of them."""

import re
from pathlib import Path

import numpy as np
import pytest
from sam_core.counters import EXCLUSION_REASONS
from sam_core.engines.vllm import metrics
from sam_core.engines.vllm.metrics import EngineMetrics
from sam_core.options import SOURCES
from sam_core.proposer import SamProposer

from sam_core import proposer


class Metric:
    """As prometheus_client's: registers itself by name, children by their labels."""

    made: dict = {}

    def __init__(self, name, documentation, labelnames, multiprocess_mode=None):
        assert name not in self.made and documentation.endswith(".")
        self.made[name] = self
        self.labelnames, self.children, self.value = labelnames, {}, 0

    def labels(self, *values):
        assert len(values) == len(self.labelnames)
        child = self.children.setdefault(values, object.__new__(Metric))
        child.value = 0
        return child

    def inc(self, value):
        assert value >= 0
        self.value += value

    def set(self, value):
        self.value = value


def made(engines=(0,)):
    Metric.made = {}
    front = EngineMetrics(Metric, Metric, ["model_name", "engine"], {engine: ["m", str(engine)] for engine in engines})
    assert len(front.collectors) == len(Metric.made)
    return front


def value(name, *labels, engine=0):
    return Metric.made["vllm:sam_" + name].children["m", str(engine), *labels].value


def report(**counters):
    return dict.fromkeys(SamProposer(3, None, max_model_len=64).report(), 0) | counters


def test_every_counter_of_the_drafter_has_its_metric():
    known = {key for _, _, counters in metrics.COUNTERS.values() for key in counters.values()} | {
        *metrics.GAUGE_COUNTERS.values()
    }
    assert known == report().keys() - {"proposed"}  # the sum over the sources


def test_counters_grow_and_levels_are_set():
    front = made(engines=(0, 1))
    front.observe(report(steps=10, proposed_group=4, excluded_min_p=1, bytes_used=100, switch_on=1), 0)
    front.observe(report(steps=3), 1)
    front.observe(report(steps=2, proposed_group=5, bytes_used=80, steps_from_128=2), 0)
    assert (value("engine_steps"), value("engine_steps", engine=1)) == (12, 3)
    assert value("proposed_tokens", "group") == 9 and value("proposed_tokens", "request") == 0
    assert value("excluded_requests", "min_p") == 1 and value("drafted_steps", "128") == 2
    assert (value("index_bytes"), value("switch_on")) == (80, 0)


def test_front_ends_that_share_an_engine_count_each_step_once(monkeypatch):
    """Each report goes to one of them; a new drafter begins at zero, and adds to what the one before has counted."""
    now = [0.0]
    monkeypatch.setattr(proposer.time, "monotonic", lambda: now[0])
    fronts, made_by = [], []
    for _ in range(3):
        fronts.append(made())
        made_by.append(Metric.made)
    steps = proposed = 0
    for _ in range(2):
        drafter = SamProposer(3, None, max_model_len=64)
        for step in range(10):
            text = np.tile(np.arange(4, dtype=np.int32), 8)[None]
            drafter.propose(["r"], text, [8 + step], [8], [True], 1)
            now[0] += proposer.REPORT_INTERVAL_S / 2
            if news := drafter.report():
                fronts[step % 3].observe(news, 0)
        now[0] += proposer.REPORT_INTERVAL_S
        fronts[1].observe(drafter.report(), 0)
        steps += drafter.stats()["steps"]
        proposed += drafter.stats()["proposed_request"]
    assert steps == 20 and proposed > 10

    def counted(name, *labels):
        return [metrics["vllm:sam_" + name].children["m", "0", *labels].value for metrics in made_by]

    assert sum(counted("engine_steps")) == steps and min(counted("engine_steps")) > 0
    assert sum(counted("proposed_tokens", "request")) == proposed
    assert max(counted("requests")) == 1, "a level was added up"


def test_a_drafter_reports_at_most_once_in_its_interval(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(proposer.time, "monotonic", lambda: now[0])
    drafter = SamProposer(3, None, max_model_len=64)
    assert drafter.report()["switch_on"] == 0 and drafter.report() is None
    now[0] += proposer.REPORT_INTERVAL_S
    assert drafter.report() and drafter.report() is None
    assert SamProposer(3, None, max_model_len=64, drafting=False).report() is None


@pytest.mark.parametrize("page", ["options.md", "options.zh.md"])
def test_every_metric_is_documented(page):
    text = (Path(__file__).resolve().parents[2] / "docs" / page).read_text()
    rows = re.findall(r"^\| `(vllm:sam_\w+)` \| (\w+) \| (?:`(\w+)`)? *\|", text, re.MULTILINE)
    counters = {(metrics.PREFIX + name, "counter", label or "") for name, (_, label, _) in metrics.COUNTERS.items()}
    assert sorted(rows) == sorted(counters | {(metrics.PREFIX + name, "gauge", "") for name in metrics.GAUGES})


def test_names_are_those_of_the_drafter():
    assert set(metrics.COUNTERS["excluded_requests"][2]) == set(EXCLUSION_REASONS)
    assert set(SOURCES) <= set(metrics.SOURCES)
