# SPDX-License-Identifier: Apache-2.0
"""Fixtures of engines."""

import pytest


def started(engine, scope="session", **settings):
    """A fixture: an `engine` of the fixture `model` with these settings, which starts once for all tests of a scope."""

    @pytest.fixture(scope=scope)
    def fixture(model):
        running = engine(model, **settings)
        yield running
        running.stop()

    return fixture
