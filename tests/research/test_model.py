# SPDX-License-Identifier: Apache-2.0
"""Trees in one pass against each of their paths fed alone to the model."""

import random

import torch

from research.tree_model import TreeModel


def alone(model, tokens):
    """Logits behind the last of these tokens, by the model's own causal pass."""
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0, -1]


def random_tree(rng, size, vocabulary=63):
    return [rng.randrange(vocabulary) for _ in range(size)], [rng.randrange(-1, node) for node in range(size)]


def path(parents, node):
    """The nodes from the top to this one."""
    return [*path(parents, parents[node]), node] if node >= 0 else []


def test_every_node_sees_its_own_path_alone(target, prompts):
    rng = random.Random(1)
    model = TreeModel(target)
    texts = [list(prompt) for prompt in prompts[:4]]
    model.add(texts)
    for size in (6, 1, 9):
        trees = [random_tree(rng, rng.randint(1, size)) for _ in texts]
        logits = model.forward(trees)
        kept = []
        for row, (tokens, parents) in enumerate(trees):
            for node in range(len(tokens)):
                wanted = alone(target, texts[row] + [tokens[above] for above in path(parents, node)])
                torch.testing.assert_close(logits[row, node], wanted, rtol=1e-4, atol=1e-4)
            kept.append(path(parents, len(tokens) - 1))  # the path to the last node becomes text
            texts[row] += [tokens[node] for node in kept[-1]]
        model.commit(kept)
        assert model.lengths == [len(text) for text in texts]
