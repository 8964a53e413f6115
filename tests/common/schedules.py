# SPDX-License-Identifier: Apache-2.0
"""Random schedules: engines with sam answer like one without, whatever arrives, ends or is preempted.

usage: schedules.py [--count N] [--first SEED] [--cases [NAME ...]]

A schedule is drawn from its seed: requests in waves, with parameters of every family, and events in a wave. No text
depends on timing, so an engine without speculation that runs one request at a time gives the expected answers. Each
arm, an engine with sam, runs the schedule with a small cache, few tokens per step, and its own drafter. All engines
are in this process, on vLLM's CPU backend or the stand-in for torch_npu.

Prints one JSON object per line: with --cases {"case", "faults": [sentence, ...], "accepted": drafts} for each name in
cases(); {"seed", "arm", "faults"} if an arm differs; at the end {"covered": {what: how often}}, where "ran NAME" counts
requests with a parameter or of a kind, "verified NAME" and "accepted NAME" their drafts. With switch auto, drafts
depend on measured times, so a failed schedule may pass next time.
"""

import argparse
import collections
import itertools
import json
import os
import sys
import tempfile
import time
import traceback

import tiny_qwen3
from schedule_cases import cases
from schedule_compare import differs, wrongly_indexed
from schedule_draws import WORDS, draw, one_by_one
from schedule_engine import Engine, keep_settings

ARMS = ("sync rejection", "async rejection", "sync seeded", "async seeded")


def arms_of(seed):
    """Half of the arms, alternating by seed: a synchronous and an asynchronous one, one for each verification."""
    return (ARMS[0], ARMS[3]) if seed % 2 else (ARMS[1], ARMS[2])


class Driver:
    """Compares arms with an engine without speculation."""

    def __init__(self, model):
        self.model, self.covered = model, collections.Counter()
        self.engines = dict.fromkeys([None, *ARMS])
        self.plain = {}  # results of the engine without speculation, by the content of the request

    def engine(self, arm):
        if self.engines[arm] is None:
            self.engines[arm] = Engine(self.model, arm, self.covered)
        return self.engines[arm]

    def results(self, schedule, arm):
        """An engine's answers; with speculation also what it indexed. If the engine fails, a sentence; the next call
        then starts a new engine."""
        engine = self.engine(arm)
        try:
            if not arm:
                return engine.run(schedule)
            engine.set_up(schedule.setup)
            results = engine.run(schedule)
            for name in list(engine.current):
                engine.count_drafts(name)
            return results, engine.clean_up()
        except Exception as error:
            self.engines[arm] = None  # shutting it down would end state that all engines of a process share
            where = traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}:{where.lineno})"

    def plain_results(self, schedule):
        """The results of the engine without speculation by key, or a sentence if it fails. It runs each request once,
        also if several schedules contain it."""
        alone = one_by_one(schedule)
        contents = {ask.key: repr((ask.prompt, ask.params, ask.turns, ask.embeds)) for [ask] in alone.waves}
        new = {contents[wave[0].key]: wave for wave in alone.waves}
        alone.waves = [wave for content, wave in new.items() if content not in self.plain]
        results = self.results(alone, None)
        if isinstance(results, str):
            return "plain: " + results
        self.plain |= {contents[key]: result for key, result in results.items()}
        return {key: self.plain[content] for key, content in contents.items()}

    def faults(self, schedule, arm):
        """Sentences about the differences of an arm."""
        expected = self.plain_results(schedule)
        if isinstance(expected, str):
            return [expected]
        mine = self.results(schedule, arm)
        if isinstance(mine, str):
            return [mine]
        results, noted = mine
        asks = [*itertools.chain(*schedule.waves)]
        faults = [
            f"request {ask.key}: {problem}: {ask}"
            for ask in asks
            if (problem := differs(ask, expected[ask.key], results[ask.key], self.engine(arm).verify))
        ]
        if not faults and (problem := wrongly_indexed(asks, expected, results, noted, self.engine(arm).verify)):
            faults.append(problem)
        for ask in asks:
            self.covered.update({f"ran {name}": 1 for name in ask.families()})
        return faults


def save_model(folder, head_dim):
    """Save a tiny Qwen3 and a tokenizer whose tokens are WORDS, written without spaces between them."""
    tiny_qwen3.save(folder, num_attention_heads=2, num_key_value_heads=1, head_dim=head_dim)
    tiny_qwen3.save_tokenizer(folder, WORDS)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cases", nargs="*", metavar="NAME", help="first the schedules of these cases(), or of all")
    args = parser.parse_args()
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    import torch
    from vllm.platforms import current_platform

    torch.set_num_threads(1)
    keep_settings()
    if current_platform.is_cpu():
        import asynchronous_cpu
        from vllm.utils.torch_utils import async_tensor_h2d

        asynchronous_cpu.allow()
        async_tensor_h2d.__defaults__ = (False,)  # no pinned memory, which needs a driver; thinking budgets ask for it
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder, 32 if current_platform.is_cpu() else 128)
        driver = Driver(folder)
        start = time.monotonic()
        for name, schedules in cases().items() if args.cases is not None else ():
            if args.cases and name not in args.cases:
                continue
            faults = [
                f"{schedule}, {arm}: {fault}"
                for at, schedule in enumerate(schedules)
                for arm in arms_of(at)
                for fault in driver.faults(schedule, arm)
            ]
            print(json.dumps({"case": name, "faults": faults, "accepted": driver.covered["accepted"]}), file=channel)
            driver.covered.clear()
        for seed in range(args.first, args.first + args.count):
            schedule = draw(seed)
            for arm in arms_of(seed):
                if faults := driver.faults(schedule, arm):
                    print(json.dumps({"seed": seed, "arm": arm, "faults": faults}), file=channel)
            print(f"seed {seed}: {time.monotonic() - start:.0f} s", file=sys.stderr)
        print(json.dumps({"covered": dict(sorted(driver.covered.items()))}), file=channel)
    channel.close()
    os._exit(0)


if __name__ == "__main__":
    main()
