# SPDX-License-Identifier: Apache-2.0
"""Every invalid argument is refused with one sentence that names it, and changes nothing."""

import numpy as np
import pytest
from steps import i32, step

import sam_core
from sam_core import _sam

MAX = 2**31 - 1


def good():
    """Valid arguments of a step over the slots 0 and 1."""
    given = {"slots": i32(0, 1), "tokens": i32(5, 6, 7), "counts": i32(1, 2), "k": 2}
    given |= {name: np.full((2, 4), -1, np.int32) for name in ("out", "sources", "match_lengths")}
    return given | {"scores": np.full((2, 4), -1, np.float32), "lengths": i32(-1, -1)}


def refuses_spoiled_arrays(call, given, outputs):
    for name, array in given.items():
        if isinstance(array, np.ndarray):
            apart = np.frombuffer(bytearray(array.nbytes + 1), array.dtype, array.size, offset=1).reshape(array.shape)
            read_only = np.broadcast_to(array, array.shape)
            shorter = array[..., :-1].copy() if name != "counts" or "slots" in given else None
            for bad, error, message in (
                (array.tolist(), TypeError, f"{name} must be an? {array.dtype} buffer, not list"),
                (array.astype("d"), TypeError, f"{name} must hold {array.dtype}, not items of format 'd' and 8 bytes"),
                (array[None], ValueError, f"{name} must have {array.ndim} dimensions?, not {array.ndim + 1}"),
                (shorter, ValueError, "has|add up|must lie"),
                (np.repeat(array, 2, axis=-1)[..., ::2], BufferError, f"{name} must be contiguous .*and aligned"),
                (apart if array.itemsize > 1 else None, BufferError, f"{name} must be contiguous .*and aligned"),
                (read_only if name in outputs else None, BufferError, f"{name} must be writable"),
            ):
                if bad is not None:
                    with pytest.raises(error, match=message):
                        call(given | {name: bad})


def table(*rows, **changed):
    """A table with the tokens of two rows: column 1 for the first, columns 0 and 1 for the second."""
    return {"tokens": np.array(rows or ((-1, 5), (6, 7)), np.int32), "starts": i32(1, 0)} | changed


WIDE = dict.fromkeys(("scores", "sources", "match_lengths")) | {"out": np.full((2, 90), -1, np.int32)}
BAD_STEP = [
    ({"slots": i32(0, 2)}, ValueError, r"slots\[1\] is 2, which is not an open slot"),
    ({"slots": i32(1, 1)}, ValueError, r"slots\[1\] is 1, which stands in an earlier row too"),
    ({"tokens": i32(5, -6, 7)}, ValueError, r"tokens\[1\] is -6: token ids go from 0 to 2147483647"),
    ({"counts": i32(1, -1)}, ValueError, r"counts\[1\] is -1: it must not be negative"),
    ({"counts": i32(MAX, MAX)}, ValueError, "counts add up to 4294967294, but there are 3 tokens"),
    ({"k": 5}, ValueError, "k is 5: it must lie between 0 and 4, the width of out"),
    ({"k": i32(0, 5)}, ValueError, "k of row 1 is 5: it must lie between 0 and 4, the width of out"),
    ({"k": i32(1)}, ValueError, "k has 1 rows, but slots has 2"),
    ({"k": 1.0}, TypeError, "k must be an integer or an int32 buffer, not float"),
    ({"out": np.zeros((3, 4), np.int32)}, ValueError, "out has 3 rows, but slots has 2"),
    ({"k": 65, **WIDE}, ValueError, "k is 65: it must lie between 0 and 64, the longest draft"),
    (table((4, 5), (6, -7)), ValueError, r"tokens\[1, 1\] is -7: token ids go from 0 to 2147483647"),
    (table(starts=i32(1, -1)), ValueError, r"starts\[1\] is -1: it must not be negative"),
    (table(starts=i32(1, 1)), ValueError, r"starts\[1\] \+ counts\[1\] is 3, but tokens has 2 columns"),
]


