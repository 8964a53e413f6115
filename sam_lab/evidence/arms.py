# SPDX-License-Identifier: Apache-2.0
"""The names of the compared arms, and their drafters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sam_lab import arms, suffix_device
from sam_lab.arms import Arm
from sam_lab.cli import LabError
from sam_lab.evidence.devices import Device
from sam_lab.evidence.drafters import AdaptiveSuffixDevice, Ngram, Sam, Suffix
from sam_lab.evidence.model import Alone, Best, Either, Longest

PARAMETERS: dict[str, dict[str, float]] = {
    "ngram": {"min": 2, "max": 5},
    "suffix": {"depth": 24, "factor": 1.0, "min_prob": 0.1},
    suffix_device.NAME: {"depth": suffix_device.DEPTH},
    "oldest": {},
    "batch": {"min_prob": 0.1},
    "auto": {},
    "model": {},
    "model+ngram": {"min": 2, "max": 5},
    "model+length": {"threshold": 4},
    "model+suffix": {"depth": 64, "factor": 1.0, "min_prob": 0.1, "threshold": 3},
    "model+auto": {},
}
"""Parameters of each method with defaults. PEERS are vLLM's, oldest is the article's rule (oldest occurrence, own
text), batch is sam_core's default rule and sources. vLLM's names: prompt_lookup_min and
prompt_lookup_max; suffix_decoding_max_tree_depth, suffix_decoding_max_spec_factor, suffix_decoding_min_token_prob.
model is a drafter of the model's own; with it, the texts' draft replaces the model's: +ngram (vllm#24344) if there is
one, +length (TensorRT-LLM) if the longest match has at least `threshold` tokens, +suffix (ArcticInference) if suffix
decoding's score is at least `threshold`, +auto as the plugin does."""
PEERS = ("ngram", "suffix", suffix_device.NAME)
"""Methods of vLLM. The first two run vLLM's code and need packages and sources."""
CLOCKED = ("auto", "model+auto", suffix_device.NAME)
"""Methods whose drafts depend on the time of steps."""
FORMS = [
    f"{method}{parameters}:{k}"
    for method in PARAMETERS
    for parameters in ("", "[NAME=VALUE]")[: 1 + bool(PARAMETERS[method])]
    for k in ("K", "K/K/K/K")[: 2 - (method in CLOCKED)]
]


def parse(name: str) -> Arm:
    """The arm of a name, with the defaults of its parameters."""
    arm = arms.parse(name, FORMS)
    if unknown := arm.parameters.keys() - PARAMETERS[arm.method].keys():
        raise LabError(f"arm {name!r} has no parameter {min(unknown)}: choose from {', '.join(PARAMETERS[arm.method])}")
    return arm._replace(parameters=PARAMETERS[arm.method] | arm.parameters)


def check(methods: Iterable[str]) -> None:
    """Raise LabError if one of these methods cannot run here."""
    for method in methods:
        try:
            make(f"{method}:1", lambda: 0.0)
        except LabError as error:
            raise LabError(
                f"{method} is {error}: run this in .venvs/bench, which ci/setup-env bench makes, or leave it out by "
                f"--without {method}"
            ) from None


def make(name: str, clock: Callable[[], float], model: Any = None, device: Device | None = None) -> Any:
    """A new drafter; `auto` times steps with `clock`. Raises LabError where vLLM's methods are not installed.

    model: the simulated ModelDrafter of methods that have one. device: whose costs suffix-device knows; None: it
    verifies all that it drafts.
    """
    arm = parse(name)
    method, _, texts = arm.method.partition("+")
    sam: dict[str, Any] = {"switch": "batch", "threshold": 1 << 20, **arm.parameters}
    match texts or method:
        case "model":
            return Alone(arm, model)
        case "auto":
            return Best(arm, model, clock) if texts else Sam(arm, {"switch": "auto"}, clock)
        case "oldest":
            return Sam(arm, sam | {"rule": "oldest", "sources": ["request"]}, clock)
        case "batch":
            return Sam(arm, sam, clock)
        case suffix_device.NAME:
            return AdaptiveSuffixDevice(arm, device)
    makers: dict[str, Callable[[Arm], Any]] = {"ngram": Ngram, "suffix": Suffix, "length": Longest}
    drafter = makers[texts or method](arm)
    return Either(arm, model, drafter) if texts else drafter
