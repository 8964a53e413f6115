# SPDX-License-Identifier: Apache-2.0
"""Tests marked `slow` run where ALL_TESTS is set, as by `make test-all`."""

import contextlib
import os

import pytest

with contextlib.suppress(ModuleNotFoundError):  # tests/runner2 runs without it
    from hypothesis import HealthCheck, settings

    settings.register_profile("any load", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any load")


def pytest_collection_modifyitems(items):
    if not os.environ.get("ALL_TESTS"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: make test-all runs it"))
