# SPDX-License-Identifier: Apache-2.0
"""Tests of the drafter's counters in vLLM's Prometheus metrics."""

import time

from prometheus_client import CollectorRegistry
from sam_core.counters import REPORT_INTERVAL_S


def exposed(engine):
    """Return the samples of this engine, from a new registry: the registry of the process has the samples of the engine
    that was started last."""
    (metrics,) = [m for log in engine.engine.logger_manager.stat_loggers if (m := getattr(log, "drafter_prom", None))]
    registry, found = CollectorRegistry(), {}
    for collector in metrics.collectors:
        registry.register(collector)
    for sample in (sample for metric in registry.collect() for sample in metric.samples):
        labels = dict(sample.labels)
        assert labels.pop("engine") == "0" and labels.pop("model_name")
        found[sample.name.removeprefix("vllm:sam_"), *labels.values()] = sample.value
    return found


SOURCES = ("request", "group", "history", "corpus", "common")
COUNTERS = {("engine_steps_total",): "steps", ("engine_steps_on_total",): "steps_on"}
COUNTERS |= {("draft_seconds_total",): "draft_s", ("switch_transitions_total",): "transitions"}
COUNTERS |= {("drafted_steps_total", "0"): "steps_from_0", ("drafted_step_tokens_total", "0"): "tokens_from_0"}
COUNTERS |= {(f"{what}_tokens_total", one): f"{what}_{one}" for what in ("proposed", "accepted") for one in SOURCES}


def test_prometheus_has_the_drafters_counters(sam, prompts):
    """The metrics have the values of a report that was sent while the last request ran."""
    sam.run(prompts[:12], [30 + 6 * i for i in range(12)])
    before = sam.drafter()
    time.sleep(REPORT_INTERVAL_S)
    sam.run(prompts[:1], 8)
    after, found = sam.drafter(), exposed(sam)
    for name, counter in COUNTERS.items():
        assert before[counter] <= found[name] <= after[counter], (name, before[counter], found[name], after[counter])
        if name[-1] not in ("group", "history", "corpus", "common"):
            assert found[name] > 0, name
    assert found["engine_steps_total",] > found["engine_steps_on_total",]
    assert found["excluded_requests_total", "penalties"] == 0
    assert found["switch_on",] == 1 and found["requests",] >= 1 and found["index_bytes",] > 0


def test_an_engine_without_sam_has_none(plain):
    assert all(getattr(log, "drafter_prom", None) is None for log in plain.engine.logger_manager.stat_loggers)
