# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab engine-replay`: gain of speculation on the real engine, with random weights."""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sam_core.console import Progress
from sam_core.engines.hooks import installed
from sam_core.engines.vllm import hooks
from sam_core.files import check_output, naming, replacing

from llm_rl.evaluation.engine import default_dtype
from llm_rl.shape import SHAPES, Shape
from sam_lab.arms import Arm, parse
from sam_lab.cli import LabError, non_negative, positive
from sam_lab.engine_replay import arms
from sam_lab.engine_replay.report import report
from sam_lab.recordings import PARTS, by_group, read_answers, split

TINY = Shape(2, 64, 2, 1, 32, 128, tied=True)
"""A tiny shape for tests; its times represent no real model."""
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process
    "NUMBA_NUM_THREADS": "1",  # ngram's numba sets torch's number of threads otherwise
}
DEFAULTS = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "2",
}
RUNNERS: dict[bool, dict[str, str]] = {
    False: {"VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_PLUGINS": ""},
    True: {"VLLM_USE_V2_MODEL_RUNNER": "1", "VLLM_PLUGINS": "sam"},
}
"""Default of VLLM_PLUGINS, by whether the second runner is driven."""
EPILOG = """\
A model of a real architecture gets random weights, and its next token is forced to the recorded one: times of steps and
accepted drafts are real. Every batch of requests goes through every arm, one after the other in this process.

arms with this project's patches, on vLLM's first model runner; gains are against --against: `plain`, an engine without
speculation and without asynchronous scheduling, or `plain@async`:
  plain    no speculation
  off      sam whose switch stays off: its index is fed, nothing is drafted
  ngram    vLLM's n-gram look-up, k = 3
  suffix   vLLM's suffix decoding, k = --k; needs the package arctic-inference
  batch    sam as in the article: k = 3 while at most 8 requests run; batch:K:THRESHOLD has other figures
  auto     sam's switch auto, at most --k tokens; it learns on --learn batches first and keeps learning, as an engine
           does from one rollout to the next
  plain@async, off@async, batch@async, auto@async
           the same in an engine that schedules asynchronously, where the platform does

arms with an unpatched vLLM 0.32 or 0.33 and the plugin, on its second runner; each is an engine of its own, schedules
asynchronously, and keeps its texts and what it learned from batch to batch; gains are against `plain`:
  plain        no speculation
  ngram_gpu:K  vLLM's n-gram look-up on the device, as it is by default
  sam:K        sam with K tokens at any number of requests
  schedule     sam with 15, 7 or 3 tokens while at most 8, 32 or 128 requests run
  auto         sam's switch auto, at most --k tokens, after --learn batches; on a GPU it needs --graphs FULL

The model is in bfloat16, or in float32 on a CPU without bfloat16 instructions. On a CPU the clock is the processor
time of this process (one thread), which other load hardly affects; elsewhere it is wall time. The same
command runs on a GPU if vLLM finds one, and on an NPU with VLLM_PLUGINS=ascend.

Writes OUT/engine-replay.json, steps.json and engine-replay.png; with several recordings, each into a
folder of its name. Each finished run is appended to runs.jsonl, and --resume keeps the runs of the same settings. Exits
with 1 if an answer differs from the recorded one or an arm drafted nothing.

on one GPU with vLLM 0.32 or 0.33 and the plugin (docs/lab.md explains the output):
  python -m sam_lab engine-replay sam_lab/data/evidence/{rl,long}.jsonl.gz --part test --shape Qwen3-8B \\
    --graphs FULL --groups 40 --batches 2 --tokens 1500 --max-seqs 128 --out outputs/gpu
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "answers",
        nargs="+",
        metavar="FILE",
        help="a recording, see `python -m sam_lab replay --help`; batches of several alternate",
    )
    add("--part", choices=PARTS, help="only the prompts that `evidence` tunes on or tests with; default: all")
    shapes = [name for name, shape in SHAPES.items() if not shape.nets]
    add("--shape", choices=[*shapes, "tiny"], default="Qwen3-0.6B", help="model shape (%(default)s)")
    add("--arms", nargs="+", metavar="ARM", help="default: all but those that end in @async")
    add(
        "--groups",
        type=positive,
        default=10,
        metavar="N",
        help="groups (answers to one prompt) per batch (%(default)s)",
    )
    add("--per-group", type=positive, default=3, metavar="N", help="answers of a group (%(default)s)")
    add("--batches", type=positive, default=5, metavar="N", help="batches, each with different prompts (%(default)s)")
    add(
        "--learn",
        type=non_negative,
        default=1,
        metavar="N",
        help="batches before these, on which auto learns (%(default)s)",
    )
    add("--tokens", type=positive, default=2000, metavar="N", help="maximum tokens of an answer (%(default)s)")
    add("--max-seqs", type=positive, default=32, metavar="N", help="requests that run at once (%(default)s)")
    add("--k", type=positive, default=15, metavar="K", help="maximum draft tokens of auto and suffix (%(default)s)")
    add("--tail", type=non_negative, default=8, metavar="N", help="maximum requests that run in the tail (%(default)s)")
    add(
        "--graphs",
        choices=("NONE", "FULL", "FULL_DECODE_ONLY"),
        default="NONE",
        help="vLLM's cudagraph_mode, without torch.compile (%(default)s)",
    )
    add(
        "--against",
        choices=("plain", "plain@async"),
        default="plain",
        help="what gains are against; always run",
    )
    add("--temperature", type=float, default=0.0, metavar="T", help="of the sampler (%(default)s)")
    add("--verify", choices=("rejection", "seeded"), default="rejection", help="default: rejection")
    add("--seed", type=non_negative, default=0, metavar="N", help="of the choice of prompts (%(default)s)")
    add("--out", type=Path, default=Path("outputs/engine-replay"), metavar="DIR", help="default: outputs/engine-replay")
    add("--resume", action="store_true", help="keep the runs that OUT has from the same settings")


def run(args: argparse.Namespace) -> int:
    """The command; raises ValueError or OSError."""
    second = args.second_runner = is_second_runner()
    forms = arms.FORMS[second]
    if args.arms is None:
        args.arms = [form.replace("K", "3") for form in forms if not form.endswith(("THRESHOLD", "@async"))]
    asynchronous = ["plain@async"] if any(parse(name, forms).asynchronous for name in args.arms) else []
    named = {name: parse(name, forms) for name in [args.against, *asynchronous, *args.arms]}
    sets = [choose(file, args) for file in args.answers]
    batches = [batch for turn in zip(*sets, strict=True) for batch in turn]
    folders = [args.out / Path(file).name.split(".")[0] for file in args.answers] if len(sets) > 1 else [args.out]
    if len(set(folders)) < len(folders):
        raise LabError("two files of the same name: their results would have the same folder")
    set_environment(second)
    for name, arm in [*named.items()]:
        if reason := arms.missing_reason(arm):
            print(f"{name} is left out: {reason}", file=sys.stderr)
            del named[name]
    args.out.mkdir(parents=True, exist_ok=True)
    args.dtype = default_dtype()
    settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items() if k not in ("run", "resume")}
    if len(sets) == 1:
        settings["answers"] = args.answers[0]
    same = {k: v for k, v in settings.items() if k not in ("arms", "batches", "out", "against", "tail")}
    check_output(args.out / "runs.jsonl", args.answers)
    records = Records(args.out / "runs.jsonl", same, args.resume)
    runs = replay(batches, named, args, records)
    failed = False
    for i, (file, folder) in enumerate(zip(args.answers, folders, strict=True)):
        if len(sets) > 1:
            folder.mkdir(exist_ok=True)
            print(f"\n{file}")
        of_set = [run | {"batch": run["batch"] // len(sets)} for run in runs if run["batch"] % len(sets) == i]
        result = report(of_set, args.tail, folder, settings | {"answers": file})
        failed = failed or bool(result["wrong"] or result["silent"])
    return int(failed)


def is_second_runner() -> bool:
    """Whether to use the second runner of the installed vLLM, with the plugin, because vLLM lacks the patches. Raises
    ValueError for a release that the plugin does not know."""
    folder = installed("vllm")
    if folder is None or hooks.is_patched(folder):
        return False
    hooks.check(folder, version("vllm"))
    return True


def set_environment(second: bool) -> None:
    """Set vLLM's environment variables; raises LabError if they exclude the plugin that is needed."""
    of_runner = RUNNERS[second]
    os.environ.update(ENVIRONMENT | {"VLLM_USE_V2_MODEL_RUNNER": of_runner["VLLM_USE_V2_MODEL_RUNNER"]})
    for name, value in (DEFAULTS | {"VLLM_PLUGINS": of_runner["VLLM_PLUGINS"]}).items():
        os.environ.setdefault(name, value)
    if second and "sam" not in (plugins := os.environ["VLLM_PLUGINS"]).split(","):
        raise LabError(f"VLLM_PLUGINS={plugins} leaves out the plugin that is to be driven: add sam")


