# SPDX-License-Identifier: Apache-2.0
"""site.yml trains a recipe on three bare hosts; further runs, faults, upgrades and the teardown follow."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import tarfile
import threading
import time
import urllib.parse
from collections.abc import Callable

import pytest
from conftest import SECRET
from hosts import CONTROLLER, Bed, Host, call
from plays import ROOT, Result, Site
from prepare import PIN_SET

RUNS = "srv/sam-rl/runs"
ENVIRONMENTS = "opt/sam-rl/environments"
PACKAGING = (
    r"/var/lib/dpkg/|/var/backups/|/usr/share/python3/debpython/__pycache__/|"
    r"/etc/(ld\.so\.cache$|(passwd|group|g?shadow)-?$|\.pwd\.lock$|lighttpd/conf-enabled/90-javascript-alias\.conf$|"
    r"rc[0-6S]\.d/|systemd/system/(chronyd\.service$|.+\.wants/(rsync|nftables|chrony)))"
)
"""Pattern of files that packages leave when they are installed, add a user or enable services, and of Debian's daily
copies. The clock's service stays enabled."""
SELECTOR = r"\b(?:up|(?:node|npu|verl)_\w+|vllm:\w+)\b(?:\{[^}]*\})?"
"""Pattern of a metric in an alert, with its labels."""
BARE: dict[str, dict] = {}
in_the_long_bed = pytest.mark.skipif(not os.environ.get("SAM_BED_LONG"), reason="takes minutes: make test-bed-long")


def steps(head: Host, run: str) -> list[dict]:
    """The lines of the job's steps.jsonl; none if there is no file."""
    path = head.root / RUNS / run / "steps.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture(scope="module")
def converged(bed: Bed, site: Site) -> Result:
    """Run site.yml on the bare hosts, once for all tests below."""
    bed.hosts[0].run("sysctl", "-w", "net.ipv4.ip_local_reserved_ports=777,20980")
    for host in bed.hosts:
        BARE[host.name] = {"units": host.units(), "packages": packages(host), "files": host.files()}
    return site.play("site").must_pass()


def test_the_recipe_trains_on_all_hosts_with_drafts(bed: Bed, converged: Result) -> None:
    lines = steps(bed.hosts[0], "bed")
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert all(line["hosts"] == ["bed1", "bed2", "bed3"] for line in lines)
    summary = json.loads((bed.hosts[0].root / RUNS / "bed/summary.json").read_text())
    assert summary["drafted"] > summary["accepted"] > 0
    assert summary["reward_first"] < 0.1 < 0.9 < summary["reward_last"]
    first, last = ((line["accepted"] / line["drafted"]) for line in (lines[0], lines[-1]))
    assert last > 0.5 > 0.1 > first, "drafts are accepted where the policy repeats itself"
    assert "Ray has 3 hosts and 48 NPU" in converged.messages
    assert all(f"server {CONTROLLER} iburst" in host.run("cat", "/etc/chrony/chrony.conf") for host in bed.hosts)


def test_only_the_cluster_s_hosts_reach_ray(bed: Bed, converged: Result) -> None:
    """Other machines, on the cluster's network or a routed one, reach ssh but not Ray's ports.

    Ray's ports refuse connections at once: preflight would report a timeout as a firewall.
    """

    def answers(source: str, port: int) -> bool:
        try:
            socket.create_connection((bed.hosts[0].address, port), 2, (source, 0)).close()
        except ConnectionRefusedError:
            return False
        return True

    call("ip", "address", "add", "10.232.0.1/24", "dev", "bed0")
    bed.hosts[0].run("ip", "route", "add", "10.232.0.0/24", "dev", "host0")
    assert {6379, 8265} <= bed.hosts[0].ports()
    for source in (CONTROLLER, "10.232.0.1"):
        assert answers(source, 22)
        assert not [port for port in (6379, 8265, 20000) if answers(source, port)]
    connect = f"import socket; socket.create_connection(('{bed.hosts[0].address}', 6379), 2)"
    bed.hosts[1].run("python3", "-c", connect)


