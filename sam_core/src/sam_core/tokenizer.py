# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of tokenizers: whether saved token ids are those of the model at hand."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "tiktoken.model")
"""Where a model's folder has its tokens; the first of these that it has."""


def fingerprint(path: str | os.PathLike[str]) -> str | None:
    """16 hexadecimal digits for the tokenizer of a model's folder, or for one of FILES; None where there is none.

    Of tokenizer.json only the ids of the tokens count: it may have been written again by another version of its library.
    A model's name that is no folder, as of one in a hub, has none. Raises ValueError, in one sentence, for a
    tokenizer.json that is none, and OSError.
    """
    path = Path(path)
    if path.is_dir():
        path = next((file for name in FILES if (file := path / name).is_file()), path)
    if not path.is_file():
        return None
    data = path.read_bytes()
    if path.name.endswith(".json"):
        try:
            data = json.dumps(_ids(json.loads(data)), sort_keys=True).encode()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path} is no tokenizer ({error}): name the file that comes with the model") from None
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _ids(content: Any) -> dict[str, int]:
    """Tokens with their ids, of tokenizer.json or of the plain mapping in vocab.json."""
    if not isinstance(content, dict):
        raise TypeError("it holds no mapping")
    if "model" not in content:
        return content
    vocabulary = content["model"]["vocab"]  # a mapping, or pieces with their scores
    ids = dict(vocabulary) if isinstance(vocabulary, dict) else {row[0]: at for at, row in enumerate(vocabulary)}
    return ids | {token["content"]: token["id"] for token in content.get("added_tokens") or []}