class Records:
    """The finished runs, one per line, and the state of auto after each of its runs."""

    def __init__(self, path: Path, settings: dict[str, Any], resume: bool) -> None:
        self.path = path
        self.done: dict[tuple[str, int], dict[str, Any]] = {}
        self.learned: dict[str, Any] | None = None
        text = path.read_text() if resume and path.exists() else ""
        # the last line may be incomplete
        lines = text.split("\n")[:-1] or [json.dumps(settings)]
        header, *records = map(json.loads, lines)
        if header != settings:
            raise LabError(f"{path} was written with other settings: leave out --resume, or choose another --out")
        for record in records:
            self._take(record)
        with replacing(path) as temporary:
            temporary.write_text("".join(line + "\n" for line in lines))

    def _take(self, record: dict[str, Any]) -> None:
        self.learned = record.pop("learned", None) or self.learned
        self.done[record["arm"], record["batch"]] = record

    def add(self, record: dict[str, Any], learned: dict[str, Any] | None) -> None:
        with naming(self.path), open(self.path, "a") as file:
            file.write(json.dumps(record | {"learned": learned}) + "\n")
        self._take(record | {"learned": learned})


def choose(file: str, args: argparse.Namespace) -> list[list[tuple[list[int], list[int]]]]:
    """Batches of groups, in an order that the seed determines; raises LabError if there are too few groups."""
    answers = read_answers(Path(file))
    if args.part:
        answers = split(answers)[args.part]
    full = [group[: args.per_group] for group in by_group(answers).values() if len(group) >= args.per_group]
    random.Random(args.seed).shuffle(full)
    needed = args.groups * (args.batches + args.learn)
    if len(full) < needed:
        raise LabError(
            f"{file} has {len(full)} groups of at least {args.per_group} answers, {needed} are needed: "
            "lower --batches, --learn, --groups or --per-group"
        )
    batches = []
    for i in range(0, needed, args.groups):
        chosen = (answer for group in full[i : i + args.groups] for answer in group)
        batches.append([(list(answer.prompt_ids), list(answer.response_ids)[: args.tokens]) for answer in chosen])
    return batches