def test_ray_asks_for_the_token(bed: Bed, site: Site, converged: Result) -> None:
    """Callers on the cluster's hosts need the token too, although the packet rules open all ports to them."""
    worker = bed.hosts[1]
    asks = ("/opt/sam-rl/bin/in-env", "nodes", "bash", "-c")
    lists = f"python3 /opt/sam-rl/bin/ray_nodes.py {bed.hosts[0].address}:6379 2>&1; "
    api = "import sys, urllib.request as u; headers = dict([sys.argv[2:]] if sys.argv[2:] else []); "
    api += "print(u.urlopen(u.Request(sys.argv[1], headers=headers)).status)"
    jobs = f"python3 -c '{api}' http://{bed.hosts[0].address}:8265/api/jobs/ "
    token = worker.root / "opt/sam-rl/etc/ray-token"
    assert token.stat().st_mode & 0o777 == 0o600 and len(token.read_text().strip()) == 64
    assert worker.run(*asks, lists).count("alive") == 3
    assert worker.run(*asks, jobs + 'Authorization "Bearer $(cat $RAY_AUTH_TOKEN_PATH)"').strip() == "200"
    without = "unset RAY_AUTH_MODE RAY_AUTH_TOKEN_PATH; "
    assert "alive" not in worker.run(*asks, without + lists, check=False)
    assert worker.run(*asks, without + jobs + "2>&1", check=False).strip().endswith("HTTP Error 401: Unauthorized")
    assert token.read_text().strip() not in converged.output


def collected(site: Site, run: str) -> dict[str, bytes]:
    """The content of each file that collect.yml has collected for a run, by its name."""
    texts = {}
    with tarfile.open(site.repository / f"outputs/cluster/support-{run}.tar.gz") as whole:
        for part in whole.getmembers():
            with tarfile.open(fileobj=whole.extractfile(part)) as tar:
                texts |= {member.name: tar.extractfile(member).read() for member in tar.getmembers()}
    return texts


def test_logs_and_results_come_back_without_secrets(site: Site, converged: Result) -> None:
    texts = collected(site, "bed")
    log = next(text for name, text in texts.items() if name.endswith("launch.log"))
    assert b'"reward_last"' in log
    assert all(b"npu-smi 26.0.rc1" in texts[f"bed{number}/npu-smi.txt"] for number in (1, 2, 3))
    device = "bed2/opt/sam-rl/support/msnpureport/2026-11-28-12-00-00/slog/dev-os-7/device-7.log"
    assert texts[device] == b"die 7: started\n" and texts["bed3/hccn.txt"].count(b"vnic link status: UP") == 16
    assert texts["bed1/npu-health.txt"].count(b"Health Status") == 16
    assert not [name for name, text in texts.items() if SECRET.encode() in text]
    assert SECRET not in converged.output


def test_a_second_run_changes_nothing(bed: Bed, site: Site, converged: Result) -> None:
    """The second run names the time service by its alias, which systemd cannot enable."""
    result = site.play("site", host_base_time_service="chronyd").must_pass()
    assert result.changed == []
    assert len(steps(bed.hosts[0], "bed")) == 8


@in_the_long_bed
def test_the_commands_of_the_page_train_with_sam_and_without(bed: Bed, site: Site, converged: Result) -> None:
    """Runs the commands of docs/cluster.md unchanged, from the check of the hosts to both runs."""
    page = (ROOT / "docs/cluster.md").read_text()
    lines = re.findall(r"^    (ansible-playbook -i inventories/mine playbooks/(?:preflight|site)\.yml.*)$", page, re.M)
    assert len(lines) == 3
    output = [site.type(line) for line in lines]
    assert all(text.count("failed=0") >= len(bed.hosts) for text in output)
    assert "The run sam-on succeeded; its results are in /srv/sam-rl/runs/sam-on" in output[1]
    with_sam, without = (steps(bed.hosts[0], run) for run in ("sam-on", "sam-off"))
    assert len(with_sam) == len(without) == 8
    assert all(line["drafted"] for line in with_sam) and not any(line["drafted"] for line in without)


def test_an_idle_ray_outlives_the_cleaner_of_old_files(bed: Bed, site: Site, converged: Result) -> None:
    """Also, cluster.yml fails if Ray is active but lets no job start."""
    head = bed.hosts[0]
    head.write("etc/tmpfiles.d/tmp.conf", "d /tmp 1777 root root 0\n")  # everything is old
    head.run("systemd-tmpfiles", "--clean")
    head.run("rm", "/etc/tmpfiles.d/tmp.conf")
    site.play("cluster").must_pass()
    (sockets,) = head.root.glob("var/lib/sam-rl-ray/session_2*/sockets")
    away = sockets.rename(sockets.with_name("away"))
    result = site.play("cluster", ray_cluster_timeout=5).must_fail()
    away.rename(sockets)
    assert result.sentence.startswith("Ray's head lets no job start: ")


