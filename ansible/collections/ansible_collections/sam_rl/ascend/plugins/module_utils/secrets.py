# SPDX-License-Identifier: Apache-2.0
"""Mask what looks like a secret in text that leaves a host."""

from __future__ import annotations

import re

_NAMED = re.compile(
    rb"(?i)([\w.-]*(?:token|secret|passw(?:or)?d|passphrase|credential|api_?key|access_?key|private_?key)[\w.-]*"
    rb"[\"']?\s*[=:]\s*)(\"[^\"\n]*\"|'[^'\n]*'|[^\s\"',;}]+)"
)
_IN_ADDRESS = re.compile(rb"(\b[a-z][a-z0-9+.-]{1,15}://[^\s/:@]{1,100}:)[^\s/@]{1,200}@", re.IGNORECASE)
_BEARER = re.compile(rb"(?i)(authorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic)\s+)[\w.~+/=-]+")
_KEY_BLOCK = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)


def mask(data):
    """`data` (bytes) with values of secret names, passwords in addresses and private keys replaced by ***."""
    data = _KEY_BLOCK.sub(b"*** private key ***", data)
    data = _BEARER.sub(rb"\1***", data)
    data = _IN_ADDRESS.sub(rb"\1***@", data)
    return _NAMED.sub(rb"\1***", data)
