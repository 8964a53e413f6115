# SPDX-License-Identifier: Apache-2.0
"""Prometheus's alerts name only metrics that the exporters of a cluster serve, and promtool sees them fire."""

import json
import re
import shutil
import subprocess

import pytest
import yaml
from role_files import ROLES, read, rendered
from sam_core.engines.vllm import metrics

BED = ROLES.parent / "tests/bed"
SETTINGS = {"work_dir": "/data/sam-rl", "groups": {"npu_hosts": ["npu1", "npu2"]}}
SETTINGS["recipe_settings"] = {"recipe": {"trainer": {"hang_timeout": 3600}}}
NODE_EXPORTER = {"node_filesystem_avail_bytes", "node_filesystem_size_bytes"}
"""Metrics of node_exporter's filesystem collector that the alerts use; the test bed runs the real exporter."""


@pytest.fixture
def alerts():
    return rendered("monitoring/templates/alerts.yml.j2", **SETTINGS, **read("monitoring/vars/main.yml"))


def names(expression):
    """The names of the metrics in an expression."""
    return set(re.findall(r"\b(?:up|(?:node|npu|verl)_\w+|vllm:\w+)\b", expression))


def test_alerts_name_metrics_that_are_served(alerts):
    panels = json.loads(rendered("monitoring/templates/dashboard.json.j2"))["panels"]
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels) == 13
    served = names(str(panels)) | NODE_EXPORTER | {"up"}
    served |= {metrics.PREFIX + name for name in [*metrics.GAUGES, *metrics.COUNTERS]}
    exporter = (BED / "fakes/npu-exporter").read_text()
    served |= {f"npu_chip_info_{name}" for name in re.findall(r'"(\w+)": ', exporter)}
    (group,) = yaml.safe_load(alerts)["groups"]
    assert len(group["rules"]) == 6
    for rule in group["rules"]:
        assert names(rule["expr"]) and names(rule["expr"]) <= served, rule["alert"]
        assert rule["annotations"]["summary"].endswith(".") and "[[" not in str(rule)


RUN, ENGINE, DIE = '{run="a"}', '{run="a",instance="1:2",engine="0"}', '{host="npu2",id="5"}'
STEP, TOKENS = f"verl_training_step{RUN}", f"vllm:generation_tokens_total{ENGINE}"
ACCEPTED, SWITCH = f"vllm:spec_decode_num_accepted_tokens_total{ENGINE}", f"vllm:sam_switch_on{ENGINE}"


def disk(mountpoint, free):
    labels = f'{{host="npu1",mountpoint="{mountpoint}"}}'
    return {f"node_filesystem_avail_bytes{labels}": f"{free}x120", f"node_filesystem_size_bytes{labels}": "100x120"}


@pytest.mark.parametrize(
    ("alert", "series", "minute", "said"),
    [
        ("NoStep", {STEP: "7x90"}, 70, "The run a has finished no step and no engine has made a token for 60 minutes"),
        ("NoStep", {STEP: "7x90"}, 50, None),
        ("NoStep", {STEP: "7x90", TOKENS: "0+9x90"}, 80, None),
        ("NoStep", {STEP: "7x40 8x50"}, 80, None),
        ("NoStep", {STEP: "7x20 _x70"}, 80, None),
        ("ExporterDown", {'up{job="hosts",host="npu2",instance="i"}': "1x3 0x20"}, 10, "npu2: nothing answers at i ("),
        ("ExporterDown", {'up{job="engines",instance="i"}': "0x20"}, 10, None),
        ("DiskNearlyFull", disk("/data/sam-rl", 4), 10, "npu1: 4% of /data/sam-rl is free: remove old runs or checkp"),
        ("DiskNearlyFull", disk("/", 4), 10, "npu1: 4% of / is free"),
        ("DiskNearlyFull", disk("/data/sam-rl/runs", 6), 10, None),
        ("DiskNearlyFull", disk("/data/other", 0), 10, None),
        ("DieUnhealthy", {f"npu_chip_info_health_status{DIE}": "1x3 0x20"}, 10, "npu2: die 5 is not healthy: see"),
        ("DieUnhealthy", {f"npu_chip_info_health_status{DIE}": "1x20"}, 10, None),
        ("MemoryErrors", {f"npu_chip_info_hbm_ecc_total_double_bit_error_cnt{DIE}": "1x9 2x9"}, 15, "npu2: die 5 had "),
        ("MemoryErrors", {f"npu_chip_info_hbm_ecc_total_double_bit_error_cnt{DIE}": "1x20"}, 15, None),
        ("NoDraftAccepted", {SWITCH: "1x60", TOKENS: "0+9x60", ACCEPTED: "5x60"}, 40, "Engine 0 at 1:2 of the run a "),
        ("NoDraftAccepted", {SWITCH: "1x60", TOKENS: "0+9x60", ACCEPTED: "0+1x60"}, 40, None),
        ("NoDraftAccepted", {SWITCH: "0x60", TOKENS: "0+9x60", ACCEPTED: "5x60"}, 40, None),
        ("NoDraftAccepted", {SWITCH: "1x60", TOKENS: "5x60", ACCEPTED: "5x60"}, 40, None),
    ],
)
def test_alerts_fire(alerts, alert, series, minute, said, tmp_path):
    if not shutil.which("promtool"):
        pytest.skip("needs promtool, of Debian's package prometheus")
    (tmp_path / "alerts.yml").write_text(alerts)
    (rule,) = (rule for rule in yaml.safe_load(alerts)["groups"][0]["rules"] if rule["alert"] == alert)
    case = {"interval": "1m", "input_series": [{"series": name, "values": values} for name, values in series.items()]}
    # The test file expects no alert, so promtool reports each alert that fires as a difference in its output.
    case["alert_rule_test"] = [{"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": []}]
    (tmp_path / "test.yml").write_text(json.dumps({"rule_files": ["alerts.yml"], "tests": [case]}))
    done = subprocess.run(["promtool", "test", "rules", tmp_path / "test.yml"], capture_output=True, text=True)
    assert (done.returncode == 0) == (said is None), done.stdout + done.stderr
    assert said is None or f'summary="{said}' in done.stderr and rule["labels"]["severity"] in done.stderr, done.stderr
