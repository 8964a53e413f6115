# SPDX-License-Identifier: Apache-2.0
"""A stop string may end inside a draft. The token ids, log-probabilities and text of the answer are still those
without drafts: none go beyond the stop string."""

from engine_checks import speculated

STOPS = (["ab"], ["cabb", "bc"], ["bb", "b", "aab"], ["ccc", "a"], ["bacab"])


def test_answers_end_as_without_drafts(plain, sam, prompts):
    few = prompts[:8]
    cut = 0
    for include in (False, True):
        each = [
            {"stop": STOPS[i % len(STOPS)], "include_stop_str_in_output": include, "min_tokens": 4 * i, "logprobs": 0}
            for i in range(len(few))
        ]
        answers = plain.run(few, each=each)
        ends, logprobs = plain.ends, plain.logprobs
        assert sam.run(few, each=each) == answers
        speculated(sam)
        assert sam.ends == ends
        assert sum(reason == "stop" for _, reason, _ in ends) > 4
        assert [len(rows) for rows in sam.logprobs] == [len(rows) for rows in logprobs] == [*map(len, answers)]
        tokens = sum(row[3] for row in sam.rows)
        assert tokens == sum(map(len, answers)), "the log counts tokens that no answer has"
        cut += sum(row[5] + row[2] - row[3] for row in sam.rows)
    assert cut > 0, "no stop string ended inside a draft: the test shows nothing"