@pytest.mark.parametrize(("changed", "error", "message"), BAD_STEP, ids=lambda value: None)
def test_step_refuses(changed, error, message):
    pool = sam_core.Pool(rule="newest")
    for _ in range(3):
        pool.open([5, 6, 7, 5])
    pool.close(2)
    before, arguments = pool.stats(), good() | changed
    with pytest.raises(error, match=message):
        pool.step(**arguments)
    assert pool.stats() == before and pool._validate() is None
    assert all((arguments[name] == -1).all() for name in {"out", "lengths", "scores"} - changed.keys())
    pool.step(**good())
    pool.step(**good() | {"scores": None})
    pool.step(**good() | table())
    assert pool.stats()["appended"] == 9


def test_step_refuses_spoiled_arrays():
    pool = sam_core.Pool(rule="newest")
    for _ in range(2):
        pool.open([5, 6, 7, 5])
    before = pool.stats()
    for given in (good(), good() | table()):
        refuses_spoiled_arrays(lambda arguments: pool.step(**arguments), given, [*good()][4:])
    assert pool.stats() == before and pool._validate() is None


BAD_PROMPTS = [
    ([1, -1], ValueError, r"{}\[1\] is -1: token ids go from 0 to 2147483647"),
    ([2**31], ValueError, r"{}\[0\] is 2147483648: token ids go from 0 to 2147483647"),
    ([1, 1.0], TypeError, r"{}\[1\] must be an integer, not float"),
    (7, TypeError, "{} must be an int32 buffer or a sequence of integers, not int"),
    (np.zeros(1, np.int64), TypeError, "{} must hold int32, not items of format 'l' and 8 bytes"),
    (np.zeros(4, np.int32)[::2], BufferError, "{} must be contiguous in C order and aligned"),
]


@pytest.mark.parametrize(("prompt", "error", "message"), BAD_PROMPTS, ids=lambda value: None)
def test_open_and_drop_refuse_tokens(prompt, error, message):
    pool = sam_core.Pool()
    with pytest.raises(error, match=message.format("prompt_ids")):
        pool.open(prompt)
    with pytest.raises(error, match=message.format("group")):
        pool.drop(prompt)
    assert pool.stats()["slots_open"] == 0
    slot = pool.open([1])
    with pytest.raises(error, match=message.format("tokens")):
        pool.append(slot, prompt)
    for group in ("name", 3, bytearray(b"name")):
        with pytest.raises(TypeError, match="it must be BY_PROMPT, bytes or None"):
            pool.open([1], group)
    assert pool.stats()["appended"] == 0 and pool._validate() is None


def test_append_and_close_refuse():
    pool = sam_core.Pool()
    slot = pool.open([1])
    pool.open([1], b"name")
    for group in (b"name", [1]):
        with pytest.raises(ValueError, match="group has . open slots?: close them before dropping it"):
            pool.drop(group)
    with pytest.raises(TypeError, match="append takes 2 arguments, slot and tokens, not 3"):
        pool.append(slot, 1, 2)
    assert pool.stats()["appended"] == 0
    pool.close(slot)
    for call in (pool.close, pool.prompt_size, lambda bad: pool.append(bad, [1])):
        for bad in (slot, -1, 2**80):
            with pytest.raises(ValueError, match=f"slot is {bad}, which is not an open slot"):
                call(bad)
        with pytest.raises(TypeError, match="slot must be an integer, not"):
            call("0")


