# SPDX-License-Identifier: Apache-2.0
"""The unit on which an operator runs on a 910C, from ../operators.csv: AiCore, AICPU, view, host or unknown."""

import csv
import functools
from pathlib import Path

import torch
from torch.utils._pytree import tree_leaves

PYTHON_OPERATIONS = {}
"""Operations of torch.ops whose CPU kernel is a Python function. Operators that they call are recorded and counted."""

TABLE = Path(__file__).resolve().parents[1] / "operators.csv"


class Call:
    """An operator's call: its arguments by position and name, and its result."""

    def __init__(self, args, kwargs, out):
        self.args, self.kwargs, self.out = args, kwargs, out
        self.tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]

    def arg(self, position, name=None, default=None):
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)

    def dtype(self, of):
        """Name of the dtype that a row of the table is about; `source->destination` for a cast."""
        if of.startswith("copy: source"):
            source, destination = (self.args[1], self.args[0]) if len(self.tensors) > 1 else (self.args[0], self.out)
            return f"{dtype_name(source.dtype)}->{dtype_name(destination.dtype)}"
        if of == "output":
            outs = [leaf for leaf in tree_leaves(self.out) if isinstance(leaf, torch.Tensor)]
            return dtype_name(outs[0].dtype) if outs else ""
        tensors = self.tensors or [leaf for leaf in tree_leaves(self.out) if isinstance(leaf, torch.Tensor)]
        if of == "self and other":  # where(condition, self, other)
            tensors = tensors[1:] or tensors
        if of.startswith("inputs") or of == "self and other":
            return dtype_name(functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors)))
        return dtype_name(tensors[0].dtype)


def dtype_name(dtype):
    return str(dtype).removeprefix("torch.")


def float_scalar_is_lost(call):
    """Return whether a comparison of floats runs in float64, because their dtype cannot hold the Python number."""
    number = call.arg(1, "other")
    if isinstance(number, torch.Tensor) or not isinstance(number, (int, float)):
        return False
    rounded = torch.tensor(number, dtype=call.tensors[0].dtype).item()
    return number in (float("inf"), float("-inf")) or abs(rounded - number) > 1.19e-7


def indices(call):
    return [index for index in call.arg(1, "indices") if index is not None]


def same_shape(call):
    return len({index.shape for index in indices(call)}) == 1


def slice_between(call):
    given = [index is not None for index in call.arg(1, "indices")]
    return "TF" in "".join("TF"[not one] for one in given).strip("F")


def many_indices(call):
    return max(index.numel() for index in indices(call)) > 70


def by_mask(call):
    return any(index.dtype in (torch.bool, torch.uint8) for index in indices(call))


def strided(tensor):
    """Return whether two or more dimensions are strided and fewer than 32 elements lie side by side."""
    run, at = 1, tensor.dim() - 1
    while at >= 0 and (tensor.stride(at) == run or tensor.size(at) == 1):
        run, at = run * tensor.size(at), at - 1
    left = [i for i in range(at + 1) if tensor.size(i) > 1]
    return len(left) > 1 and run < 32


CONDITIONS = {
    "rounding_mode='floor'": lambda call: call.kwargs.get("rounding_mode") == "floor",
    "the number, rounded to the dtype of self, is off by more than 1.19e-7, or is infinite": float_scalar_is_lost,
    "the scalar is a Python float": lambda call: isinstance(call.arg(1, "other"), float),
    "called with the condition alone": lambda call: len(call.args) == 1,
    "the source is not contiguous": lambda call: not call.tensors[-1].is_contiguous(),
    "the destination has strides that are no single slice of a contiguous tensor (two or more strided dimensions with"
    " fewer than 32 contiguous elements at the end)": lambda call: strided(call.args[0]),
    "the destination is not contiguous": lambda call: not call.args[0].is_contiguous(),
    "with a dim": lambda call: len(call.args) > 1,
    "the exponent is the number 2": lambda call: call.arg(1, "exponent") == 2,
    "the sorted dimension has one element": lambda call: call.args[0].shape[call.arg(1, "dim", -1)] == 1,
    "two index tensors differ in shape, as in x[rows[:, None], columns]": lambda call: not same_shape(call),
    "a full slice lies between two index tensors, as in x[i, :, j]": slice_between,
    "an index is a bool or uint8 mask": by_mask,
    "more than 100 indices, or more than 70 (but for 101 to 128) elements behind the indexed dimensions, or self has"
    " over 5.4 million elements, or the indexed dimension is not the first and the others hold over 128 elements": (
        many_indices
    ),
    "the index tensors need broadcasting among each other, or a full slice lies between them": lambda call: (
        not same_shape(call) or slice_between(call)
    ),
    "called with a dtype": lambda call: True,
}
"""Functions that tell whether a condition of the table holds for a call. Other conditions count as not holding."""


OTHER_NAMES = {"aten::rand": "aten::uniform_", "aten::split_with_sizes": "aten::split"}
"""Operators that run in place of operators that the table does not list."""


@functools.cache
def table():
    """Return {operator: its rows in operators.csv}."""
    rows = {}
    with TABLE.open(newline="") as file:
        for row in csv.DictReader(file):
            row["dtypes"] = row["dtypes"].split()
            rows.setdefault(row["operator"], []).append(row)
    return rows


@functools.cache
def rows_of(operator):
    """The table's rows of an operator, in place or not; those with a condition first."""
    names = (operator, OTHER_NAMES.get(operator), operator.removesuffix("_"))
    rows = next((table()[name] for name in names if name in table()), [])
    return sorted(rows, key=lambda row: not row["condition"])


def unit(operator, call):
    """The unit that runs a call, and the dtype by which it was found."""
    dtype = dtype_name(call.tensors[0].dtype) if call.tensors else ""
    for row in rows_of(operator):
        if row["of"].startswith("copy:") and "both" not in row["of"]:
            continue  # copies between host and device: see meter.py
        if row["condition"] and not CONDITIONS.get(row["condition"], lambda call: False)(call):
            continue
        dtype = call.dtype(row["of"])
        if row["dtypes"] == ["*"] or dtype in row["dtypes"]:
            return row["unit"], dtype
    return "unknown", dtype
