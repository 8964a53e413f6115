# SPDX-License-Identifier: Apache-2.0
"""From bare hosts to a trained recipe on three hosts, a second time, with faults in between, and away again."""

from __future__ import annotations

import json
import re
import shutil
import socket
import tarfile
import threading
import time
import tomllib
import urllib.parse
from pathlib import Path

import pytest
from conftest import SECRET, TIMES, note
from hosts import CONTROLLER, Bed, Host, call
from plays import Result, Site
from prepare import PIN_SET

RUNS = "srv/sam-rl/runs"
PACKAGING = r"/var/lib/dpkg/|/etc/(ld\.so\.cache$|(passwd|group|g?shadow)-?$|\.pwd\.lock$|rc[0-6S]\.d/|systemd/system/(chronyd\.service$|.+\.wants/(rsync|nftables|chrony)))"
"""Files that packages leave when they are installed, add a user or have services enabled; the clock stays in step."""
BARE: dict[str, dict] = {}


def steps(head: Host, run: str) -> list[dict]:
    """What the job has written, line by line."""
    path = head.root / RUNS / run / "steps.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture(scope="module")
def converged(bed: Bed, site: Site) -> Result:
    """site.yml has run on bare hosts, once for all tests below."""
    BARE.update(
        {host.name: {"units": host.units(), "packages": packages(host), "files": host.files()} for host in bed.hosts}
    )
    result = site.play("site").must_pass()
    TIMES.append(("site.yml from bare hosts to a trained recipe, 3 hosts", result.seconds))
    return result


def test_the_recipe_trains_on_all_hosts_with_drafts(bed: Bed, converged: Result) -> None:
    lines = steps(bed.hosts[0], "bed")
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert all(line["hosts"] == ["bed1", "bed2", "bed3"] for line in lines)
    summary = json.loads((bed.hosts[0].root / RUNS / "bed/summary.json").read_text())
    assert summary["drafted"] > summary["accepted"] > 0
    assert summary["reward_first"] < 0.1 < 0.9 < summary["reward_last"]
    first, last = ((line["accepted"] / line["drafted"]) for line in (lines[0], lines[-1]))
    assert last > 0.5 > 0.1 > first, "drafts are accepted where the policy has learnt to repeat itself"
    assert "Ray has 3 hosts and 48 NPU" in converged.messages


def test_ray_answers_the_cluster_network_alone(bed: Bed, converged: Result) -> None:
    """A caller from another network, to whom the host has a route, reaches ssh and no port of Ray."""

    def answers(source: str, port: int) -> bool:
        try:
            socket.create_connection((bed.hosts[0].address, port), 2, (source, 0)).close()
        except TimeoutError:
            return False
        return True

    call("ip", "address", "add", "10.232.0.1/24", "dev", "bed0")
    bed.hosts[0].run("ip", "route", "add", "10.232.0.0/24", "dev", "host0")
    ports = sorted(bed.hosts[0].ports() - {22})
    assert {6379, 8265} <= set(ports)
    assert all(answers(CONTROLLER, port) for port in (22, 6379, 8265))
    assert answers("10.232.0.1", 22)
    assert not [port for port in (6379, 8265, 20000) if answers("10.232.0.1", port)]


def test_logs_and_results_come_back_without_secrets(site: Site, converged: Result) -> None:
    archive = site.repository / "outputs/cluster/support-bed.tar.gz"
    texts = {}
    with tarfile.open(archive) as whole:
        for part in whole.getmembers():
            with tarfile.open(fileobj=whole.extractfile(part)) as tar:
                texts |= {member.name: tar.extractfile(member).read() for member in tar.getmembers()}
    log = next(text for name, text in texts.items() if name.endswith("launch.log"))
    assert b'"reward_last"' in log
    assert all(b"npu-smi 26.0.rc1" in texts[f"bed{number}/npu-smi.txt"] for number in (1, 2, 3))
    assert not [name for name, text in texts.items() if SECRET.encode() in text]
    assert SECRET not in converged.output


def test_a_second_run_changes_nothing(bed: Bed, site: Site, converged: Result) -> None:
    result = site.play("site").must_pass()
    TIMES.append(("site.yml again", result.seconds))
    assert result.changed == []
    assert len(steps(bed.hosts[0], "bed")) == 8


def test_a_tree_that_is_not_the_recorded_one_stops_ray(bed: Bed, site: Site, converged: Result) -> None:
    (file,) = (bed.hosts[2].root / "opt/sam-rl/venv/lib").glob("python*/site-packages/verl/trainer/ppo/core_algos.py")
    text = file.read_text()
    pids = {host.name: host.run("systemctl", "show", "--property=MainPID", "sam-rl-ray") for host in bed.hosts}
    patched = patched_file(site, file)
    original = patched.read_text()
    patched.write_text(original + "\n# changed by hand\n")
    result = site.play("cluster").must_fail()
    patched.write_text(original)
    note("tree id does not match", "cluster", result)
    assert re.fullmatch(
        rf"bed3: verl is .*modified.*, expected tree [0-9a-f]{{12}} of pin set {re.escape(PIN_SET)} .+", result.sentence
    )
    assert file.read_text() == text
    assert pids == {host.name: host.run("systemctl", "show", "--property=MainPID", "sam-rl-ray") for host in bed.hosts}


