# SPDX-License-Identifier: Apache-2.0
"""Trees in one pass against each of their paths fed alone to the model."""

import random

import pytest
import torch

from sam_lab.methods.tree_model import TreeModel


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


def test_levels_fed_one_after_another_are_one_tree(target, prompts):
    text = prompts[4]
    model = TreeModel(target)
    model.add([text])
    model.forward([([1, 2], [-1, -1])])
    logits = model.forward([([3, 4, 5], [0, 1, 1])])
    assert model.pending(0) == 5
    for place, tokens in enumerate(([1, 3], [2, 4], [2, 5])):
        torch.testing.assert_close(logits[0, place], alone(target, text + tokens), rtol=1e-4, atol=1e-4)


def test_rows_come_and_go(target, prompts):
    model = TreeModel(target)
    model.add(prompts[:2])
    model.forward([([7, 8], [-1, 0]), ([], [])])
    model.commit([[0, 1], []])
    model.add([prompts[4]])
    model.select([2, 0])
    logits = model.forward([([9], [-1]), ([9], [-1])])
    for row, text in enumerate((prompts[4], prompts[0] + [7, 8])):
        torch.testing.assert_close(logits[row, 0], alone(target, text + [9]), rtol=1e-4, atol=1e-4)


def test_a_model_with_windows_is_refused(target):
    import copy

    model = copy.deepcopy(target)
    model.config.layer_types = ["sliding_attention", "full_attention"]
    with pytest.raises(ValueError, match="without full attention"):
        TreeModel(model)
