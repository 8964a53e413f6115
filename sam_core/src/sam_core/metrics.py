# SPDX-License-Identifier: Apache-2.0
"""The drafter's counters as metrics of the engine's own Prometheus endpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sam_core.exclusion import REASONS
from sam_core.stats import POSITIONS

SOURCES = ("request", "group", "history", "corpus")
PREFIX = "vllm:sam_"
"""vLLM clears the metrics whose names hold its own before it makes an engine's; others would be registered twice."""

COUNTERS: dict[str, tuple[str, str | None, dict[str, str]]] = {
    "engine_steps": ("Engine steps that the drafter saw.", None, {"": "steps"}),
    "engine_steps_on": ("Engine steps with the switch on.", None, {"": "steps_on"}),
    "switch_transitions": ("Times the switch turned on or off.", None, {"": "transitions"}),
    "draft_seconds": ("Host time spent feeding the indexes and drafting.", None, {"": "draft_s"}),
    "proposed_tokens": ("Draft tokens proposed.", "source", {name: f"proposed_{name}" for name in SOURCES}),
    "accepted_tokens": ("Draft tokens that came true.", "source", {name: f"accepted_{name}" for name in SOURCES}),
    "padding_tokens": ("Tokens that padded drafts for captured graphs and were verified.", None, {"": "padding"}),
    "accepted_padding_tokens": ("Of these those that came true.", None, {"": "padding_accepted"}),
    "drafted_steps": (
        "Engine steps of requests that had a draft, by the tokens of the answer before.",
        "position",
        {str(at): f"steps_from_{at}" for at in POSITIONS},
    ),
    "drafted_step_tokens": (
        "Tokens gained in these steps.",
        "position",
        {str(at): f"tokens_from_{at}" for at in POSITIONS},
    ),
    "excluded_requests": (
        "Requests that are not drafted.",
        "reason",
        {reason: f"excluded_{reason}" for reason in REASONS},
    ),
    "exhausted_requests": ("Requests that for some time did not draft for lack of memory.", None, {"": "exhausted"}),
    "evicted_groups": ("Groups forgotten for lack of memory.", None, {"": "evicted_groups"}),
    "evicted_history": ("Times that a group lost its older answers for lack of memory.", None, {"": "evicted_history"}),
}
"""Metric: what it counts, its label beside the engine's, and the counter of SamProposer.stats() for each of its values."""
GAUGES = {
    "switch_on": "1 while the switch is on.",
    "index_bytes": "Memory of texts and indexes.",
    "requests": "Requests in the indexes.",
}
LEVELS = {"switch_on": "switch_on", "index_bytes": "bytes_used", "requests": "requests"}


class EngineMetrics:
    """Metrics of one front end, for the engines it talks to.

    Args:
        counter, gauge: classes of prometheus_client, or the engine's stand-ins for them.
        labelnames: the engine's own labels.
        labelvalues: for each engine's index, their values.
    """

    def __init__(
        self,
        counter: Callable[..., Any],
        gauge: Callable[..., Any],
        labelnames: Sequence[str],
        labelvalues: Mapping[int, Sequence[object]],
    ) -> None:
        self.collectors: list[Any] = []
        self._counters: dict[int, list[tuple[str, Any]]] = {engine: [] for engine in labelvalues}
        self._gauges: dict[int, list[tuple[str, Any]]] = {engine: [] for engine in labelvalues}
        self._seen: dict[int, Mapping[str, float]] = {engine: {} for engine in labelvalues}
        for name, (documentation, label, counters) in COUNTERS.items():
            names = [*labelnames, label] if label else list(labelnames)
            metric = counter(name=PREFIX + name, documentation=documentation, labelnames=names)
            self.collectors.append(metric)
            for engine, values in labelvalues.items():
                for value, key in counters.items():
                    child = metric.labels(*values, value) if label else metric.labels(*values)
                    self._counters[engine].append((key, child))
        for name, documentation in GAUGES.items():
            metric = gauge(
                name=PREFIX + name,
                documentation=documentation,
                labelnames=list(labelnames),
                multiprocess_mode="mostrecent",
            )
            self.collectors.append(metric)
            for engine, values in labelvalues.items():
                self._gauges[engine].append((LEVELS[name], metric.labels(*values)))

    def observe(self, stats: Mapping[str, float], engine: int) -> None:
        """Add what SamProposer.report counted since the last one; counters of a new drafter, which fall, count in full."""
        seen = self._seen[engine]
        anew = any(stats[key] < seen.get(key, 0) for key, _ in self._counters[engine])
        for key, metric in self._counters[engine]:
            metric.inc(stats[key] - (0 if anew else seen.get(key, 0)))
        for key, metric in self._gauges[engine]:
            metric.set(stats[key])
        self._seen[engine] = stats