def patched_file(site: Site, near: Path) -> Path:
    """A file of verl in the same environment as `near` that the patches change."""
    pins = tomllib.loads((site.repository / "patches" / PIN_SET / "pins.toml").read_text())
    name = min(pins["module"]["verl"]["recorded"]["blobs"])
    return near.parents[3] / name


def test_an_image_that_differs_stops_ray(bed: Bed, site: Site, converged: Result) -> None:
    """No engine runs in the bed: the program that enters the environment, which also names the image, is the fault."""
    kept = {}
    for host in bed.hosts:
        path = host.root / "opt/sam-rl/bin/in-env"
        kept[host.name] = path.read_text()
        digest = "sha256:" + ("b" if host.name == "bed2" else "a") * 64
        path.write_text(f'#!/bin/sh\n[ "$1" != --image ] || {{ echo {digest}; exit; }}\nexec {path.parent}/none "$@"\n')
    archive = {"container_engine": "podman", "container_image_archive": "/srv/image.tar"}
    result = site.play("cluster", **archive, container_image_archive_sha256="0" * 64).must_fail()
    for host in bed.hosts:
        (host.root / "opt/sam-rl/bin/in-env").write_text(kept[host.name])
    note("image digest differs", "cluster", result)
    assert re.fullmatch(
        r"bed2: the image has digest sha256:b{64}, expected sha256:a{64} as on bed1: .+", result.sentence
    )
    assert result.changed == []


def test_a_recipe_that_does_not_fit_the_hosts_stops_provisioning(bed: Bed, site: Site, converged: Result) -> None:
    result = site.play("provision", "--tags", "preflight", recipe_launch_overrides=["steps=0"]).must_fail()
    note("recipe does not fit the host", "provision", result)
    assert result.sentence == "bed1: the run needs more steps"


def test_models_are_staged_once(bed: Bed, site: Site, converged: Result) -> None:
    """From a hub's cache, whose files are links; the copy goes on after a full disk; nobody's files are removed."""
    head = bed.hosts[0]
    source, store = head.root / "mnt/hub/snapshots/1", head.root / "srv/sam-rl/models"
    source.mkdir(parents=True)
    (head.root / "mnt/hub/blob").write_bytes(b"w" * 90_000_000)
    (source / "weights").symlink_to("../../blob")
    item = {"name": "models/m", "source": "/mnt/hub/snapshots/1", "gb": 0.01}

    head.run("mount", "-t", "tmpfs", "-o", "size=60m", "full", "/srv/sam-rl/models")
    result = site.play("stage", model_store_items=[item]).must_fail()
    head.run("umount", "/srv/sam-rl/models")
    note("disk full while staging", "stage", result)
    assert re.fullmatch(
        r"bed1: models/m was not copied completely \(.*No space left on device.*\): .+", result.sentence
    )

    head.run("systemd-run", "--unit=other-copy", "--collect", "flock", "/srv/sam-rl/models/m.lock", "sleep", "600")
    result = site.play("stage", model_store_items=[item]).must_fail()
    head.run("systemctl", "stop", "other-copy")
    assert "bed1: models/m was not copied completely (another copy of it is running)" in result.sentence

    result = site.play("stage", model_store_items=[item]).must_pass()
    assert {host for host, _ in result.changed} == {"bed1"}
    assert (store / "m/weights").read_bytes() == b"w" * 90_000_000 and not (store / "m/weights").is_symlink()
    assert site.play("stage", model_store_items=[item]).must_pass().changed == []

    (store / "own").mkdir()
    (store / "own/file").write_text("mine")
    result = site.play("stage", model_store_items=[{**item, "name": "models/own"}]).must_fail()
    note("files of someone else in the way", "stage", result)
    assert "bed1: /srv/sam-rl/models/own has files that these playbooks did not copy there" in result.sentence
    assert (store / "own/file").read_text() == "mine"
    here = {"gb": 0.01, "name": "models/own"}
    assert site.play("stage", model_store_items=[here]).must_pass().changed == []
    (store / "own/gone").symlink_to("../nowhere")
    result = site.play("stage", model_store_items=[here]).must_fail()
    assert "/srv/sam-rl/models/own has a link to nowhere (/srv/sam-rl/models/own/gone)" in result.sentence
    shutil.rmtree(head.root / "mnt/hub")


