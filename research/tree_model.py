# SPDX-License-Identifier: Apache-2.0
"""A transformers causal LM that is fed trees of tokens, with a key-value cache of rows of different lengths.

Each row of a batch has a text, whose keys and values are kept, and pending nodes behind it: a tree, flattened, parents
first. A node attends to the text, to its ancestors and to itself (the ancestor mask, SDPA's 4-D mask), and its position
is that of the text's end plus its depth. `commit` turns one path of pending nodes into text and forgets the others. A
chain is a tree of width one; feeding a prompt and decoding without speculation are chains too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from sam_lab.replay import Tree


class _Plan:
    """Where the next pass writes: rows [B, 1] and columns [B, T] of its nodes, and `end`, the columns in use then."""

    rows: torch.Tensor
    columns: torch.Tensor
    end: int


class _Layer(CacheLayerMixin):
    """Keys and values of one layer, [B, capacity, heads, head_dim]: the text of row b in columns 0 .. lengths[b] - 1,
    its pending nodes in the columns behind."""

    def __init__(self, plan: _Plan) -> None:
        super().__init__()
        self.plan = plan

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys, self.values = (s.new_zeros(0, 0, s.shape[1], s.shape[3]) for s in (key_states, value_states))
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        """Write [B, heads, T, head_dim] to the plan's columns; return all columns in use, [B, heads, end, head_dim]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.keys.shape[0] < key_states.shape[0] or self.keys.shape[1] < self.plan.end:
            self._grow(key_states.shape[0], self.plan.end)
        in_use = []
        for kept, new in ((self.keys, key_states), (self.values, value_states)):
            kept[self.plan.rows, self.plan.columns] = new.transpose(1, 2)
            in_use.append(kept[:, : self.plan.end].transpose(1, 2))
        return tuple(in_use)

    def _grow(self, rows: int, columns: int) -> None:
        """More rows or columns, zeros: what no node may see must still be finite."""
        columns = max(self.keys.shape[1], columns + columns // 2 + 32 if columns > self.keys.shape[1] else 0)
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros(rows, columns, *old.shape[2:])
            new[: old.shape[0], : old.shape[1]] = old
            setattr(self, name, new)

    def move(self, rows: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy columns `source` of `rows` to columns `target`, int64 [N] each; all are read before any is written."""
        for kept in (self.keys, self.values):
            kept[rows, target] = kept[rows, source]

    def select(self, rows: torch.Tensor) -> None:
        self.keys, self.values = self.keys[rows], self.values[rows]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.plan.end, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_cache_shape(self) -> int:
        return -1


class TreeModel:
    """A causal LM with the state of a batch.

    Attributes:
        model: the transformers model, in eval mode.
        lengths: tokens of each row's text that are in the cache.
        passes, fed: forward passes so far and nodes that went through them, padding left out.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        if any(kind != "full_attention" for kind in getattr(model.config, "layer_types", None) or ()):
            raise ValueError(
                f"{type(model).__name__} has layers without full attention, which cannot keep one path of a tree: "
                "name a model whose layers all attend to the whole text"
            )
        self.model = model.eval()
        self.lengths: list[int] = []
        self.passes = self.fed = 0
        self._paths: list[list[list[int]]] = []  # of each row's pending nodes: ancestors and itself
        self._plan = _Plan()
        self._cache = Cache(layers=[_Layer(self._plan) for _ in range(model.config.num_hidden_layers)])

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def pending(self, row: int) -> int:
        """How many pending nodes a row has."""
        return len(self._paths[row])

    def add(self, texts: Sequence[Sequence[int]]) -> None:
        """Add a row for each text and put the text into the cache."""
        old = len(self.lengths)
        self.lengths += [0] * len(texts)
        self._paths += [[] for _ in texts]
        chains = [(list(text), list(range(-1, len(text) - 1))) for text in texts]
        if any(map(len, texts)):
            self.forward([([], [])] * old + chains, last_only=True)
        self.commit([range(len(paths)) if row >= old else () for row, paths in enumerate(self._paths)])

    @torch.inference_mode()
    def forward(self, trees: Sequence[Tree], last_only: bool = False) -> torch.Tensor:
        """Feed new pending nodes to every row, [] to some perhaps.

        A parent is the number of a pending node of the row, counted from the first since the last `commit`, or -1.
        Returns logits [B, T, V], T the most nodes of a row; [b, j] follows the j-th new node of row b, and is
        meaningless behind the row's last. With `last_only` just the last column, [B, 1, V].
        """
        rows, width = len(trees), max(len(tokens) for tokens, _ in trees)
        starts = [length + len(paths) for length, paths in zip(self.lengths, self._paths, strict=True)]
        end = max(starts) + width
        ids = torch.zeros(rows, width, dtype=torch.int64)
        positions = torch.zeros(rows, width, dtype=torch.int64)
        visible = torch.zeros(rows, 1, width, end, dtype=torch.bool)
        places = torch.arange(width)
        for row, (tokens, parents) in enumerate(trees):
            length, paths, mask = self.lengths[row], self._paths[row], visible[row, 0]
            mask[:, :length] = True
            mask[places, starts[row] + places] = True  # padding too: a query that sees nothing is not a number
            ids[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
            queries, columns = [], []
            for j, parent in enumerate(parents):
                above = paths[parent] if parent >= 0 else []
                paths.append([*above, len(paths)])
                positions[row, j] = length + len(above)
                queries += [j] * len(above)
                columns += above
            if queries:
                mask[torch.tensor(queries), torch.tensor(columns) + length] = True
        device = self.device
        plan = self._plan
        plan.rows = torch.arange(rows, device=device).unsqueeze(1)
        plan.columns = (torch.tensor(starts).unsqueeze(1) + places).to(device)
        plan.end = end
        self.passes += 1
        self.fed += sum(len(tokens) for tokens, _ in trees)
        return self.model(
            input_ids=ids.to(device),
            attention_mask=visible.to(device),
            position_ids=positions.to(device),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1 if last_only else 0,
        ).logits

    @torch.inference_mode()
    def commit(self, kept: Sequence[Sequence[int]]) -> None:
        """Append a path of pending nodes, by their numbers from the top, to each row's text; forget the others."""
        rows, source, target = [], [], []
        for row, nodes in enumerate(kept):
            length = self.lengths[row]
            for place, node in enumerate(nodes):
                if place != node:
                    rows.append(row)
                    source.append(length + node)
                    target.append(length + place)
            self.lengths[row] += len(nodes)
            self._paths[row] = []
        if rows:
            moves = [torch.tensor(values, device=self.device) for values in (rows, source, target)]
            for layer in self._cache.layers:
                layer.move(*moves)

    @torch.inference_mode()
    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order."""
        self.lengths = [self.lengths[row] for row in rows]
        self._paths = [self._paths[row] for row in rows]
        index = torch.tensor(rows, dtype=torch.int64, device=self.device)
        for layer in self._cache.layers:
            if layer.is_initialized:
                layer.select(index)
