# SPDX-License-Identifier: Apache-2.0
"""The tiny Qwen3 that runs the whole loop on any machine, its tokenizer and data, and the command that trains it.

    python -m llm_rl.qwen3.tiny_model --out DIR [--seed 0]

FOLDER holds the trained model that is shipped with the repository: a Hugging Face model folder (Qwen3ForCausalLM,
float32, half a million parameters, byte-level BPE tokenizer), train.parquet and test.parquet in the schema of
DAPO-Math-17k, and provenance.json: the command, measurements of sampled answers, and the SHA-256 of each file. The
command takes about two minutes and writes the folder all or nothing. Training runs a fixed number of steps in float32
on one CPU thread (the batches are small, and threads that wait for each other are slow on a busy machine). A seed gives
the same data everywhere, and the same model for the same torch and type of processor.
"""

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from llm_rl.qwen3 import sums, tiny_measure

FOLDER = Path(__file__).resolve().parent / "tiny"
RECORD = "provenance.json"
TRAIN_ROWS, TEST_ROWS = 512, 64
STEPS = 1300
BASIC_SHARE = 0.35
BATCH_TOKENS = 1024  # in one training batch, padding included; a longer answer is a batch of its own
MUON_RATE, ADAM_RATE = 0.012, 5e-3  # of the matrices; of embedding and norms
WARMUP = 50  # steps

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(seed):
    """A byte-level BPE tokenizer for the task's words and single digits, with a short form of Qwen's chat template."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    rng = sums.rng_for(seed, "tokenizer")
    texts = ["system\nuser\nassistant\n"] * 1000
    for terms in sums.problems(1000, rng):
        texts += [sums.question(terms), sums.solution(terms, rng)]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(" ?[0-9]"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    vocabulary = {"vocab_size": 512, "initial_alphabet": sorted(pre_tokenizers.ByteLevel.alphabet())}
    trainer = trainers.BpeTrainer(special_tokens=[PAD, START, END], show_progress=False, **vocabulary)
    bpe.train_from_iterator(texts, trainer)
    special = {"eos_token": END, "pad_token": PAD, "additional_special_tokens": [START]}
    return PreTrainedTokenizerFast(tokenizer_object=bpe, chat_template=CHAT_TEMPLATE, **special)


def make_model(tokenizer):
    """An untrained float32 Qwen3ForCausalLM, with the vocabulary size rounded up to a multiple of 64."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=-(-len(tokenizer) // 64) * 64,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            dtype="float32",
        )
    )


def training_batches(tokenizer, seed, steps):
    """Yield `steps` batches: input_ids and labels, int64 [B, T], padded on the right.

    The first BASIC_SHARE of the batches are short problems without checks, from which the model learns addition
    fastest. Texts of similar length share a batch, to reduce padding. Labels are -100 outside the answer; padding needs
    no attention mask, because a token does not attend to later ones.
    """
    import torch

    rng = sums.rng_for(seed, "training")
    done = 0
    while done < steps:
        basic = done < BASIC_SHARE * steps
        pairs = []
        for terms in sums.problems(1024, rng, long_share=0 if basic else sums.LONG_SHARE):
            prompt = tiny_measure.encode_prompt(tokenizer, terms)
            solution = sums.solution(terms, rng, checked=not basic)
            answer = tokenizer(solution + END, add_special_tokens=False)["input_ids"]
            if len(answer) <= tiny_measure.MAX_RESPONSE:
                pairs.append((prompt, answer))
        pairs.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
        groups: list[list] = [[]]
        for pair in pairs:
            if groups[-1] and (len(pair[0]) + len(pair[1])) * (len(groups[-1]) + 1) > BATCH_TOKENS:
                groups.append([])
            groups[-1].append(pair)
        rng.shuffle(groups)
        for group in groups[: steps - done]:
            width = max(len(prompt) + len(answer) for prompt, answer in group)
            ids = torch.full((len(group), width), tokenizer.pad_token_id)
            labels = torch.full_like(ids, -100)
            for i, (prompt, answer) in enumerate(group):
                begin, end = len(prompt), len(prompt) + len(answer)
                ids[i, :end] = torch.tensor(prompt + answer)
                labels[i, begin:end] = ids[i, begin:end]
            yield {"input_ids": ids, "labels": labels}
        done += len(groups)


def orthogonalize(matrix):
    """Approximate the nearest (semi-)orthogonal matrix by five Newton-Schulz steps, like torch.optim.Muon.

    torch 2.11 computes them in bfloat16 (torch/optim/_muon.py), which is 30 times as slow as float32 on a CPU without
    bfloat16 instructions.
    """
    import torch

    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / wide.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=-4.775, alpha=2.0315), wide, beta=3.4445)
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T


