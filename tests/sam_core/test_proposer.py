# SPDX-License-Identifier: Apache-2.0
"""The proposer under what an engine does to its requests, against a Pool that is fed directly."""

import random

import numpy as np
import pytest
from sam_core.corpus import build_corpus
from sam_core.proposer import SamProposer

MAX_LEN = 64


class Batch:
    """The parts of an engine's input batch that the proposer reads. When a request leaves, the rows after it move."""

    def __init__(self):
        self.texts, self.prompts = {}, {}

    def add(self, req_id, tokens, prompt):
        self.texts[req_id], self.prompts[req_id] = tokens, prompt

    def remove(self, req_id):
        del self.texts[req_id], self.prompts[req_id]

    def sample(self, req_id, tokens):
        self.texts[req_id] += tokens

    def propose(self, proposer, may_draft=None, num_tokens=None, index_later=False):
        names, texts, prompts = [*self.texts], [*self.texts.values()], [*self.prompts.values()]
        rows = np.full((len(names), MAX_LEN), -7, np.int32)  # the rest of a row must never be read
        for row, text in zip(rows, texts, strict=True):
            row[: len(text)] = text
        may_draft = [True] * len(names) if may_draft is None else may_draft
        num_tokens = len(names) if num_tokens is None else num_tokens
        lengths = [*map(len, texts)]
        drafts = proposer.propose(names, rows, lengths, prompts, may_draft, num_tokens, 1, index_later=index_later)
        return dict(zip(names, drafts, strict=True))


PLAIN = {"rule": "newest", "switch": "batch", "min_prob": 0}
"""Options for drafts that can be checked by eye: the whole newest occurrence."""


def make(k=3, **options):
    return SamProposer(k, PLAIN | options, max_model_len=MAX_LEN)


def test_excluded_requests_are_fed_counted_by_reason_and_never_drafted():
    reasons = {"a": "penalties", "b": None, "c": "min_p", "d": "min_p"}
    proposer, batch = SamProposer(3, PLAIN, max_model_len=MAX_LEN, exclusion_reason=reasons.get), Batch()
    for req_id in reasons:
        batch.add(req_id, [1, 2, 3, 4, 1, 2], 2)
    assert batch.propose(proposer) == {"a": [], "b": [3, 4, 1], "c": [], "d": []}
    stats = proposer.stats()
    assert (stats["excluded_penalties"], stats["excluded_min_p"], stats["excluded_min_tokens"]) == (1, 2, 0)
    proposer.finish(["b"])
    batch.remove("b")
    batch.add("b", [1, 2], 2)
    assert batch.propose(proposer)["b"] == [3, 4, 1]  # from the text of an excluded sibling


def test_gains_after_a_draft_are_counted_by_position_in_the_answer(monkeypatch):
    """A request's step counts only after a call that gave a draft, with its tokens and the position in the answer."""
    monkeypatch.setattr("sam_core.counters.POSITIONS", (0, 16))
    proposer, batch = make(sources=["request"], rule="newest", threshold=2), Batch()
    batch.add("a", [1, 2, 3, 1, 2], 3)
    batch.add("b", [4, 5], 2)
    assert batch.propose(proposer) == {"a": [3, 1, 2], "b": []}
    batch.sample("a", [3, 1, 9])  # after 2 tokens of its answer
    batch.sample("b", [6])
    assert batch.propose(proposer)["a"] == []
    batch.sample("a", [*range(100, 130), 1, 2])  # without a draft
    assert batch.propose(proposer)["a"] == [3, 1, 9]
    batch.sample("a", [3])
    batch.propose(proposer, index_later=True)
    monkeypatch.setattr(proposer._positions, "MAX_PENDING", 0)
    proposer.catch_up()
    assert not proposer._positions._pending, "they are counted while nobody waits"
    for _ in range(2):
        counts = {name: n for name, n in proposer.stats().items() if "_from_" in name and n}
        assert counts == {"steps_from_0": 1, "tokens_from_0": 3, "steps_from_16": 1, "tokens_from_16": 1}


