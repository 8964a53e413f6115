# SPDX-License-Identifier: Apache-2.0
"""Bad options give a one-sentence error when the engine is configured."""

import pytest
from pydantic import ValidationError
from thinking import reasoning


def configure(model, speculative, **settings):
    from vllm.engine.arg_utils import EngineArgs

    settings |= {"skip_tokenizer_init": True, "dtype": "float32", "enforce_eager": True}
    return EngineArgs(model=str(model), speculative_config=speculative, **settings).create_engine_config()


def test_ranks_with_schedulers_of_their_own_are_refused(model, monkeypatch):
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")  # vLLM sets it for this backend
    with pytest.raises(ValidationError, match="gives each of 2 ranks one of its own: use mp or ray"):
        ranks = {"distributed_executor_backend": "external_launcher", "tensor_parallel_size": 2}
        configure(model, {"method": "sam"}, **ranks)


@pytest.mark.parametrize("name", ["pipeline_parallel_size", "prefill_context_parallel_size"])
def test_ranks_that_would_draft_each_for_itself_are_refused(model, name):
    with pytest.raises(ValidationError, match=f"does not work with {name} above 1: set it to 1 instead of 2"):
        configure(model, {"method": "sam"}, **{name: 2})


def test_thinking_budgets_are_refused(model):
    from vllm import SamplingParams
    from vllm.v1.engine.input_processor import InputProcessor

    processor = InputProcessor(configure(model, {"method": "sam"}))
    processor.vllm_config.reasoning_config = thinking = reasoning()
    thinking.initialize_token_ids(processor.model_config)
    with pytest.raises(ValueError, match="thinking_token_budget is not supported with speculative method 'sam'"):
        processor.process_inputs("0", {"prompt_token_ids": [1]}, SamplingParams(thinking_token_budget=3), ("generate",))


def test_another_interface_of_sam_core_is_refused():
    from sam_core.options import Options

    with pytest.raises(ValueError, match="patches are written for sam_core 0.0 but 0.2 is installed: run ci/setup-env"):
        Options.from_engine(3, None, interface="0.0")


def test_drafting_together_with_the_models_own_drafter_is_refused(model):
    from sam_core.engines.vllm.plugin import register

    register()
    with pytest.raises(ValueError, match="'eagle' drafts together with 'sam' in vLLM's second runner only"):
        configure(model, {"method": "eagle", "model": str(model), "num_speculative_tokens": 3, "sam": {}})
    assert configure(model, {"method": "sam", "sam": {}}).speculative_config.method == "sam"
