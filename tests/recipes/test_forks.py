# SPDX-License-Identifier: Apache-2.0
"""A Python forked from a process with imported modules behaves like a newly started one."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from llm_rl import forks

REPORT = """
import json, os, sys
print(json.dumps([sys.argv, sys.path[0], os.getcwd(), os.environ["WORD"], sys.stdin.read(), "timeit" in sys.modules]))
sys.exit(int(sys.argv[-1]))
"""
SPAWN = """
import multiprocessing, os, sys
process = multiprocessing.get_context("spawn").Process(target=print, args=("spawned",), kwargs={"flush": True})
process.start()
process.join()
print(process.exitcode, "timeit" in sys.modules, multiprocessing.spawn.get_executable())
"""
SLEEP = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forks")
    with forks.server(folder, ["timeit"], os.environ):
        yield folder


def test_arguments_environment_streams_and_status_are_those_of_the_call(folder, tmp_path):
    file = tmp_path / "report_file.py"
    file.write_text(REPORT)
    for words in (["-B", "-c", REPORT, "a b", "3"], ["-m", file.stem, "3"], [str(file), "0"]):
        results = []
        for program in (sys.executable, folder / "python"):
            call = {"cwd": tmp_path, "env": os.environ | {"WORD": "of the call"}, "input": "read"}
            done = subprocess.run([program, *words], text=True, capture_output=True, **call)
            results.append((json.loads(done.stdout), done.stderr, done.returncode))
        (*plain, unloaded), (*forked, loaded) = (result[0] for result in results)
        assert plain == forked and results[0][1:] == results[1][1:] and (unloaded, loaded) == (False, True)
    failed = subprocess.run([folder / "python", "-c", "1 / 0"], capture_output=True, text=True)
    assert failed.returncode == 1 and failed.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_descriptors_keep_their_numbers(folder):
    reader, writer = os.pipe()
    high = 700
    os.dup2(writer, high)
    code = f"import os; os.write({high}, b'at {high}')"
    subprocess.run([folder / "python", "-c", code], pass_fds=[high], check=True)
    os.close(writer), os.close(high)
    assert os.read(reader, 100) == b"at 700" and os.read(reader, 100) == b""
    os.close(reader)


def test_processes_that_it_spawns_are_forks_too(folder):
    done = subprocess.run(
        [folder / "python", "-c", SPAWN], env=os.environ | forks.variables(folder), capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["spawned", f"0 True {os.fsencode(folder / 'python')}"], done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_its_client(folder, number):
    with subprocess.Popen([folder / "python", "-c", SLEEP], stdout=subprocess.PIPE, text=True) as client:
        pid = int(client.stdout.readline())
        assert os.getpgid(pid) == pid != client.pid, "Ray ends the group of a worker"
        client.send_signal(number)
        assert client.wait(20)
    deadline = time.monotonic() + 20
    while psutil.pid_exists(pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_server_ends_with_its_caller(tmp_path):
    code = "import os, pathlib, sys, time; from llm_rl import forks\n"
    code += "with forks.server(pathlib.Path(sys.argv[1]), ['timeit'], os.environ): print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as caller:
        caller.stdout.readline()
        (server,) = psutil.Process(caller.pid).children()
        subprocess.run([tmp_path / "python", "-c", ""], check=True)
        caller.kill()
    server.wait(20)


def test_a_server_that_has_ended_is_named(tmp_path):
    with forks.server(tmp_path, ["no_such_module"], os.environ):
        done = subprocess.run([tmp_path / "python", "-c", ""], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: {tmp_path}/python: ") and "cannot import no_such_module" in done.stderr


def test_workers_of_a_ray_with_other_jobs_are_no_forks(folder):
    code = "import sys; print('timeit' in sys.modules)"
    for job, forked in (("01000000", "True\n"), ("02000000", "False\n")):
        env = os.environ | {"RAY_JOB_ID": job}
        assert subprocess.check_output([folder / "python", "-c", code], env=env, text=True) == forked
