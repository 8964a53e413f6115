# SPDX-License-Identifier: Apache-2.0
"""A corpus of one text, for engines that draft from a corpus."""

import numpy as np

from sam_core import corpus


def write_corpus(path, text):
    """Write what build_corpus writes for one text, without its sorting library, which not every environment has."""
    tokens = np.array([*text, corpus.END], np.int32)
    suffixes = sorted(range(len(text)), key=lambda at: tokens[at:].tolist())
    corpus._write(path, tokens, np.array(suffixes, np.uint32), texts=1, tokenizer=0)