def shape_of(args: argparse.Namespace) -> Shape:
    return SHAPES.get(args.shape, TINY)


def cache_bytes(args: argparse.Namespace, batches: list[Any]) -> int:
    """Bytes of an engine's cache on a device that engines share: the largest texts of a batch that run at once, in
    blocks of up to 128 tokens, and one block that vLLM keeps."""
    token = shape_of(args).kv_bytes(1) * (2 if args.dtype == "float32" else 1)
    lengths = (sorted(len(p) + len(a) + args.k + 128 for p, a in batch) for batch in batches)
    return (max(sum(of_batch[-args.max_seqs :]) for of_batch in lengths) + 128) * token


def start_engines(named: Mapping[str, Arm], args: argparse.Namespace, batches: list[Any]) -> dict[str, Any]:
    """The engine of each arm; on the first runner some arms share one."""
    from sam_lab.engine_replay.engine import ForcedEngine
    from sam_lab.engine_replay.forced import write_model

    longest = max(len(p) + len(a) for batch in batches for p, a in batch) + args.k + 2
    shape, size = shape_of(args), cache_bytes(args, batches)
    if shape is TINY:  # sampling takes most of its time
        shape = replace(shape, vocabulary=1 + max(max(*p, *a) for batch in batches for p, a in batch))
    common = {"max_model_len": longest, "max_num_seqs": args.max_seqs, "graphs": args.graphs}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        write_model(folder, shape, longest, args.dtype)
        if args.second_runner:
            from sam_lab.engine_replay.engine2 import ForcedEngine2, fitting

            common["kv_cache_memory_bytes"] = fitting(size, len(named), 2 * shape.parameters)
            # the scheduler plans whole drafts, however few are verified
            common["max_num_batched_tokens"] = 2048 + args.max_seqs * (args.k + 1)
            given = (args.k, args.max_seqs, args.verify)
            configs = {name: arms.speculative_config(arm, *given) for name, arm in named.items()}
            return {name: ForcedEngine2(folder, config, **common) for name, config in configs.items()}
        common |= {"verify": args.verify, "kv_cache_memory_bytes": size}
        kinds = {name: (args.k * (arm.method != "plain"), arm.asynchronous) for name, arm in named.items()}
        engines = {
            (k, asynchronous): ForcedEngine(folder, k, asynchronous=asynchronous, **common)
            for k, asynchronous in dict.fromkeys(kinds.values())
        }
        return {name: engines[kind] for name, kind in kinds.items()}