RULES = "it must be 'oldest', 'newest', 'suffix' or 'blend'"
SOURCES = "it must be a sequence of 'request', 'group', 'history' and 'common'; the corpus is given as corpus=path"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory_bytes": 0}, r"memory_bytes is 0: a pool needs at least \d+"),
        ({"memory_bytes": 1 << 70}, r"memory_bytes is 1180591620717411303424: no machine has as much"),
        ({"vocab_size": 0}, r"vocab_size is 0: it must lie between 1 and 2\*\*31"),
        ({"tokenizer": "qwen"}, r"tokenizer is 'qwen': it must be 16 hexadecimal digits, as sam_core.tokenizer.fing"),
        ({"rule": "best"}, f"rule is 'best': {RULES}"),
        ({"sources": ("request", "other")}, f"sources has 'other': {SOURCES}"),
        ({"sources": "request"}, f"sources has 'request': {SOURCES}"),
        ({"sources": ()}, "sources is empty: name at least one, for instance 'request'"),
        ({"sources": ("history", "request")}, "sources has 'history' without 'group', of which it is a part"),
        ({"min_prob": float("nan")}, "min_prob is nan: it must lie between 0 and 1"),
        ({"corpus": "a\0b"}, "embedded null"),
        ({"corpus": __file__}, r"test_bad_input.py' is no corpus: name a file that build_corpus wrote"),
    ],
)
def test_pool_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        sam_core.Pool(**arguments)


def test_pool_refuses_types():
    wrong = {"memory_bytes": 1.5}, {"rule": 3}, {"sources": (3,)}, {"x": 1}, {"corpus": 3}, {"min_prob": "0.5"}
    for arguments in wrong:
        with pytest.raises(TypeError):
            sam_core.Pool(**arguments)
    pool = sam_core.Pool(min_prob=0.25)
    with pytest.raises(TypeError):
        pool.min_prob = "0.5"
    with pytest.raises(AttributeError, match="min_prob cannot be deleted"):
        del pool.min_prob
    assert pool.min_prob == 0.25


def test_integers_that_change_the_list_do_no_harm():
    class Sly:
        def __index__(self):
            prompt.clear()
            return 7

    pool = sam_core.Pool(rule="newest")
    prompt = [Sly(), 1, 2, 7]
    assert step(pool, [(pool.open(prompt), [])]) == [[1, 2, 7]]


def test_scores_that_are_no_probabilities_do_no_harm():
    odd = np.array([[-1.0, np.nan, np.inf], [2.0, -1e30, 1e30]], np.float32)
    corrected = np.zeros((2, 3))
    _sam.correct_scores(odd, np.ones(24), corrected)
    _sam.observe_drafts(i32(0, 1), i32(1, 4), i32(0, 1), i32(3, 3), np.zeros(2), np.zeros((2, 24)), odd)
    for scores in (corrected, odd.astype(float)):
        chosen = i32(-1, -1)
        _sam.choose_drafts(scores, i32(3, 3), np.zeros(2), np.ones(7), chosen, 0.0, 0.0, False, 0)
        assert (chosen >= 0).all() and (chosen <= 3).all()
    assert _sam.choose_drafts(np.zeros((0, 3)), i32(), np.zeros(0), np.ones(1), i32(), 0.0, 0.0, False, 3)[1:] == (0, 0)


def ngram_table(**changed):
    """An NgramTable of one page and 4 slots."""
    given = {"num_pages": 1, "num_slots": 4, "vocab_size": 10, "factors": np.zeros((9, 10), np.int64)}
    return _sam.NgramTable(**given | {"of_groups": True, "of_all": True} | changed)


def ngrams():
    """Valid arguments of NgramTable.append: 3 tokens of 2 texts."""
    given = {"pages": np.zeros(2, np.int64), "groups": i32(2, 3), "token_rows": np.ones((3, 4), np.int32)}
    return given | {"starts": i32(0, 3), "ends": i32(2, 4)}


