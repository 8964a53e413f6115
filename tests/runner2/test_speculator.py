# SPDX-License-Identifier: Apache-2.0
"""Tests of what the second runner's drafter adds to its pool and table when requests are preempted or end."""

import types

import noting_pool
import numpy as np
import pytest
import torch
from sam_core.device_drafts import PAGE, NgramTable
from sam_core.engines.vllm.runner2 import MAX_CHAIN, ChainProposer, Speculator, table_size

K = 3
MAX_LEN = 100


def params(name=None, salt=None):
    group = {"sam_group": name, "sam_salt": salt}
    return types.SimpleNamespace(ignore_eos=True, stop_token_ids=None, max_tokens=50, min_tokens=0, extra_args=group)


class Steps:
    """A simulated engine, in which the output of each step is on the host when the next step begins."""

    def __init__(self, group=None, adaptive=False, **sam):
        states = types.SimpleNamespace(
            all_token_ids=types.SimpleNamespace(gpu=torch.zeros(8, MAX_LEN, dtype=torch.int32)),
            total_len=types.SimpleNamespace(gpu=torch.zeros(8, dtype=torch.int32)),
        )
        group = group or types.SimpleNamespace(world_size=1, broadcast=lambda drafts: drafts)
        proposer = ChainProposer(K, sam, 2)
        noting_pool.note_answers(proposer)
        self.speculator = Speculator(proposer, 8, MAX_LEN, torch.device("cpu"), group, 100, 2, adaptive)
        self.speculator.req_states = states
        self.speculator.pauses = None

    def begin(self, new=None, finished=(), preempted=(), groups=None, images=None, salts=None, drafts=True):
        """Begin a step. new: the tokens of new requests by id; two are the prompt. groups, images, salts: the values of
        some new requests by id. drafts: whether drafts are planned."""
        requests = [
            types.SimpleNamespace(
                req_id=name,
                prompt_len=2,
                prompt_token_ids=tokens[:2],
                prefill_token_ids=tokens,
                sampling_params=params((groups or {}).get(name), (salts or {}).get(name)),
                mm_features=[types.SimpleNamespace(identifier=image) for image in (images or {}).get(name, ())],
            )
            for name, tokens in (new or {}).items()
        ]
        running = (self.speculator.texts.by_id.keys() - {*finished, *preempted}) | (new or {}).keys()
        self._num_drafts = K if drafts else 0
        self.speculator.update_requests(
            types.SimpleNamespace(
                scheduled_spec_decode_tokens={},
                finished_req_ids=set(finished),
                preempted_req_ids=preempted,
                scheduled_new_reqs=requests,
                num_scheduled_tokens=dict.fromkeys(running, 1),
                num_spec_tokens_to_schedule=self._num_drafts,
            )
        )

    def end(self, sampled, late=False):
        """End a step. sampled: the token of each request of the step by id. late: whether the tokens are not yet on the
        host when the next step begins."""
        is_there = iter([not late])
        output = types.SimpleNamespace(
            model_runner_output=types.SimpleNamespace(req_ids=list(sampled)),
            copy_event=types.SimpleNamespace(query=lambda: next(is_there, True), synchronize=lambda: None),
            sampled_token_ids=np.array([[token] for token in sampled.values()]),
            num_sampled_tokens_np=np.ones(len(sampled), np.int64),
            num_verified=[0] * len(sampled),
        )
        states, texts = self.speculator.req_states, self.speculator.texts
        for i, (req_id, token) in enumerate(sampled.items()):
            row = texts.by_id[req_id].row
            text = [*texts.tokens[row, : texts.ends[row]].tolist(), token]
            states.all_token_ids.gpu[i, : len(text)], states.total_len.gpu[i] = torch.tensor(text), len(text)
        self.speculator.observe_output(output)
        rows, ones = torch.arange(len(sampled)), torch.ones(len(sampled), dtype=torch.int32)
        batch = types.SimpleNamespace(req_ids=list(sampled), num_reqs=len(sampled), idx_mapping=rows)
        self.speculator.propose(batch, num_sampled=ones, num_rejected=ones - 1, num_speculative_tokens=self._num_drafts)

    def answers(self):
        return noting_pool.noted_answers(self.speculator.proposer)