def test_an_image_that_differs_stops_ray(bed: Bed, site: Site, converged: Result) -> None:
    (image,) = (bed.hosts[1].root / "etc/sam-bed/images").iterdir()
    digest = image.read_text()
    image.write_text(64 * "b")
    result = site.play("cluster").must_fail()
    image.write_text(digest)
    sentence = rf"bed2: the image has digest sha256:b{{64}}, expected sha256:{digest} as on bed1: .+"
    assert re.fullmatch(sentence, result.sentence)
    assert result.changed == []


def test_a_low_bandwidth_stops_the_start_of_ray(bed: Bed, site: Site, converged: Result) -> None:
    """The bandwidth is measured only while Ray does not run, because only one container can use the dies."""
    assert "The all-reduce over 48 dies reaches 90.0 GB/s" in converged.messages
    site.play("cluster", npu_preflight_all_reduce_gb_s=100).must_pass()
    for host in bed.hosts:
        host.run("systemctl", "stop", "sam-rl-ray")
    result = site.play("cluster", npu_preflight_all_reduce_gb_s=100).must_fail()
    assert re.match("the all-reduce over 48 dies reaches 90.0 GB/s, expected at least 100 ", result.sentence)
    states = {host.run("systemctl", "is-active", "sam-rl-ray", check=False).strip() for host in bed.hosts}
    assert states <= {"inactive", "failed"}
    site.play("cluster").must_pass()


def test_a_recipe_that_does_not_fit_the_hosts_stops_provisioning(bed: Bed, site: Site, converged: Result) -> None:
    result = site.play("provision", "--tags", "preflight", recipe_launch_overrides=["env.fits=0"]).must_fail()
    assert result.sentence == "bed1: it does not fit"


def test_a_clock_service_that_is_not_there_stops_provisioning(site: Site, converged: Result) -> None:
    settings = {"host_base_time_service": "ntpd", "host_base_time_servers": []}
    result = site.play("provision", "--tags", "host", **settings).must_fail()
    assert result.sentence.startswith("bed1: there is no ntpd.service, expected a service that synchronises the clock")


def test_a_full_disk_ends_the_run_which_continues_with_more(bed: Bed, site: Site, converged: Result) -> None:
    """The disk has space for one checkpoint of 4 MB, but not for a second one. Overrides reach the job unchanged."""
    head, folder = bed.hosts[0], f"/{RUNS}/full"
    text = r"""${oc.env:HOME} $HOME "50%" \t 'x'"""
    overrides = ["steps=6", "env.pad=4", "checkpoints.every=2", f"env.text={text}"]
    request = {"recipe_launch_run": "full", "recipe_launch_overrides": overrides}
    head.run("mkdir", folder)
    head.run("mount", "-t", "tmpfs", "-o", "size=6m", "full", folder)
    for host in bed.hosts:  # a log like CANN's
        host.run("mkdir", "-p", "/var/log/sam-rl/cann/debug/plog")
        host.run("bash", "-c", "echo EI0006 >/var/log/sam-rl/cann/debug/plog/plog-1_1.log")
    result = site.play("train", **request).must_fail()
    texts = collected(site, "full")
    names = "\n".join(texts)
    assert f"bed1{folder}/launch.log" in texts and "bed2/units.txt" in texts
    for host in bed.hosts:
        assert texts[f"{host.name}/var/log/sam-rl/cann/debug/plog/plog-1_1.log"] == b"EI0006\n"
        assert re.search(rf"^{host.name}/var/lib/sam-rl-ray/session_\d.*/logs/worker-.*\.out$", names, re.MULTILINE)
    assert result.failures[-1][2] == result.sentence, "the last thing that is said is why"
    assert re.match(
        rf"bed1: the run full ended with exit-code, .+ the disk of {folder} is full \(0.0 GB free\): ", result.sentence
    )
    assert json.loads(head.run("cat", f"{folder}/checkpoint.json"))["step"] == 2
    assert text in head.run("cat", f"{folder}/launch.log").splitlines()
    head.run("mount", "-o", "remount,size=60m", folder)
    request["recipe_launch_overrides"] = ["steps=7", *request["recipe_launch_overrides"][1:]]
    site.play("train", **request).must_pass()
    assert "resumed after step 2" in head.run("cat", f"{folder}/launch.log")
    assert json.loads(head.run("cat", f"{folder}/summary.json"))["steps"] == 7
    head.run("umount", folder)
    head.run("rmdir", folder)


