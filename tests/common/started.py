# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests of engines."""

import inspect

import pytest
import tiny_qwen3


def started(kind, scope="session", model="model", **settings):
    """Return a fixture: an engine with these settings and the model of fixture `model`, started once per scope."""

    def fixture(**fixtures):
        running = kind(fixtures[model], **settings)
        yield running
        running.stop()

    # what pytest reads: with another parameter of `model` the engine starts anew
    fixture.__signature__ = inspect.Signature([inspect.Parameter(model, inspect.Parameter.KEYWORD_ONLY)])
    return pytest.fixture(scope=scope)(fixture)


@pytest.fixture(scope="session")
def prompts():
    """64 prompts of 5 to 40 tokens; the second half repeats the first."""
    return tiny_qwen3.repeated_prompts(32)