def replay(
    batches: list[Any], named: Mapping[str, Arm], args: argparse.Namespace, records: Records
) -> list[dict[str, Any]]:
    """Run every arm on every batch, in an order that rotates from batch to batch."""
    # auto learns on the first batches, which are not reported
    names = list(named)
    learner = next((name for name, arm in named.items() if arm.method == "auto"), None)
    learn = args.learn * len(args.answers)
    turns = [(learner, i) for i in range(-learn, 0)] if learner else []
    for number in range(len(batches) - learn):
        turn = number // len(args.answers) % len(names)
        turns += [(name, number) for name in names[turn:] + names[:turn]]
    missing = [turn for turn in turns if turn not in records.done]
    progress = Progress()

    def show(what: str, done: int, total: int) -> None:
        progress.show(f"{what}: {done:,} of {total:,} tokens")

    if missing:
        engines = start_engines({name: named[name] for name, _ in missing}, args, batches)
        warm_up = [(p[:32], a[:8]) for p, a in batches[0][:4]]
        for engine in dict.fromkeys(engines.values()):
            engine.run(warm_up, args.temperature)
        if args.second_runner and learner in engines:  # what it learned ended with the engine
            missing = [turn for turn in turns if turn in missing or turn[1] < 0]
    for name, number in missing:
        engine, switch = engines[name], None
        if not args.second_runner and (
            drafter := arms.make(named[name], engine.runner, args.k, {"verify": args.verify}, engine.clock)
        ):
            engine.use(*drafter)
            switch = drafter[1].switch if named[name].method == "auto" else None
        if switch and records.learned:
            switch.restore(records.learned)
        what = f"batch {number + 1}/{len(batches) - learn} {name}" if number >= 0 else "auto learns"
        batch = batches[number + learn]
        steps, wrong = engine.run(batch, args.temperature, functools.partial(show, what))
        learned = switch.state() if switch else None
        records.add({"arm": name, "batch": number, "wrong": wrong, "steps": steps}, learned)
    progress.clear()
    return [records.done[turn] for turn in turns if turn[1] >= 0]