@pytest.mark.parametrize("late", [False, True])
def test_a_request_that_ends_preempted_is_indexed_whole(late):
    """The answer has the tokens of a step in flight, but no tokens of the request that took over its row."""
    steps = Steps()
    steps.begin({"a": [1, 2], "b": [1, 3], "c": [1, 4]}, drafts=False)
    steps.end({"a": 5, "b": 6, "c": 7})
    for token in (10, 20, 30):
        steps.begin(drafts=False)
        steps.end({"a": 5 + token, "b": 6 + token, "c": 7 + token}, late=late and token == 30)
    steps.begin(preempted=["a", "b", "c"])
    steps.begin(finished=["a"])
    assert steps.answers() == [[5, 15, 25, 35]]
    steps.begin({"b": [1, 3, 6, 16]}, finished=["c"])
    steps.end({"b": 27})
    steps.begin(finished=["b"])
    assert steps.answers() == [[7, 17, 27, 37], [6, 16, 27]]


def test_groups_are_those_of_names_and_images():
    """The pool and the table from which the device completes drafts have the same groups."""
    steps = Steps()
    new = {"a": [1, 2], "b": [5, 6], "c": [1, 2], "d": [1, 2], "e": [1, 2]}
    steps.begin(new, groups={"a": "one", "b": "one"}, images={"d": "x", "e": "y"})
    steps.end(dict.fromkeys(new, 7))
    a, b, c, d, e = steps.speculator._table_groups[:5].tolist()
    assert a == b and len({a, c, d, e}) == 4
    assert steps.speculator.proposer.texts.pool.stats()["groups"] == 4
    steps.begin(preempted=list(new), finished=["a"])
    steps.begin({"b": [5, 6, 7]}, finished=["c", "d", "e"], groups={"b": "one"})
    steps.end({"b": 8})
    assert steps.speculator._table_groups[0] == b and list(steps.speculator.groups) == ["b"]


def test_salted_texts_are_not_in_the_table():
    steps = Steps()
    table = steps.speculator.table.memory.copy()
    new = {"a": [1, 2], "b": [1, 2], "c": [1, 2]}
    steps.begin(new, salts={"a": "x", "b": "x", "c": "y"})
    steps.end(dict.fromkeys(new, 7))
    assert steps.speculator.proposer.texts.pool.stats()["groups"] == 2
    steps.begin(finished=list(new))
    assert (steps.speculator.table.memory == table).all()
    assert steps.speculator.proposer.texts.pool.stats()["groups"] == 0


@pytest.mark.parametrize("k", [0, K])
def test_all_ranks_hear_of_a_step_without_drafts(k):
    """Otherwise the ranks would verify different numbers of tokens in the next step."""
    heard = []

    class Group:
        world_size = 2

        def broadcast(self, tensor):
            heard.append(tensor.clone())
            return tensor

    steps = Steps(Group(), adaptive=True)
    steps.begin({"a": [1, 2, 3, 1, 2, 3, 1, 2]}, drafts=k > 0)
    steps.end({"a": 3})
    (packed,) = heard
    assert (packed >= 1 << 20).any() == (k > 0), "confidences stand above the tokens"
    assert (steps.speculator.draft_token_confidence_probs[0] > 0).any() == (k > 0)


@pytest.mark.parametrize("stages", [1, 16])
def test_chains_over_many_steps_are_no_longer_than_a_pool_drafts(stages):
    proposer = ChainProposer(15, {}, stages + 1)
    row, ends = np.arange(40, dtype=np.int32)[None] % 4, np.array([40], np.int32)
    proposer.begin(["a"], row, ends, np.array([8], np.int32), should_draft=True)
    chains, lengths, probabilities = proposer.chains()
    assert chains.shape[1] == min(16 * (stages + 1) + 15, MAX_CHAIN) and lengths[0] > 0
    drafted = np.arange(MAX_CHAIN)[: chains.shape[1]] < lengths[0]
    assert ((probabilities[0] > 0) == drafted).all() and (probabilities <= 1).all()


@pytest.mark.parametrize("switch", ["batch", "auto"])
def test_min_prob_ends_no_chain(switch):
    row, ends, lengths = np.random.default_rng(0).integers(0, 3, (1, 60), np.int32), np.array([60], np.int32), []
    for min_prob in (0, 0.9):
        proposer = ChainProposer(15, {"switch": switch, "min_prob": min_prob}, 2)
        proposer.begin(["a"], row, ends, np.array([8], np.int32), should_draft=True)
        lengths.append(int(proposer.chains().lengths[0]))
    assert lengths[0] == lengths[1] > 15 and proposer.options.min_prob == 0.9


