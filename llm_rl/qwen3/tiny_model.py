# SPDX-License-Identifier: Apache-2.0
"""The tiny Qwen3 that runs the whole loop on any machine, with its tokenizer and data.

FOLDER holds a Hugging Face model folder (Qwen3ForCausalLM, float32, half a million parameters, byte-level BPE
tokenizer), train.parquet and test.parquet in the schema of DAPO-Math-17k (sums of two-digit numbers), and
provenance.json: the command that made them and its commit, measurements of sampled answers, and the SHA-256 of each
file.
"""

import hashlib
import json
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "tiny"
RECORD = "provenance.json"


def check(folder=FOLDER):
    """One sentence about the first file of a model folder that is missing or changed, or None."""
    try:
        files = json.loads((folder / RECORD).read_text())["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"{folder} has no readable {RECORD}: restore the folder (git checkout -- {folder})"
    for name, digest in files.items():
        path = folder / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            return f"{path} is not the file that {RECORD} records: restore the folder (git checkout -- {folder})"
    return None
