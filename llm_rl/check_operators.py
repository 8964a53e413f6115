# SPDX-License-Identifier: Apache-2.0
"""Compare the operators of decoding with those of verification, on the same tokens.

Decoding attends with one token a request, verification with k+1. Each prompt is answered greedily without speculation;
then an engine with it answers twice. In the second pass its drafts come from the first, so that nearly every token is
verified. The log-probabilities that the two give to the same tokens should differ by rounding alone.

This is the operator check of the article (section 2.1), which reports differences of exactly 0 on its hardware.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import traceback
from pathlib import Path
from typing import Any

BOUNDS = {"float32": 1e-4}
"""Largest difference allowed, in nats, by dtype; OTHER_BOUND for those of 16 bits."""
OTHER_BOUND = 0.1
QUESTIONS = (
    "Let a and b be positive integers with a + b = 30 and ab = 209. Find |a - b|. Reason step by step.",
    "How many positive divisors does 2024 have? Reason step by step.",
    "Solve for x: 3(x - 4) + 5 = 2x + 9. Show each step.",
    "Write a Python function that returns the n-th Fibonacci number, then explain each line.",
)


class CheckError(Exception):
    """Why there is nothing to compare, in one sentence."""


def compare(decoded: list[dict[str, list]], verified: list[dict[str, list]]) -> dict[str, Any]:
    """Differences of the log-probabilities of equal tokens.

    Args:
        decoded, verified: an answer each, {"tokens": ids, "logprobs": one a token}. An answer is compared up to the
            first token that differs: behind it the contexts differ.

    Returns:
        differences: in nats, in order; diverged: answers whose tokens differ somewhere.
    """
    differences, diverged = [], 0
    for one, other in zip(decoded, verified, strict=True):
        same = 0
        for same, (mine, theirs) in enumerate(zip(one["tokens"], other["tokens"])):
            if mine != theirs:
                diverged += 1
                break
        else:
            same = min(len(one["tokens"]), len(other["tokens"]))
        pairs = zip(one["logprobs"][:same], other["logprobs"][:same])
        differences += [theirs - mine for mine, theirs in pairs]
    return {"differences": differences, "diverged": diverged}


def read_prompts(path: Path | None, model: str) -> list[list[int]]:
    """Token ids of the prompts: a JSONL file with `prompt_token_ids` or `prompt` a line, or QUESTIONS."""
    rows: list[dict] = [{"prompt": text} for text in QUESTIONS]
    if path is not None:
        try:
            rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        except (OSError, ValueError) as error:
            raise CheckError(f"--prompts {path} cannot be read: {error}") from None
    if not rows or not all({"prompt", "prompt_token_ids"} & set(row) for row in rows):
        raise CheckError(f"--prompts {path} must have `prompt` (a text) or `prompt_token_ids` in every line")
    if all("prompt_token_ids" in row for row in rows):
        return [row["prompt_token_ids"] for row in rows]
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError):
        raise CheckError(f"{model} has no tokenizer: give --prompts a file with `prompt_token_ids`") from None
    return [row.get("prompt_token_ids") or tokenizer(row["prompt"])["input_ids"] for row in rows]


def answer(options: dict[str, Any], prompts: list[list[int]], k: int) -> dict[str, Any]:
    """Greedy answers of an engine of its own; k > 0: with drafts of k tokens, the last of two passes."""
    from vllm import LLM, SamplingParams

    engine: dict[str, Any] = (
        dict(
            model=options["model"],
            skip_tokenizer_init=True,
            dtype=options["dtype"],
            tensor_parallel_size=options["tensor_parallel"],
            max_model_len=max(map(len, prompts)) + options["tokens"] + 1,
            max_num_seqs=options["batch"],
            enforce_eager=True,
            enable_prefix_caching=False,
            disable_log_stats=False,
            seed=0,
        )
        | options["engine"]
    )
    if k:
        sam = {"rule": "newest", "threshold": options["batch"], "min_prob": 0}
        engine["speculative_config"] = {"method": "sam", "num_speculative_tokens": k, "sam": sam}
    llm = LLM(**engine)
    params = SamplingParams(temperature=0, max_tokens=options["tokens"], logprobs=0, ignore_eos=True, detokenize=False)

    def counted() -> dict[str, float]:
        names = {"vllm:spec_decode_num_draft_tokens": "drafted", "vllm:spec_decode_num_accepted_tokens": "accepted"}
        return {names[metric.name]: metric.value for metric in llm.get_metrics() if metric.name in names}

    before: dict[str, float] = {}
    for _ in range(2 if k else 1):
        before = counted()
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params)
    answers = [
        {
            "tokens": list(output.outputs[0].token_ids),
            "logprobs": [
                entry[token].logprob for token, entry in zip(output.outputs[0].token_ids, output.outputs[0].logprobs)
            ],
        }
        for output in outputs
    ]
    return {"answers": answers} | {name: value - before.get(name, 0) for name, value in counted().items()}


def child(channel: Any, options: dict[str, Any], prompts: list[list[int]], k: int) -> None:
    try:
        channel.send(answer(options, prompts, k))
    except Exception as error:
        traceback.print_exc()
        channel.send(f"{type(error).__name__}: {error}")


def in_process(options: dict[str, Any], prompts: list[list[int]], k: int) -> dict[str, Any]:
    """`answer` in a process that gives the memory back."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"  # 0.11 verifies no drafts without it
    spawn = multiprocessing.get_context("spawn")
    mine, theirs = spawn.Pipe()
    process = spawn.Process(target=child, args=(theirs, options, prompts, k))
    process.start()
    theirs.close()
    try:
        result = mine.recv()
    except EOFError:
        result = "the process ended without an answer"
    process.join()
    if isinstance(result, str):
        raise CheckError(f"the engine {'with' if k else 'without'} speculation failed: {result}")
    return result


