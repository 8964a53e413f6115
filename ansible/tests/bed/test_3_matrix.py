# SPDX-License-Identifier: Apache-2.0
"""Eight hosts, 128 dies: checked in about the time of three, since all hosts are asked at once."""

from __future__ import annotations

import configparser

from conftest import TIMES
from hosts import Bed
from plays import Site


def test_eight_hosts_pass_preflight_and_one_bad_die_among_128_is_found(bed: Bed, site: Site) -> None:
    config = configparser.ConfigParser()
    config.read(site.repository / "ansible/ansible.cfg")
    forks = config.getint("defaults", "forks")
    assert forks >= 8
    TIMES.append((f"preflight.yml, 3 hosts (48 dies), {forks} forks", site.play("preflight").must_pass().seconds))
    TIMES.append(("five more hosts up", bed.up(8)))
    recipe = site.repository / "llm_rl/qwen3/bed.yaml"
    recipe.write_text(recipe.read_text().replace("nodes: 3", "nodes: 8"))
    result = site.play("preflight").must_pass()
    TIMES.append((f"preflight.yml, 8 hosts (128 dies), {forks} forks", result.seconds))
    assert result.changed == []

    state = bed.hosts[7].npu()
    state["dies"][15]["health"] = "Critical"
    bed.hosts[7].set_npu(state)
    assert site.play("preflight").must_fail().sentence.startswith("bed8: die 15 (NPU 7 chip 1) has health 'Critical'")
