# SPDX-License-Identifier: Apache-2.0
"""Options of method sam reach the configuration, and bad ones and settings beside which it cannot be are one sentence.

With 0.23 on vllm-ascend's platform; tests/engine/test_options.py has vLLM's own.
"""

import json

import pytest
from ascend_engine import HERE, OLD, start

SAM = {"method": "sam"}
GOOD = {"rule": "oldest", "sources": ["request"], "switch": "batch", "threshold": 4, "min_prob": 0}
BAD = [
    (3, {"treshold": 8}, "unknown option 'treshold' in speculative_config.sam"),
    (16, {}, "num_speculative_tokens must be an integer from 1 to 15, got 16"),
]
GRAPHS = {
    mode: {"engine": {"compilation_config": {"cudagraph_mode": mode}}}
    for mode in ("FULL_DECODE_ONLY", "PIECEWISE", "FULL_AND_PIECEWISE", "NONE")
}
PLUGIN = {
    "METADATA": "Metadata-Version: 2.1\nName: other\nVersion: 1\n",
    "entry_points.txt": "[vllm.logits_processors]\nx = other:Processor\n",
}


def asked(plugins):
    """By name a speculative_config and an additional_config (configure.py)."""
    found = {"good": (SAM | {"num_speculative_tokens": 4, "sam": GOOD}, {}), "default": (SAM, {})}
    found |= {said: (SAM | {"num_speculative_tokens": k, "sam": sam}, {}) for k, sam, said in BAD}
    found["pipelines"] = SAM, {"engine": {"pipeline_parallel_size": 2}}
    if OLD:
        processors = {"logits_processors": ["some.module:Processor"]}
        found |= {mode: (SAM, GRAPHS[mode]) for mode in list(GRAPHS)[:3]}
        found["torchair"] = SAM, {"torchair_graph_config": {"enabled": True}, "refresh": True, **GRAPHS["NONE"]}
        found["full graphs of plain"] = None, GRAPHS["FULL_DECODE_ONLY"]
        found["processors"] = SAM, {"engine": processors}
        found["plugins"] = SAM, {"path": [str(plugins)]}  # the last: what follows it has them too
        return found
    block, entropy = ({"rejection_sampler_config": {f"enable_{name}_verify": True}} for name in ("block", "entropy"))
    noise = {"enable_async_exponential": True}
    ngram = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}
    return found | {
        "block": (SAM, block),
        "entropy": (SAM, entropy),
        "noise of the batch": (SAM | {"sam": {"verify": "seeded"}}, noise),
        "noise of the rank": (None, {"enable_reduce_sample": True, "sam_verify": "seeded"}),
        "noise, rejection": (SAM, noise),
        "block, ngram": (ngram, block),
    }


@pytest.fixture(scope="module", params=["npu", "cpu"][: 1 + OLD])
def configured(request, model, tmp_path_factory):
    """What became of each of `asked`, by name, and of a "hybrid" model."""
    plugins = tmp_path_factory.mktemp("plugins")
    (plugins / "other-1.dist-info").mkdir()
    for name, text in PLUGIN.items():
        (plugins / "other-1.dist-info" / name).write_text(text)
    names, pairs = zip(*asked(plugins).items(), strict=True)
    words = [str(model), *map(json.dumps, zip(*pairs, strict=True))]
    out, _ = start(request.param, str(HERE / "configure.py"), *words).communicate(timeout=300)
    assert out, "configure.py failed: see its standard error"
    return dict(zip([*names, "hybrid"], json.loads(out), strict=True))


def test_good_options_reach_the_config(configured):
    good, default = configured["good"], configured["default"]
    assert (good["method"], good["k"], good["sam"]) == ("sam", 4, GOOD)
    assert "sam" in good["repr"]
    assert (default["method"], default["k"], default["sam"]) == ("sam", 15, None)


def test_bad_option_is_one_sentence(configured):
    for _, _, sentence in BAD:
        error = configured[sentence]["error"]
        assert error.startswith(f"Value error, {sentence}") and "\n" not in error


def test_pipelines_and_models_that_keep_a_state_are_refused(configured):
    error = configured["pipelines"]["error"]
    assert "set pipeline_parallel_size to 1" in error or "it to 1 instead of 2" in error
    assert "some layers of this model keep a state instead" in configured["hybrid"]["error"]


@pytest.mark.skipif(not OLD, reason="vLLM 0.23 refuses them together with speculation, or loads no plugins")
def test_processors_of_logits_are_refused(configured):
    """vllm-ascend would apply them to the rows behind drafts alone."""
    error = configured["processors"]["error"]
    assert "cannot apply the engine's argument logits_processors to drafts" in error
    assert "uninstall the plugin other:Processor" in configured["plugins"]["error"]


@pytest.mark.skipif(OLD, reason="0.11 has no such settings")
def test_settings_that_change_the_distribution_or_the_noise_are_refused(configured):
    for name in ("block", "entropy"):
        assert f"rejection_sampler_config.enable_{name}_verify changes what the" in configured[name]["error"]
    for name, option in (("batch", "enable_async_exponential"), ("rank", "enable_reduce_sample")):
        assert f"{option} samples with noise that depends on the" in configured[f"noise of the {name}"]["error"]
    assert configured["noise, rejection"]["method"] == "sam" and configured["block, ngram"]["method"] == "ngram"


@pytest.mark.skipif(not OLD, reason="0.23 has full graphs of k + 1 tokens a request")
@pytest.mark.parametrize("configured", ["npu"], indirect=True)
def test_full_graphs_are_refused(configured):
    """On the platform npu; without speculation they are upstream's."""
    for name in ("FULL_DECODE_ONLY", "torchair"):
        assert "speculative method 'sam' has no full graphs in vllm-ascend 0.11" in configured[name]["error"]
    assert configured["PIECEWISE"]["method"] == configured["FULL_AND_PIECEWISE"]["method"] == "sam"
    assert configured["full graphs of plain"] is None
