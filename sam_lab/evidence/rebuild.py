# SPDX-License-Identifier: Apache-2.0
"""`python -m sam_lab rebuild`: full recordings from public repositories, of the shipped sets."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import http.client
import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sam_core.console import Progress
from sam_core.files import replacing

from sam_lab.cli import LabError
from sam_lab.evidence.data import FOLDER
from sam_lab.recordings import read_records

SOURCES = FOLDER / "sources.json"
"""Repositories with set, commit and licence, and the SHA-256 of each file."""
RANKS_SHA256 = "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186"
SPECIAL = {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645, "<think>": 151667, "</think>": 151668}
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."


class SourceAnswer(NamedTuple):
    """One answer, as text."""

    prompt_id: str
    group: str
    model: str
    prompt: str
    answer: str
    epoch: int | None = None


EPILOG = """\
Downloads each file at its commit, checks its SHA-256, keeps it as DIR/OWNER/NAME/PATH (--sources DIR), and writes
OUT/SET.jsonl.gz with all its answers. Files that DIR has are not downloaded. Every shipped answer must be among the
rebuilt ones, token for token. A file that cannot be had is named, its set is not written, the others are, and the exit
status is 1.

Answers of `rl` have `epoch`, the checkpoint's step.

The tokenizer is Qwen's: the file qwen.tiktoken of the PyPI package dashscope 2.0.2. Needs the package tiktoken, which
.venvs/vllm-0.23 has.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("out", type=Path, metavar="OUT", help="folder of the recordings")
    add("--ranks", type=Path, required=True, metavar="FILE", help="qwen.tiktoken")
    add("--sources", type=Path, metavar="DIR", help="folder of the source files (default OUT/sources)")


def run(args: argparse.Namespace) -> int:
    """The command; raises ValueError or OSError."""
    encode = _tokenizer(args.ranks)
    args.out.mkdir(parents=True, exist_ok=True)
    sources = args.sources or args.out / "sources"
    rows: dict[str, list[dict[str, Any]]] = {}
    problems: list[str] = []
    skipped, progress = set(), Progress()
    for name, repository in json.loads(SOURCES.read_text()).items():
        for path, sha256 in repository["files"].items():
            progress.show(f"{name}: {path}")
            try:
                content = _content(name, repository["commit"], path, sha256, sources)
            except LabError as error:
                problems.append(str(error))
                skipped.add(repository["set"])
            if repository["set"] in skipped:
                continue
            source = f"github:{name}@{repository['commit'][:12]}:{path}"
            common = {"source": source, "licence": repository["licence"]}
            for row in PARSERS[name](content, path):
                rows.setdefault(repository["set"], []).append(common | recorded(row, encode))
    progress.clear()
    for of in sorted(skipped):
        rows.pop(of, None)
        problems.append(f"{of} lacks a source and was not written: call again")
    for of, found in rows.items():
        with replacing(args.out / f"{of}.jsonl.gz") as temporary, gzip.open(temporary, "wt") as file:
            file.writelines(json.dumps(row, separators=(",", ":")) + "\n" for row in found)
        written = f"{args.out / of}.jsonl.gz: {len(found):,} answers"
        if not (FOLDER / f"{of}.jsonl.gz").exists():
            print(written)
            continue
        same, shipped = check(of, found)
        print(f"{written}; {same:,} of {shipped:,} shipped ones are among them")
        if same < shipped:
            problems.append(f"{of}: {shipped - same} shipped answers differ from the sources")
    for problem in problems:
        print(f"MISSING: {problem}")
    return 1 if problems else 0


def recorded(row: SourceAnswer, encode: Callable[[str], list[int]]) -> dict[str, Any]:
    """A line of a recording."""
    kept = {
        name: value for name, value in row._asdict().items() if value is not None and name not in ("prompt", "answer")
    }
    ids = encode(row.answer)
    words = ids[:-1] if ids[-1:] == [SPECIAL["<|im_end|>"]] else ids
    return kept | {"prompt_ids": encode(row.prompt), "response_ids": ids, "tail_rep": tail_repetitions(words)}


