# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab bench-sampler`: compare our verification with the samplers of vllm-ascend 0.11 and 0.13 in time,
operations, host synchronisations and AICPU operators.
"""

from __future__ import annotations
import __future__

import argparse
import ast
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from sam_core.console import Progress
from sam_core.engines.vllm.sampling import RequestNoise
from sam_core.noise import Noise
from sam_core.seeds import request_key
from torch.utils._python_dispatch import TorchDispatchMode

from sam_core import verify
from sam_lab.bench.peers.source import need
from sam_lab.bench.rows import Figure, Row, alternate, figure, finish, machine
from sam_lab.cli import LabError

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / "patches"), str(REPO / "testing/torch_npu")]
import operators  # noqa: E402
from _patchset import pins, sdist  # noqa: E402
from _patchset.git import Failure  # noqa: E402

EPILOG = """\
V=151936, 3 deterministic draft tokens per request, all requests sample, one CPU thread. A step begins with the
probabilities of all rows, including the rows after the drafts, which the releases sample separately. Figures are
medians of rounds in which all contestants take turns: of the whole step, and of the step without drawing random numbers
("draws given").

`rejection` and the two releases need an exponential for every token of the vocabulary; drawing them is most of a step
on some processors. `seeded` makes its own noise. For 0.13 the vectorized rejection sampling runs, not the block
verification, which it uses from 3 draft tokens on and which changes the distribution.

What runs on the AICPU is looked up in testing/operators.csv, which names its sources.

The releases' files come from their source distributions, found as patches/patchset finds them. Writes
OUT/bench-sampler.json and prints the table. Exits with 1 when a target is missed.
"""
V, K = 151936, 3
ROUNDS = {1: 41, 2: 31, 4: 21, 8: 15, 16: 9, 32: 7, 64: 5, 128: 5}
LATER = ("vllm-ascend", "0.13.0", "ab0e9bc12b9a4042c261901ccad96f4faab6e6d04cf5131f7cc2358aafda3a36")
SECTIONS = ["time", "operations", "host synchronisations", "AICPU operators"]
WAITS = {"_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "repeat_interleave"}


class Operations(TorchDispatchMode):
    """Counts operations, those whose result the host waits for, and those that a 910C runs on its AICPU."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.waits = self.aicpu = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put_") else ()
        by_mask = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)
        self.count += 1
        self.waits += name in WAITS or by_mask
        result = function(*args, **(kwargs or {}))
        call = operators.Call(args, kwargs or {}, result)
        self.aicpu += operators.unit(f"{function.namespace}::{name}", call)[0] == "AICPU"
        return result


class Unpinned(ast.NodeTransformer):
    """Removes pin_memory=True, which torch refuses on a machine without an accelerator."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.keywords = [keyword for keyword in node.keywords if keyword.arg != "pin_memory"]
        return self.generic_visit(node)


def functions_of(text: str, device: torch.device, **known: Any) -> SimpleNamespace:
    """The functions of an engine's file, without its imports."""
    tree = ast.parse(text)
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    if device.type == "cpu":
        tree = ast.fix_missing_locations(Unpinned().visit(tree))
    names = {"torch": torch, "HAS_TRITON": False, **known}
    exec(compile(tree, "<release>", "exec", flags=__future__.annotations.compiler_flag), names)
    return SimpleNamespace(**names)


def release(module: Any, device: torch.device) -> SimpleNamespace:
    path = "vllm_ascend/sample/rejection_sampler.py"
    try:
        _, contents = sdist.read(sdist.locate(module, None), {path})
    except Failure as error:
        raise LabError(str(error)) from None
    engine = need("vllm") / "v1" / "sample" / "rejection_sampler.py"
    kernels = ast.parse(engine.read_text())
    draw = next(node for node in kernels.body if getattr(node, "name", "") == "generate_uniform_probs")
    uniform = functions_of(ast.unparse(draw), device).generate_uniform_probs
    return functions_of(contents[path][1].decode(), device, generate_uniform_probs=uniform)