BAD_TABLES = [
    ({"num_slots": 3}, "num_slots is 3: it must be a power of two"),
    (
        {"num_pages": 0},
        r"a table has 1 page or more and at most 2\^29 tokens and 2\^29 slots, not 0 pages of 256 tokens and 4 slots",
    ),
    ({"num_slots": 1 << 30}, "not 1 pages of 256 tokens and 1073741824 slots"),
    ({"vocab_size": 0}, "vocab_size is 0: it must lie between 1 and 2147483647"),
    ({"factors": np.zeros((8, 10), np.int64)}, "factors has 8 rows, not 9"),
]
BAD_NGRAMS = [
    ({"groups": i32(2)}, "groups has 1 rows, not 2"),
    ({"starts": i32(0, -1)}, r"starts\[1\] is -1: it must lie between 0 and ends\[1\], 4"),
    ({"starts": i32(0, 5)}, r"starts\[1\] is 5: it must lie between 0 and ends\[1\], 4"),
    ({"ends": i32(2, 5)}, r"ends\[1\] is 5: it must lie between 0 and 4"),
    ({"token_rows": np.ones((1, 4), np.int32)}, "token_rows has 1 rows, fewer than 2"),
]


@pytest.mark.parametrize(("changed", "sentence"), BAD_TABLES)
def test_bad_tables_are_refused(changed, sentence):
    with pytest.raises(ValueError, match=sentence):
        ngram_table(**changed)


def test_bad_ngrams_are_refused():
    table = ngram_table()
    memory = np.frombuffer(table, np.int32)
    for changed, sentence in BAD_NGRAMS:
        given = ngrams() | changed
        before = [np.copy(each) for each in (memory, *given.values())]
        with pytest.raises(ValueError, match=sentence):
            table.append(*given.values())
        assert all(np.array_equal(*pair) for pair in zip((memory, *given.values()), before, strict=True))
    given = ngrams() | {"starts": i32(0, 0)}
    refuses_spoiled_arrays(lambda changed: table.append(*changed.values()), given, ("pages",))
    assert table.append(*given.values()) is None and table.num_changed > 0


@pytest.mark.parametrize("seed", range(40))
def test_each_change_is_taken_once(seed):
    """The memory may hold anything. test_c.py checks reads and writes outside it."""
    rng, garbage, slots = np.random.default_rng(seed), seed % 2, 1 << seed % 9
    factors = np.zeros((9, 10), np.int64) if garbage else rng.integers(0, 1 << 38, (9, 10))
    sizes = {"num_pages": seed % 4 + 1, "num_slots": slots, "vocab_size": 50, "factors": factors}
    table = ngram_table(**sizes, of_groups=bool(rng.integers(2)), of_all=bool(rng.integers(2)))
    memory, tokens = np.frombuffer(table, np.int32), rng.integers(0, 50, (4, 700)).astype(np.int32)
    if garbage:
        for array in (memory, tokens[:, ::9]):
            array[:] = rng.integers(-(1 << 31), 1 << 31, array.shape)
        memory[1 - 2 * slots] = 0
    copy, starts, pages, tried = memory.copy(), i32(0, 0, 0, 0), np.zeros(4, np.int64), False
    while starts.min() < 700:
        ends = np.minimum(starts + rng.integers(0, rng.choice([4, 300]), 4), 700).astype(np.int32)
        pages = rng.integers(-4, 4, 4) if garbage else pages
        table.append(pages, i32(2, 2, 3, 3), tokens, starts, ends)
        taken = {"indices": np.zeros(table.num_changed, np.int64), "values": np.zeros(table.num_changed, np.int32)}
        if table.num_changed and not tried:
            tried = True
            refuses_spoiled_arrays(lambda new, take=table.take_changes: take(*new.values()), taken, tuple(taken))
        table.take_changes(*taken.values())
        copy[taken["indices"]] = taken["values"]
        assert table.num_changed == 0 and (copy == memory).all()
        assert len(set(taken["indices"].tolist())) == len(taken["indices"])
        starts = ends
    assert tried
    changed = memory[0]
    del table
    assert memory[0] == changed  # its buffer keeps a table alive
