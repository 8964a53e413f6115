# SPDX-License-Identifier: Apache-2.0
"""Mask secrets, and text that looks like a secret, in output that leaves a host."""

from __future__ import annotations

import re

_NAMED = re.compile(
    rb"(?i)((?:token|secret|passw(?:or)?d|passphrase|credential|api_?key|access_?key|private_?key)[\w.-]*"
    rb"[\"']?\s*[=:]\s*)(\"[^\"\n]*\"|'[^'\n]*'|[^\s\"',;}]+)"
)
_IN_ADDRESS = re.compile(rb"(\b[a-z][a-z0-9+.-]{1,15}://[^\s/:@]{1,100}:)[^\s/@]{1,200}@", re.IGNORECASE)
_BEARER = re.compile(rb"(?i)(authorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic)\s+)[\w.~+/=-]+")
_KEY_BLOCK = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)

MIN_BYTES = 4
"""Smallest number of bytes of a secret that is masked everywhere; a shorter value may be part of any word."""


def mask(data, secrets):
    """Return `data` (bytes) with the values of `secrets` ({variable: value}) replaced by ***.

    Also masked: lines that set such a variable, values of secret names, passwords in addresses and private keys.
    """
    for value in sorted((str(value).encode() for value in secrets.values()), key=len, reverse=True):
        if len(value) >= MIN_BYTES:
            data = data.replace(value, b"***")
    for name in secrets:
        data = re.sub(rb"(?m)^((?:export )?%s=).*" % re.escape(name.encode()), rb"\1***", data)
    data = _KEY_BLOCK.sub(b"*** private key ***", data)
    data = _BEARER.sub(rb"\1***", data)
    data = _IN_ADDRESS.sub(rb"\1***@", data)
    return _NAMED.sub(rb"\1***", data)
