# SPDX-License-Identifier: Apache-2.0
"""Tests marked `slow` run where ALL_TESTS is set, as by `make test-all`."""

import os

import pytest


def pytest_collection_modifyitems(items):
    if not os.environ.get("ALL_TESTS"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: make test-all runs it"))
