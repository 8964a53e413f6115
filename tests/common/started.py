# SPDX-License-Identifier: Apache-2.0
"""Fixtures of engines."""

import pytest


def started(kind, scope="session", model="model", **settings):
    """A fixture: an engine of a kind with these settings, of the fixture that `model` names. It starts once for all
    tests of a scope.
    """

    @pytest.fixture(scope=scope)
    def fixture(request):
        running = kind(request.getfixturevalue(model), **settings)
        yield running
        running.stop()

    return fixture
