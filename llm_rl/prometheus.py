# SPDX-License-Identifier: Apache-2.0
"""Publish a run for Prometheus: a file of metrics for node exporter, and the list of engines to scrape.

Both go to the folder $SAM_RL_METRICS. The playbooks set this variable and create the folder if monitoring is enabled;
without the folder nothing is written.

<run>.prom    every number of the last line of verl's step log as a gauge named as in verl (`timing_s/gen` becomes
              `verl_timing_s_gen`), and its step as `verl_training_step`
<run>.json    the rollout's servers, for a file_sd_config; verl writes their addresses to prometheus.yml in the run's
              folder
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from sam_core.files import replacing, write_json

ENV = "SAM_RL_METRICS"


def folder() -> Path | None:
    """The folder that runs publish to, or None."""
    named = os.environ.get(ENV)
    return Path(named) if named and Path(named).is_dir() else None


def verl_file(run_dir: Path) -> Path:
    """The file that verl writes its Prometheus configuration to."""
    return run_dir / "prometheus.yml"


@contextmanager
def published(run_dir: Path) -> Iterator[Callable[[Sequence[Mapping[str, Any]]], None]]:
    """Yields a function that publishes the latest of a run's steps, and its engines; both are removed at the end.

    If the folder cannot be written, a warning is printed and the run continues.
    """
    if (place := folder()) is None:
        yield lambda steps: None
        return
    metrics, engines, source = place / f"{run_dir.name}.prom", place / f"{run_dir.name}.json", verl_file(run_dir)
    last: Mapping[str, Any] | None = None
    known: list[str] = []
    writable = True

    def publish(steps: Sequence[Mapping[str, Any]]) -> None:
        nonlocal last, known, writable
        try:
            if steps and steps[-1] != last:  # a trainer may log a step in parts
                last = steps[-1]
                with replacing(metrics) as new:
                    new.write_text(exposition(run_dir.name, steps[-1]))
            if (found := addresses(source)) != known:
                known = found
                write_json(engines, [{"targets": found, "labels": {"run": run_dir.name}}])
        except OSError as e:
            if writable:
                print(f"  warning: {place} cannot be written ({e.strerror}): Prometheus misses this run", flush=True)
            writable = False

    def withdraw() -> None:
        with suppress(OSError):
            for path in (metrics, engines, source):
                path.unlink(missing_ok=True)

    withdraw()  # left by a killed run
    try:
        yield publish
    finally:
        withdraw()


def exposition(run: str, step: Mapping[str, Any]) -> str:
    """A line of verl's step log in Prometheus's text format."""
    values = {"verl_training_step": step["step"]}
    for name, value in step["data"].items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            values["verl_" + re.sub(r"\W", "_", name, flags=re.ASCII)] = value
    label = run.replace("\\", r"\\").replace('"', r"\"")
    return "".join(f'# TYPE {name} gauge\n{name}{{run="{label}"}} {value}\n' for name, value in sorted(values.items()))


def addresses(file: Path) -> list[str]:
    """The rollout's servers in the configuration that verl writes; empty while it is missing or incomplete."""
    try:
        jobs = yaml.safe_load(file.read_text())["scrape_configs"]
        return next(job["static_configs"][0]["targets"] for job in jobs if job["job_name"] == "rollout")
    except (OSError, yaml.YAMLError, LookupError, TypeError, StopIteration):
        return []
