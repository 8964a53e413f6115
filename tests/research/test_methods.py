# SPDX-License-Identifier: Apache-2.0
"""Every method decodes the target's own text, greedy and sampled, in a batch, and its drafts are accepted."""

import pytest
import tiny_qwen3
import torch
from sam_core.corpus import build_corpus
from suffix_paper import paths

from research import methods
from research.decoder import Decoder
from research.draft_model import DraftModel, Node, unfold
from research.settings import Settings
from research.verify import Greedy, Sampled

END = tiny_qwen3.VOCAB - 1
LIMIT = 48
SAMPLERS = {"greedy": Greedy(), "sampled": Sampled(0.5, 0.95, seed=7)}


@pytest.fixture(scope="module", params=SAMPLERS)
def plain(request, target, prompts, tmp_path_factory):
    """A decoder, earlier texts with a corpus of them, and what plain decoding makes of the prompts."""
    decoder = Decoder(target, SAMPLERS[request.param], [END], LIMIT)
    earlier, _ = decoder.run(prompts)
    first = 0 if request.param == "greedy" else 100
    texts, figures = decoder.run(prompts, first=first)
    assert figures.tokens == figures.steps == sum(map(len, texts)) and figures.drafted == 0
    corpus = tmp_path_factory.mktemp("corpus") / "corpus"
    build_corpus(earlier, corpus)
    return decoder, earlier, corpus, texts, first


@pytest.mark.parametrize("method", methods.METHODS)
def test_every_method_decodes_the_target_s_text(method, plain, prompts, draft_model):
    decoder, earlier, corpus, texts, first = plain
    drafter = methods.make(method, Settings(), earlier, corpus, draft_model)
    found, figures = decoder.run(prompts, drafter, first)
    assert found == texts
    assert figures.tokens == sum(map(len, texts)) and figures.steps < figures.tokens
    assert 0 < figures.accepted <= figures.drafted


def test_plain_decoding_is_the_model_s_own(target, prompts):
    """transformers' generate, one prompt at a time."""
    texts, _ = Decoder(target, Greedy(), [END], LIMIT).run(prompts)
    for prompt, text in zip(prompts, texts, strict=True):
        options = {"max_new_tokens": LIMIT, "do_sample": False, "eos_token_id": END, "pad_token_id": END}
        assert text == target.generate(torch.tensor([prompt]), **options)[0, len(prompt) :].tolist()


def test_trees_of_the_target_itself_are_accepted_to_the_end(target, prompts):
    """So the draft model's keys and values are those of the text after every kind of outcome."""
    drafter = DraftModel(target, width=3, depth=4, theta_prob=0, theta_sib=0.5)
    _, figures = Decoder(target, Greedy(), [], 45, nodes=1024).run(prompts[:3], drafter)
    assert figures.steps == 3 * 9 and figures.accepted == 3 * 36
    assert drafter.counts["expanded"] > 1.2 * 3 * 9 * 3, "nothing branched: the test shows nothing"


def test_a_graph_expands_fewer_nodes_than_its_tree(target, draft_model, prompts):
    made = {}
    for tau in (0, 1):
        drafter = DraftModel(draft_model, theta_prob=0.05, theta_sib=0.1, tau=tau)
        made[tau], figures = Decoder(target, Greedy(), [END], 32, nodes=256).run(prompts, drafter)
        made[tau, "expanded"] = drafter.counts["expanded"] / drafter.counts["drafts"]
    assert made[0] == made[1]
    assert made[1, "expanded"] < 0.9 * made[0, "expanded"]


def test_unfolding_repeats_what_follows_the_first_occurrence():
    """a b c and d b, where b is redundant by its last token: d b c is drafted too, each path with its own nodes."""
    root = Node(9, None, 1.0, 1.0, 0)
    a = Node(0, root, 0.6, 0.6, 1)
    d = Node(3, root, 0.4, 0.4, 1)
    root.children = [a, d]
    b = Node(1, a, 0.9, 0.54, 2)
    again = Node(1, d, 0.8, 0.32, 2, same=b)
    a.children, d.children = [b], [again]
    b.children = [Node(2, b, 0.5, 0.27, 3)]
    tokens, parents = unfold(root, 64, 10)
    assert sorted(paths(tokens, parents)) == [(0,), (0, 1), (0, 1, 2), (3,), (3, 1), (3, 1, 2)]
    assert unfold(root, 3, 10) == ([0, 1, 3], [-1, 0, -1])
    assert max(unfold(root, 64, 2)[0]) == 3 and len(unfold(root, 64, 2)[0]) == 4


def test_nodes_are_merged_across_branches_only_and_their_keys_stay_with_their_path(target):
    """Last tokens 1 0 stand on three paths: first behind 3; behind 4, merged; and again further down the first one."""
    drafter = DraftModel(target, tau=2)
    firsts, root = {}, Node(9, None, 1.0, 1.0, 0)

    def grow(above, token, pending):
        node = Node(token, above, 0.5, 0.5, above.depth + 1)
        above.children.append(node)
        if not drafter.merge(node, firsts):
            node.pending = pending
        return node

    first = grow(grow(grow(root, 3, 1), 1, 2), 0, 3)
    again = grow(grow(grow(root, 4, 4), 1, 5), 0, 6)
    below = grow(grow(first, 1, 7), 0, 8)
    assert first.same is None and again.same is first and below.same is None
    assert drafter._walk(root, [3, 1, 0, 1, 0, 5]) == [1, 2, 3, 7, 8]
    assert drafter.counts["grafted"] == 0
    assert drafter._walk(root, [4, 1, 0, 1, 0, 5]) == [4, 5], "keys of another path were kept"
    assert drafter.counts["grafted"] == 1
