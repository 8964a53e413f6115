# SPDX-License-Identifier: Apache-2.0
"""Peers, each as a drafter for the replay and as a batch of rows for the timings."""

from sam_lab.automaton import AutomatonDrafter

from .arctic import DEPTH, ArcticBatch, ArcticDrafter, arctic
from .ngram import NgramBatch, NgramDrafter
from .python_sam import PythonBatch
from .sglang import SglangBatch, SglangDrafter
from .source import CACHE, MODEL_LEN

__all__ = ["BATCHES", "CACHE", "DEPTH", "DRAFTERS", "MODEL_LEN", "arctic"]
__all__ += ["ArcticBatch", "ArcticDrafter", "NgramBatch", "NgramDrafter", "PythonBatch", "SglangBatch", "SglangDrafter"]

BATCHES = {"python": PythonBatch, "arctic": ArcticBatch, "ngram": NgramBatch, "sglang": SglangBatch}
DRAFTERS = {
    "python": lambda k, tree, private: AutomatonDrafter(),
    "arctic": lambda k, tree, private: ArcticDrafter(private),
    "ngram": lambda k, tree, private: NgramDrafter(),
    "sglang": SglangDrafter,
}
