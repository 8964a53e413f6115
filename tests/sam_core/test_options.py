# SPDX-License-Identifier: Apache-2.0
import inspect
from functools import partial
from types import SimpleNamespace

import pytest
from sam_core.engines.vllm.config import sampling_mode
from sam_core.options import RULES, SOURCES, Options

from sam_core import Pool


def test_a_pool_takes_every_rule_and_source():
    for rule in RULES:
        Pool(1 << 20, rule, SOURCES)
    for name in ("rule", "sources"):
        assert getattr(Options(), name) == inspect.signature(Pool).parameters[name].default
    assert Options.from_engine(3, None) == Options() and Options().switch == "auto"
    assert Options.from_engine(3, {"threshold": 5}).switch == "batch"
    assert Options.from_engine(3, {"threshold": 5, "switch": "auto"}).switch == "auto"


@pytest.mark.parametrize(
    ("k", "sam", "sentence"),
    [
        (0, {}, "num_speculative_tokens must be an integer from 1 to 15, got 0"),
        (3, "newest", "speculative_config.sam must be a mapping of options, got 'newest'"),
        (3, {"treshold": 8}, "unknown option 'treshold' in speculative_config.sam; known: rule, sources"),
        (3, {"rule": "mixer"}, "rule 'mixer' is not available; this version has oldest, newest, suffix, blend"),
        (3, {"sources": ["group", "group"]}, "sources must be a list of different names from request, group, his"),
        (3, {"sources": ["corpus"]}, "sources 'corpus' is not available"),
        (3, {"sources": ["request", "history"]}, "sources has 'history' without 'group': add group, whose index holds"),
        (3, {"threshold": 0}, "threshold must be an integer of at least 1, got 0"),
        (3, {"memory_bytes": 1000}, "memory_bytes must be an integer of at least 1048576"),
        (3, {"memory_bytes": 1 << 70}, "memory_bytes must be below 2**48, got 1180591620717411303424: give bytes of"),
        (3, {"min_prob": float("nan")}, "min_prob must be a number of at least 0 and below 1, got nan"),
        (3, {"verify": "seeded"}, "verify 'seeded' is not available; this version has rejection"),
        (3, {"corpus": 3}, "corpus must be the path of a file, got 3"),
        (3, {"corpus": "/no"}, "corpus '/no' cannot be opened (No such file or directory): name a file that `pyt"),
        (3, {"corpus": "/"}, "corpus '/' cannot be opened (Is a directory)"),
        (3, {"corpus": __file__}, f"{__file__} is no corpus: name a file that build_corpus wrote"),
        (3, {"history": "x"}, "history must be the full path of a folder, got 'x'"),
        (3, {"history": "/x", "sources": ["group"]}, "history names a folder, but sources lacks 'history': add it, or"),
    ],
)
def test_bad_value_is_one_sentence(k, sam, sentence):
    with pytest.raises(ValueError) as error:
        Options.from_engine(k, sam)
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)


def test_sampling_mode_of_an_engine():
    sam = partial(SimpleNamespace, method="sam")
    for speculative, additional, mode in (
        (None, {"sam_verify": "seeded"}, "seeded"),
        (SimpleNamespace(method="ngram"), {"sam_verify": "seeded"}, "seeded"),
        (sam(sam={"verify": "seeded"}), {}, "seeded"),
        (sam(sam={"rule": "newest"}), {"sam_verify": "seeded"}, "rejection"),
    ):
        config = SimpleNamespace(speculative_config=speculative, additional_config=additional)
        assert sampling_mode(config) == mode
    config = SimpleNamespace(speculative_config=None, additional_config={"sam_verify": "seeds"})
    with pytest.raises(ValueError, match="^additional_config.sam_verify 'seeds' is not available; this version has r"):
        sampling_mode(config)
