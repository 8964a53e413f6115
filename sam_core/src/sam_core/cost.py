# SPDX-License-Identifier: Apache-2.0
"""What an engine step costs, learned from the steps themselves."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

MAX_EXACT_BIN = 32
"""Up to this many rows each size has a bin of its own; beyond, bins are about a tenth of their rows wide, and up to 512
rows they end where engines capture graphs."""
STEPS_PER_BIN = 24
"""Latest steps that a bin keeps."""
MIN_KEEP_INTERVAL = 4
"""Steps between two that a full bin keeps, if old steps are forgotten, so that the kept ones span growing contexts."""
MAX_ROWS = 1 << 16
"""Rows of the last bin."""
MAX_PLAUSIBLE = 1e9
"""Bound of restored rows, thousands of context tokens, and seconds."""
MIN_CONTEXT_SPREAD = 0.03
"""Relative spread of contexts below which their slopes shrink to zero."""
MIN_CONTEXT_STEPS = 2.0
"""Number of steps at which slopes of contexts shrink to a half; fewer shrink more."""
MAX_GRAPH_ROWS = 512
"""Rows up to which engines capture graphs."""
MIN_ROW_SPREAD = 0.15
"""Relative spread of rows below which their slope shrinks to the mean seconds per row."""
FIRST_STEP_OUTLIER = 1.5
"""A size's first step is dropped if it takes this many times its prediction."""
MAX_EXACT_ROWS = 6
"""Up to this many rows neighbours count little: a CPU takes longer for 2 rows than for 3."""
MAX_PRIOR_STEPS = 30.0
"""Most that a bin's neighbours weigh, in steps: where bins differ no more than the steps of one bin do."""
MIN_PRIOR_STEPS = 0.5
"""Least that a bin's neighbours weigh, in steps: where bins differ much more than that."""
KERNEL_WIDTH = 0.2
"""Standard deviation of the neighbourhood, in the logarithm of rows."""
RISE_PRIOR = 0.1
"""Weight of what earlier fits showed of the slope within wide bins, as a share of the best evidence."""
RISE_MEMORY = 0.95
"""Factor of that best evidence per fit, so that a changed machine is noticed."""
OUTLIER = 4.0
"""A bin's slowest step is dropped if it is slower by this many times the usual noise."""
MIN_WEIGHT = 1 / 12
"""Least weight of a kept step, however old: an old cost of a rare size is better than none."""
FIRST_FIT_INTERVAL = 4
"""Steps before the first fit."""
MAX_FIT_INTERVAL = 32
"""Most steps between two fits."""
NEW_BIN_STEPS = 6
"""A bin with fewer steps is new, and its prediction may be far off."""
SURPRISE = 1.4
"""A step of a new bin is a surprise if it takes this many times longer or shorter than predicted."""
NUM_SURPRISES = 2
"""So many surprises make the next fit due at once."""
MIN_COMPARED_STEPS = 1.5
"""Fewer steps of equal rows, some with drafts and some without, do not show what verification costs; `_gap` guesses
it."""
MIN_GAP = 0.2
"""A guess of verification below this share of a plain step is taken for noise."""
NEAR_ROWS = 0.05
"""Two consecutive steps that read prompts, one of them with drafts, are a pair if their rows differ by at most this
share."""
MIN_PAIRS = 4
"""Fewer pairs do not show what verification costs."""
MAX_PAIRS = 12
"""Latest pairs that are compared."""
SPEED_WINDOW = 5
"""Steps whose median residual shows that the machine's speed has changed."""
MIN_SPEED_CHANGE = 0.12
"""Least change of speed that is detected, as a logarithm; it must also exceed three times the usual residual."""
SPEED_CHANGE_AGING = 0.5
"""Share of `memory` by which all kept steps age when the speed changes."""
SPEED_TRACKING = 0.1
"""Share of a known size's residual, at most MIN_SPEED_CHANGE, by which all kept seconds are scaled."""
SETTLED_WEIGHT = 3.0
"""A size is settled once its steps weigh as much as this many new ones."""
SETTLED_INTERVAL = 16
"""Two steps of a size count as two only if at least this many steps lie between them."""
_EDGES = np.concatenate(
    [
        np.arange(1, MAX_EXACT_BIN + 1),
        *(1 + np.arange(low, 2 * low, max(8, low // 8)) for low in (32, 64, 128, 256)),
        np.geomspace(513, MAX_ROWS, int(np.log(MAX_ROWS / 512) / 0.1)).astype(int),
    ]
)


_EDGE_LIST: list[int] = _EDGES.tolist()


def _bin(rows: float) -> int:
    return bisect_right(_EDGE_LIST, min(rows, MAX_ROWS)) - 1


class StepCost:
    """Seconds of a step: t = f(rows) + a * context + b * draft context, and a constant more if it has drafts.

    rows are the tokens that the step computes: one for each request and one for each draft token. f has no fixed form:
    engines pad steps to captured sizes, and a CPU's time is flat up to the width of its cache. Contexts are in
    thousands of tokens: those of all requests, and those of each draft token's request, which attention reads once more
    for it. The constant is what verification costs whatever is verified: an engine may wait for the device, run other
    kernels or leave its graphs. It is seen where steps of equal rows had drafts and had none.

    The fit minimizes absolute deviations (by iterated weights) over the latest steps of each bin of rows, without a
    bin's slowest step if it stands out. The budget picks the size that looks cheapest, which would favour bins with
    lucky steps. So bins are drawn towards a smooth, nondecreasing curve through their neighbours, less the more steps
    they have and the more bins differ from such a curve. Within bins f rises by as much of the curve's slope as steps
    show, which is nothing where sizes are padded. Memory is bounded by the number of bins. A fit takes about a
    millisecond; the caller chooses when.

    With a finite `memory` it follows a machine that changes: a step's weight falls by a factor of e in as many steps,
    and all kept seconds are scaled by the residuals of known sizes, slowly, or at once if the latest steps agree on a
    large change, after which they also count less. Contexts that grow together are followed in the same way, as far as
    steps within bins do not show their slope.

    Args:
        memory: steps; by default nothing is forgotten.

    speed: the product of the factors by which kept seconds were scaled.
    """

    def __init__(self, memory: float = math.inf) -> None:
        self.memory, self.speed = memory, 1.0
        self._jumped = False
        self._since_fit, self._interval = 0, FIRST_FIT_INTERVAL
        self._surprises = 0
        # rows, context, draft context, seconds at a speed of 1, step
        self._samples = np.zeros((len(_EDGES), STEPS_PER_BIN, 5))
        self._count = np.zeros(len(_EDGES), np.int64)
        self._known_bins = np.zeros(len(_EDGES), bool)
        # f of settled bins, for steps without drafts and with drafts: nan where the bin has none of them
        self._level = np.full((len(_EDGES), 2), math.nan)
        # lists, since NumPy takes longer for one item
        self._weight = [0.0] * len(_EDGES)  # at the step `_since`
        self._since = [0.0] * len(_EDGES)
        self._now = 0.0
        self._recent: deque[tuple[int, int, float]] = deque(maxlen=SPEED_WINDOW)  # bin, index in it or -1, log residual
        self._usual = 0.02  # absolute log residual
        self.context = self.draft_context = self.verify = 0.0
        self._rise, self._rise_evidence = 1.0, 0.0
        self._rows: Float64 = np.empty(0)
        self._row_list: list[float] = []
        self._consecutive: tuple[Float64, int, Float64] | None = None  # _seconds, first size, costs
        self._seconds: Float64 = np.empty(0)

    @property
    def fitted(self) -> bool:
        return len(self._rows) > 0

    @property
    def max_rows(self) -> float:
        """Rows of the largest fitted step."""
        return float(self._rows[-1])

    def covers(self, rows: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Whether `rows` lie between the fitted sizes; beyond the largest, costs are upper bounds."""
        rows = np.asarray(rows)
        return (rows >= self._rows[0]) & (rows <= self._rows[-1]) if self.fitted else np.zeros(rows.shape, bool)

    def learn(self, rows: int, context: float, draft_context: float, seconds: float) -> None:
        """`observe`, and `fit` if it is due."""
        self.observe(rows, context, draft_context, seconds)
        self._since_fit += 1
        if self._since_fit >= self._interval or self._jumped or self._surprises >= NUM_SURPRISES:
            self.fit()
            self._interval = min(2 * self._interval, MAX_FIT_INTERVAL)
            self._since_fit, self._surprises, self._jumped = 0, 0, False

    def observe(self, rows: int, context: float, draft_context: float, seconds: float) -> None:
        """Record a step of `rows` >= 1. A bin's first step is dropped if it is slow: engines compile for new sizes."""
        self._now += 1
        i = _bin(rows)
        first, self._known_bins[i] = not self._known_bins[i], True
        if not self.fitted:
            self._keep(i, rows, context, draft_context, seconds)
            return
        size_seconds = self.size_cost(rows)
        ratio = seconds / (size_seconds + self._linear_seconds(context, draft_context))
        if first and ratio > FIRST_STEP_OUTLIER:
            return
        self._surprises += self._count[i] < NEW_BIN_STEPS and not 1 / SURPRISE < ratio < SURPRISE
        index = -1
        level = self._level[i, int(draft_context > 0)]
        settled = self.memory < math.inf and abs(size_seconds - level) < MIN_SPEED_CHANGE / 2 * size_seconds
        if settled:
            self._scale(math.exp(SPEED_TRACKING * min(max(math.log(ratio), -MIN_SPEED_CHANGE), MIN_SPEED_CHANGE)))
        if self.memory == math.inf or self._count[i] < STEPS_PER_BIN or self._now - self._since[i] >= MIN_KEEP_INTERVAL:
            index = self._keep(i, rows, context, draft_context, seconds)
        if self.memory < math.inf:
            self._recent.append((i, index, math.log(ratio) if settled else math.nan))
            self._notice()

    def _keep(self, i: int, rows: float, context: float, draft_context: float, seconds: float) -> int:
        index = int(self._count[i] % STEPS_PER_BIN)
        self._samples[i, index] = rows, context, draft_context, seconds / self.speed, self._now
        self._count[i] += 1
        self._weight[i] = self._weight_with_step(self._weight[i], self._since[i])
        self._since[i] = self._now
        return index

    def _weight_with_step(self, weight: float, since: float) -> float:
        """Weight of steps, the last one at `since`, and of one now."""
        gap = (self._now - since) / SETTLED_INTERVAL if weight else 1.0
        return min(1.0, gap) + weight * self._faded(since)

    def _faded(self, since: float) -> float:
        return math.exp((since - self._now) / self.memory)

    def _notice(self) -> None:
        """Rescale if the latest steps of known sizes show another speed."""
        latest = self._recent[-1][2]
        residuals = sorted(x for _, _, x in self._recent if x == x)
        if latest != latest or len(residuals) < SPEED_WINDOW - 1:
            return
        change = residuals[(len(residuals) - 1) // 2] if latest > 0 else residuals[len(residuals) // 2]
        if change * latest > 0 and abs(change) > max(MIN_SPEED_CHANGE, 3 * self._usual):
            self._jump(change)
        else:
            self._usual += 0.03 * (min(abs(latest), 0.3) - self._usual)

    def _scale(self, factor: float) -> None:
        self.speed *= factor
        self._seconds = self._seconds * factor
        self._level *= factor
        self.context *= factor
        self.draft_context *= factor
        self.verify *= factor

    def _jump(self, change: float) -> None:
        factor = math.exp(change)
        after = [x / change > 0.5 for _, _, x in self._recent]
        since = [(i, index) for i, index, _ in list(self._recent)[after.index(True) :] if index >= 0]
        self._scale(factor)
        for i, index in since:
            self._samples[i, index, 3] /= factor
        self._now += SPEED_CHANGE_AGING * self.memory
        for i, index in since:
            self._samples[i, index, 4] = self._now
        self._recent.clear()
        self._jumped = True

    def known(self, rows: int) -> float:
        """Weight of the steps of about this many rows: old ones count less, and those close together count as one."""
        i = _bin(rows)
        return self._weight[i] * self._faded(self._since[i])

    def unsettled(self, rows: int) -> bool:
        """Whether another step of this many rows would add information."""
        return self._open(self.known(rows), self._since[_bin(rows)])

    def plain_unsettled(self) -> bool:
        """Whether another step without drafts would add information on what verification costs."""
        return False

    def _open(self, weight: float, since: float) -> bool:
        return weight < SETTLED_WEIGHT and (weight < 1 or self._now - since >= SETTLED_INTERVAL)

    @staticmethod
    def next_size(rows: int) -> int:
        """The next larger size for which an engine may capture graphs, or the end of the next bin."""
        if rows < MAX_EXACT_BIN:
            return 1 << rows.bit_length() if rows < 8 else rows // 8 * 8 + 8
        return _EDGE_LIST[min(_bin(rows + 1) + 1, len(_EDGE_LIST) - 1)] - 1

    def fit(self) -> None:
        """Fit the kept steps."""
        kept = np.minimum(self._count, STEPS_PER_BIN)
        used = np.flatnonzero(kept)
        if not len(used):
            return
        kept = kept[used]
        bins = np.repeat(np.arange(len(used)), kept)
        rows, context, draft, seconds, when = self._samples[used][np.arange(STEPS_PER_BIN) < kept[:, None]].T
        seconds = seconds * self.speed
        fresh = np.maximum(np.exp((when - self._now) / self.memory), MIN_WEIGHT)
        weights = fresh / seconds
        drafting = (draft > 0).astype(float)
        x = np.stack([context, draft, drafting])
        num_steps = np.maximum(1, (x > 0).sum(1))
        shrink = np.array([MIN_CONTEXT_SPREAD, MIN_CONTEXT_SPREAD, 0.0]) ** 2 + (MIN_CONTEXT_STEPS / num_steps) ** 2
        # in wide bins steps with drafts have more rows than those without, which must not count as verification
        same = np.unique(2 * bins + (rows > MAX_EXACT_BIN) * (draft > 0), return_inverse=True)[1]
        slopes = np.zeros(3)
        for _ in range(6):
            total = np.bincount(same, weights)
            centred = [v - (np.bincount(same, weights * v) / total)[same] for v in (*x, seconds)]
            # what hardly varies among steps of a bin, or does in few steps, does not show its slope
            ridge = shrink * (weights * x * x).sum(1)
            slopes = _slopes(weights, np.stack(centred[:3]), centred[3], ridge)
            residual = centred[3] - slopes @ np.stack(centred[:3])
            weights = fresh / np.maximum(np.abs(residual), 0.002 * seconds + 1e-9)
        drafts, steps = np.bincount(same, drafting), np.bincount(same)
        if (drafts * (steps - drafts) / steps).sum() < MIN_COMPARED_STEPS:
            slopes[2] = self._gap(rows, seconds - slopes[:2] @ x[:2], drafting > 0)
        a, b, verify = slopes.tolist()
        noise = 1.5 * float(np.median(np.abs(residual / seconds)[kept[bins] > 2])) if (kept > 2).any() else 0.0
        slowest = np.lexsort((residual, bins))[np.cumsum(kept) - 1]
        slow = residual[slowest] > OUTLIER * max(noise, 0.005) * seconds[slowest]
        weights[slowest[(kept > 1) & slow]] = 0.0
        seconds = seconds - slopes @ x
        total = np.bincount(bins, weights)
        level = np.bincount(bins, weights * seconds) / total
        centre = np.bincount(bins, weights * rows) / total
        self.context, self.draft_context, self.verify = a, b, verify
        self._rows = centre
        level = np.maximum(level, 1e-9)
        size = np.bincount(bins, fresh).astype(float)
        self._seconds = _shrink_to_neighbours(centre, level, size, max(noise, 0.005))
        self._level[:] = math.nan
        settled = (size >= SETTLED_WEIGHT) & (np.abs(self._seconds / level - 1) < MIN_SPEED_CHANGE / 2)
        kinds = np.stack([np.bincount(bins, 1 - drafting), np.bincount(bins, drafting)], 1)
        self._level[used[settled]] = np.where(kinds > 0, level[:, None], math.nan)[settled]
        if centre[-1] > MAX_EXACT_BIN:
            self._spread(used, np.sqrt(weights), bins, rows - centre[bins], seconds - level[bins])
        self._row_list = self._rows.tolist()

    def _gap(self, rows: Float64, seconds: Float64, drafting: npt.NDArray[np.bool_]) -> float:
        """Seconds by which the line through the steps with drafts lies above the plain steps of the nearest size.

        0 if it is too little to tell, or if the steps with drafts have one size only.
        """
        if drafting.all() or len(np.unique(rows[drafting])) < 2:
            return 0.0
        plain = rows[~drafting]
        nearest = plain[np.argmin(np.abs(plain - np.median(rows[drafting])))]
        level = float(np.median(seconds[~drafting & (rows == nearest)]))
        low = drafting & (rows <= 2 * max(nearest, rows[drafting].min()))
        if len(np.unique(rows[low])) < 2:
            return 0.0
        slope = max(0.0, _median_slope(rows[low], seconds[low]))
        gap = float(np.median(seconds[low] - slope * (rows[low] - nearest))) - level
        return gap if gap > MIN_GAP * level else 0.0

    def _spread(self, used: npt.NDArray[np.int64], w: Float64, bins: Any, rows: Float64, seconds: Float64) -> None:
        """Give wide bins the share of the curve's slope that their own steps show: none where sizes are padded.

        Steps of equal rows show nothing, so what earlier fits have seen is kept until others show as much.
        """
        slope = np.gradient(self._seconds, self._rows) if len(used) > 1 else np.zeros(1)
        expected = slope[bins] * rows
        square = float((w * w * expected * expected).sum())
        self._rise_evidence = max(RISE_MEMORY * self._rise_evidence, square)
        prior = RISE_PRIOR * self._rise_evidence + 1e-30
        share = (float((w * w * expected * seconds).sum()) + prior * self._rise) / (square + prior)
        self._rise = min(max(share, 0.0), 1.0)
        slope *= self._rise
        first, last = _EDGES[used], np.append(_EDGES, MAX_ROWS + 1)[used + 1] - 1
        ends = np.stack([first, last], 1)
        level = self._seconds[:, None] + slope[:, None] * (ends - self._rows[:, None])
        single = np.stack([first > 0, last > first], 1)
        self._rows, self._seconds = ends[single].astype(float), np.maximum(level[single], 1e-9)

    def seconds(self, rows: int, context: float, draft_context: float) -> float:
        """Expected seconds of a step."""
        return self.size_cost(rows) + self._linear_seconds(context, draft_context)

    def _linear_seconds(self, context: float, draft_context: float) -> float:
        """Seconds that contexts and verification add to f."""
        contexts = self.context * context + self.draft_context * draft_context
        return contexts + self.verify * (draft_context > 0)

    def rows_cost(self, rows: npt.ArrayLike) -> Float64:
        """f(rows), seconds, for an array of rows.

        Interpolated between fitted sizes; constant below the smallest. Beyond the largest it is proportional to rows,
        an upper bound for steps with a positive fixed cost.
        """
        rows = np.asarray(rows, float)
        costs: Float64 = np.interp(rows, self._rows, self._seconds)
        beyond = rows > self._rows[-1]
        return np.where(beyond, self._seconds[-1] * rows / self._rows[-1], costs) if beyond.any() else costs

    def consecutive_costs(self, first: int, count: int) -> Float64:
        """f(first), f(first + 1), ...: `count` sizes at least, which must not be changed. They are kept until f
        changes."""
        kept = self._consecutive
        if kept is None or kept[0] is not self._seconds or kept[1] != first or len(kept[2]) < count:
            self._consecutive = kept = self._seconds, first, self.rows_cost(np.arange(first, first + count))
        return kept[2]

    def refresh(self) -> None:
        """Compute the kept costs of consecutive sizes anew if f has changed, so that the next call finds them."""
        if self._consecutive:
            _, first, costs = self._consecutive
            self.consecutive_costs(first, len(costs))

    def size_cost(self, rows: int) -> float:
        """f(rows) of one size: `rows_cost`, several times as fast."""
        known, seconds = self._row_list, self._seconds
        if rows >= known[-1]:
            return float(seconds[-1]) * max(rows / known[-1], 1.0)
        i = bisect_right(known, rows)
        if i == 0:
            return float(seconds[0])
        low, high = float(seconds[i - 1]), float(seconds[i])
        return low + (high - low) / (known[i] - known[i - 1]) * (rows - known[i - 1])

    def state(self) -> dict[str, Any]:
        """The kept steps, as JSON can hold them."""
        used = np.flatnonzero(self._count).tolist()
        speed = np.array([1, 1, 1, self.speed])
        return {"samples": [(self._oldest_first(i)[:, :4] * speed).tolist() for i in used]}

    def _oldest_first(self, i: int) -> Float64:
        count = int(self._count[i])
        return self._samples[i, :count] if count <= STEPS_PER_BIN else np.roll(self._samples[i], -count, axis=0)

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; raises ValueError for anything else. A size's first step may be slow again."""
        try:
            for samples in state["samples"]:
                values = np.asarray(samples, float).reshape(-1, 4)[:STEPS_PER_BIN]
                if (
                    not ((values >= 0) & (values < MAX_PLAUSIBLE)).all()
                    or (values[:, 0] < 1).any()
                    or (values[:, 3] <= 0).any()
                ):
                    raise ValueError
                i = _bin(values[0, 0])
                for row in values:
                    self._keep(i, *row)
        except (KeyError, TypeError, ValueError, IndexError):
            raise ValueError("this is no record of step costs") from None
        self.fit()


class PromptCost(StepCost):
    """StepCost of steps that read prompts, whose tokens count as rows too.

    Such steps have many rows, seldom equally many, and few of them are drafts, whose cost a bin that is a tenth wide
    would hide. So beyond MAX_GRAPH_ROWS rows, and outside the fitted sizes, f is a straight line. Its slope is at most
    the mean seconds per row, and equal to it if sizes differ too little to show one.
    """

    def __init__(self, memory: float = math.inf) -> None:
        super().__init__(memory)
        self._latest: tuple[bool, int, float] | None = None  # whether it had drafts, rows, seconds
        self._pairs: deque[float] = deque(maxlen=MAX_PAIRS)  # seconds more with drafts
        self._plain_weight = self._plain_since = 0.0  # of steps without drafts

    def plain_unsettled(self) -> bool:
        return self._open(self._plain_weight * self._faded(self._plain_since), self._plain_since)

    def observe(self, rows: int, context: float, draft_context: float, seconds: float) -> None:
        drafting = draft_context > 0
        if self._latest is not None and drafting != self._latest[0]:
            pair = sorted([(drafting, rows, seconds), self._latest])
            (_, rows_plain, plain), (_, rows_drafting, with_drafts) = pair
            if abs(rows_drafting - rows_plain) <= NEAR_ROWS * rows_plain:
                more = max(0, rows_drafting - rows_plain) / rows_plain
                self._pairs.append(with_drafts - (1 + more) * plain)
        self._latest = drafting, rows, seconds
        super().observe(rows, context, draft_context, seconds)
        if not drafting:
            self._plain_weight = self._weight_with_step(self._plain_weight, self._plain_since)
            self._plain_since = self._now

    def _gap(self, rows: Float64, seconds: Float64, drafting: npt.NDArray[np.bool_]) -> float:
        """Median of what drafts took more in two steps one after the other; 0 unless three quarters of them show it."""
        if len(self._pairs) < MIN_PAIRS:
            return 0.0
        low, gap = np.quantile(self._pairs, (0.25, 0.5)).tolist()
        return gap if low > 0 else 0.0

    def fit(self) -> None:
        super().fit()
        beyond = self._rows > MAX_GRAPH_ROWS
        rows, seconds = (x[beyond] if beyond.any() else x for x in (self._rows, self._seconds))
        self._centre, self._mean = float(rows.mean()), float(seconds.mean())
        away, share = rows - self._centre, self._mean / self._centre
        prior = len(rows) * (MIN_ROW_SPREAD * self._centre) ** 2
        slope = (float(away @ seconds) + prior * share) / (float(away @ away) + prior)
        self._slope = min(max(0.0, slope), share)

    def _scale(self, factor: float) -> None:
        super()._scale(factor)
        self._pairs = deque((factor * more for more in self._pairs), MAX_PAIRS)
        self._mean *= factor
        self._slope *= factor

    def rows_cost(self, rows: npt.ArrayLike) -> Float64:
        """f(rows), seconds, for an array of rows."""
        rows = np.asarray(rows, float)
        first, last = self._rows[0], self._rows[-1]
        line = self._mean + self._slope * (rows - self._centre)
        on_line = (rows > MAX_GRAPH_ROWS) & (last > MAX_GRAPH_ROWS)
        if on_line.all():
            return line
        inside = np.interp(rows, self._rows, self._seconds)
        near = inside + self._slope * (np.maximum(rows - last, 0.0) + np.minimum(rows - first, 0.0))
        near = np.maximum(near, self._seconds[0] * np.minimum(rows / first, 1.0))
        return np.where(on_line, line, near)

    def size_cost(self, rows: int) -> float:
        """f(rows) of one size."""
        return float(self.rows_cost(rows))


class Expected:
    """Expected cost of the next step by its rows without prompts: the mean over the prompt tokens that it may read.

    Sizes that only steps without prompts had are assumed to cost as much with prompts.

    Args:
        plain: of steps that read no prompt.
        prompt: of steps that read one.
        prompt_tokens: equally probable numbers of prompt tokens.
    """

    def __init__(self, plain: StepCost, prompt: PromptCost, prompt_tokens: Sequence[int]) -> None:
        self._plain, self._prompt, self._prompt_tokens = plain, prompt, prompt_tokens
        self.context, self.draft_context = plain.context, plain.draft_context
        reading = sum(n > 0 for n in prompt_tokens) / len(prompt_tokens)
        self.verify = plain.verify + reading * max(0.0, prompt.verify - plain.verify)

    def size_cost(self, rows: int) -> float:
        """Of one size: `rows_cost`, several times as fast."""
        seconds = self._seconds(np.asarray(rows, float), np.array(self._prompt_tokens))
        return float(sum(seconds, np.zeros(())) / len(seconds))

    def rows_cost(self, rows: npt.ArrayLike) -> Float64:
        """Seconds, for an array of rows."""
        rows = np.asarray(rows, float)
        seconds = {n: self._seconds(rows, n) for n in set(self._prompt_tokens)}  # most read none, or a whole chunk
        return sum((seconds[n] for n in self._prompt_tokens), np.zeros(rows.shape)) / len(self._prompt_tokens)

    def _seconds(self, rows: Float64, prompt_tokens: int | npt.NDArray[np.integer]) -> Float64:
        rows = rows + prompt_tokens
        if not np.any(prompt_tokens):
            return self._plain.rows_cost(rows)
        as_plain = (prompt_tokens == 0) | (self._plain.covers(rows) & ~self._prompt.covers(rows))
        prompt_seconds = self._prompt.rows_cost(rows)
        return np.where(as_plain, self._plain.rows_cost(rows), prompt_seconds) if as_plain.any() else prompt_seconds


def _slopes(w: Float64, x: Float64, t: Float64, ridge: Float64) -> Float64:
    """Weighted ridge regression of t on the rows of x, no slope negative: the worst negative one is left out in
    turn."""
    used = np.arange(len(x))
    slopes = np.zeros(len(x))
    gram = (w * x) @ x.T + np.diag(ridge)
    moments = (w * x) @ t
    used = used[gram.diagonal() > 0]
    while len(used):
        part = np.linalg.lstsq(gram[np.ix_(used, used)], moments[used], rcond=None)[0]
        if part.min() >= 0:
            slopes[used] = part
            break
        used = np.delete(used, int(np.argmin(part * np.sqrt(gram.diagonal()[used]))))
    return slopes


def _median_slope(x: Float64, y: Float64) -> float:
    """Median slope between two points of different x (Theil and Sen); a few points off the line do not move it."""
    first, second = np.triu_indices(len(x), 1)
    across = x[second] - x[first]
    return float(np.median((y[second] - y[first])[across != 0] / across[across != 0]))


def _shrink_to_neighbours(rows: Float64, y: Float64, weight: Float64, noise: float) -> Float64:
    """y of each bin, drawn towards local lines through its neighbours.

    Args:
        weight: steps of each bin.
        noise: relative noise of a step.
    """
    near = np.log(rows)[None, :] - np.log(rows)[:, None]
    kernel = weight * np.exp(-0.5 * (near / KERNEL_WIDTH) ** 2)
    s0, s1, s2 = kernel.sum(1), (kernel * near).sum(1), (kernel * near * near).sum(1)
    t0, t1 = kernel @ y, (kernel * near) @ y
    determinant = s0 * s2 - s1 * s1
    line = determinant > 1e-9 * s0 * s2
    smooth = np.where(line, (s2 * t0 - s1 * t1) / np.where(line, determinant, 1.0), t0 / s0)
    smooth = _nondecreasing(np.maximum(smooth, 1e-9), weight)
    differ = 1.5 * float(np.median(np.abs(y / smooth - 1)))
    rough = differ**2 - noise**2 / float(np.median(weight))
    trust = min(max(noise**2 / rough, MIN_PRIOR_STEPS), MAX_PRIOR_STEPS) if rough > 0 else MAX_PRIOR_STEPS
    trusts = np.where(rows <= MAX_EXACT_ROWS, min(trust, MIN_PRIOR_STEPS), trust)
    weight = weight * np.maximum(0.0, weight - 1) / (weight + 1)  # one step alone says little
    return (weight * y + trusts * smooth) / (weight + trusts)


def _nondecreasing(y: Float64, weight: Float64) -> Float64:
    """The nearest nondecreasing sequence in weighted least squares (pool adjacent violators)."""
    blocks: list[list[float]] = []
    for value, w in zip(y, weight, strict=True):
        blocks.append([value, w, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            v, x, n = blocks.pop()
            blocks[-1] = [
                (blocks[-1][0] * blocks[-1][1] + v * x) / (blocks[-1][1] + x),
                blocks[-1][1] + x,
                blocks[-1][2] + n,
            ]
    return np.concatenate([np.full(int(n), v) for v, _, n in blocks])
