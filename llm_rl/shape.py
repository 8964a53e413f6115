# SPDX-License-Identifier: Apache-2.0
"""The sizes of a Qwen3 model, and what follows from them alone: its parameters and the bytes of its KV cache."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from llm_rl.errors import UserError


@dataclass(frozen=True)
class Shape:
    """A Qwen3's sizes, named as in its config.json; experts 0: dense."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocabulary: int = 151936
    tied: bool = False
    experts: int = 0
    experts_per_token: int = 0

    @property
    def expert_parameters(self) -> int:
        return self.layers * self.experts * 3 * self.hidden * self.mlp

    @property
    def parameters(self) -> int:
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads) + 2 * self.head_dim
        mlp = self.hidden * self.experts if self.experts else 3 * self.hidden * self.mlp  # router, or the MLP
        layer = attention + mlp + 2 * self.hidden
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * layer + self.expert_parameters + embeddings + self.hidden

    @property
    def active_parameters(self) -> int:
        """Those that a token uses."""
        experts = self.expert_parameters * self.experts_per_token // self.experts if self.experts else 0
        return self.parameters - self.expert_parameters + experts

    def kv_bytes(self, tensor_parallel: int) -> int:
        """Bytes of keys and values a token and die, in bfloat16; a die holds at least one head of each layer."""
        return 2 * self.layers * max(1, self.kv_heads // tensor_parallel) * self.head_dim * 2


SHAPES = {
    "Qwen3-0.6B": Shape(28, 1024, 16, 8, 128, 3072, tied=True),
    "Qwen3-8B": Shape(36, 4096, 32, 8, 128, 12288),
    "Qwen3-32B": Shape(64, 5120, 64, 8, 128, 25600),
    "Qwen3-235B-A22B": Shape(94, 4096, 64, 4, 128, 1536, experts=128, experts_per_token=8),
}
"""From the public config.json files, by the name of the model's folder; used if the model is not on this host."""


def read_shape(model: Path) -> Shape | None:
    """The sizes in config.json of the folder `model`, else those of SHAPES by its name, else None.

    Raises UserError if the file cannot be used.
    """
    file = model / "config.json"
    if not file.is_file():
        return SHAPES.get(model.name)
    try:
        read = json.loads(file.read_text())
        experts = read.get("num_experts", 0)
        return Shape(
            read["num_hidden_layers"],
            read["hidden_size"],
            read["num_attention_heads"],
            read["num_key_value_heads"],
            read.get("head_dim") or read["hidden_size"] // read["num_attention_heads"],
            read["moe_intermediate_size"] if experts else read["intermediate_size"],
            read["vocab_size"],
            read.get("tie_word_embeddings", False),
            experts,
            read.get("num_experts_per_tok", 0),
        )
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise UserError(f"{file} cannot be read as a model's configuration: {e!r}") from None
