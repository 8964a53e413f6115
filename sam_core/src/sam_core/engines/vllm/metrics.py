# SPDX-License-Identifier: Apache-2.0
"""The drafter's counters as metrics of vLLM's Prometheus endpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sam_core import SOURCES
from sam_core.counters import EXCLUSION_REASONS, POSITIONS

PREFIX = "vllm:sam_"
"""Begins with vLLM's own prefix, since vLLM unregisters metrics by prefix before it registers those of a new engine."""

COUNTERS: dict[str, tuple[str, str | None, dict[str, str]]] = {
    "engine_steps": ("Engine steps of the drafter.", None, {"": "steps"}),
    "engine_steps_on": ("Engine steps with the switch on.", None, {"": "steps_on"}),
    "switch_transitions": ("Times the switch turned on or off.", None, {"": "transitions"}),
    "draft_seconds": ("Host time spent feeding the indexes and drafting.", None, {"": "draft_s"}),
    "proposed_tokens": ("Draft tokens proposed.", "source", {name: f"proposed_{name}" for name in SOURCES}),
    "accepted_tokens": ("Draft tokens that were confirmed.", "source", {name: f"accepted_{name}" for name in SOURCES}),
    "model_tokens": ("Verified draft tokens of the model drafter.", None, {"": "model_tokens"}),
    "accepted_model_tokens": ("Accepted draft tokens of the model drafter.", None, {"": "accepted_model_tokens"}),
    "padding_tokens": ("Tokens that padded drafts for captured graphs and were verified.", None, {"": "padding"}),
    "accepted_padding_tokens": ("Padding tokens that were confirmed.", None, {"": "padding_accepted"}),
    "drafted_steps": (
        "Engine steps of requests that had a draft, by the length of the answer before the step.",
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
        {reason: f"excluded_{reason}" for reason in EXCLUSION_REASONS},
    ),
    "exhausted_requests": ("Requests that had no drafts for some time for lack of memory.", None, {"": "exhausted"}),
    "evicted_groups": ("Groups evicted for lack of memory.", None, {"": "evicted_groups"}),
    "evicted_history": ("Evictions of a group's older answers for lack of memory.", None, {"": "evicted_history"}),
}
"""Maps a metric to its documentation, its own label, and the key in SamProposer.stats() for each label value."""
GAUGES = {
    "switch_on": ("1 while the switch is on.", "switch_on"),
    "index_bytes": ("Memory of texts and indexes.", "bytes_used"),
    "requests": ("Requests in the indexes.", "requests"),
}
"""Maps a metric to its documentation and the key in SamProposer.stats()."""


class EngineMetrics:
    """Metrics of one front end and its engines.

    Args:
        counter, gauge: classes of prometheus_client, or vLLM's replacements.
        labelnames: vLLM's own labels.
        labelvalues: their values for each engine, by its index.
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
        for name, (documentation, label, counters) in COUNTERS.items():
            names = [*labelnames, label] if label else list(labelnames)
            metric = counter(name=PREFIX + name, documentation=documentation, labelnames=names)
            self.collectors.append(metric)
            for engine, values in labelvalues.items():
                for value, key in counters.items():
                    child = metric.labels(*values, value) if label else metric.labels(*values)
                    self._counters[engine].append((key, child))
        for name, (documentation, key) in GAUGES.items():
            metric = gauge(
                name=PREFIX + name,
                documentation=documentation,
                labelnames=list(labelnames),
                multiprocess_mode="mostrecent",
            )
            self.collectors.append(metric)
            for engine, values in labelvalues.items():
                self._gauges[engine].append((key, metric.labels(*values)))

    def observe(self, stats: Mapping[str, float], engine: int) -> None:
        """Count a SamProposer.report, which only this front end has received."""
        for key, metric in self._counters[engine]:
            metric.inc(stats[key])
        for key, metric in self._gauges[engine]:
            metric.set(stats[key])