def test_models_are_staged_once(bed: Bed, site: Site, converged: Result) -> None:
    """The source is a hub's cache, whose files are links. The copy resumes after a full disk; other files stay."""
    head = bed.hosts[0]
    source, store = head.root / "mnt/hub/snapshots/1", head.root / "srv/sam-rl/models"
    source.mkdir(parents=True)
    (head.root / "mnt/hub/blob").write_bytes(b"w" * 90_000_000)
    (source / "weights").symlink_to("../../blob")
    item = {"name": "models/m", "source": "/mnt/hub/snapshots/1", "gb": 0.01}

    head.run("mount", "-t", "tmpfs", "-o", "size=60m", "full", "/srv/sam-rl/models")
    result = site.play("stage", model_store_items=[item]).must_fail()
    head.run("umount", "/srv/sam-rl/models")
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
    """Run monitoring.yml: twice it stops because a program or package is missing, then it passes."""
    result = site.play("monitoring", monitoring_npu_exporter="/opt/none").must_fail()
    assert result.sentence.startswith("bed1: monitoring_npu_exporter is /opt/none, which is no program on this host: ")
    exporter = {"monitoring_npu_exporter": "/usr/local/bin/npu-exporter"}
    result = site.play("monitoring", **exporter, monitoring_grafana_package="grafana").must_fail()
    assert re.match(r"bed1: Grafana was not installed from grafana \(.*'grafana'.*\): set ", result.sentence)
    head, worker, _ = bed.hosts
    # As if the playbook had ended after it wrote the unit, and Grafana were there from an earlier call.
    worker.run("touch", "/etc/systemd/system/sam-rl-node-exporter.service")
    unit = "[Service]\nExecStart=sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
    head.write("etc/systemd/system/grafana-server.service", unit)
    head.write("etc/systemd/system/grafana-server.service.d/sam-rl.conf", "[Service]\n")
    head.run("systemctl", "daemon-reload")
    head.run("systemctl", "start", "grafana-server")
    result = site.play("monitoring", **exporter).must_pass()
    assert head.run("systemctl", "is-active", "grafana-server", check=False).strip() == "inactive"
    head.run("rm", "/etc/systemd/system/grafana-server.service")
    return result


@in_the_long_bed
def test_monitoring_listens_where_it_should(bed: Bed, monitored: Result) -> None:
    stopped = {("bed1", task) for task in ("Stop them", "Remove them", "Remove folders that are empty now")}
    assert set(monitored.changed) == {*stopped, ("bed2", "Start the units")}, "all was there but Grafana"
    assert any("watches 3 hosts" in text and "Grafana is not installed" in text for text in monitored.messages)
    for host in bed.hosts:
        listening = {line.split()[3] for line in host.run("ss", "-Hltn").splitlines()}
        listening = {address for address in listening if re.search(r":(80|90|91|30)\d\d$", address)}
        head = {"127.0.0.1:9090"} if host is bed.hosts[0] else set()
        assert listening == {f"{host.address}:9100", f"{host.address}:8082"} | head


def asked(head: Host, path: str, **arguments: str) -> dict:
    """The answer of Prometheus on the head."""
    url = f"http://127.0.0.1:9090/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
    script = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())"
    return json.loads(head.run("python3", "-c", script, url))["data"]


def alerts(head: Host) -> dict[str, dict]:
    """Prometheus's alerts by name, with their state."""
    (group,) = asked(head, "rules")["groups"]
    return {rule["name"]: rule for rule in group["rules"]}


def train_while(site: Site, head: Host, fault: Callable[[], None], **request: object) -> Result:
    """Run train.yml, call `fault` when the job has made three steps, and return the result."""

    def wait() -> None:
        run = str(request["recipe_launch_run"])
        head.until(lambda: len(steps(head, run)) >= 3, "the job has made three steps")
        fault()

    thread = threading.Thread(target=wait)
    thread.start()
    result = site.play("train", **request)
    thread.join()
    return result