@pytest.fixture(scope="module")
def monitored(bed: Bed, site: Site, converged: Result) -> Result:
    """monitoring.yml has run, and stopped twice on its way, at what was not there."""
    result = site.play("monitoring", monitoring_npu_exporter="/opt/none").must_fail()
    TIMES.append(("monitoring.yml until it lacks NPU Exporter", result.seconds))
    note("NPU Exporter is not there", "monitoring", result)
    assert result.sentence.startswith("bed1: monitoring_npu_exporter is /opt/none, which is no program on this host: ")
    exporter = {"monitoring_npu_exporter": "/usr/local/bin/npu-exporter"}
    result = site.play("monitoring", **exporter, monitoring_grafana_package="grafana").must_fail()
    note("Grafana's package is not there", "monitoring", result)
    assert re.match(r"bed1: Grafana was not installed from grafana \(.*'grafana'.*\): set ", result.sentence)
    return site.play("monitoring", **exporter).must_pass()


def test_monitoring_listens_where_it_should(bed: Bed, monitored: Result) -> None:
    assert monitored.changed == [], "all was there but Grafana"
    assert any("watches 3 hosts" in text and "Grafana is not installed" in text for text in monitored.messages)
    for host in bed.hosts:
        listening = {line.split()[3] for line in host.run("ss", "-Hltn").splitlines()}
        listening = {address for address in listening if re.search(r":(80|90|91|30)\d\d$", address)}
        head = {"127.0.0.1:9090"} if host is bed.hosts[0] else set()
        assert listening == {f"{host.address}:9100", f"{host.address}:8082"} | head


def asked(head: Host, path: str, **arguments: str) -> list[dict]:
    """Result of a query to Prometheus on the head."""
    url = f"http://127.0.0.1:9090/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
    script = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())"
    return json.loads(head.run("python3", "-c", script, url))["data"]["result"]


def test_a_lost_worker_is_reported_and_the_run_goes_on_from_its_checkpoint(
    bed: Bed, site: Site, monitored: Result
) -> None:
    head, worker = bed.hosts[0], bed.hosts[2]
    request = {"recipe_launch_run": "lost", "recipe_launch_overrides": ["steps=30", "pause=1"]}

    def pull_the_plug() -> None:
        head.until(lambda: len(steps(head, "lost")) >= 3, "the job has made three steps", 120)
        worker.stop()
        pulled.append(len(steps(head, "lost")))

    pulled: list[int] = []
    thread = threading.Thread(target=pull_the_plug)
    thread.start()
    result = site.play("train", **request).must_fail()
    thread.join()
    note("worker lost in the middle of the job", "train", result)
    assert re.search(
        r"the run lost was stopped because Ray on bed3 no longer answers, expected all hosts .+", result.sentence
    )
    assert result.seconds < 120
    assert head.run("systemctl", "is-active", "sam-rl-train", check=False).strip() != "active"
    assert 3 <= pulled[0] <= len(steps(head, "lost")) < 30

    worker.start()
    worker.wait()
    site.play("cluster").must_pass()
    trained = site.play("train", **request).must_pass()
    assert [line["step"] for line in steps(head, "lost")] == list(range(1, 31))
    assert "resumed after step" in (head.root / RUNS / "lost/launch.log").read_text()

    panels = json.loads((head.root / "opt/sam-rl/grafana/dashboards/sam-rl.json").read_text())["panels"]
    queries = {target["expr"]: panel["title"] for panel in panels for target in panel["targets"]}
    now = time.time()
    begin = now - trained.seconds
    found = {query: asked(head, "query_range", query=query, start=begin, end=now, step="1") for query in queries}
    assert not [queries[query] for query, series in found.items() if not series]
    assert len(found["npu_chip_info_utilization"]) == 48
    assert len(found["max by (instance, engine) (vllm:sam_switch_on)"]) >= 3, "an engine on each host"
    assert len(asked(head, "query", query='up{host="bed3"} == 1')) == 2, "the host that came back is watched again"
    head.until(lambda: asked(head, "query", query="verl_training_step") == [], "the ended run is not shown any more")


def packaged(host: Host, before: set[str]) -> set[str]:
    """Files of the packages that came after `before`; they stay. Debian has /lib and its like below /usr."""
    files = host.run("dpkg", "-L", *sorted(packages(host) - before)).splitlines()
    return {*files, *(f"/usr{file}" for file in files if file.startswith(("/bin", "/lib", "/sbin")))}


def packages(host: Host) -> set[str]:
    return set(host.run("dpkg-query", "--show", "--showformat=${Package}\\n").split())


def test_teardown_leaves_nothing_of_ours(bed: Bed, site: Site, converged: Result) -> None:
    result = site.play("teardown", "-e", "teardown_data=true").must_pass()
    TIMES.append(("teardown.yml", result.seconds))
    for host in bed.hosts:
        bare = BARE[host.name]
        left = {f"/{name}" for name in set(host.files()) - set(bare["files"])} - packaged(host, bare["packages"])
        assert not [name for name in left if not re.match(PACKAGING, name)], left
        assert not [line for line in host.processes() if re.search(r"ray|sam-rl|bed_job|venv", line)]
        new = set(host.units()) - set(bare["units"]) - {"chrony.service", "chronyd.service"}
        assert not [unit for unit in new if "sam" in unit or unit.endswith(".mount")]
        assert host.ports() == {22}
    assert site.play("teardown", "-e", "teardown_data=true").must_pass().changed == []