@pytest.mark.parametrize("index_later", [False, True])
def test_every_token_enters_exactly_once_whatever_the_engine_does(index_later):
    """Requests arrive, sample, are preempted and end at random, also with reused ids. Drafts occur in their texts."""
    rng = random.Random(5)
    proposer, batch = make(threshold=3, sources=["request"]), Batch()
    texts, prompts, waiting, expected, drafted, latest, longest = {}, {}, [], 0, 0, 0, 0
    for step in range(600):
        name = f"r{step % 20}"
        if len(batch.texts) < 6 and name not in texts and rng.random() < 0.3:
            texts[name] = [rng.randrange(3) for _ in range(rng.randrange(1, 9))]
            prompts[name] = len(texts[name])
            batch.add(name, texts[name], prompts[name])
        if waiting and len(batch.texts) < 8 and rng.random() < 0.5:
            name = waiting.pop()
            batch.add(name, texts[name], prompts[name])
        sampled = [[rng.randrange(3) for _ in range(rng.randrange(4))] for _ in batch.texts]
        for name, new in zip(batch.texts, sampled, strict=True):
            batch.sample(name, new)
            expected += len(new)
        drafts = batch.propose(proposer, sampled, index_later=index_later)
        if rng.random() < 0.5:
            proposer.catch_up()
        for (name, draft), new in zip(drafts.items(), sampled, strict=True):
            text, size = texts[name], 1 + len(draft)
            assert not draft or any(text[i : i + size] == [text[-1], *draft] for i in range(len(text) - 1))
            assert new or not draft
            drafted += len(draft)
            longest = max(longest, len(text) + len(draft)) if draft else longest
        if any(drafts.values()):
            assert fed(proposer, batch.texts) == sum(len(texts[name]) for name in batch.texts)
        ending = [name for name in batch.texts if len(texts[name]) > MAX_LEN - 4 or rng.random() < 0.03]
        for name in [name for name in batch.texts if name not in ending]:
            if rng.random() < 0.1:
                batch.remove(name)
                waiting.append(name)
        proposer.finish([*ending, "never seen"])
        for name in ending:
            batch.remove(name)
            del texts[name]
        late = sum(map(len, texts.values())) - fed(proposer, texts)
        latest = max(latest, late)
        assert proposer.texts.pool.stats()["appended"] == expected - late
        assert proposer.stats()["requests"] == len(texts)
    assert drafted > 100 and latest > 20 and longest == MAX_LEN - 1


def fed(proposer, names):
    """The number of tokens of these requests that the pool has."""
    texts = proposer.texts
    return sum(int(texts.records["fed"][texts._slots[name]]) for name in names)


@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("min_prob", [0, 0.3])
def test_auto_learns_from_the_drafts_that_the_engine_gets(uniform, min_prob):
    """A step's cost is learned for its rows: one for each request and one for each draft token that was handed out."""
    rng, now = random.Random(7), 0.0
    proposer, batch = make(rule="blend", switch="auto", min_prob=min_prob), Batch()
    if uniform:
        proposer.make_uniform()
    cost, learned, handed_out, known, given = proposer.switch.cost, [], [], None, {}
    for rows in range(1, 40):
        cost.learn(rows, False, False, 0.0, 0.0, 1.0)  # so that drafts are free
    proposer.switch.clock = lambda: now
    learn, cost.learn = cost.learn, lambda rows, *more: learned.append(rows) or learn(rows, *more)
    for step in range(400):
        now += 1 + 0.01 * rng.random()
        for name, text in [*batch.texts.items()]:
            if len(text) > MAX_LEN - 8:
                proposer.finish([name])
                batch.remove(name)
        for number in range(4 - len(batch.texts)):
            batch.add(f"r{step}-{number}", [1, 2] * 2, 4)
        for name in batch.texts:
            batch.sample(name, [rng.choice([1, 2, 2, 3])])
        num_tokens, before = sum(1 + given.get(name, 3) for name in batch.texts), len(learned)
        drafts = batch.propose(proposer, [True, True, True, step % 5 > 0], num_tokens)
        proposer.catch_up()
        handed_out += [(learned[-1], known)] if len(learned) > before else []
        given = {name: len(draft) for name, draft in drafts.items()}
        known = 4 + sum(given.values())
    assert all(rows == given for rows, given in handed_out)
    assert len(handed_out) > 200 and max(rows for rows, _ in handed_out) > 4


