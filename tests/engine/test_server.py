# SPDX-License-Identifier: Apache-2.0
"""Tests of `vllm serve` with method sam, as users start it. Two API servers share one engine; together they count each
of its steps once."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests
from ports import PORTS
from sam_core.counters import REPORT_INTERVAL_S

pytestmark = pytest.mark.slow  # five processes that import vLLM
VLLM = Path(sys.executable).with_name("vllm")
MODEL = Path(__file__).resolve().parents[2] / "llm_rl" / "qwen3" / "tiny"
SPECULATIVE = json.dumps({"method": "sam", "sam": {"threshold": 8}})
WORDS = "--enforce-eager --api-server-count 2 --max-model-len 512 --max-num-seqs 8 --dtype float32"
WORDS = [*WORDS.split(), "--served-model-name", "tiny", "--speculative-config", SPECULATIVE, "--host", "127.0.0.1"]


class Server:
    def __init__(self, url):
        self.url = url

    def ask(self, path, **body):
        """Return the text of the HTTP response. Each call is a new connection to either API server."""
        answer = requests.request("POST" if body else "GET", self.url + path, json=body or None)
        answer.raise_for_status()
        return answer.text

    def healthy(self):
        with contextlib.suppress(requests.RequestException):
            return self.ask("/health") is not None

    def complete(self):
        prompt = "We add 3 numbers, starting with 11.\nNow add 5: 11 + 5 = 16.\n"
        answer = self.ask("/v1/completions", model="tiny", prompt=prompt, max_tokens=60, temperature=0)
        return json.loads(answer)["choices"][0]["text"]

    def metric(self, name):
        """Return the sum of the samples of a metric."""
        return sum(map(float, re.findall(rf"^vllm:{name}\{{.*\}} (\S+)$", self.ask("/metrics"), re.M)))

    def drafter(self):
        """Return the worker's own counters."""
        (row,) = json.loads(self.ask("/collective_rpc", method="sam_stats"))["results"]
        return row if isinstance(row, dict) else json.loads(row.replace("'", '"'))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    log, port = tmp_path_factory.mktemp("server") / "log", str(next(PORTS))
    more = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_PORT": str(next(PORTS)), "TORCHDYNAMO_DISABLE": "1"}
    with open(log, "w") as file:
        output = {"stdout": file, "stderr": subprocess.STDOUT, "start_new_session": True}
        process = subprocess.Popen([VLLM, "serve", MODEL, "--port", port, *WORDS], env=os.environ | more, **output)
    server = Server(f"http://127.0.0.1:{port}")
    try:
        while not server.healthy():
            assert process.poll() is None, log.read_text()[-5000:]
            time.sleep(0.5)
        yield server
        process.terminate()
        process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_requests_are_answered_and_two_api_servers_count_each_step_once(server):
    texts = set()
    for _ in range(12):  # in each round the server that answers gets a report
        texts.add(server.complete())
        time.sleep(REPORT_INTERVAL_S / 2)
    assert len(texts) == 1 and texts != {""}
    before = server.drafter()
    time.sleep(REPORT_INTERVAL_S)
    server.complete()
    steps, proposed = server.metric("sam_engine_steps_total"), server.metric("sam_proposed_tokens_total")
    after = server.drafter()
    assert before["steps"] <= steps <= after["steps"]
    assert 0 < before["proposed"] <= proposed <= after["proposed"]
    assert server.metric("spec_decode_num_accepted_tokens_total") > 0, "no draft was accepted: the test shows nothing"
