# SPDX-License-Identifier: Apache-2.0
"""Compare the operators of decoding with those of verification, on the same tokens.

Decoding attends with one token per request, verification with k+1. One engine answers each prompt greedily without
speculation; a second engine answers twice with it. The second time it drafts from its first answers, so nearly every
token is verified. The log-probabilities of the same tokens in both engines should differ only by rounding.

This is the operator check of the article (section 2.1), which reports differences of exactly 0 on its hardware.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from sam_core.files import check_output, write_json

from llm_rl.errors import UserError
from llm_rl.evaluation.engine import (
    Engine,
    GeneratedAnswer,
    add_engine_arguments,
    at_least,
    default_dtype,
    device,
    load_tokenizer,
)
from llm_rl.evaluation.engine import settings as engine_settings

BOUNDS = {"float32": 1e-4, "bfloat16": 0.5, "float16": 0.1}
"""Largest difference allowed, in nats, by dtype. The bounds for NPUs and GPUs are assumptions, not measurements.

Logits between 16 and 32 are 0.125 apart in bfloat16; another order of summation can change a log-probability by 0.125.
"""
MEAN_BOUND = 0.1
"""Maximum mean difference as a share of the bound. Rounding moves few tokens far; a wrong mask moves most of them."""
QUESTIONS = (
    "Let a and b be positive integers with a + b = 30 and ab = 209. Find |a - b|. Reason step by step.",
    "How many positive divisors does 2024 have? Reason step by step.",
    "Solve for x: 3(x - 4) + 5 = 2x + 9. Show each step.",
    "Write a Python function that returns the n-th Fibonacci number, then explain each line.",
)


def compare(decoded: list[GeneratedAnswer], verified: list[GeneratedAnswer]) -> dict[str, Any]:
    """Differences of the log-probabilities of equal tokens.

    Args:
        decoded, verified: answers to the same prompts. An answer is compared up to the first token that differs: after
            it the contexts differ.

    Returns:
        differences: in nats, in order; places: the number of tokens before each one in its verification pass;
        diverged: number of answers whose tokens differ somewhere.
    """
    differences, places, diverged = [], [], 0
    for one, other in zip(decoded, verified, strict=True):
        pairs = list(zip(one.tokens, other.tokens, strict=False))
        same = next((i for i, (mine, theirs) in enumerate(pairs) if mine != theirs), len(pairs))
        diverged += same < len(pairs)
        log_probs = zip(one.log_probs[:same], other.log_probs[:same], strict=True)
        differences += [theirs - mine for mine, theirs in log_probs]
        places += [place for count in other.steps for place in range(count)][:same]
    return {"differences": differences, "places": places, "diverged": diverged}


def summary(comparison: dict[str, Any], bound: float) -> dict[str, Any]:
    """Size and distribution of the differences, in nats, and whether the bound holds."""
    sizes = sorted(map(abs, comparison["differences"]))
    by_place: dict[int, list[float]] = {}
    for place, difference in zip(comparison["places"], comparison["differences"], strict=True):
        by_place.setdefault(place, []).append(abs(difference))
    mean = statistics.fmean(sizes)
    return {
        "tokens": len(sizes),
        "diverged_answers": comparison["diverged"],
        "largest": sizes[-1],
        "mean": mean,
        **{f"p{share}": sizes[min(len(sizes) - 1, len(sizes) * share // 100)] for share in (50, 90, 99)},
        "equal_share": sizes.count(0) / len(sizes),
        "bound": bound,
        "mean_bound": MEAN_BOUND * bound,
        "within": sizes[-1] <= bound and mean <= MEAN_BOUND * bound,
        "by_place": [
            {"place": place, "tokens": len(at_place), "largest": max(at_place), "mean": statistics.fmean(at_place)}
            for place, at_place in sorted(by_place.items())
        ],
    }


def answer(args: argparse.Namespace, prompts: list[list[int]], k: int) -> tuple[list[GeneratedAnswer], dict[str, int]]:
    """Greedy answers of a new engine, and its draft token counts.

    With k > 0 the engine answers twice, and the second answers, which it drafts from the first, are returned.
    """
    settings = {
        "skip_tokenizer_init": True,
        "max_model_len": max(map(len, prompts)) + args.tokens + 1,
        "enable_prefix_caching": False,
        "seed": 0,
    } | engine_settings(args)
    sam = {"rule": "newest", "sources": ["request", "group", "history"], "threshold": args.batch, "min_prob": 0}
    sampling = {"temperature": 0, "max_tokens": args.tokens, "logprobs": 0, "ignore_eos": True, "detokenize": False}
    with Engine(settings, k, sam) as engine:
        for _ in range(2 if k else 1):
            answers = dict(engine.answers([(prompt, sampling) for prompt in prompts]))
        counted = engine.counted()
    return [answers[i] for i in range(len(prompts))], counted


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m llm_rl.check_operators", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add_engine_arguments(parser, batch=8, dtypes=BOUNDS)
    parser.add_argument("--k", type=int, default=3, help="drafted tokens per step (default 3)")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of each answer (default 256)")
    parser.add_argument("--bound", type=float, help=f"largest difference allowed, nats; default by dtype: {BOUNDS}")
    parser.add_argument("--out", type=Path, default=Path("outputs/check-operators"), help="folder for the JSON")
    args = parser.parse_args(argv)
    args.dtype = args.dtype or default_dtype()
    try:
        at_least(args, k=1, tokens=1, batch=1, tensor_parallel=1)
        args.out.mkdir(parents=True, exist_ok=True)
        check_output(args.out / "check-operators.json")
        prompts = load_tokenizer(args.model)(list(QUESTIONS))["input_ids"]
        print(f"decoding {len(prompts)} answers without speculation", flush=True)
        decoded, _ = answer(args, prompts, 0)
        print("verifying the same tokens as drafts", flush=True)
        verified, counted = answer(args, prompts, args.k)
        if not counted["accepted"]:
            raise UserError(f"no draft was accepted ({counted['drafted']} drafted): nothing was compared")
        comparison = compare(decoded, verified)
        if not comparison["differences"]:
            raise UserError("the answers differ from the first token on: nothing was compared")
    except (UserError, OSError) as error:
        print(f"check_operators: {error}", file=sys.stderr)
        return 2
    figures = {"device": device(), "dtype": args.dtype, "k": args.k, **counted}
    figures["mean_log_prob"] = statistics.fmean(value for one in decoded for value in one.log_probs)
    figures |= summary(comparison, BOUNDS[args.dtype] if args.bound is None else args.bound)
    try:
        write_json(args.out / "check-operators.json", figures | {"differences": comparison["differences"]})
    except OSError as error:
        print(f"check_operators: {error}", file=sys.stderr)
        return 2
    for name, value in figures.items():
        if name != "by_place":
            print(f"{name:17} {value:.3g}" if isinstance(value, float) else f"{name:17} {value}")
    for row in figures["by_place"]:
        print(f"place {row['place']}: {row['tokens']} tokens, largest {row['largest']:.3g}, mean {row['mean']:.3g}")
    print(f"{'within' if figures['within'] else 'BEYOND'} the bound; {args.out}/check-operators.json")
    return 0 if figures["within"] else 1


if __name__ == "__main__":
    sys.exit(main())
