# SPDX-License-Identifier: Apache-2.0
"""A corpus of one text, for engines that draft from one."""

import numpy as np

from sam_core import corpus


def write_corpus(path, text):
    """What build_corpus writes for one text, without the library for sorting, which is not in every environment."""
    tokens = np.array([*text, corpus.END], np.int32)
    suffixes = sorted(range(len(text)), key=lambda at: tokens[at:].tolist())
    corpus._write(path, tokens, np.array(suffixes, np.uint32), texts=1, tokenizer=0)
