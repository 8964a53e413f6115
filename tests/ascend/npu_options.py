# SPDX-License-Identifier: Apache-2.0
"""Checks of the options of method sam, and of settings that method sam refuses. npu_unit.py runs the checks, and
test_options.py reports them as tests."""

import sys
import tempfile
from pathlib import Path
from unittest import mock

import pytest

TINY = Path(__file__).resolve().parents[2] / "llm_rl" / "qwen3" / "tiny"
SAM = {"method": "sam"}
GOOD = {"rule": "oldest", "sources": ["request"], "switch": "batch", "threshold": 4, "min_prob": 0}
PLUGIN = {
    "METADATA": "Metadata-Version: 2.1\nName: other\nVersion: 1\n",
    "entry_points.txt": "[vllm.logits_processors]\nx = other:Processor\n",
}


def configured(speculative, additional=None, **engine):
    """Return the speculative_config for these engine arguments. No engine is started."""
    import vllm_ascend.ascend_config
    from vllm.engine.arg_utils import EngineArgs

    vllm_ascend.ascend_config._ASCEND_CONFIG = None
    eager = "compilation_config" not in engine
    arguments = EngineArgs(model=str(TINY), skip_tokenizer_init=True, dtype="float32", enforce_eager=eager, **engine)
    arguments.speculative_config, arguments.additional_config = speculative, additional or {}
    return arguments.create_engine_config().speculative_config


def refused(sentence, *configs, **engine):
    with pytest.raises(ValueError) as raised:
        configured(*configs, **engine)
    (said,) = [error["msg"] for error in getattr(raised.value, "errors", list)()] or [str(raised.value)]
    assert sentence in said and "\n" not in said, said


def graphs(mode):
    return {"compilation_config": {"cudagraph_mode": mode}}


def check_good_options_reach_the_config():
    good, default = configured(SAM | {"num_speculative_tokens": 4, "sam": GOOD}), configured(SAM)
    assert (good.method, good.num_speculative_tokens, good.sam) == ("sam", 4, GOOD)
    assert "sam" in repr(good)
    assert (default.method, default.num_speculative_tokens, default.sam) == ("sam", 15, None)


def check_bad_option_is_one_sentence():
    sam = {"num_speculative_tokens": 3, "sam": {"treshold": 8}}
    refused("Value error, unknown option 'treshold' in speculative_config.sam", SAM | sam)
    refused("Value error, num_speculative_tokens must be an integer from 1 to 15", SAM | {"num_speculative_tokens": 16})


def check_pipelines_and_models_that_keep_a_state_are_refused():
    refused("pipeline_parallel_size above 1: set it to 1 instead of 2", SAM, pipeline_parallel_size=2)
    with mock.patch("vllm.config.ModelConfig.is_hybrid", True):
        refused("layers of this model keep a state", SAM)


def check_processors_of_logits_are_refused():
    """vllm-ascend would apply the processors only to the row after the last draft token of each request."""
    processors = ["some.module:Processor"]
    refused("cannot apply the engine's argument logits_processors to drafts", SAM, logits_processors=processors)
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(sys, "path", [*sys.path, folder]):
        (info := Path(folder, "other-1.dist-info")).mkdir()
        for name, text in PLUGIN.items():
            (info / name).write_text(text)
        refused("uninstall the plugin other:Processor", SAM)


def check_settings_that_change_the_distribution_or_the_noise_are_refused():
    for name in ("block", "entropy"):
        setting = {"rejection_sampler_config": {f"enable_{name}_verify": True}}
        refused(f"rejection_sampler_config.enable_{name}_verify changes what the", SAM, setting)
    configured({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}, setting)
    noise, of_a_rank = {"enable_async_exponential": True}, {"enable_reduce_sample": True, "sam_verify": "seeded"}
    for option, *configs in (
        ("enable_async_exponential", SAM | {"sam": {"verify": "seeded"}}, noise),
        ("enable_reduce_sample", None, of_a_rank),
    ):
        refused(f"{option} samples with noise that depends on the", *configs)
    configured(SAM, noise)


def check_full_graphs_are_refused():
    """An engine without speculation keeps full graphs."""
    sentence = "speculative method 'sam' has no full graphs in vllm-ascend 0.11"
    refused(sentence, SAM, **graphs("FULL_DECODE_ONLY"))
    refused(sentence, SAM, {"torchair_graph_config": {"enabled": True}, "refresh": True}, **graphs("NONE"))
    for mode in ("PIECEWISE", "FULL_AND_PIECEWISE"):
        assert configured(SAM, **graphs(mode)).method == "sam"
    assert configured(None, **graphs("FULL_DECODE_ONLY")) is None
