# SPDX-License-Identifier: Apache-2.0
"""What a step would cost a 910C beyond its arithmetic: waits of the host for the device, AICPU operators and launches.

Whole decoding steps are counted over the stand-in for torch_npu with its meter; nothing is timed. Models of 2 and 4
layers separate the costs per layer from those per step. Drafts have 3 tokens, weights are bfloat16. `make device-costs`
prints one line per arm and batch size, then the origin of waits and AICPU operators.
"""

import argparse
import contextlib
import itertools
import json
import tempfile
from collections import Counter
from typing import Any, NamedTuple

import tiny_qwen3
from ascend_engine import OLD, VERSION, Engine

K = 3
MAX_BATCH = 64  # of an engine
LAYERS = (2, 4)
NUM_TOKENS = 20  # of each answer
KINDS = ("wait", "AICPU", "unknown", "copy", "launch")
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "top_k": 20}
GRAPHS = {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 4, 8, 32, 128]}


class Arm(NamedTuple):
    """An engine's settings, how its requests are sampled, and the arm without speculation that it is compared with."""

    sam: dict | None
    settings: dict
    sampling: dict
    drafts: bool
    baseline: str | None

    @property
    def engine(self) -> str:
        return json.dumps([self.sam, self.settings])


def arms(graphs: bool) -> dict[str, Arm]:
    """The arms by name; each follows the arm without speculation that it is compared with."""
    always = {"min_prob": 0, "threshold": MAX_BATCH}
    some: dict[str, Any] = {"compilation_config": GRAPHS} if graphs else {}
    if not OLD:
        some["async_scheduling"] = False  # so that a step's waits are its own
    # By name: the options of sam, further settings, and how requests are sampled.
    engines: dict[str, tuple[dict, dict, dict]] = {
        "greedy": (always, {}, {}),
        "rejection": (always, {}, SAMPLED),
        "seeded": (
            always | {"verify": "seeded"},
            {"additional_config": {"sam_verify": "seeded"}},
            SAMPLED | {"seed": 1},
        ),
    }
    found = {}
    for (name, (sam, settings, sampling)), logprobs in itertools.product(engines.items(), (False, True)):
        name, sampling = (f"{name}, log-probabilities", sampling | {"logprobs": 1}) if logprobs else (name, sampling)
        plain = f"plain, {name.replace('rejection', 'sampled')}"
        found[plain] = Arm(None, some | settings, sampling, False, None)
        found[f"switch off, {name}"] = Arm(sam, some, sampling, False, plain)
        found[name] = Arm(sam, some, sampling, True, plain)
    return found


def step_of(engine: Engine, arm: Arm, batch: int) -> Counter:
    """Return the events of a step in which all requests decode, with K draft tokens each or none."""
    prompts = [[i % 60 + 1, i % 59 + 1, 3, 4] * 5 for i in range(batch)]
    engine.run(prompts, NUM_TOKENS, **arm.sampling)
    drafts = K * batch if arm.drafts else 0
    steps = [Counter({tuple(event): n for *event, n in events}) for *shape, events in engine.ask("metered_steps")[0]
             if shape == [batch, batch + drafts, drafts]]  # fmt: skip
    if not steps:
        raise SystemExit(f"device-costs: no step of {batch} requests had {drafts} draft tokens")
    return steps[-1]


def measure(names: dict[str, Arm], batches: tuple[int, ...], layers: tuple[int, ...] = LAYERS) -> dict:
    """Return {arm: {batch: {layers: events of a step}}}."""
    found: dict = {}
    for count in layers:
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            tiny_qwen3.save(folder, num_attention_heads=2, num_key_value_heads=1, head_dim=128, num_hidden_layers=count)
            engines: dict[str, Engine] = {}
            for arm in names.values():
                if arm.engine not in engines:
                    engines[arm.engine] = Engine(folder, "metered", sam=arm.sam, k=K, dtype="bfloat16", **arm.settings)
                    stack.callback(engines[arm.engine].stop)
            for engine in engines.values():
                engine.ask("meter_steps")
            for name, arm in names.items():
                if arm.sam:
                    engines[arm.engine].ask("keep_off", threshold=arm.sam["threshold"] if arm.drafts else 0)
                for batch in batches:
                    events = step_of(engines[arm.engine], arm, batch)
                    found.setdefault(name, {}).setdefault(batch, {})[count] = events
    return found


def total(events: Counter, *kinds: str) -> int:
    return sum(n for event, n in events.items() if event[0] in kinds)


def split(by_layers: dict[int, Counter], kind: str) -> tuple[float, float]:
    """The number of events of a kind for each layer, and for each step outside the layers."""
    few, many = sorted(by_layers)
    layer = (total(by_layers[many], kind) - total(by_layers[few], kind)) / (many - few)
    return layer, total(by_layers[few], kind) - few * layer


def show(layer: float, step: float) -> str:
    return f"{step:g}" + (f" + {layer:g} L" if layer else "")


def table(found: dict, names: dict[str, Arm]) -> list[str]:
    """Lines of a Markdown table; L: layers."""
    lines = [
        f"| arm | requests | {' | '.join(KINDS)} | launches against plain |",
        "|---|---:|" + "---:|" * (len(KINDS) + 1),
    ]
    for name, batches in found.items():
        baseline = names[name].baseline
        for batch, by_layers in batches.items():
            cells = [show(*split(by_layers, kind)) for kind in KINDS]
            more = ""
            if baseline:
                ours, plain = split(by_layers, "launch"), split(found[baseline][batch], "launch")
                more = show(ours[0] - plain[0], ours[1] - plain[1])
            lines.append(f"| {name} | {batch} | {' | '.join(cells)} | {more} |")
    return lines


def sources(found: dict) -> list[str]:
    """Lines of a Markdown table: where the costly events of the largest batch and model come from, by arm."""
    places: dict[tuple, dict[str, int]] = {}
    for name, batches in found.items():
        by_layers = batches[max(batches)]
        for (kind, what, dtype, place), n in by_layers[max(by_layers)].items():
            if kind in ("wait", "AICPU", "unknown"):
                places.setdefault((kind, what, dtype, place), {})[name] = n
    lines = ["| kind | what | dtype | where | times a step, by arm |", "|---|---|---|---|---|"]
    for event, times in sorted(places.items()):
        lines.append(f"| {' | '.join(event)} | {', '.join(f'{arm}: {n}' for arm, n in times.items())} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32], help="requests at a time (default 1 8 32)")
    args = parser.parse_args()
    for graphs in (False,) if OLD else (False, True):
        names = arms(graphs)
        print(
            f"\nvllm-ascend {VERSION}, {'captured graphs' if graphs else 'eager'}; L: layers of the model\n", flush=True
        )
        found = measure(names, tuple(args.batch))
        print(
            "\n".join(table(found, names)),
            "\n\nWith the largest batch and 4 layers:\n",
            *sources(found),
            sep="\n",
            flush=True,
        )


if __name__ == "__main__":
    main()
