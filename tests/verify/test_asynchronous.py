# SPDX-License-Identifier: Apache-2.0
"""Tests of which drafts a step verifies if it was planned with placeholders. In a graph each request verifies k
tokens."""

from dataclasses import make_dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sam_core.engines.vllm.runner1_async import AsyncDrafts
from sam_core.proposer import SamProposer

K = 3
TEXTS = {"a": [1, 2, 3] * 5, "b": [4, 5, 6] * 5, "c": [7, 8, 9, 8]}


Cached = make_dataclass("Cached", ["req_ids", "num_computed_tokens", "num_output_tokens", "resumed_req_ids"])
COUNTS = ["num_scheduled_tokens", "total_num_scheduled_tokens", "scheduled_spec_decode_tokens"]
OTHERS = ["scheduled_cached_reqs", "finished_req_ids", "scheduled_new_reqs"]
Plan = make_dataclass("Plan", [*COUNTS, *OTHERS, ("has_structured_output_requests", bool, False)])


class Runner:
    """An engine with graphs that has read the prompts of TEXTS and sampled the first token of each answer."""

    num_spec_tokens, max_model_len = K, 64

    def __init__(self):
        self.drafter = SamProposer(K, {"rule": "newest", "switch": "batch", "min_prob": 0}, max_model_len=64)
        self.drafter.make_uniform()
        params = SimpleNamespace(all_stop_token_ids=(), ignore_eos=False, max_tokens=None, min_tokens=0)
        fixed = {"sampling_params": params, "prev_num_draft_len": 0}
        self.requests = {
            name: SimpleNamespace(num_prompt_tokens=len(text) - 1, output_token_ids=[-1], **fixed)
            for name, text in TEXTS.items()
        }
        rows = np.zeros((len(TEXTS), self.max_model_len), np.int32)
        for row, text in zip(rows, TEXTS.values(), strict=True):
            row[: len(text) - 1] = text[:-1]
        lengths = np.array([len(text) for text in TEXTS.values()])
        self.input_batch = SimpleNamespace(
            req_ids=list(TEXTS),
            req_id_to_index={name: row for row, name in enumerate(TEXTS)},
            num_reqs=len(TEXTS),
            token_ids_cpu=rows,
            is_token_ids=np.zeros(rows.shape, bool),
            num_tokens_no_spec=lengths,
            num_prompt_tokens=lengths - 1,
        )
        self.waits, self.indexed = 0, 0
        self.async_drafts = AsyncDrafts(self, SimpleNamespace(world_size=1, is_first_rank=True))
        self.launch([[text[-1]] for text in TEXTS.values()])

    def launch(self, sampled):
        """Launch a step that samples these tokens for each request."""
        ready = SimpleNamespace(synchronize=self.wait, query=lambda: True)
        output = SimpleNamespace(sampled_token_ids_cpu=torch.tensor(sampled), async_copy_ready_event=ready)
        self.async_drafts.launched(output, (), None)

    def wait(self):
        self.waits += 1
        self.indexed = self.drafter.texts.pool._work()

    def begin(self, counts, new=()):
        """Begin a step with these numbers of tokens, which include placeholders, and the new request ids `new`."""
        running = [name for name in counts if name in TEXTS and name not in new]
        cached = Cached(running, [len(TEXTS[name]) - 1 for name in running], [1] * len(running), ())
        planned = {name: [-1] * (counts[name] - 1) for name in running if counts[name] > 1}
        beginning = tuple(SimpleNamespace(req_id=name) for name in new)
        return self.async_drafts.begin(Plan(counts, sum(counts.values()), planned, cached, frozenset(), beginning))


@pytest.mark.parametrize(
    ("counts", "drafts"),
    [
        pytest.param({"a": K + 1, "b": 1, "c": K + 1}, {}, id="one has a grammar"),
        pytest.param({"a": K + 1, "b": K, "c": K + 1}, {}, id="one has less room"),
        pytest.param({"a": K + 1, "b": K + 1, "c": K + 1, "new": 2}, {}, id="the last tokens of a prompt"),
        pytest.param({"a": K + 1, "b": 1, "c": K + 1, "new": 20}, {"a": [1, 2, 3], "c": [9, 8]}, id="a long prompt"),
        pytest.param(dict.fromkeys("abc", K + 1), {"a": [1, 2, 3], "b": [4, 5, 6], "c": [9, 8, 8]}, id="all go on"),
        pytest.param(dict.fromkeys("ac", K + 1), {"a": [1, 2, 3], "c": [9, 8, 8]}, id="one leaves"),
    ],
)
def test_which_drafts_are_verified(counts, drafts):
    """In a graph each request verifies k tokens, some of which are padding. If one request of a step for a graph
    cannot, none drafts, the host does not wait, and the drafter records no refused drafts. A step with a long prompt
    runs without a graph, and its drafts have any length."""
    runner = Runner()
    step = runner.begin(counts)
    assert step.scheduled_spec_decode_tokens == drafts and runner.waits == bool(drafts)
    planned = {name: 1 + len(drafts.get(name, ())) for name in counts}
    assert step.num_scheduled_tokens == planned | {name: counts[name] for name in counts if name == "new"}
    if not drafts:
        stats = runner.drafter.stats()
        assert stats["proposed"] == stats["padding"] == 0 and not runner.drafter.texts.records["drafted"].any()


def test_an_id_that_comes_again_gets_nothing_that_is_in_flight():
    """A session's turn, or a request after an aborted one, reuses an id while the tokens of a step are not read yet."""
    runner = Runner()
    runner.begin({"a": 1, "b": 1, "c": 2}, new="c")
    state, row = runner.requests["c"], runner.input_batch.token_ids_cpu[2]
    state.num_prompt_tokens, state.output_token_ids, row[:2] = 2, [-1], [40, 41]
    runner.input_batch.num_prompt_tokens[2], runner.input_batch.num_tokens_no_spec[2] = 2, 3
    runner.input_batch.num_tokens_no_spec[:2] += 1
    before = row.tolist()
    runner.launch([[1], [4], [42]])
    runner.begin(dict.fromkeys("abc", 1))
    assert runner.waits == 0 and runner.input_batch.token_ids_cpu[0, 14] == TEXTS["a"][-1]
    assert row.tolist() == before, "what the step in flight sampled for the old text"


def test_tokens_are_indexed_while_the_host_waits():
    runner, counts, indexed = Runner(), dict.fromkeys(TEXTS, K + 1), []
    for _ in range(3):
        step = runner.begin(counts)
        indexed.append(runner.drafter.texts.pool._work())
        runner.input_batch.num_tokens_no_spec += 1
        for request in runner.requests.values():
            request.output_token_ids.append(-1)
        runner.launch([[1, 2, 3, 1], [4, 5, 6, 4], [9, 8, 8, 9]])
    assert step.scheduled_spec_decode_tokens["a"] == [2, 3, 1]
    assert indexed[0] == indexed[1] and runner.waits == 3, "the second step's drafts came first"
    assert runner.indexed > indexed[1], "but its tokens were indexed before the wait for the third's"
