# SPDX-License-Identifier: Apache-2.0
"""The drafter's counters in vLLM's Prometheus metrics."""

import time

from prometheus_client import CollectorRegistry
from sam_core.proposer import REPORT_INTERVAL_S


def exposed(engine):
    """This engine's samples, from a registry of its own: the process's has those of the engine that was started
    last."""
    (metrics,) = [m for log in engine.engine.logger_manager.stat_loggers if (m := getattr(log, "drafter_prom", None))]
    registry = CollectorRegistry()
    for collector in metrics.collectors:
        registry.register(collector)
    samples = [
        sample for metric in registry.collect() for sample in metric.samples if not sample.name.endswith("_created")
    ]
    assert all(sample.labels["engine"] == "0" and sample.labels["model_name"] for sample in samples)
    labels = ("source", "position", "reason")
    return {
        (sample.name.removeprefix("vllm:sam_"), *(v for k, v in sample.labels.items() if k in labels)): sample.value
        for sample in samples
    }


def test_prometheus_has_the_drafters_counters(sam, prompts):
    sam.run(prompts[:12], [30 + 6 * i for i in range(12)])
    before = sam.drafter()
    time.sleep(REPORT_INTERVAL_S)
    sam.run(prompts[:1], 8)
    after, found = sam.drafter(), exposed(sam)

    def between(name, counter):
        """Reported while the last request ran."""
        assert before[counter] <= found[name] <= after[counter], (name, before[counter], found[name], after[counter])

    between(("engine_steps_total",), "steps")
    between(("engine_steps_on_total",), "steps_on")
    assert found["engine_steps_total",] > found["engine_steps_on_total",] > 0
    between(("draft_seconds_total",), "draft_s")
    assert found["draft_seconds_total",] > 0
    assert found["switch_transitions_total",] == before["transitions"] > 0
    for source in ("request", "group", "history", "corpus", "common"):
        between(("proposed_tokens_total", source), f"proposed_{source}")
        between(("accepted_tokens_total", source), f"accepted_{source}")
    assert found["proposed_tokens_total", "request"] > 0 and found["accepted_tokens_total", "request"] > 0
    between(("drafted_steps_total", "0"), "steps_from_0")
    between(("drafted_step_tokens_total", "0"), "tokens_from_0")
    assert found["drafted_steps_total", "0"] > 0
    assert found["excluded_requests_total", "penalties"] == 0
    assert found["switch_on",] == 1 and found["requests",] >= 1 and found["index_bytes",] > 0


def test_an_engine_without_sam_has_none(plain):
    assert all(getattr(log, "drafter_prom", None) is None for log in plain.engine.logger_manager.stat_loggers)
