# SPDX-License-Identifier: Apache-2.0
"""Fixtures of engines."""

import inspect

import pytest


def started(kind, scope="session", model="model", **settings):
    """Return a fixture: an engine with these settings and the model of fixture `model`, started once per scope."""

    def fixture(**fixtures):
        running = kind(fixtures[model], **settings)
        yield running
        running.stop()

    # what pytest reads: with another parameter of `model` the engine starts anew
    fixture.__signature__ = inspect.Signature([inspect.Parameter(model, inspect.Parameter.KEYWORD_ONLY)])
    return pytest.fixture(scope=scope)(fixture)
