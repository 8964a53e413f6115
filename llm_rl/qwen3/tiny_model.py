# SPDX-License-Identifier: Apache-2.0
"""Make and train the tiny Qwen3 that runs the whole loop on any machine, with its tokenizer and its data.

    python -m llm_rl.qwen3.tiny_model --out DIR [--seed 0]

DIR then holds a Hugging Face model folder (Qwen3ForCausalLM, float32, half a million parameters, byte-level BPE
tokenizer), train.parquet and test.parquet in the schema of DAPO-Math-17k, and DONE.json: what made the folder and how
the model behaves when sampled. A second call with the same sources and settings returns at once. The folder appears
whole or not at all. Training takes a fixed number of steps on one CPU thread (the batches are small, and threads that wait
for each other crawl on a busy machine): a seed gives the same data everywhere, and the same model wherever torch and
the processor type are the same.
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
    """A byte-level BPE tokenizer of the task's words and single digits, with a short form of Qwen's chat template."""
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
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=[PAD, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
    )


def make_model(tokenizer):
    """An untrained Qwen3ForCausalLM, float32, its vocabulary rounded up to a multiple of 64."""
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

    The first BASIC_SHARE of them are short problems without checks, from which adding is learnt soonest. Texts of like
    length share a batch, so that little of it is padding. Labels are -100 outside the answer, so padding needs no
    attention mask: what follows a token does not reach it.
    """
    import torch

    rng = sums.rng_for(seed, "training")
    made = 0
    while made < steps:
        basic = made < BASIC_SHARE * steps
        pairs = []
        for terms in sums.problems(1024, rng, long_share=0 if basic else sums.LONG_SHARE):
            prompt = tiny_measure.encode_prompt(tokenizer, terms)
            solution = sums.solution(terms, rng, checked=not basic)
            answer = tokenizer(solution + END, add_special_tokens=False)["input_ids"]
            if len(answer) <= tiny_measure.MAX_RESPONSE:
                pairs.append((prompt, answer))
        pairs.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
        groups = [[]]
        for pair in pairs:
            if groups[-1] and (len(pair[0]) + len(pair[1])) * (len(groups[-1]) + 1) > BATCH_TOKENS:
                groups.append([])
            groups[-1].append(pair)
        rng.shuffle(groups)
        for group in groups[: steps - made]:
            width = max(len(prompt) + len(answer) for prompt, answer in group)
            ids = torch.full((len(group), width), tokenizer.pad_token_id)
            labels = torch.full_like(ids, -100)
            for i, (prompt, answer) in enumerate(group):
                begin, end = len(prompt), len(prompt) + len(answer)
                ids[i, :end] = torch.tensor(prompt + answer)
                labels[i, begin:end] = ids[i, begin:end]
            yield {"input_ids": ids, "labels": labels}
        made += len(groups)


def train(model, tokenizer, seed, steps):
    """Train on worked answers for `steps` batches: Muon for the matrices, Adam for the rest, rates linear to zero."""
    import torch

    embedding = model.get_input_embeddings().weight
    matrices = [p for p in model.parameters() if p.ndim == 2 and p is not embedding]
    others = [p for p in model.parameters() if p.ndim != 2 or p is embedding]
    optimizers = [
        torch.optim.Muon(matrices, lr=MUON_RATE, weight_decay=0.0),
        torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / WARMUP, 1) * (1 - step / steps))
        for optimizer in optimizers
    ]
    begin, loss_sum = time.monotonic(), 0.0
    model.train()
    for step, batch in enumerate(training_batches(tokenizer, seed, steps), 1):
        loss = model(**batch).loss
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for part in (*optimizers, *schedules):
            part.step()
        loss_sum += loss.item()
        if step % 100 == 0:
            print(f"step {step}/{steps}  loss {loss_sum / 100:.3f}  {time.monotonic() - begin:.0f} s", flush=True)
            loss_sum = 0.0
    model.eval()


def write_data(folder, seed):
    """Write train.parquet and test.parquet: TRAIN_ROWS and TEST_ROWS different problems."""
    import pandas

    rows = [
        sums.row(i, terms) for i, terms in enumerate(sums.problems(TRAIN_ROWS + TEST_ROWS, sums.rng_for(seed, "data")))
    ]
    pandas.DataFrame(rows[:TRAIN_ROWS]).to_parquet(folder / "train.parquet")
    pandas.DataFrame(rows[TRAIN_ROWS:]).to_parquet(folder / "test.parquet")


def build(folder, seed, steps):
    """Write the model, the tokenizer and the data into `folder`; return the measurements of the trained model."""
    import torch
    import transformers

    if not hasattr(torch.optim, "Muon"):
        raise SystemExit(f"tiny_model: torch {torch.__version__} has no Muon optimizer; torch 2.9 or newer is needed.")
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


def settings_key(seed, steps):
    """A hash of what decides what is built: the sources of task and training, the seed and the number of steps."""
    digest = hashlib.sha256(f"{seed} {steps}".encode())
    for source in (sums.__file__, __file__):
        digest.update(Path(source).read_bytes())
    return digest.hexdigest()


def recorded(out):
    """The content of DONE.json in `out`, None where `out` is absent or empty; exits where it holds anything else."""
    try:
        return json.loads((out / "DONE.json").read_text())
    except (OSError, ValueError):
        if out.exists() and not (out.is_dir() and not any(out.iterdir())):
            raise SystemExit(
                f"tiny_model: {out} was not made by this command (no readable DONE.json); name a new or empty folder."
            ) from None
    return None


def replace(out, new):
    """Put the folder `new` in the place of `out`."""
    if out.exists():
        old = new.with_name(new.name + ".old")
        out.rename(old)
        new.rename(out)
        shutil.rmtree(old)
    else:
        new.rename(out)


def report(measured):
    """Print the measurements; the last line says the accuracy."""
    length = measured["response_length"]
    print("response length in tokens:", ", ".join(f"{name} {value}" for name, value in length.items()), end="; ")
    print(f"{measured['cut_off']:.1%} cut off, {measured['tail_share']:.1%} longer than three times the median")
    tail = measured["tail_tokens_per_pass"]
    print(
        f"tokens a pass with {tiny_measure.DRAFT} drafted from the answer itself: {measured['tokens_per_pass']:.2f}",
        end="",
    )
    print(f", {tail:.2f} in the longest answers" if tail else "")
    print(
        f"accuracy {measured['accuracy']:.1%} at temperature 1"
        f" ({tiny_measure.PROMPTS} prompts x {tiny_measure.SAMPLES}), {measured['mixed_prompts']:.1%} of the prompts mixed"
    )


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m llm_rl.qwen3.tiny_model", description="Make and train the tiny Qwen3 and its data."
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to make")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    done = recorded(args.out)
    key = settings_key(args.seed, STEPS)
    if done and done["key"] == key:
        print(f"{args.out} is up to date")
        report(done["measured"])
        return
    import torch
    import transformers

    begin = time.monotonic()
    out = args.out.absolute()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise SystemExit(f"tiny_model: cannot write beside {args.out}: {error.strerror}.") from None
    try:
        measured = build(new, args.seed, STEPS)
        done = {
            "key": key,
            "seed": args.seed,
            "steps": STEPS,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "seconds": round(time.monotonic() - begin),
            "measured": measured,
        }
        (new / "DONE.json").write_text(json.dumps(done, indent=2) + "\n")
        new.chmod(0o755)
        replace(out, new)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    print(f"wrote {args.out} in {done['seconds']} s")
    report(measured)


if __name__ == "__main__":
    sys.exit(main())
