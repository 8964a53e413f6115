# SPDX-License-Identifier: Apache-2.0
"""Fixtures of engines."""

import pytest


def started(kind, scope="session", model="model", **settings):
    """A fixture: an engine of a kind with these settings and the model of fixture `model`. It starts once per scope."""

    @pytest.fixture(scope=scope)
    def fixture(request):
        running = kind(request.getfixturevalue(model), **settings)
        yield running
        running.stop()

    return fixture
