# SPDX-License-Identifier: Apache-2.0
"""On a GPU, speculation changes neither texts nor the sampled distribution, and the host waits no more often."""

import collections
import traceback
import warnings

import pytest
import torch
from conftest import SECOND
from distribution import chi_square_p_value, loaded, model_distribution, sample, samples_as_the_model
from engine_checks import speculated

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")


def scheduling(worker):
    """Return whether the engine schedules asynchronously; runs in a worker."""
    return worker.vllm_config.scheduler_config.async_scheduling


def count_waits(worker, count):
    """Begin to count the source lines at which the host waits for the GPU, or return the counts; runs in a worker.

    Waits for events are not counted: asynchronous scheduling waits for events.
    """
    if count:
        found = worker.model_runner.waits_found = collections.Counter()

        def note(message, *_, **__):
            frame = next(f for f in reversed(traceback.extract_stack()) if f.name != "note")
            found[f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"] += 1

        torch.cuda.set_sync_debug_mode("warn")  # warns that the mode is experimental
        warnings.simplefilter("always")
        warnings.showwarning = note
        return None
    found = worker.model_runner.waits_found.copy()
    torch.ones(1, device="cuda").item()
    torch.cuda.set_sync_debug_mode("default")
    assert worker.model_runner.waits_found.total() == found.total() + 1, "a wait was not counted"
    return dict(found)


@pytest.mark.parametrize("name", ["batch", "batch, synchronous", "batch, eager", "auto"])
def test_greedy_text_is_that_without_drafts(engine, prompts, name):
    plain, sam = engine("plain"), engine(name)
    assert sam.engine.collective_rpc(scheduling) == [name != "batch, synchronous"]
    lengths = [20 + i % 40 for i in range(64)]  # contexts below 128 tokens: see docs/upstream.md, VLLM_BATCH_INVARIANT
    expected = plain.run(prompts, lengths)
    assert plain.count("drafted") == 0
    drafted = 0
    for stagger in (0, 2):
        assert sam.run(prompts, lengths, stagger=stagger) == expected
        drafted += sam.count("drafted")
        if name != "auto":
            speculated(sam)
    assert drafted > 0


@pytest.mark.parametrize("name", ["batch, seeded", *["auto, seeded"] * SECOND])
def test_seeded_text_is_that_without_drafts(engine, prompts, name):
    each = [{"temperature": 1.0, "seed": 2**40 + i} for i in range(32)]
    for i in range(0, 32, 3):
        each[i]["top_p"] = 0.8
    for i in range(0, 32, 4):
        each[i]["top_k"] = 9
    each[6] = {"temperature": 0.0}
    lengths = [90 - 2 * i for i in range(32)]
    expected = engine("plain, seeded").run(prompts[:32], lengths, each=each)
    sam, drafted = engine(name), 0
    for stagger in (0, 2):
        assert sam.run(prompts[:32], lengths, stagger=stagger, each=each) == expected
        drafted += sam.count("drafted")
        if name == "batch, seeded":
            speculated(sam)
    assert drafted > 0


def test_sampled_distribution_is_the_models(model, engine):
    network = loaded(model)
    samples_as_the_model(engine("batch"), network, 12_000)
    pairs, _, _ = sample(engine("batch"), 2048, temperature=0.8)
    p = model_distribution(network)
    assert chi_square_p_value(pairs.ravel(), p.ravel() * 2048) < 1e-6, "the test notices no wrong temperature"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_host_waits_no_more_often(engine, prompts, temperature):
    found = {}
    for name in ("plain", "batch", *["auto"] * SECOND):
        of = engine(name)
        of.run(prompts[:8], 64, temperature=temperature)
        of.engine.collective_rpc(count_waits, args=(True,))
        of.run(prompts[8:16], 128, temperature=temperature)
        (found[name],) = of.engine.collective_rpc(count_waits, args=(False,))
        print(f"{name}, T={temperature}: {len(of.rows)} steps, waits: {found[name]}")
    speculated(engine("batch"))
    waits = {name: sum(lines.values()) for name, lines in found.items()}
    assert max(waits.values()) == waits["plain"], found