def train_until_it_fails(site: Site, head: Host, fault: Callable[[], None], **request: object) -> Result:
    result = train_while(site, head, fault, **request).must_fail()
    assert result.seconds < 240  # about 120 s if nothing else runs
    assert head.run("systemctl", "is-active", "sam-rl-train", check=False).strip() != "active"
    return result


@in_the_long_bed
def test_a_lost_host_is_reported_and_the_run_goes_on_from_its_checkpoint(
    bed: Bed, site: Site, converged: Result
) -> None:
    head, _, worker = bed.hosts
    request = {"recipe_launch_run": "lost", "recipe_launch_overrides": ["steps=24", "env.pause=1"]}
    result = train_until_it_fails(site, head, worker.stop, **request)
    sentence = r"the run lost (was stopped|ended) because Ray on bed3 no longer answers, expected all hosts .+"
    assert re.search(sentence, result.sentence)
    assert 3 <= len(steps(head, "lost")) < 24

    worker.start()
    worker.wait()
    site.play("cluster").must_pass()
    site.play("train", **request).must_pass()
    assert [line["step"] for line in steps(head, "lost")] == list(range(1, 25))
    assert "resumed after step" in (head.root / RUNS / "lost/launch.log").read_text()


@in_the_long_bed
def test_a_spare_host_takes_the_place_of_a_lost_one(bed: Bed, site: Site, converged: Result) -> None:
    """train.yml resumes the run without an operator, and later playbooks use the spare host."""
    head, lost, spare = bed.hosts
    spare.run("systemctl", "disable", "--now", "sam-rl-ray")
    two = {"spares": [spare.name], "hosts_expected": 2}
    request = {"recipe_launch_run": "spare", "recipe_launch_retries": 1, **two}
    request["recipe_launch_overrides"] = ["cluster.nodes=2", "steps=24", "env.pause=1"]
    site.play("cluster", recipe_launch_overrides=["cluster.nodes=2"], **two).must_pass()
    result = train_while(site, head, lost.stop, **request).must_pass()
    said = (
        r"bed1: the run spare (was stopped|ended) because Ray on bed2 no longer answers; it is resumed from its last "
    )
    assert any(re.match(said, text) for text in result.messages)
    assert any(text.startswith("bed3 (10.231.0.13) takes the place of bed2") for text in result.messages)
    lines = steps(head, "spare")
    assert [line["step"] for line in lines] == list(range(1, 25))
    assert (lines[0]["hosts"], lines[-1]["hosts"]) == (["bed1", "bed2"], ["bed1", "bed3"])
    assert site.play("cluster", recipe_launch_overrides=["cluster.nodes=2"], **two).must_pass().changed == []

    shutil.rmtree(site.folder / "host_vars")
    lost.start()
    lost.wait()
    site.play("cluster").must_pass()


@in_the_long_bed
def test_every_query_of_dashboard_and_alerts_returns_data(bed: Bed, site: Site, monitored: Result) -> None:
    head = bed.hosts[0]
    request = {"recipe_launch_run": "watched", "recipe_launch_overrides": ["steps=30", "env.pause=1"]}
    trained = site.play("train", **request).must_pass()
    panels = json.loads((head.root / "opt/sam-rl/grafana/dashboards/sam-rl.json").read_text())["panels"]
    queries = {target["expr"]: panel["title"] for panel in panels for target in panel["targets"]}
    now = time.time()
    begin = now - trained.seconds

    def series(query: str) -> list[dict]:
        return asked(head, "query_range", query=query, start=begin, end=now, step="1")["result"]

    found = {query: series(query) for query in queries}
    assert not [queries[query] for query, series in found.items() if not series]
    assert len(found["npu_chip_info_utilization"]) == 48
    assert len(found["max by (instance, engine) (vllm:sam_switch_on)"]) >= 3, "an engine on each host"
    rules = alerts(head)
    assert {(rule["health"], rule["state"]) for rule in rules.values()} == {("ok", "inactive")}
    watched = {name for rule in rules.values() for name in re.findall(SELECTOR, rule["query"])}
    assert len(watched) >= 9 and not [selector for selector in watched if not series(selector)]
    bed.hosts[2].run("systemctl", "stop", "sam-rl-node-exporter")
    head.until(lambda: alerts(head)["ExporterDown"]["state"] == "pending", "an exporter is missed")
    assert [alert["labels"]["host"] for alert in alerts(head)["ExporterDown"]["alerts"]] == ["bed3"]
    bed.hosts[2].run("systemctl", "start", "sam-rl-node-exporter")
    none = {"resultType": "vector", "result": []}
    head.until(lambda: asked(head, "query", query="verl_training_step") == none, "the ended run is not shown any more")


