# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` with method sam, as users start it: two API servers before one engine, whose counters each counts
once."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from ports import PORTS
from sam_core.proposer import REPORT_INTERVAL_S

pytestmark = pytest.mark.slow  # five processes that import vLLM
VLLM = Path(sys.executable).with_name("vllm")
MODEL = Path(__file__).resolve().parents[2] / "llm_rl" / "qwen3" / "tiny"
SETTINGS = {
    "api-server-count": 2,
    "max-model-len": 512,
    "max-num-seqs": 8,
    "dtype": "float32",
    "served-model-name": "tiny",
    "speculative-config": json.dumps({"method": "sam", "sam": {"threshold": 8}}),
}


class Server:
    def __init__(self, log):
        self.log, port = log, next(PORTS)
        self.url = f"http://127.0.0.1:{port}"
        words = [word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))]
        environment = os.environ | {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_PORT": str(next(PORTS)),
            "TORCHDYNAMO_DISABLE": "1",
        }
        with open(log, "w") as file:
            self.process = subprocess.Popen(
                [VLLM, "serve", MODEL, "--host", "127.0.0.1", "--port", str(port), "--enforce-eager", *words],
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        end = time.monotonic() + 1500
        while True:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                self.ask("/health")
                return
            assert self.process.poll() is None and time.monotonic() < end, log.read_text()[-5000:]
            time.sleep(0.5)

    def ask(self, path, **body):
        """The text of an answer; each request is a connection of its own, which either API server may take."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode() if body else None, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.read().decode()

    def complete(self, prompt):
        answer = json.loads(self.ask("/v1/completions", model="tiny", prompt=prompt, max_tokens=60, temperature=0))
        return answer["choices"][0]["text"]

    def metrics(self):
        """Values by name and labels other than model_name and engine."""
        found = {}
        for name, labels, value in re.findall(r"^vllm:(\w+)\{(.*)\} (\S+)$", self.ask("/metrics"), re.M):
            rest = [
                text for key, text in re.findall(r'(\w+)="([^"]*)"', labels) if key in ("source", "position", "reason")
            ]
            found[name, *rest] = float(value)
        return found

    def drafter(self):
        """The worker's own counters."""
        (row,) = json.loads(self.ask("/collective_rpc", method="sam_stats"))["results"]
        return row if isinstance(row, dict) else json.loads(row.replace("'", '"'))

    def stop(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server") / "log")
    yield server
    server.stop()


def test_the_command_knows_its_version():
    done = subprocess.run([VLLM, "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and re.fullmatch(r"0\.23\.0\S*", done.stdout.split()[-1]), done.stderr


def test_requests_are_answered_and_two_api_servers_count_each_step_once(server):
    prompt = "We add 3 numbers, starting with 11.\nNow add 5: 11 + 5 = 16.\n"
    texts = set()
    for _ in range(12):  # a report a round, to whichever server answers in it
        texts.add(server.complete(prompt))
        time.sleep(REPORT_INTERVAL_S / 2)
    assert len(texts) == 1 and texts != {""}
    before = server.drafter()
    time.sleep(REPORT_INTERVAL_S)
    server.complete(prompt)
    found, after = server.metrics(), server.drafter()
    assert before["steps"] <= found["sam_engine_steps_total",] <= after["steps"]
    proposed = sum(value for (name, *_), value in found.items() if name == "sam_proposed_tokens_total")
    assert 0 < before["proposed"] <= proposed <= after["proposed"]
    assert found["spec_decode_num_accepted_tokens_total",] > 0, "no draft was accepted: the test shows nothing"
