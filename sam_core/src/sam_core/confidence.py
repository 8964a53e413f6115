# SPDX-License-Identifier: Apache-2.0
"""How likely draft tokens are accepted, learned on the device from what was verified; no value is read by the host."""

from __future__ import annotations

import numpy as np
import torch

from sam_core.budget import Calibration
from sam_core.device_drafts import FILLER, NGRAMS, NUM_BINS, NUM_CLASSES, SCALE, Drafts

MATCH_PRIOR = (0.15, 0.3, 0.45, 0.55, 0.65)
"""Of the first token behind a match, by the tokens of the match."""
LATER_PRIOR, CONFIRMED_PRIOR = 0.15, (0.0, 0.1, 0.15, 0.2)
"""What is added for later tokens of a copy, and for a follower by the times that it is confirmed."""


def _prior() -> torch.Tensor:
    """Acceptance of each class before anything is known, float32 [NUM_CLASSES]."""
    assert len(MATCH_PRIOR) == len(NGRAMS)
    bins = (np.arange(NUM_BINS) + 0.5) / NUM_BINS
    later, confirmed, _, match = np.meshgrid((0, 1), CONFIRMED_PRIOR, (0, 1), MATCH_PRIOR, indexing="ij")
    matches = np.minimum(match + LATER_PRIOR * later + confirmed, 0.95)
    return torch.tensor(np.concatenate([bins, matches.flatten(), [0.0]]), dtype=torch.float32)


class Confidence:
    """The share of tokens of each class that are accepted, if all before them are.

    Counts decay and are drawn to their prior as those of budget.Calibration, so that what is no longer verified is
    tried again.

    Args:
        num_states: rows of the engine's states of requests, one of which each request keeps.
        k: maximum tokens of a draft.
    """

    def __init__(self, num_states: int, k: int, device: torch.device) -> None:
        self._prior = _prior().to(device)
        self._counts = torch.zeros(2, NUM_CLASSES, device=device)  # verified, accepted
        self._classes = torch.full((num_states, k), FILLER, dtype=torch.int64, device=device)
        self._columns = torch.arange(k, device=device)

    def learn(self, states: torch.Tensor, num_sampled: torch.Tensor, num_rejected: torch.Tensor) -> None:
        """A step has verified the last drafts of B requests.

        Args:
            states: int64 [B], rows of the requests' states.
            num_sampled: int [B], the accepted draft tokens and one more.
            num_rejected: int [B], draft tokens that were verified and not accepted.
        """
        accepted = (num_sampled - 1).clamp(min=0).unsqueeze(1)
        graded = self._columns < accepted + (num_rejected.unsqueeze(1) > 0)  # those behind the first refused are not
        values = torch.stack([graded, graded & (self._columns < accepted)]).flatten(1).float()
        self._counts.mul_(Calibration.DECAY).index_add_(1, self._classes[states].flatten(), values)

    def of(self, states: torch.Tensor, drafts: Drafts) -> torch.Tensor:
        """Confidences of new drafts, float32 [B, k]: of each token, if all before it are accepted; 0 for fillers."""
        classes = drafts.classes
        self._classes[states] = classes
        weight = Calibration.PRIOR_SAMPLES
        accepted = (self._counts[1] + weight * self._prior) / (self._counts[0] + weight)
        rate = accepted[classes]
        # A chain's own figure is finer than its bin: it is corrected by what the bin's tokens were worth.
        fine = rate * (drafts.probabilities / SCALE) / self._prior[classes].clamp(min=1e-6)
        return torch.where(classes < NUM_BINS, fine, rate).clamp(0.0, 1.0)
