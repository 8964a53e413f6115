# SPDX-License-Identifier: Apache-2.0
"""The bed for all tests of this folder."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import prepare
from hosts import CONTROLLER, NETWORK, Bed, call, sweep
from plays import LOGS, Site

RUN = prepare.CACHE / "run"
SECRET = "a-word-that-no-log-may-hold"
SETTINGS = {
    "dies_per_host": 16,
    "pin_set": prepare.PIN_SET,
    "recipe": "bed",
    "cluster_network": f"{NETWORK}.0/24",
    "ray_port": 6379,
    "dashboard_port": 8265,
    "install_root": "/opt/sam-rl",
    "work_dir": "/srv/sam-rl",
    "ascend_driver_version": "26.0.rc1",
    "container_engine": "docker",
    "container_image_base": f"bed/base@sha256:{64 * '1'}",
    "container_image_modules": ["verl"],
    "host_base_packages": {"apt": prepare.CACHED.split()},
    "host_base_time_servers": [CONTROLLER],
    # In a container, kernel.* and vm.* are the machine's own settings: the bed must not set them, and cannot.
    "host_base_sysctl": {"net.core.somaxconn": "65535", "net.ipv4.tcp_max_syn_backlog": "65535"},
    "npu_preflight_install_gb": 2,
    "npu_preflight_work_gb": 1,
    "npu_preflight_write_seconds": 0.5,
    "npu_preflight_write_gb": 0.2,
    "npu_preflight_in_env": "/usr/local/bin/all-reduce",
    "ray_cluster_cpus": 2,
    "ray_cluster_object_store": 100_000_000,
    "recipe_launch_poll": 2,
    "recipe_launch_silence": 3,
    "recipe_launch_retries": 0,
    "container_image_secret_env": {"FEISHU_WEBHOOK": SECRET},
}
WHEEL_PORT = 8099


def pytest_configure() -> None:
    if not os.environ.get("SAM_BED"):
        pytest.exit("start the test bed by ci/test-bed: it makes the namespaces that keep it apart.", 4)
    signal.signal(signal.SIGTERM, lambda *_: pytest.exit("ended by SIGTERM", 143))


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="session")
def bed() -> Iterator[Bed]:
    """A bed of three bare hosts. Its folder is in memory and disappears with the run."""
    sweep(prepare.CACHE)
    RUN.mkdir(exist_ok=True)
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir()
    call("mount", "-t", "tmpfs", "-o", "mode=700", "sam-bed", RUN)
    bed = Bed(RUN, prepare.base())
    bed.up(3)
    yield bed
    bed.down()


@pytest.fixture(scope="session")
def wheel_server(bed: Bed) -> Iterator[str]:
    """The address of a server with the wheels, like the package index of a site without internet."""
    handler = partial(Quiet, directory=str(prepare.wheels()))
    with ThreadingHTTPServer((CONTROLLER, WHEEL_PORT), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{CONTROLLER}:{WHEEL_PORT}/"
        server.shutdown()


@pytest.fixture(scope="session")
def site(bed: Bed, wheel_server: str) -> Site:
    """A copy of the repository with the bed's inventory."""
    site = Site(RUN / "site", bed, SETTINGS)
    site.checkout()
    site.settings["container_image_index"] = wheel_server
    return site


@pytest.fixture(autouse=True)
def healthy(bed: Bed) -> Iterator[None]:
    """Reset the simulated devices and clocks after each test."""
    yield
    bed.reset()
