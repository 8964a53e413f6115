# SPDX-License-Identifier: Apache-2.0
"""The processes of a command end with it, however it ends."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from sam_lab.workers import finished

COMMAND = """
import os
import time
from types import SimpleNamespace
from sam_core import console
from sam_lab.workers import finished

def work(number):
    os.write(1, b"%d\\n" % number)  # print writes a number and its line's end apart
    time.sleep(60)

def run(args):
    for _ in finished(work, [(number,) for number in range(8)], 2):
        pass

if __name__ == "__main__":
    raise SystemExit(console.run(SimpleNamespace(run=run)))
"""


@pytest.mark.parametrize(
    ("send", "number"), [(os.killpg, signal.SIGINT), (os.kill, signal.SIGINT), (os.kill, signal.SIGKILL)]
)
def test_signal_ends_all_processes(tmp_path, send, number):
    """The workers hold the pipes, too, so communicate() returns only when all processes have ended."""
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore it
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    more = pipes | {"env": os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}}
    command = [sys.executable, script]
    with subprocess.Popen(command, text=True, preexec_fn=heard, start_new_session=True, **more) as child:
        assert child.stdout.readline() + child.stdout.readline() in ("0\n1\n", "1\n0\n")
        send(child.pid, number)
        out, err = child.communicate()
    assert out == ""
    if number == signal.SIGINT:
        assert child.returncode == 130 and err == "interrupted\n"


def test_a_result_that_raises_ends_the_others():
    with pytest.raises(TypeError):
        for _, future in finished(time.sleep, [("no number",), (1e9,), (1e9,)], 2):
            future.result()
    assert not multiprocessing.active_children()
