# SPDX-License-Identifier: Apache-2.0
"""The table of drafted requests, patches/<pin set>/requests.toml, agrees with the installed vLLM."""

from types import SimpleNamespace

import pytest
import request_table
from ascend_engine import OLD
from sam_core.engines.vllm.exclusion import exclusion_reason


@pytest.fixture(autouse=True)
def without_plugins(monkeypatch):
    """Load no plugins: the plugin of vllm-ascend needs torch_npu."""
    monkeypatch.setenv("VLLM_PLUGINS", "")


def test_every_parameter_has_a_row():
    request_table.every_field_has_one_row()


@pytest.mark.skipif(not OLD, reason="nothing is excluded")
def test_the_table_has_what_is_excluded():
    from vllm import SamplingParams

    values = {"logit_bias": {1: 1.0}, "bad_words": ["a"], "allowed_token_ids": [1], "min_tokens": 1}
    params = SamplingParams()
    defaults = {name: getattr(params, name) for name in params.__struct_fields__}
    given = {name: defaults | {name: values.get(name, 0.5)} for name in request_table.names("parameters")}
    excluded = {name for name in given.keys() & defaults if exclusion_reason(SimpleNamespace(**given[name]))}
    assert excluded == set(request_table.names("parameters", "excluded"))