def tail_repetitions(ids: list[int], max_period: int = 16) -> int:
    """How often an answer repeats the tokens that it ends in, for the period that repeats most often."""
    most = 1
    for period in range(1, min(max_period, len(ids)) + 1):
        same = 0
        while same + period < len(ids) and ids[-1 - same] == ids[-1 - same - period]:
            same += 1
        most = max(most, 1 + same // period)
    return most


def check(of: str, rows: list[dict[str, Any]]) -> tuple[int, int]:
    """How many shipped answers of a set are among the rebuilt ones, with their prompts; and how many there are."""

    def key(row: dict[str, Any]) -> str:
        answer = [token for token in row["response_ids"] if token != SPECIAL["<|im_end|>"]]
        return hashlib.sha256(json.dumps([row["prompt_ids"], answer]).encode()).hexdigest()

    found = {key(row) for row in rows}
    shipped = [key(row) for _, row in read_records(FOLDER / f"{of}.jsonl.gz")]
    return sum(each in found for each in shipped), len(shipped)


def _content(name: str, commit: str, path: str, sha256: str, folder: Path) -> bytes:
    """A file's content, from the folder or downloaded into it. Raises LabError if it cannot be had or differs."""
    local = folder / name / path
    kept = local.is_file()
    if kept:
        content = local.read_bytes()
    else:
        url = f"https://raw.githubusercontent.com/{name}/{commit}/{path}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise LabError(f"{url} cannot be downloaded: {getattr(error, 'reason', error)}") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        remedy = ": remove it" if kept else ""
        raise LabError(f"{local if kept else url} has another SHA-256 than {SOURCES.name} says{remedy}")
    if not kept:
        local.parent.mkdir(parents=True, exist_ok=True)
        with replacing(local) as temporary:
            temporary.write_bytes(content)
    return content


def _tokenizer(ranks: Path) -> Callable[[str], list[int]]:
    import base64

    import tiktoken

    content = ranks.read_bytes()
    if hashlib.sha256(content).hexdigest() != RANKS_SHA256:
        raise LabError(f"{ranks} is not Qwen's: use qwen.tiktoken from the PyPI package dashscope 2.0.2")
    parts = (line.split() for line in content.splitlines() if line)
    bytes_ = {base64.b64decode(token): int(rank) for token, rank in parts}
    encoding = tiktoken.Encoding("qwen", pat_str=PATTERN, mergeable_ranks=bytes_, special_tokens=SPECIAL)
    return lambda text: encoding.encode(text, allowed_special="all")


def _chat(question: str, system: str = "") -> str:
    before = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    return f"{before}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def _reasoning_gym(content: bytes, path: str) -> Iterator[SourceAnswer]:
    record = json.loads(content)
    model = record["metadata"]["model"].split("/")[-1]
    for category in record["categories"]:
        for dataset in category["datasets"]:
            for result in dataset["results"]:
                question = result["question"]
                name = f"{dataset['name']}/{hashlib.sha1(question.encode()).hexdigest()[:10]}"
                for completion in result["completions"]:
                    yield SourceAnswer(
                        f"rg/{name}",
                        f"{name}|{path}",
                        model,
                        _chat(question),
                        _ended(completion["full_model_response"].strip("\n")),
                        _checkpoint(model),
                    )


def _checkpoint(model: str) -> int:
    """The training step of a model, by its name."""
    step = re.search(r"_(\d+)$", model)
    return int(step[1]) if step else 0 if model == "Qwen2.5-3B-Instruct" else 500


def _queries(content: bytes, path: str) -> Iterator[SourceAnswer]:
    for result in json.loads(content)["results"]:
        thoughts = result.get("thinking") or []
        for number, output in enumerate(result["output"]):
            thought = thoughts[number] if number < len(thoughts) else None
            before = "<think>\n" + thought.strip("\n") + "\n</think>\n\n" if thought else ""
            answer = (before + (output or "").strip("\n")).rstrip("\n")
            name = result["prompt_id"]
            group = f"{name}|{result['llm']}|{path}"
            yield SourceAnswer(name, group, result["llm"], _chat(result["prompt"].strip()), _ended(answer))


def _simple_rl(content: bytes, path: str) -> Iterator[SourceAnswer]:
    for line in content.decode().splitlines():
        record = json.loads(line)
        for answer in record["code"]:
            name = f"math/{record['idx']}"
            yield SourceAnswer(
                name, name, "Qwen2.5-Math", _chat(record["question"].strip(), SYSTEM), _ended(answer.strip())
            )


def _code(content: bytes, path: str) -> Iterator[SourceAnswer]:
    for number, line in enumerate(content.decode().splitlines()):
        record = json.loads(line)
        for sample in record["samples"]:
            yield SourceAnswer(
                f"humaneval/{number}", f"humaneval/{number}", "codegen-16B-mono", record["prompt"], sample
            )


def _ended(answer: str) -> str:
    return f"{answer}<|im_end|>"


PARSERS: dict[str, Callable[[bytes, str], Iterator[SourceAnswer]]] = {
    "open-thought/reasoning-gym-eval": _reasoning_gym,
    "cpldcpu/MisguidedAttention": _queries,
    "cpldcpu/LRMTokenEconomy": _queries,
    "hkust-nlp/simpleRL-reason": _simple_rl,
    "microsoft/CodeT": _code,
}
