# SPDX-License-Identifier: Apache-2.0
"""The tiny Qwen3 as target and a smaller draft model of its tokenizer, trained here; or any local folders by path."""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sam_core.files import replacing

from llm_rl.qwen3 import sums, tiny_measure, tiny_model
from sam_lab.cli import LabError, non_negative

DRAFT_STEPS = 700
DRAFT_SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
}


def train_draft(target: Path, out: Path, seed: int = 0, steps: int = DRAFT_STEPS) -> None:
    """Train a model of DRAFT_SHAPE on the target's task, with its tokenizer; `out` appears whole or not at all."""
    import torch
    from transformers import AutoTokenizer, Qwen3ForCausalLM
    from transformers.models.qwen3 import Qwen3Config

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(target)
    config = Qwen3Config.from_pretrained(target)
    model = Qwen3ForCausalLM(Qwen3Config(**config.to_dict() | DRAFT_SHAPE | {"layer_types": None}))
    print(f"training a draft model of {model.num_parameters():,} parameters, {steps} steps", flush=True)
    tiny_model.train(model, tokenizer, seed + 1, steps)
    new = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.absolute().parent))
    try:
        model.save_pretrained(new)
        tokenizer.save_pretrained(new)
        (new / "DRAFT.json").write_text(json.dumps({"seed": seed, "steps": steps, "shape": DRAFT_SHAPE}) + "\n")
        new.chmod(0o755)
        os.rename(new, out)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def load(path: Path) -> tuple[Any, Any]:
    """The model (float32, SDPA, eval mode) and tokenizer of a local folder; raises LabError if there is none."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    if not (path / "config.json").is_file():
        raise LabError(f"{path} is no Hugging Face model folder (it has no config.json): name one that exists")
    try:
        model = AutoModelForCausalLM.from_pretrained(path, dtype="float32", attn_implementation="sdpa")
        return model.eval(), AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise LabError(f"{path} cannot be loaded: {str(error).splitlines()[0]}") from None


@dataclass(frozen=True)
class Pair:
    """A target, a smaller draft model of the same tokenizer, and prompts of the target's task."""

    target: Any
    draft: Any
    ends: Sequence[int]
    prompts: Sequence[Sequence[int]]

    @staticmethod
    def load(folder: Path, count: int, seed: int) -> Pair:
        """The models of a folder that `python -m research models` wrote; raises LabError."""
        import torch

        torch.set_num_threads(1)
        target, tokenizer = load(folder / "target")
        draft, _ = load(folder / "draft")
        return Pair(target, draft, [tokenizer.eos_token_id], prompts(tokenizer, count, seed))

    def decoder(self, options: tuple[float, float] | None, seed: int, limit: int, nodes: int) -> Any:
        """A Decoder of the target; options: temperature and top_p, None for greedy."""
        from research.decoder import Decoder
        from research.verify import Greedy, Sampled

        sampler = Sampled(*options, seed) if options else Greedy()
        return Decoder(self.target, sampler, self.ends, limit, nodes)


def prompts(tokenizer: Any, count: int, seed: int) -> list[list[int]]:
    """Different prompts of the tiny model's task, token ids."""
    problems = sums.problems(count, sums.rng_for(seed, "lab"))
    return [tiny_measure.encode_prompt(tokenizer, terms) for terms in problems]


def read_prompts(path: Path, tokenizer: Any) -> list[list[int]]:
    """Prompts of a text file, one a line, in the tokenizer's chat template if it has one."""
    texts = [line for line in path.read_text().splitlines() if line.strip()]
    if not texts:
        raise LabError(f"{path} has no prompt: write one a line")
    if tokenizer.chat_template:
        chat = functools.partial(tokenizer.apply_chat_template, add_generation_prompt=True, tokenize=False)
        texts = [chat([{"role": "user", "content": text}]) for text in texts]
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Copy the tiny Qwen3 to DIR/target and train a draft model of its tokenizer, DIR/draft, on this CPU (a minute)."
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.add_argument("--seed", type=non_negative, default=0)


def run(args: argparse.Namespace) -> int:
    target = args.out / "target"
    target.mkdir(parents=True, exist_ok=True)
    for file in tiny_model.FOLDER.iterdir():
        with replacing(target / file.name, [file]) as temporary:
            shutil.copy2(file, temporary)
    if (args.out / "draft" / "DRAFT.json").exists():
        print(f"{args.out / 'draft'} exists already")
    else:
        train_draft(target, args.out / "draft", args.seed)
    return 0