def draw(path: Path, differences: list[float]) -> bool:
    """A histogram of the differences; False where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.hist(differences, bins=60, color="#4477aa", log=True)
    axes.set(xlabel="verified - decoded log-probability, nats", ylabel="tokens")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    return True


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m llm_rl.check_operators", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder of the model")
    parser.add_argument("--prompts", type=Path, help="JSONL with prompt or prompt_token_ids; default: four questions")
    parser.add_argument("--k", type=int, default=3, help="drafted tokens a step (default 3)")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of each answer (default 256)")
    parser.add_argument("--batch", type=int, default=8, help="requests at a time (default 8)")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="ranks of the engine (default 1)")
    parser.add_argument("--dtype", default="bfloat16", help="default bfloat16")
    parser.add_argument("--engine", type=json.loads, default={}, help="further engine arguments, as JSON")
    parser.add_argument("--bound", type=float, help="largest difference allowed, nats; default 1e-4 (float32) or 0.1")
    parser.add_argument("--out", type=Path, default=Path("outputs/check-operators"), help="folder of JSON and picture")
    args = parser.parse_args(argv)
    bound = BOUNDS.get(args.dtype, OTHER_BOUND) if args.bound is None else args.bound
    try:
        prompts = read_prompts(args.prompts, args.model)
        print(f"decoding {len(prompts)} answers without speculation", flush=True)
        decoded = in_process(vars(args), prompts, 0)
        print("verifying the same tokens as drafts", flush=True)
        verified = in_process(vars(args), prompts, args.k)
        if not verified.get("accepted"):
            raise CheckError(f"no draft was accepted ({verified.get('drafted', 0):.0f} drafted): nothing was compared")
        found = compare(decoded["answers"], verified["answers"])
        if not (differences := found["differences"]):
            raise CheckError("the answers differ from the first token on: nothing was compared")
    except CheckError as error:
        print(f"check_operators: {error}", file=sys.stderr)
        return 2
    sizes = sorted(map(abs, differences))
    figures = {
        "tokens": len(sizes),
        "drafted": int(verified["drafted"]),
        "accepted": int(verified["accepted"]),
        "diverged_answers": found["diverged"],
        "largest": sizes[-1],
        "mean": statistics.fmean(sizes),
        "p99": sizes[min(len(sizes) - 1, len(sizes) * 99 // 100)],
        "equal_share": sizes.count(0) / len(sizes),
        "bound": bound,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    part = args.out / "check-operators.json.part"
    part.write_text(json.dumps(figures | {"differences": differences}, indent=1) + "\n")
    os.replace(part, args.out / "check-operators.json")
    for name, value in figures.items():
        print(f"{name:17} {value:.3g}" if isinstance(value, float) else f"{name:17} {value}")
    if not draw(args.out / "check-operators.png", differences):
        print("no picture: matplotlib is not installed here", file=sys.stderr)
    good = sizes[-1] <= bound
    print(f"{'within' if good else 'BEYOND'} the bound; {args.out}/check-operators.json")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
