# SPDX-License-Identifier: Apache-2.0
import pytest
from sam_core.options import Options


def test_defaults_and_the_articles_setting():
    assert Options.from_engine(3, None) == Options()
    article = Options.from_engine(3, {"rule": "oldest", "sources": ["request"], "switch": "batch", "threshold": 8})
    assert (article.rule, article.sources, article.threshold) == ("oldest", ("request",), 8)


@pytest.mark.parametrize(
    ("k", "sam", "sentence"),
    [
        (0, {}, "num_speculative_tokens must be an integer from 1 to 15, got 0"),
        (16, {}, "num_speculative_tokens must be an integer from 1 to 15, got 16"),
        (True, {}, "num_speculative_tokens must be an integer from 1 to 15, got True"),
        (None, {}, "num_speculative_tokens must be an integer from 1 to 15, got None"),
        (3, "newest", "speculative_config.sam must be a mapping of options, got 'newest'"),
        (3, {"min_prob": 0.1}, "unknown option 'min_prob' in speculative_config.sam; known: rule, sources"),
        (3, {"rule": "blend"}, "rule 'blend' is not available; this version has oldest, newest"),
        (3, {"switch": "auto"}, "switch 'auto' is not available; this version has batch"),
        (3, {"sources": []}, "sources must be a list of different names out of request, group, got ()"),
        (3, {"sources": ["group", "group"]}, "sources must be a list of different names"),
        (3, {"sources": "request"}, "sources must be a list of different names"),
        (3, {"sources": ["corpus"]}, "sources 'corpus' is not available"),
        (3, {"threshold": -1}, "threshold must be an integer of at least 1, got -1; to run without speculation leave"),
        (3, {"threshold": 0}, "threshold must be an integer of at least 1, got 0"),
        (3, {"threshold": 2.5}, "threshold must be an integer of at least 1, got 2.5"),
        (3, {"memory_bytes": 1000}, "memory_bytes must be an integer of at least 1048576"),
    ],
)
def test_bad_value_is_one_sentence(k, sam, sentence):
    with pytest.raises(ValueError) as error:
        Options.from_engine(k, sam)
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)
