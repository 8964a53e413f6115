# SPDX-License-Identifier: Apache-2.0
"""`python -m research tree`: decode prompts by every method and by plain decoding, and compare."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sam_core.console import Progress
from sam_core.files import write_json

from research import methods, models
from research.settings import Settings
from sam_lab.cli import LabError, check_outputs, non_negative, positive, probability
from sam_lab.recordings import temporary_corpus
from sam_lab.replay import Counts

TABLE = "{:10} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8}  {}"
ROW = (
    "{method:10} {tokens_per_step:8.3f} {drafted_per_step:8.1f} {precision:9.3f} {draft:9.2f} {verify:9.2f} "
    "{other:9.2f} {speedup:9.2f} {texts:>8}  {counted}"
)
EPILOG = """\
Plain decoding runs in the same loop, without drafts. `tok/step` is tokens that one request gains in one pass of the
target; `nodes` are drafted tokens verified a step, `precision` the share of them that became text; draft, verify and
other are milliseconds a pass of the target (draft includes learning from the text). The
target's passes over prompts are left out of all times. `speed-up` is plain decoding's time over the method's, each the
fastest of --repeat runs in turn. With --temperature both sample by seed and position, so the texts can be compared as
well.

sd-linear, sd-tree and hybrid know the target's outputs for --earlier other prompts, rest has them as its datastore
(or --corpus). The methods are described in research/methods.py.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Decode prompts by drafting methods with tree verification, against plain decoding."
    add = parser.add_argument
    add("--model", type=Path, required=True, metavar="DIR", help="the target: a local Hugging Face folder")
    add("--draft-model", type=Path, metavar="DIR", help="for ssd, tsd, gsd, hybrid: a smaller one, same tokenizer")
    add("--method", nargs="+", choices=methods.METHODS, metavar="METHOD", help=", ".join(methods.METHODS))
    add("--prompts", type=Path, metavar="FILE", help="one prompt a line; default: the tiny model's task")
    add("--count", type=positive, default=16, metavar="N", help="prompts to decode (default 16)")
    add("--earlier", type=positive, default=64, metavar="N", help="prompts answered before (default 64)")
    add("--batch", type=positive, default=1, metavar="N", help="requests at a time (default 1)")
    add("--max-tokens", type=positive, default=256, metavar="N", help="of an answer (default 256)")
    add("--nodes", type=positive, default=64, metavar="N", help="maximum nodes of a tree (default 64)")
    add("--corpus", type=Path, metavar="FILE", help="REST's datastore, built by python -m sam_core build-corpus")
    add("--temperature", type=float, metavar="T", help="sample; default: greedy")
    add("--top-p", type=float, default=1.0, metavar="P", help="nucleus, with --temperature (default 1)")
    add("--seed", type=non_negative, default=0, metavar="N")
    add("--repeat", type=positive, default=1, metavar="N", help="runs of each, for the times (default 1)")
    add("--threads", type=positive, default=1, metavar="N", help="of torch (default 1)")
    for field in dataclasses.fields(Settings):
        option, value = f"--{field.name.replace('_', '-')}", field.default
        whole = non_negative if field.name == "tau" else positive
        kind = whole if isinstance(value, int) else probability
        add(option, type=kind, default=value, metavar="X", help="default %(default)s")
    add("--json", type=Path, metavar="OUT", help="write all figures here")


def run(args: argparse.Namespace) -> int:
    """The command; raises ValueError or OSError. Returns 1 where a text differs from plain decoding's."""
    import torch

    from research.decoder import Decoder
    from research.verify import Greedy, Sampled

    names = args.method or [m for m in methods.METHODS if args.draft_model or m not in methods.WITH_MODEL]
    needing = [name for name in names if name in methods.WITH_MODEL]
    if needing and not args.draft_model:
        raise LabError(f"{needing[0]} needs --draft-model DIR, a smaller model of the same tokenizer")
    check_outputs(args, "json")
    torch.set_num_threads(args.threads)
    target, tokenizer = models.load(args.model)
    draft_model = None
    if needing:
        draft_model, draft_tokenizer = models.load(args.draft_model)
        if draft_tokenizer.get_vocab() != tokenizer.get_vocab():
            raise LabError(f"{args.draft_model} and {args.model} have different tokenizers: drafts would be noise")
    prompts, first = _prompts(args, tokenizer)
    sampler = Greedy() if args.temperature is None else Sampled(args.temperature, args.top_p, args.seed)
    ends = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    decoder = Decoder(target, sampler, ends, args.max_tokens, args.nodes)
    progress = Progress()
    earlier, _ = decode(decoder, prompts[:first], None, 0, 32, progress, "earlier prompts")
    prompts = prompts[first:]
    settings = Settings(**{f.name: getattr(args, f.name) for f in dataclasses.fields(Settings)})
    print(TABLE.format("method", "tok/step", "nodes", "precision", "draft", "verify", "other", "speed-up", "equal", ""))
    with contextlib.ExitStack() as stack:
        corpus = args.corpus
        if "rest" in names and not corpus:
            corpus = stack.enter_context(temporary_corpus(earlier))
        makers = {name: functools.partial(methods.make, name, settings, earlier, corpus, draft_model) for name in names}
        rows = compare(decoder, makers, prompts, first, args.batch, args.repeat, progress)
    progress.clear()
    for row in rows:
        print(_row(row), flush=True)
    if args.json:
        chosen = {name: value for name, value in vars(args).items() if name not in ("run", "command")}
        given = {name: str(value) if isinstance(value, Path) else value for name, value in chosen.items()}
        write_json(args.json, given | {"torch": torch.__version__, "methods": rows})
    different = [row["method"] for row in rows if row["equal"] < row["of"]]
    if different:
        print(f"not all texts equal plain decoding's: {', '.join(different)}")
    return 1 if different else 0