def uniform(k=3, **options):
    proposer = make(k, **options)
    proposer.make_uniform()
    return proposer


def test_uniform_drafts_are_padded_or_off_for_all():
    """Padding follows the texts or repeats the last token. If one request lacks room for k + 1 tokens, none drafts."""
    proposer, batch = uniform(), Batch()
    batch.add("a", [1, 2, 3, 1, 2], 5)
    batch.add("b", [5, 6, 7, 9, 5], 5)
    batch.add("c", [1, 2, 3, 4], 4)
    batch.add("d", [5, 4, 4, 4], 4)
    assert batch.propose(proposer) == {"a": [3, 1, 2], "b": [6, 7, 9], "c": [4, 4, 4], "d": [4, 4, 4]}
    batch.sample("c", [4, 4, 9])
    batch.sample("d", [4, 8])
    batch.propose(proposer)
    stats = proposer.stats()
    assert (stats["padding"], stats["padding_accepted"], stats["proposed"]) == (5, 2, 7 + 3 + 3)
    batch.add("e", [1, 2, 3, 4] * 15, 60)
    assert batch.propose(proposer)["e"] == [1, 2, 3]
    batch.sample("e", [1])
    assert not any(batch.propose(proposer).values())


@pytest.mark.parametrize("rule", ["oldest", "newest", "suffix", "blend"])
def test_uniform_pads_with_what_min_prob_leaves_out(rule):
    """A padded draft begins with the draft of an engine without graphs and continues with the draft for min_prob 0."""
    rng, shorter, longer = random.Random(3), 0, 0
    for _ in range(60):
        text, drafts = [rng.randrange(3) for _ in range(rng.randrange(30, 50))], []
        for proposer in (make(8, rule=rule, min_prob=0.2), make(8, rule=rule), uniform(8, rule=rule, min_prob=0.2)):
            batch = Batch()
            batch.add("a", text, 4)
            drafts += batch.propose(proposer).values()
            proposed = proposer.stats()["proposed"]
        eager, guesses, padded = drafts
        assert proposed == len(eager) and eager == guesses[: len(eager)]
        assert padded == (guesses + guesses[-1:] * (8 - len(guesses)) if eager else [])
        shorter += 0 < len(eager) < 8
        longer += 0 < len(eager) < len(guesses)
    assert shorter > 10 and (longer > 10 or rule == "suffix")


def test_no_draft_leaves_the_vocabulary():
    """Texts may hold other tokens, such as an engine's placeholders for images, but neither drafts nor padding do."""
    bound, batch = SamProposer(8, PLAIN, max_model_len=MAX_LEN, vocab_size=900), Batch()
    batch.add("a", [1, 2, 3, 900, 4, 1, 2], 7)
    assert batch.propose(bound) == {"a": [3]}
    bound.make_uniform()
    batch.sample("a", [3, 900, 4, 1, 2])
    assert batch.propose(bound) == {"a": [3] * 8}


def test_a_corpus_of_another_model_is_one_sentence(tmp_path):
    path, model = tmp_path / "corpus", tmp_path / "tokenizer.json"
    model.write_text('{"a": 5, "b": 6}')
    build_corpus([[5, 6, 200000, 200001]], path, tokenizer=model)

    def make_with(**more):
        return SamProposer(3, {"corpus": str(path)}, max_model_len=MAX_LEN, **more)

    for good in ({"drafting": False, "vocab_size": 9}, {"vocab_size": 200002}, {"tokenizer": "Qwen/Qwen3-8B"}):
        make_with(**good)
    make_with(tokenizer=str(model))
    model.write_text('{"a": 6, "b": 5}')
    for bad, sentence in (
        ({"vocab_size": 32000}, "is of another vocabulary: it has token 200001, but the model's has 32000 tokens"),
        ({"tokenizer": str(model)}, r"is of another tokenizer \(fingerprint "),
    ):
        with pytest.raises(ValueError, match=f"^[^\n]*{path}[^\n]* {sentence}[^\n]*$"):
            make_with(**bad)