def muon_step(matrices, momenta, rate):
    """One step of Muon with Nesterov momentum 0.95; `momenta` is updated.

    https://kellerjordan.github.io/posts/muon/
    """
    import torch

    with torch.no_grad():
        for matrix, momentum in zip(matrices, momenta, strict=True):
            momentum.lerp_(matrix.grad, 0.05)
            update = orthogonalize(matrix.grad.lerp(momentum, 0.95))
            matrix.add_(update, alpha=-rate * max(1, matrix.shape[0] / matrix.shape[1]) ** 0.5)


def train(model, tokenizer, seed, steps):
    """Train on `steps` batches of worked answers: Muon for the matrices, Adam for the rest, linear decay to zero.

    Returns the loss of each batch.
    """
    import torch

    embedding = model.get_input_embeddings().weight
    matrices = [p for p in model.parameters() if p.ndim == 2 and p is not embedding]
    momenta = [torch.zeros_like(p) for p in matrices]
    others = [p for p in model.parameters() if p.ndim != 2 or p is embedding]
    adam = torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    begin, losses = time.monotonic(), []
    model.train()
    for step, batch in enumerate(training_batches(tokenizer, seed, steps)):
        loss = model(**batch).loss
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        share = min((step + 1) / WARMUP, 1) * (1 - step / steps)
        adam.param_groups[0]["lr"] = ADAM_RATE * share
        adam.step()
        muon_step(matrices, momenta, MUON_RATE * share)
        losses.append(loss.item())
        if (step + 1) % 100 == 0:
            mean, seconds = sum(losses[-100:]) / 100, time.monotonic() - begin
            print(f"step {step + 1}/{steps}  loss {mean:.3f}  {seconds:.0f} s", flush=True)
    model.eval()
    return losses


def write_data(folder, seed):
    """Write train.parquet and test.parquet: TRAIN_ROWS and TEST_ROWS different problems."""
    import pandas

    problems = sums.problems(TRAIN_ROWS + TEST_ROWS, sums.rng_for(seed, "data"))
    rows = [sums.row(i, terms) for i, terms in enumerate(problems)]
    pandas.DataFrame(rows[:TRAIN_ROWS]).to_parquet(folder / "train.parquet")
    pandas.DataFrame(rows[TRAIN_ROWS:]).to_parquet(folder / "test.parquet")


def build(folder, seed, steps):
    """Write the model, the tokenizer and the data to `folder`; return measurements of the trained model."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    write_data(folder, seed)
    tokenizer = make_tokenizer(seed)
    model = make_model(tokenizer)
    print(f"training {model.num_parameters():,} parameters, {len(tokenizer)} tokens, {steps} steps", flush=True)
    train(model, tokenizer, seed, steps)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tiny_measure.measure(model, tokenizer, seed)


def check(folder=FOLDER):
    """One sentence about the first file of a model folder that is missing or changed, or None."""
    try:
        files = json.loads((folder / RECORD).read_text())["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"{folder} has no readable {RECORD}: restore the folder (git checkout -- {folder})"
    for name, digest in files.items():
        path = folder / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            return f"{path} is not the file that {RECORD} records: restore the folder (git checkout -- {folder})"
    return None


def report(measured):
    """Print the measurements; the last line has the accuracy."""
    length = measured["response_length"]
    print("response length in tokens:", ", ".join(f"{name} {value}" for name, value in length.items()), end="; ")
    print(f"{measured['cut_off']:.1%} truncated, {measured['tail_share']:.1%} longer than three times the median")
    answers = f"({tiny_measure.PROMPTS} prompts x {tiny_measure.SAMPLES})"
    mixed = f"{measured['mixed_prompts']:.1%} of the prompts have right and wrong answers"
    print(f"accuracy {measured['accuracy']:.1%} at temperature 1 {answers}, {mixed}")


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m llm_rl.qwen3.tiny_model", description="Make and train the tiny Qwen3 and its data."
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to make")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    import torch
    import transformers

    begin = time.monotonic()
    out = args.out.absolute()
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise SystemExit(f"tiny_model: {args.out} exists already: name a new or empty folder.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise SystemExit(f"tiny_model: cannot write into the folder of {args.out}: {error.strerror}.") from None
    try:
        measured = build(new, args.seed, STEPS)
        record = {
            "command": f"python -m llm_rl.qwen3.tiny_model --out DIR --seed {args.seed}",
            "steps": STEPS,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "seconds": round(time.monotonic() - begin),
            "measured": measured,
            "files": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(new.iterdir())},
        }
        (new / RECORD).write_text(json.dumps(record, indent=2) + "\n")
        new.chmod(0o755)
        new.rename(out)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    print(f"wrote {args.out} in {record['seconds']} s")
    report(measured)


if __name__ == "__main__":
    sys.exit(main())