class Case:
    """One step of a batch.

    Attributes:
        steps: the contestants by name, functions without arguments that return the tokens of the step.
        given: those that take random draws, with the same draws, so that their tokens must be equal.
    """

    def __init__(self, batch: int, device: torch.device, releases: dict[str, SimpleNamespace]) -> None:
        generator = torch.Generator().manual_seed(batch)
        self.batch, self.device, self.counts = batch, device, [K] * batch
        self.ends = (torch.arange(1, batch + 1, dtype=torch.int32) * K).to(device)
        rows = torch.randn(batch * (K + 1), V, generator=generator).mul_(4).softmax(1)
        target = rows.view(batch, K + 1, V)[:, :K].reshape(batch * K, V)
        likely = torch.rand(batch * K, generator=generator) < 0.7
        drafts = torch.where(likely, target.argmax(1), torch.randint(0, V, (batch * K,), generator=generator))
        self.drafts, self.rows, self.probs = drafts.int().to(device), rows.to(device), target.to(device)
        self.keys = [request_key(seed) for seed in range(batch)]
        self.sampled = torch.zeros(batch, dtype=torch.bool, device=device)
        self.draws = verify.draw(self.counts, {}, V, device)
        self.draft_rows, self.draft_index = self.rows.view(batch, K + 1, V)[:, :K], self.drafts.long().view(batch, K, 1)
        self.draft_probs = self.draft_rows.gather(2, self.draft_index)
        self.bonus_rows = self.rows.view(batch, K + 1, V)[:, K].contiguous()
        self.steps: dict[str, Callable] = {name: partial(self.theirs, file, None) for name, file in releases.items()}
        self.given: dict[str, Callable] = {
            name: partial(self.theirs, file, self.draws) for name, file in releases.items()
        }
        self.steps["rejection"] = lambda: self.rejection(verify.draw(self.counts, {}, V, device))
        self.given["rejection"] = lambda: self.rejection(self.draws)
        self.steps["seeded"] = self.seeded

    def rejection(self, draws: verify.Draws) -> torch.Tensor:
        tokens = verify.rejection_sample(self.rows, self.drafts, self.counts, draws)
        self.draft_rows.scatter_(2, self.draft_index, self.draft_probs)  # rejection_sample has changed them in place
        return tokens

    def seeded(self) -> torch.Tensor:
        noise = Noise(self.keys, range(self.batch), self.counts, self.device)
        return verify.keep_equal(noise.sample(self.rows), self.drafts, self.counts)

    def theirs(self, module: SimpleNamespace, draws: verify.Draws | None) -> torch.Tensor:
        """A release's step for requests that sample: the ordinary sampler after the drafts, and rejection_sample."""
        exponential = torch.empty_like(self.bonus_rows).exponential_() if draws is None else draws.exponential
        bonus = (self.bonus_rows / exponential).argmax(1, keepdim=True).int()
        output = torch.empty((self.batch, K + 1), dtype=torch.int32, device=self.device)
        output.fill_(verify.PLACEHOLDER)
        common = self.ends, self.drafts, None, self.probs
        if draws is None:
            uniform = module.generate_uniform_probs(self.batch * K, self.counts, {}, self.device)
            metadata = SimpleNamespace(generators={})
            recovered = module.sample_recovered_tokens(K, self.counts, *common, metadata, self.device)
        else:
            uniform = draws.uniform.view(self.batch, K + 1)[:, :K].flatten()
            recovered = torch.empty_like(self.drafts)
            module.sample_recovered_tokens_pytorch(recovered, *common, draws.exponential, V, IS_NGRAM=True)
        module.rejection_random_sample_pytorch(
            output, *common, bonus, recovered, uniform, self.sampled, K, V, IS_NGRAM=True
        )
        return output

    def check(self) -> None:
        """Raise AssertionError unless all give the same tokens for the same draws."""
        first, *others = (step() for step in self.given.values())
        for other in others:
            assert torch.equal(first, other), "the contestants' tokens differ"

    def milliseconds(self, step: Callable) -> float:
        wait = torch.cuda.synchronize if self.device.type == "cuda" else lambda: None
        wait()
        start = time.perf_counter()
        step()
        wait()
        return (time.perf_counter() - start) * 1e3

    def measure(self, rounds: int) -> dict[str, Any]:
        self.check()
        operations = {}
        for name, step in self.steps.items():
            with Operations() as counted:
                step()
            operations[name] = [counted.count, counted.waits, counted.aicpu]
        times = {}
        for kind, steps in (("step", self.steps), ("given", self.given)):
            samples = {name: partial(self.milliseconds, step) for name, step in steps.items()}
            alternate(samples, 1)
            times[kind] = {name: value.median for name, value in alternate(samples, rounds).items()}
        return {"batch": self.batch, "ms": times, "operations": operations}


