# SPDX-License-Identifier: Apache-2.0
"""Options of method sam reach the configuration on both platforms, and bad ones are one sentence."""

import json

import pytest
from ascend_engine import HERE, OLD, start

GOOD = {"rule": "oldest", "sources": ["request"], "switch": "batch", "threshold": 4, "min_prob": 0}
BAD = [
    (3, {"treshold": 8}, "unknown option 'treshold' in speculative_config.sam"),
    (3, {"threshold": -1}, "threshold must be an integer of at least 1, got -1"),
    (3, {"rule": "longest"}, "rule 'longest' is not available"),
    (16, {}, "num_speculative_tokens must be an integer from 1 to 15, got 16"),
]
MODES = ["FULL_DECODE_ONLY", "PIECEWISE", "FULL_AND_PIECEWISE"]


@pytest.fixture(scope="module", params=["npu", "cpu"])
def configured(request, model):
    """What became of GOOD, of no options, of each of BAD, of a hybrid model, and of a configuration without
    sam_core."""
    asked = [{"method": "sam", "num_speculative_tokens": 4, "sam": GOOD}, {"method": "sam"}]
    asked += [{"method": "sam", "num_speculative_tokens": k, "sam": sam} for k, sam, _ in BAD]
    out, _ = start(request.param, str(HERE / "configure.py"), str(model), json.dumps(asked)).communicate(timeout=300)
    assert out, "configure.py failed: see its standard error"
    return json.loads(out)


def test_good_options_reach_the_config(configured):
    good, default = configured[:2]
    assert (good["method"], good["k"], good["sam"]) == ("sam", 4, GOOD)
    assert "sam" in good["repr"]
    assert (default["method"], default["k"], default["sam"]) == ("sam", 3, None)


def test_bad_option_is_one_sentence(configured):
    for (_, _, sentence), result in zip(BAD, configured[2:-2], strict=True):
        assert result["error"].startswith(f"Value error, {sentence}")
        assert "\n" not in result["error"]


def test_pipelines_are_refused(model):
    (refused,) = refusals(model, [{"method": "sam"}], [{"engine": {"pipeline_parallel_size": 2}}])
    assert "set pipeline_parallel_size to 1" in refused["error"] or "it to 1 instead of 2" in refused["error"]


@pytest.mark.skipif(not OLD, reason="vLLM 0.23 itself refuses them together with speculation, when the engine starts")
def test_processors_of_logits_are_refused(model):
    """vllm-ascend would apply them to the rows behind drafts alone."""
    processors = {"logits_processors": ["some.module:Processor"]}
    (refused,) = refusals(model, [{"method": "sam"}], [{"engine": processors}])
    assert "cannot apply the engine's argument logits_processors to drafts" in refused["error"]


@pytest.mark.skipif(not OLD, reason="vLLM 0.23 loads no plugins of them together with speculation")
def test_plugins_that_process_logits_are_refused(model, tmp_path):
    (tmp_path / "other-1.dist-info").mkdir()
    (tmp_path / "other-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (tmp_path / "other-1.dist-info" / "entry_points.txt").write_text("[vllm.logits_processors]\nx = other:Processor\n")
    (refused,) = refusals(model, [{"method": "sam"}], [{"path": [str(tmp_path)]}])
    assert "uninstall the plugin other:Processor" in refused["error"]


def test_models_that_keep_a_state_are_refused(configured):
    assert "some layers of this model keep a state instead" in configured[-2]["error"]


def test_missing_sam_core_is_one_sentence(configured):
    assert configured[-1]["error"].startswith("Value error, speculative method 'sam' needs the package sam_core")


def refusals(model, asked, additional):
    """What became of each speculative_config with its additional_config."""
    words = [str(HERE / "configure.py"), str(model), json.dumps(asked), json.dumps(additional)]
    out, _ = start("npu", *words).communicate(timeout=300)
    assert out, "configure.py failed: see its standard error"
    return json.loads(out)[:-2]


@pytest.mark.skipif(OLD, reason="0.11 has no such settings")
def test_settings_that_change_the_distribution_or_the_noise_are_refused(model):
    """What block verification does to the distribution is measured in test_sampler."""
    verification = ["enable_block_verify", "enable_entropy_verify"]
    noise = ["enable_async_exponential", "enable_reduce_sample"]
    ngram = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}
    seeded = {"method": "sam", "sam": {"verify": "seeded"}}
    additional = [{"rejection_sampler_config": {name: True}} for name in verification]
    found = refusals(
        model,
        [{"method": "sam"}] * 2 + [seeded, None, {"method": "sam"}, ngram],
        additional + [{noise[0]: True}, {noise[1]: True, "sam_verify": "seeded"}, {noise[0]: True}, additional[0]],
    )
    for name, result in zip(verification, found[:2], strict=True):
        assert f"rejection_sampler_config.{name} changes what the model samples" in result["error"]
    for name, result in zip(noise, found[2:4], strict=True):
        assert f"{name} samples with noise that depends on the batch" in result["error"]
    assert [result["method"] for result in found[4:]] == ["sam", "ngram"]


@pytest.mark.skipif(not OLD, reason="0.23 has full graphs of k + 1 tokens a request")
def test_full_graphs_are_refused(model):
    full, piecewise, default, none = (
        {"engine": {"compilation_config": {"cudagraph_mode": mode}}} for mode in [*MODES, "NONE"]
    )
    torchair = {"torchair_graph_config": {"enabled": True}, "refresh": True, **none}
    asked = [{"method": "sam"}] * 3 + [None, {"method": "sam"}]
    full, piecewise, default, plain, torchair = refusals(model, asked, [full, piecewise, default, full, torchair])
    for result in (full, torchair):
        assert "speculative method 'sam' has no full graphs in vllm-ascend 0.11" in result["error"]
    assert piecewise["method"] == default["method"] == "sam"
    assert plain is None, "without speculation they are upstream's"
