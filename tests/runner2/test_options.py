# SPDX-License-Identifier: Apache-2.0
"""Tests of sam's options in the configuration of an engine with the second runner."""

import os

import pytest
from pydantic import ValidationError


def configure(model, sam, method="sam", **settings):
    from vllm.engine.arg_utils import EngineArgs

    speculative = {"method": method, "num_speculative_tokens": 3, "sam": sam} | settings.pop("speculative", {})
    speculative = {name: value for name, value in speculative.items() if value is not None}
    settings |= {"skip_tokenizer_init": True, "dtype": "float32", "enforce_eager": True}
    return EngineArgs(model=str(model), speculative_config=speculative, **settings).create_engine_config()


def test_good_options_reach_the_config(model, device):
    config = configure(model, {"threshold": 4})
    assert config.use_v2_model_runner and config.scheduler_config.async_scheduling
    assert config.speculative_config.sam == {"threshold": 4} and "threshold" in repr(config.speculative_config)
    assert config.speculative_config.num_speculative_tokens_per_batch_size == [(1, 4, 3), (5, 5, 0)]
    own = {"num_speculative_tokens_per_batch_size": [(1, 2, 3), (3, 8, 1)]}
    config = configure(model, {}, speculative=own)
    assert [*map(tuple, config.speculative_config.num_speculative_tokens_per_batch_size)] == [(1, 2, 3), (3, 8, 1)]
    for sam in ({"switch": "auto"}, {}, None):
        config = configure(model, sam, speculative={"num_speculative_tokens": None})
        assert config.scheduler_config.async_scheduling and config.speculative_config.enable_adaptive_verification
        assert config.speculative_config.num_speculative_tokens_per_batch_size is None
        assert config.speculative_config.num_speculative_tokens == 15


def test_options_come_by_flags_and_dashes_too(model, device):
    absent = {"num_speculative_tokens": None}
    flags = {"spec_method": "sam", "spec_tokens": 4}
    config = configure(model, {"threshold": 2}, method=None, speculative=absent, **flags).speculative_config
    assert config.sam == {"threshold": 2} and config.num_speculative_tokens == 4
    with pytest.raises(ValueError, match="--spec-tokens and --speculative-config.'num_speculative_tokens'. exclude"):
        configure(model, None, speculative=absent | {"num-speculative-tokens": 3}, spec_tokens=4)


@pytest.mark.parametrize(
    ("sam", "settings", "sentence"),
    [
        ({"treshold": 8}, {}, "unknown option 'treshold' in speculative_config.sam"),
        ({}, {"speculative": {"rejection_sample_method": "block"}}, "speculative method 'sam' verifies exactly, which"),
        ({}, {"speculative": {"draft_sample_method": "probabilistic"}}, "speculative method 'sam' drafts fixed tokens"),
        ({}, {"method": "ngram"}, "speculative method 'ngram' cannot draft together with 'sam'"),
        ({}, {"method": "ngram_gpu"}, "speculative method 'ngram' cannot draft together with 'sam'"),
        ({}, {"speculative": {"ngrams": 3}}, "speculative_config.ngrams: Unexpected keyword argument"),
        ({}, {"enable_trace_replay": True}, "speculative method 'sam' verifies drafts by the tokens that"),
        ({"threshold": 8}, {"data_parallel_size": 2}, "sam's switch 'batch' needs vLLM's schedule by batch size"),
    ],
)
def test_bad_options_are_one_sentence(model, device, sam, settings, sentence):
    with pytest.raises(ValueError) as raised:
        configure(model, sam, **settings)
    assert type(raised.value) is ValueError
    assert str(raised.value).startswith(sentence) and "\n" not in str(raised.value)
    frames = [frame.frame.f_globals["__name__"] for frame in raised.traceback]
    assert [name for name in frames if not name.startswith(("vllm.", "test_"))] == ["sam_core.engines.vllm.plugin"]
    assert raised.value.__suppress_context__, "pydantic's own lines would come first"


def test_the_first_runner_is_refused(model, device, monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    import vllm.envs

    if hasattr(vllm.envs.__getattr__, "cache_clear"):
        vllm.envs.__getattr__.cache_clear()
    with pytest.raises(
        ValidationError, match="'sam' needs vLLM's second model runner, which VLLM_USE_V2_MODEL_RUNNER=0"
    ):
        configure(model, {})
    assert os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "0"