def targets(measured: list[dict]) -> list[Row]:
    """Rows of the table: our time, operations, waits and AICPU operators, and those of both releases."""

    def row(section: str, what: str, unit: str, better: str, bound: float, ours: float, peers: dict) -> Row:
        figures: dict[str, Figure | str] = {name: Figure.of([value]) for name, value in peers.items()}
        return Row(section, what, unit, better, bound, ours=Figure.of([ours]), peers=figures)

    rows = []
    for case in measured:
        batch, operations = case["batch"], case["operations"]
        for kind, times in case["ms"].items():
            peers = {name: times[name] for name in ("0.11", "0.13")}
            for name in ("rejection", "seeded"):
                if name in times:
                    what = f"batch {batch}, {name}{', draws given' if kind == 'given' else ''}"
                    rows.append(row("time", what, "ms", "<=", min(peers.values()), times[name], peers))
        if ratio := {8: 8, 32: 30}.get(batch):
            for name in ("rejection", "seeded"):
                fewer = operations["0.11"][0] / operations[name][0]
                what = f"batch {batch}, {name}, times fewer than 0.11"
                rows.append(row("operations", what, "times", ">=", ratio, fewer, {}))
        for name in ("rejection", "seeded"):
            for at, section in enumerate(SECTIONS[2:], 1):
                peers = {peer: operations[peer][at] for peer in ("0.11", "0.13")}
                rows.append(row(section, f"batch {batch}, {name}", "", "<=", 0, operations[name][at], peers))
    return sorted(rows, key=lambda row: SECTIONS.index(row.section))


class Request:
    """An engine's state of a request, whose number of tokens is a property as in vLLM."""

    def __init__(self, seed: int, tokens: int) -> None:
        self.sampling_params, self.output_token_ids = SimpleNamespace(seed=seed), [0] * tokens

    @property
    def num_tokens(self) -> int:
        return 500 + len(self.output_token_ids)


def noise_row(count: int, device: torch.device) -> Row:
    """The host's time for seeds, if in each step one request ends and another begins."""
    make, taken = RequestNoise(0, device), []
    requests = {str(number): Request(number, number) for number in range(count + 200)}
    req_ids = list(requests)[:count]
    for step in range(200):
        req_ids[step % count] = str(count + step)
        start = time.process_time()
        make(req_ids, requests, [K] * count).starts()
        taken.append((time.process_time() - start) * 1e3)
    return Row("time", f"noise of a step, {count} requests", "ms", "<=", 0.3, ours=Figure.of(taken))


def overview(measured: list[dict]) -> str:
    """The figures of all contestants by batch."""
    names, given = [*measured[0]["ms"]["step"]], [*measured[0]["ms"]["given"]]
    heads = [f"{name} ms" for name in names] + [f"{name} given" for name in given]
    heads += [f"{name} ops" for name in names]  # operations, waits, AICPU operators
    lines = [" ".join([f"{'batch':>5}", *(f"{head:>15}" for head in heads)])]
    for case in measured:
        cells = [figure(case["ms"]["step"][name]) for name in names]
        cells += [figure(case["ms"]["given"][name]) for name in given]
        cells += ["{} / {} / {}".format(*case["operations"][name]) for name in names]
        lines.append(" ".join([f"{case['batch']:>5}", *(f"{cell:>15}" for cell in cells)]))
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", type=Path, default=Path("outputs/bench-sampler"), metavar="OUT", help="default: outputs/bench-sampler")
    add("--quick", action="store_true", help="batches 1, 8 and 32 in 3 rounds: shows that all rows run")
    add("--device", type=torch.device, default=torch.device("cpu"), help="default: cpu")


def run(args: argparse.Namespace) -> int:
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    progress = Progress()
    pinned = pins.PinSet("vllm-0.11").modules["vllm_ascend"]
    releases = {
        "0.11": release(pinned, args.device),
        "0.13": release(pins.released(Path(__file__), *LATER), args.device),
    }
    measured = []
    for batch, rounds in ({1: 3, 8: 3, 32: 3} if args.quick else ROUNDS).items():
        progress.show(f"batch {batch}")
        measured.append(Case(batch, args.device, releases).measure(rounds))
    progress.clear()
    rows = [noise_row(count, args.device) for count in (1, 64, 1024)] + targets(measured)
    print(overview(measured))
    facts = machine() | {"torch": torch.__version__}
    if args.device.type == "cuda":
        facts["device"] = torch.cuda.get_device_name(args.device)
    record = {"machine": facts, "quick": args.quick, "vocabulary": V, "drafts": K}
    return finish(rows, args.out, "bench-sampler", record | {"measured": measured})
