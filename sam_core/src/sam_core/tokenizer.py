# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of tokenizers, which tell whether saved token ids fit a model."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "tiktoken.model")
"""Names of tokenizer files in a model's folder; the first that exists is used."""


def file_of(path: str | os.PathLike[str]) -> Path:
    """The tokenizer file in a model's folder; `path` itself if it is no folder or has none."""
    path = Path(path)
    return next((file for name in FILES if (file := path / name).is_file()), path) if path.is_dir() else path


def fingerprint(path: str | os.PathLike[str]) -> str | None:
    """16 hexadecimal digits that identify the tokenizer in a model's folder or in one of FILES; None if there is none.

    For tokenizer.json only the ids of the tokens count, since another version of its library may rewrite the file. A
    model's name on a hub has no fingerprint. Raises ValueError, one sentence, for a malformed tokenizer.json, and
    OSError.
    """
    path = file_of(path)
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
    """Tokens and their ids, from tokenizer.json or from the plain mapping of vocab.json."""
    if not isinstance(content, dict):
        raise TypeError("it holds no mapping")
    if "model" not in content:
        return content
    vocabulary = content["model"]["vocab"]  # a mapping, or pieces with their scores
    ids = dict(vocabulary) if isinstance(vocabulary, dict) else {row[0]: at for at, row in enumerate(vocabulary)}
    return ids | {token["content"]: token["id"] for token in content.get("added_tokens") or []}