@pytest.mark.parametrize("sam", [{"history": True}, {"history": True, "verify": "seeded"}, {}], ids=str)
def test_a_saved_history_is_verified_by_new_random_numbers(tmp_path, sam):
    """The seed is the same on all ranks. It is set when the first request after vLLM's warm-up begins."""
    if "history" in sam:
        sam = {**sam, "history": str(tmp_path)}
    group = types.SimpleNamespace(world_size=2, broadcast=lambda drafts: drafts, broadcast_object=lambda seed, src: 77)
    steps = Steps(group, **sam)
    torch.manual_seed(0)
    steps.begin({"_warmup_0_": [1, 2]})
    assert torch.initial_seed() == 0
    steps.begin({"a": [1, 2]}, finished=["_warmup_0_"])
    renewed = sam.get("verify") != "seeded" and "history" in sam
    assert torch.initial_seed() == 77 * renewed
    torch.manual_seed(0)
    steps.begin({"b": [1, 2]})
    assert torch.initial_seed() == 0


@pytest.mark.parametrize("max_num_reqs", [1, 256, 1024, 8192])
@pytest.mark.parametrize("max_model_len", [100, 40960, 131072, 1 << 20])
@pytest.mark.parametrize("memory_bytes", [1 << 20, 1 << 30, 1 << 40])
def test_a_table_takes_a_small_part_of_memory_bytes_in_every_configuration(max_num_reqs, max_model_len, memory_bytes):
    num_tokens, num_slots = table_size(max_num_reqs, max_model_len, memory_bytes)
    assert num_slots == 1 << num_slots.bit_length() - 1 and num_tokens >= 512
    table = NgramTable(num_tokens, num_slots, 10)
    assert table.memory.nbytes <= min(memory_bytes // 16, 49 << 20)
    if max_num_reqs * max_model_len <= 1 << 20 and memory_bytes > 1 << 20:
        assert num_tokens >= 2 * max_num_reqs * max_model_len, "all of it"


def test_a_request_drafts_from_the_table_while_others_fill_it():
    """300 answers, each in its own page, pass through a table of at most 4,096 tokens. Each ends with a repetition."""
    steps = Steps(memory_bytes=1 << 20, switch="batch", threshold=8)
    assert steps.speculator.table.num_pages * PAGE <= 4096
    found = 0
    for number in range(300):
        name, first = f"r{number}", 10 + number % 40
        steps.begin({name: [first, 1, 2, 3, 4, first, 1, 2, 3]}, finished=[f"r{number - 1}"])
        steps.end({name: 4})
        found += steps.speculator.drafts[0].tolist() == [first, 1, 2]
    assert found > 270


LIVES = {
    "history": (["request", "group", "history"], True),
    "no history": (["request", "group"], False),
    "common": (["request", "group", "common"], True),
    "request": (["request"], False),
}


@pytest.mark.parametrize(("sources", "found"), LIVES.values(), ids=LIVES)
def test_the_table_honours_sources(sources, found):
    """After all requests of a group have ended, a new request drafts from them only if `sources` allow it."""
    steps = Steps(sources=sources, rule="newest", memory_bytes=1 << 24)
    steps.begin({"a": [1, 2, 50, 51, 52, 53]})
    steps.end({"a": 54})
    steps.begin(finished=["a"])
    steps.begin({"b": [1, 2]})
    steps.end({"b": 50})
    assert (steps.speculator.drafts[0].tolist() == [51, 52, 53]) is found


@pytest.mark.parametrize(("sources", "found"), [(["request", "group"], True), (["request"], False)])
def test_running_siblings_share_what_the_table_has_if_group_is_a_source(sources, found):
    steps = Steps(sources=sources, rule="newest")
    steps.begin({"a": [1, 2, 50, 51, 52, 53], "b": [1, 2, 60]})
    steps.end({"a": 54, "b": 50})
    assert (steps.speculator.drafts[1].tolist() == [51, 52, 53]) is found
    steps.begin({"c": [1, 2]}, finished=["a"])
    groups = steps.speculator._table_groups
    assert bool(groups[0] == groups[1]) is found


def test_a_step_without_chains_leaves_tokens_that_can_be_read():
    """If no drafts are planned, vLLM overwrites them with -1 (gpu/model_runner.py). The next step may be planned with
    drafts although drafting pauses, and would verify these values."""
    steps = Steps(adaptive=True)
    steps.begin({"a": [1, 2]})
    steps.end({"a": 3})
    steps.speculator.drafts.fill_(-1)
    steps.speculator.draft_token_confidence_probs.fill_(1)
    steps.begin(drafts=False)
    steps.end({"a": 7})
    assert steps.speculator.drafts[0].tolist() == [0] * K
    assert steps.speculator.draft_token_confidence_probs[0].tolist() == [0] * K
