# SPDX-License-Identifier: Apache-2.0
"""A run's metrics for Prometheus; test_dapo_run.py checks those of a real run."""

import json

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from llm_rl import prometheus

DATA = {"critic/rewards/mean": float("nan"), "note": "a"}
STEPS = [{"step": n, "data": DATA | {"timing_s/gen": 1.5 * n}} for n in (1, 2)]
ROLLOUT = {"job_name": "rollout", "static_configs": [{"targets": ["h:1", "h:2"]}]}
VERL = {"scrape_configs": [{"job_name": "ray"}, ROLLOUT]}


@pytest.fixture
def places(tmp_path, monkeypatch):
    """The folder of metrics, and the folder of a run whose name needs escapes."""
    folder, run_dir = tmp_path / "metrics", tmp_path / 'a "run"'
    monkeypatch.setenv(prometheus.ENV, str(folder))
    folder.mkdir()
    run_dir.mkdir()
    return folder, run_dir


def test_steps_and_engines_are_there_while_the_run_lasts(places):
    folder, run_dir = places
    (folder / f"{run_dir.name}.prom").write_text("of a killed run")
    prometheus.verl_file(run_dir).write_text("of a killed run")
    with prometheus.published(run_dir) as publish:
        assert not list(folder.iterdir()) and not list(run_dir.iterdir())
        publish(STEPS[:1])
        assert not (folder / f"{run_dir.name}.json").exists()
        text = yaml.safe_dump(VERL)
        prometheus.verl_file(run_dir).write_text(text[:-8])
        publish([])
        prometheus.verl_file(run_dir).write_text(text)
        publish(STEPS)
        found = json.loads((folder / f"{run_dir.name}.json").read_text())
        assert found == [{"targets": ["h:1", "h:2"], "labels": {"run": run_dir.name}}]
        families = text_string_to_metric_families((folder / f"{run_dir.name}.prom").read_text())
        samples = {sample.name: sample for family in families for sample in family.samples}
        assert samples.keys() == {"verl_training_step", "verl_timing_s_gen", "verl_critic_rewards_mean"}
        assert samples["verl_training_step"].value == 2 and samples["verl_timing_s_gen"].value == 3
        assert all(sample.labels == {"run": run_dir.name} for sample in samples.values())
        publish([STEPS[0], {"step": 2, "data": STEPS[1]["data"] | {"val/reward": 0.5}}])  # added to the step later
        assert 'verl_val_reward{run="a \\"run\\""} 0.5\n' in (folder / f"{run_dir.name}.prom").read_text()
    assert not list(folder.iterdir())


def test_a_folder_that_cannot_be_written_is_one_warning(places, capsys):
    folder, run_dir = places
    with prometheus.published(run_dir) as publish:
        folder.rmdir()
        publish(STEPS[:1])
        publish(STEPS)
    said = capsys.readouterr().out
    assert said == f"  warning: {folder} cannot be written (No such file or directory): Prometheus misses this run\n"