def _prompts(args: argparse.Namespace, tokenizer: Any) -> tuple[list[list[int]], int]:
    """All prompts, and how many of them, at the beginning, are the earlier ones."""
    if not args.prompts:
        return models.prompts(tokenizer, args.earlier + args.count, args.seed), args.earlier
    prompts = models.read_prompts(args.prompts, tokenizer)
    if len(prompts) < 2:
        raise LabError(
            f"{args.prompts} has one prompt: the first half of a file are the earlier ones, write two or more"
        )
    first = min(args.earlier, len(prompts) // 2)
    return prompts[: first + args.count], first


def compare(
    decoder: Any,
    makers: Mapping[str, Callable[[], Any]],
    prompts: Sequence[Sequence[int]],
    first: int,
    batch: int,
    repeat: int,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Decode prompts plainly and with the drafters of `makers`, by name.

    Returns a row of figures each, plain decoding's first: Figures.summary(), method, counts, by_prompt (of
    each batch of prompts), equal and of (texts that equal plain decoding's, of how many) and speedup, by the fastest of
    `repeat` runs in turn. Raises LabError where nothing drafted was accepted.
    """
    best: dict[str, dict[str, Any]] = {}
    texts: dict[str, list[list[int]]] = {}
    for _ in range(repeat):
        for name, make in {"plain": lambda: None, **makers}.items():
            drafter = make()
            by_prompt: Counts = {}
            texts[name], figures = decode(decoder, prompts, drafter, first, batch, progress, name, by_prompt)
            row = figures.summary() | {"method": name, "counts": dict(getattr(drafter, "counts", {}))}
            row["by_prompt"] = by_prompt
            if name not in best or row["decode_s"] < best[name]["decode_s"]:
                best[name] = row
    for name, row in best.items():
        row["equal"] = sum(a == b for a, b in zip(texts[name], texts["plain"], strict=True))
        row["of"] = len(prompts)
        row["speedup"] = best["plain"]["decode_s"] / row["decode_s"]
        if name != "plain" and not row["accepted"]:
            raise LabError(f"{name}: of {row['drafted']} drafted tokens none was accepted: it did not speculate")
    return list(best.values())


def decode(
    decoder: Any,
    prompts: Sequence[Sequence[int]],
    drafter: Any,
    first: int,
    batch: int,
    progress: Progress,
    name: str,
    by_prompt: Counts | None = None,
) -> tuple[list[list[int]], Any]:
    """Decode in batches; the texts of all and the sums of their figures.

    Each batch's tokens, steps, accepted and drafted tokens go to by_prompt, and what a draft model counted: nodes,
    drafts and grafted.
    """
    from research.decoder import Figures

    texts: list[list[int]] = []
    total = Figures()
    for at in range(0, len(prompts), batch):
        before = _counted(drafter)
        answers, figures = decoder.run(
            prompts[at : at + batch],
            drafter,
            first + at,
            lambda done, at=at: progress.show(f"{name}: prompt {at + 1} of {len(prompts)}, {done} tokens"),
        )
        texts += answers
        total += figures
        if by_prompt is not None:
            counted = [now - then for now, then in zip(_counted(drafter), before, strict=True)]
            by_prompt[str(at)] = [figures.tokens, figures.steps, figures.accepted, figures.drafted, *counted]
    return texts, total


NODES_A_DRAFT, GRAFTED = (4, 5), (6, 5)
"""Parts of by_prompt for sam_lab.replay.quotient: nodes a draft, drafts with a token accepted behind a merged node."""


def _counted(drafter: Any) -> list[int]:
    return [getattr(drafter, "counts", {}).get(name, 0) for name in ("nodes", "drafts", "grafted")]


def _row(row: dict[str, Any]) -> str:
    counts, counted = row["counts"], ""
    if counts:
        drafts = max(counts["drafts"], 1)
        counted = f"expanded {counts['expanded'] / drafts:.1f} a draft"
        counted += f", merged {counts['merged'] / drafts:.2f}" if counts["merged"] else ""
        counted += f", SAM {counts['sam'] / max(row['steps'], 1):.0%}" if "sam" in counts else ""
    return ROW.format(**row, **pass_times(row), texts=f"{row['equal']}/{row['of']}", counted=counted).rstrip()


def pass_times(row: dict[str, Any]) -> dict[str, float]:
    """Milliseconds a pass of the target, of a row of `compare`: draft, verify, other."""
    return {name: 1e3 * row[f"{name}_s"] / max(row["passes"], 1) for name in ("draft", "verify", "other")}
