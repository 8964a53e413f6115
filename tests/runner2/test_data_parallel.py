# SPDX-License-Identifier: Apache-2.0
"""vLLM's client sends the answers to a prompt to one of its data-parallel engines."""

import client_checks
import pytest


@pytest.fixture(autouse=True)
def front():
    from sam_core.engines.vllm.plugin import front

    front.install()


def test_answers_to_a_prompt_share_an_engine():
    client_checks.check_answers_to_a_prompt_share_an_engine()


def test_other_choices_stay_first():
    client_checks.check_other_choices_stay_first()


def test_vllm_chooses_by_load_without_shared_indexes():
    client_checks.check_vllm_chooses_by_load_without_shared_indexes()
