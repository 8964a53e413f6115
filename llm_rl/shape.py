# SPDX-License-Identifier: Apache-2.0
"""The sizes of a Qwen3-like model, and what follows from them: its parameters and the bytes of its KV cache."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_rl.errors import UserError


@dataclass(frozen=True)
class DeltaNets:
    """Layers with a gated delta net instead of attention: their number, and the sizes of one.

    width: tokens that its convolution sees.
    """

    layers: int
    key_heads: int
    value_heads: int
    key_dim: int = 128
    value_dim: int = 128
    width: int = 4

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def parameters(self, hidden: int) -> int:
        """Parameters of one layer without its MLP and norms."""
        values = self.value_heads * self.value_dim
        projections = hidden * (self.channels + 2 * values + 2 * self.value_heads)
        return projections + self.channels * self.width + 2 * self.value_heads + self.value_dim


@dataclass(frozen=True)
class Shape:
    """A model's sizes; experts is 0 for a dense model.

    nets: its layers with a gated delta net. The others then have attention with an output gate, as in Qwen3.5.
    """

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
    nets: DeltaNets | None = None

    @property
    def attention_layers(self) -> int:
        return self.layers - (self.nets.layers if self.nets else 0)

    @property
    def expert_parameters(self) -> int:
        return self.layers * self.experts * 3 * self.hidden * self.mlp

    @property
    def parameters(self) -> int:
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads) + 2 * self.head_dim
        mixers = self.layers * attention
        if self.nets:
            gate = self.hidden * self.heads * self.head_dim
            mixers = self.attention_layers * (attention + gate) + self.nets.layers * self.nets.parameters(self.hidden)
        mlp = self.hidden * self.experts if self.experts else 3 * self.hidden * self.mlp  # router, or the MLP
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return mixers + self.layers * (mlp + 2 * self.hidden) + self.expert_parameters + embeddings + self.hidden

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses."""
        experts = self.expert_parameters * self.experts_per_token // self.experts if self.experts else 0
        return self.parameters - self.expert_parameters + experts

    def kv_bytes(self, tensor_parallel: int) -> int:
        """Bytes of keys and values per token and device, in bfloat16; a device has at least one head of each layer."""
        return 2 * self.attention_layers * max(1, self.kv_heads // tensor_parallel) * self.head_dim * 2

    def state_bytes(self, tensor_parallel: int, k: int = 0) -> float:
        """Bytes of a request's states on a device for drafts of k tokens: k + 1 per delta net in float32, each with the
        last inputs of its convolution in bfloat16."""
        if self.nets is None:
            return 0.0
        nets = self.nets
        state = 4 * nets.value_heads * nets.key_dim * nets.value_dim + 2 * nets.channels * (nets.width - 1 + k)
        return (k + 1) * nets.layers * state / tensor_parallel


SHAPES = {
    "Qwen3-0.6B": Shape(28, 1024, 16, 8, 128, 3072, tied=True),
    "Qwen3-8B": Shape(36, 4096, 32, 8, 128, 12288),
    "Qwen3-32B": Shape(64, 5120, 64, 8, 128, 25600),
    "Qwen3-235B-A22B": Shape(94, 4096, 64, 4, 128, 1536, experts=128, experts_per_token=8),
    "Qwen3.5-9B": Shape(32, 4096, 16, 4, 256, 12288, 248320, nets=DeltaNets(24, 16, 32)),
    "Qwen3.5-27B": Shape(64, 5120, 24, 4, 256, 17408, 248320, nets=DeltaNets(48, 16, 48)),
}
"""Sizes from the public config.json files, by name of the model's folder; used if the model is not on this host. Those
of Qwen3.5 lack its image encoder, which has 0.5 billion parameters."""


DENSE = ("llama", "mistral", "qwen2", "qwen3", "qwen3_5_text")
EXPERTS = {"mixtral": ("num_local_experts", "intermediate_size"), "qwen3_moe": ("num_experts", "moe_intermediate_size")}
"""Supported values of model_type (Shape omits biases); for models with experts, the keys of their number and size."""


def read_config(model: Path) -> dict[str, Any] | None:
    """config.json of the folder `model`, or None if it is not there. Raises UserError if it cannot be used."""
    file = model / "config.json"
    if not file.is_file():
        return None
    try:
        read = json.loads(file.read_text())
    except (OSError, ValueError) as e:
        raise _unusable(file, e) from None
    if not isinstance(read, dict):
        raise _unusable(file, TypeError("it is not a mapping"))
    return read


def read_shape(model: Path) -> Shape | None:
    """The sizes in the config.json of folder `model`, else those in SHAPES, else None (see why_unknown).

    Raises UserError if the file cannot be used.
    """
    read = read_config(model)
    if read is None:
        return SHAPES.get(model.name)
    if read.get("model_type") == "qwen3_5":
        read = read.get("text_config", {})  # without the image encoder
    kind = read.get("model_type")
    if kind not in (*DENSE, *EXPERTS) or _mixed(read):
        return None
    experts, mlp = EXPERTS.get(kind, (None, "intermediate_size"))
    try:
        return Shape(
            read["num_hidden_layers"],
            read["hidden_size"],
            read["num_attention_heads"],
            read.get("num_key_value_heads") or read["num_attention_heads"],
            read.get("head_dim") or read["hidden_size"] // read["num_attention_heads"],
            read[mlp],
            read["vocab_size"],
            read.get("tie_word_embeddings", False),
            read[experts] if experts else 0,
            read["num_experts_per_tok"] if experts else 0,
            _nets(read) if kind == "qwen3_5_text" else None,
        )
    except (KeyError, TypeError) as e:
        raise _unusable(model / "config.json", e) from None


def _nets(read: dict[str, Any]) -> DeltaNets:
    names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
    return DeltaNets(read["layer_types"].count("linear_attention"), *(read[f"linear_{name}"] for name in names))


def why_unknown(model: Path) -> str:
    """Why `read_shape` has no shape of a model."""
    read = read_config(model)
    if read is None:
        return f"there is no {model / 'config.json'}"
    return f"unknown architecture {read.get('model_type')}" + " (some of its layers are dense)" * _mixed(read)


def embedding(model: Path) -> int:
    """Number of values of the embedding, for any architecture; 0 if its sizes are unknown."""
    read = read_config(model)
    if read is None:
        shape = SHAPES.get(model.name)
        return shape.vocabulary * shape.hidden if shape else 0
    text = read.get("text_config") or read  # of a multi-modal model
    return (text.get("vocab_size") or 0) * (text.get("hidden_size") or 0)


def _mixed(read: dict[str, Any]) -> bool:
    """Whether some layers of a model with experts are dense."""
    return read.get("decoder_sparse_step", 1) != 1 or bool(read.get("mlp_only_layers"))


def _unusable(file: Path, error: Exception) -> UserError:
    return UserError(f"{file} cannot be read as a model's configuration: {error!r}")