def environments(bed: Bed) -> list[tuple[str, set[str]]]:
    """For each host, the name of the environment in use and the names of all its environments."""
    found = []
    for host in bed.hosts:
        used = json.loads((host.root / "opt/sam-rl/etc/environment.json").read_text())
        found.append((used["environment"], {path.name for path in (host.root / ENVIRONMENTS).iterdir()}))
    return found


@in_the_long_bed
def test_an_upgrade_between_two_steps_and_back(bed: Bed, site: Site, converged: Result) -> None:
    """Upgrades to other sources during a run, then to another pin set, then back to the former pin set."""
    head = bed.hosts[0]
    # The run takes longer than a slow machine needs to create the environments. Once resumed, it makes no pauses.
    settings = ["steps=150", "env.pause=4", "checkpoints.every=3"]
    request = {"recipe_launch_run": "upgraded", "recipe_launch_overrides": settings}
    endless = {"recipe_launch_run": "endless"}
    endless["recipe_launch_overrides"] = ["steps=9999", "env.pause=0.5", "checkpoints.every=0"]
    ((former, _),) = {used: names for used, names in environments(bed)}.items()
    for host in bed.hosts:
        (host.root / ENVIRONMENTS / "an-older-one/used").mkdir(parents=True)
    head.run("mount", "-t", "tmpfs", "used", f"/{ENVIRONMENTS}/an-older-one/used")

    other = site.repository / "patches" / f"{PIN_SET}-next"
    shutil.copytree(site.repository / "patches" / PIN_SET, other)
    pins = other / "pins.toml"
    pins.write_text(pins.read_text().replace(f'name = "{PIN_SET}"', f'name = "{other.name}"'))
    site.commit()
    assert "still runs after" in site.play("train", recipe_launch_timeout=2, **endless).must_fail().sentence
    result = site.play("upgrade", **endless).must_fail()
    assert "bed1: the run endless is active and has no checkpoint, expected one to continue from" in result.sentence
    head.run("systemctl", "stop", "sam-rl-train")

    site.play("train", recipe_launch_timeout=2, **request).must_fail()
    head.until(lambda: len(steps(head, "upgraded")) >= 4, "the run has a checkpoint")
    result = site.play("upgrade", pin_set=other.name, **request).must_fail()
    assert "bed1: the run upgraded was started with" in result.sentence
    result = site.play("upgrade", **request).must_pass()
    changed = [host for host, task in result.changed if task == "Use the environment"]
    assert sorted(changed) == ["bed1", "bed2", "bed3"]
    log = (head.root / RUNS / "upgraded/launch.log").read_text()
    (resumed,) = re.findall(r"^resumed after step (\d+)$", log, re.MULTILINE)
    assert int(resumed) % 3 == 0 < int(resumed)
    assert [line["step"] for line in steps(head, "upgraded")] == list(range(1, 151))
    ((new, _),) = {used: names for used, names in environments(bed)}.items()
    assert new != former
    assert [names for _, names in environments(bed)] == [{former, new, "an-older-one"}, {former, new}, {former, new}]
    assert any(text.startswith("bed1: old environments are still there (") for text in result.messages)
    head.run("umount", f"/{ENVIRONMENTS}/an-older-one/used")
    head.run("rm", "-r", f"/{ENVIRONMENTS}/an-older-one")
    assert site.play("upgrade", **request).must_pass().changed == []

    result = site.play("upgrade", pin_set=other.name).must_pass()
    used = environments(bed)
    assert all(name.startswith(f"{other.name}-") and names == {name, new} for name, names in used)
    enter = (head.root / "opt/sam-rl/bin/in-env").read_text()
    assert f"PIN={other.name}" in enter

    result = site.play("upgrade").must_pass()
    assert not [task for _, task in result.changed if task in ("Build it", "Load the image")]
    assert {name for name, _ in environments(bed)} == {new}
    assert site.play("cluster", "--check").must_pass().changed == []

    record = bed.hosts[1].root / "opt/sam-rl/etc/environment.json"
    text = record.read_text()
    record.write_text(text.replace(new, former))
    result = site.play("cluster").must_fail()
    record.write_text(text)
    assert result.sentence.startswith(f"bed2: its environment is {former}, expected {new} as on bed1: ")


