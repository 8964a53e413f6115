# SPDX-License-Identifier: Apache-2.0
"""Tests marked `slow` run where ALL_TESTS is set, as by `make test-all`."""

import contextlib
import errno
import gc
import os
import subprocess
from pathlib import Path

import pytest

with contextlib.suppress(ModuleNotFoundError):  # tests/runner2 runs without it
    from hypothesis import HealthCheck, settings

    settings.register_profile("any load", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any load")


gc.disable()  # imports leave little garbage, and collections would take a seventh of the import time


def pytest_collection_finish():
    """Enable garbage collection, but only of objects that are created from now on. Collecting what is already imported
    would take seconds and, in each forked process, copy that memory."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items):
    if not os.environ.get("ALL_TESTS"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: make test-all runs it"))


@pytest.fixture(scope="session")
def no_locks(tmp_path_factory):
    """Environment variables that make a folder look like a file system without locks to a process."""
    library = tmp_path_factory.mktemp("no_locks") / "no_locks.so"
    source = Path(__file__).parent / "common" / "no_locks.c"
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True)

    def variables(folder, number=errno.ENOSYS):
        return {"LD_PRELOAD": str(library), "NO_LOCKS": str(folder), "NO_LOCKS_ERRNO": str(number)}

    return variables


@pytest.fixture(scope="session")
def own_mounts():
    """Words before a command that let it mount file systems which it alone sees."""
    words = ["unshare", "-rm"]
    if subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("this host lets no user mount")
    return words