@in_the_long_bed
def test_a_host_that_loses_the_shared_folder_stops_the_run(bed: Bed, site: Site, converged: Result) -> None:
    head, unmounted, _ = bed.hosts
    request = {"recipe_launch_run": "apart", "recipe_launch_overrides": ["steps=90", "env.pause=1"]}

    def unmount() -> None:
        unmounted.run("mkdir", "-p", "/mnt/kept")
        unmounted.run("mount", "--bind", "/srv/sam-rl", "/mnt/kept")
        unmounted.run("umount", "--lazy", "/srv/sam-rl")

    result = train_until_it_fails(site, head, unmount, **request)
    # the driver may notice before the playbook does
    sentence = (
        rf"bed1: the run apart (was stopped|ended) because bed2 no longer has /{RUNS}/apart, expected the storage "
    )
    assert re.match(sentence, result.sentence)
    unmounted.until(lambda: not unmounted.run("ls", "/srv/sam-rl"), "nothing is in the folder below the mount")
    result = site.play("cluster", "--limit", "bed2").must_fail()
    assert result.sentence.startswith("bed2: /srv/sam-rl/runs is not the folder that bed1 has, expected storage ")
    unmounted.run("mount", "--bind", "/mnt/kept", "/srv/sam-rl")
    unmounted.run("umount", "/mnt/kept")
    site.play("cluster").must_pass()


def packaged(host: Host, before: set[str]) -> set[str]:
    """The files of packages that are not in `before`; teardown keeps them. Debian's /lib is a link to /usr/lib."""
    files = host.run("dpkg", "-L", *sorted(packages(host) - before)).splitlines()
    return {*files, *(f"/usr{file}" for file in files if file.startswith(("/bin", "/lib", "/sbin")))}


def packages(host: Host) -> set[str]:
    return set(host.run("dpkg-query", "--show", "--showformat=${Package}\\n").split())


def test_teardown_leaves_nothing_of_ours(bed: Bed, site: Site, converged: Result) -> None:
    head = bed.hosts[0]
    head.run("mkdir", "-p", "/tmp/ray/of-another-user")
    assert head.run("ls", "/var/lib/sam-rl-ray/session_latest/logs")
    assert head.reserved() == "777,20000-20989"
    result = site.play("teardown", "-e", "teardown_data=true").must_pass()
    assert [host.reserved() for host in bed.hosts] == ["777,20980", "", ""]
    kept = "what these playbooks did not create: models/own."
    assert [text for text in result.messages if text.startswith("bed1: left are")][0].endswith(kept)
    assert head.run("cat", "/srv/sam-rl/models/own/file") == "mine"
    head.run("rm", "-r", "/srv/sam-rl/models", "/srv/sam-rl/.sam-rl-created")
    assert "of-another-user" in head.run("ls", "/tmp/ray") and not head.run(
        "ls", "/var/lib/sam-rl-ray", "/var/log/sam-rl", check=False
    )
    for host in bed.hosts:
        assert host.run("cat", "/etc/chrony/chrony.conf") == "pool 2.debian.pool.ntp.org iburst\n"
        bare = BARE[host.name]
        left = {f"/{name}" for name in set(host.files()) - set(bare["files"])} - packaged(host, bare["packages"])
        assert not [name for name in left if not re.match(PACKAGING, name)], left
        assert not [line for line in host.processes() if re.search(r"ray|sam-rl|bed_job|venv", line)]
        new = set(host.units()) - set(bare["units"]) - {"chrony.service", "chronyd.service"}
        assert not [unit for unit in new if "sam" in unit or unit.endswith(".mount")]
        assert host.ports() == {22}
    assert site.play("teardown", "-e", "teardown_data=true").must_pass().changed == []
