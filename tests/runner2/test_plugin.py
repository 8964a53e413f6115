# SPDX-License-Identifier: Apache-2.0
"""Tests of the plugin: what it rebinds and when, which releases it accepts, and the sentences of its refusals."""

import json
import logging
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path
from unittest import mock

import pytest
import vllm
from conftest import AUTO
from hook_checks import a_changed_hook_is_named, forget_files
from sam_core.engines.hooks import problem
from sam_core.engines.vllm import hooks
from sam_core.engines.vllm.plugin import core, front, register, worker
from test_options import configure

HERE = Path(__file__).parent
INSTALLED = Path(vllm.__file__).parent
OTHERS = sorted(Path(sys.prefix).glob("releases/*/vllm"))
RELEASE, FOUND = hooks.VLLM.compare(INSTALLED)


def run(program, *args, **environment):
    """Run a program in a new process of this environment, and return its output."""
    path = [HERE / "interpreter", HERE.parent / "common", HERE.parents[1] / "testing" / "engines"]
    path = [*map(str, path), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)} | environment
    done = subprocess.run([sys.executable, *program, *args], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("folder", [INSTALLED, *OTHERS], ids=lambda folder: folder.parent.name)
def test_all_hooks_fit(folder):
    assert [*filter(None, hooks.VLLM.compare(folder)[1].values())] == []
    assert OTHERS, "ci/setup-env puts other releases next to the installed one"


@pytest.mark.parametrize("hook", FOUND, ids=lambda hook: f"{hook.owner}.{hook.name}")
def test_a_hook_that_changed_is_named(hook, tmp_path):
    a_changed_hook_is_named(hook, INSTALLED, tmp_path)


def test_all_hooks_must_be_those_of_one_release(tmp_path):
    """If a later release has one hook in the form of vLLM 0.30, the hook counts as changed."""
    for file in {hook.file for hook in FOUND}:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(INSTALLED / file, tmp_path / file)
    forget_files()
    assert not any(hooks.VLLM.compare(tmp_path)[1].values())
    (hook,) = (hook for hook in FOUND if hook.name == "_handle_stopped_request")
    file = tmp_path / hook.file
    file.write_text(file.read_text().replace(*hook.has, "safe_frontier = 0"))
    forget_files()
    (what,) = filter(None, hooks.VLLM.compare(tmp_path)[1].values())
    assert what == f"{hook} no longer has `{hook.has[0]}`"


def rebound():
    """Yield (file, class or "", name) for each function of vLLM that a function of sam_core replaces."""
    register()
    for install in (front.install, core.install, worker.install):
        install()
    for module in [sys.modules[name] for name in sys.modules if name.partition(".")[0] == "vllm"]:
        classes = [value for value in vars(module).values() if isinstance(value, type)]
        for own in (value for value in classes if value.__module__.startswith("sam_core.")):
            (base,) = own.__bases__
            names = [name for name in vars(own) if isinstance(vars(base).get(name), types.FunctionType)]
            yield from ((sys.modules[base.__module__].__file__, base.__name__, name) for name in names)
        for value in (value for holder in (module, *classes) for value in vars(holder).values()):
            function = value.__func__ if isinstance(value, staticmethod) else value
            function = function.fget if isinstance(function, property) else function
            if not isinstance(function, types.FunctionType) or not hasattr(function, "__wrapped__"):
                continue
            if function.__globals__["__name__"].startswith("sam_core."):
                owner, _, name = function.__qualname__.rpartition(".")
                yield sys.modules[function.__module__].__file__, owner, name


def test_what_is_rebound_is_checked_before(device):
    found = {(str(Path(file).relative_to(INSTALLED)), *names) for file, *names in rebound()}
    assert found == {(hook.file, hook.owner, hook.name) for hook in FOUND if hook.why}


def test_a_release_that_does_not_fit_is_refused_in_a_sentence(tmp_path):
    shutil.copytree(INSTALLED / "config", tmp_path / "config")
    with pytest.raises(ValueError, match="does not fit the installed 0.99: engine/arg_.* leave speculative_config out"):
        hooks.check(tmp_path, "0.99")


@pytest.mark.parametrize(
    ("version", "release"),
    [("0.24.0", hooks.WHOLE), (f"{RELEASE}.9", hooks.WHOLE), ("1.0", hooks.RELEASES[-1]), ("dev", hooks.WHOLE)],
)
def test_the_refusal_names_a_release_to_install(version, release, tmp_path):
    with pytest.raises(ValueError, match=f"does not fit the installed {version}: .*; install vLLM {release}, or leave"):
        hooks.check(tmp_path, version)


def test_the_hooks_of_an_installed_release_are_printed(tmp_path):
    printed = run(["-m", "sam_core.engines.vllm.hooks"])
    assert f"{len(FOUND)} of {len(FOUND)} hooks fit, as of {RELEASE}." in printed
    (tmp_path / "config").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "sam_core.engines.vllm.hooks", tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 1 and f"{tmp_path}: 0 of " in done.stdout
    (tmp_path / "config" / "speculative.py").write_text("class SpeculativeConfig:\n    sam: dict")
    assert "has this project's patches" in run(["-m", "sam_core.engines.vllm.hooks"], str(tmp_path))


def test_registration_never_raises(monkeypatch, caplog):
    monkeypatch.setattr("sam_core.engines.vllm.plugin._register", lambda: 1 / 0)
    with caplog.at_level(logging.WARNING, "vllm.sam_core"):
        register.__wrapped__()
    assert "speculative method 'sam' is not available: ZeroDivisionError" in caplog.text


UNCHANGED = """
import sys
import inspection
from vllm.engine.arg_utils import EngineArgs
from vllm.plugins import load_general_plugins
import vllm.v1.worker.gpu.spec_decode as spec_decode
import vllm.v1.core.sched.scheduler, vllm.v1.engine.core_client, vllm.v1.engine.input_processor, vllm.v1.metrics.loggers

def names():
    return {
        (module, owner, name): id(value)
        for module in list(sys.modules)
        if module.startswith("vllm.")
        for owner, holder in [("", sys.modules[module]), *vars(sys.modules[module]).items()]
        if owner == "" or isinstance(holder, type) and holder.__module__ == module
        for name, value in list(vars(holder).items())
        if callable(value)
    }

before = names()
load_general_plugins()
speculative = {"method": "ngram_gpu", "num_speculative_tokens": 2}
settings = {"skip_tokenizer_init": True, "dtype": "float32", "enforce_eager": True}
EngineArgs(model=sys.argv[1], speculative_config=speculative, **settings).create_engine_config()
after = names()
changed = {key[1:] for key in before if after[key] != before[key]}
assert changed == {("EngineArgs", "create_speculative_config"), ("", "init_speculator")}, changed
lazy = {f"sam_core.engines.vllm.plugin.{name}" for name in ("config", "core", "front", "worker")}
assert not lazy & set(sys.modules)
"""


def test_nothing_changes_for_engines_without_it(model):
    run(["-c", UNCHANGED], str(model), VLLM_PLUGINS="sam")


SPAWNED = """
import json, sys
if __name__ == "__main__":
    import inspection, tiny_qwen3
    from vllm import LLM, SamplingParams
    model, speculative = sys.argv[1:]
    llm = LLM(
        model=model, skip_tokenizer_init=True, max_model_len=256, max_num_seqs=8, max_num_batched_tokens=256,
        enforce_eager=True, dtype="float32", distributed_executor_backend="mp", disable_log_stats=False,
        speculative_config=json.loads(speculative),
    )
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": prompt} for prompt in tiny_qwen3.repeated_prompts(2)]
    for _ in range(2):
        answers = [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]
    (stats,) = llm.collective_rpc("sam_stats")
    metrics = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    print("RESULT " + json.dumps([list(map(list, answers)), stats["proposed"], metrics["vllm:sam_engine_steps"]]))
"""


@pytest.mark.slow
def test_spawned_processes_have_it_by_the_entry_point_alone(model, plain, tmp_path):
    import tiny_qwen3

    program = tmp_path / "spawned.py"
    program.write_text(SPAWNED)
    speculative = {"method": "sam", "num_speculative_tokens": 3, "sam": AUTO}
    out = run([str(program)], str(model), json.dumps(speculative), VLLM_WORKER_MULTIPROC_METHOD="spawn")
    (line,) = (line for line in out.splitlines() if line.startswith("RESULT "))
    answers, proposed, steps = json.loads(line.removeprefix("RESULT "))
    assert answers == plain.run(tiny_qwen3.repeated_prompts(2), 24)
    assert proposed > 0 and steps > 0


@pytest.mark.slow
@pytest.mark.skipif(INSTALLED in OTHERS, reason="is what it starts")
@pytest.mark.parametrize("folder", OTHERS, ids=[folder.parent.name for folder in OTHERS])
def test_another_release_gives_the_same_texts(folder):
    """Run tests with another release's Python files and the installed libraries."""
    paths = [str(folder.parent), str(HERE / "interpreter")]
    tests = ["test_auto.py::test_text_is_that_of_plain_runner_2", "test_options.py::test_good_options_reach_the_config"]
    if problem(folder, hooks.LOGPROBS):
        tests = ["test_asynchronous.py::test_text_is_that_of_plain_runner_2"]
    if not problem(folder, hooks.STATES):
        tests += ["test_state_layers.py", "test_model_drafter.py::test_eagle3_drafts_from_hidden_states"]
    files = [str(HERE / test) for test in tests]
    out = run(["-m", "pytest", "-q", "-s"], *files, PYTHONPATH=os.pathsep.join(paths))
    assert f"vLLM {folder.parent.name}" in out, "it ran the installed release"


def config(**changes):
    """Return the parts of a VllmConfig that `why_not_adaptive` reads."""
    mode = types.SimpleNamespace(has_full_cudagraphs=lambda: changes.get("graphs", True))
    return types.SimpleNamespace(
        model_config=types.SimpleNamespace(enforce_eager=changes.get("eager", False), use_mla=True),
        parallel_config=types.SimpleNamespace(pipeline_parallel_size=changes.get("stages", 1)),
        compilation_config=types.SimpleNamespace(cudagraph_mode=mode),
        lora_config=changes.get("lora"),
        speculative_config=types.SimpleNamespace(
            names_switch=changes.get("named", True), has_state_layers=changes.get("states", False)
        ),
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"named": False}, "is not known to work with the model's MLA"),
        ({"named": False, "states": True}, "is not known to work with the model's layers that keep a state"),
        ({"lora": object()}, "does not support LoRA"),
        ({"stages": 2}, "does not support pipeline parallelism"),
        ({"eager": True}, "needs full CUDA graphs"),
        ({"graphs": False}, "needs full CUDA graphs"),
    ],
)
def test_why_verification_cannot_be_adaptive(changes, reason, device, monkeypatch):
    monkeypatch.setattr("sam_core.engines.vllm.plugin.front._backend_problem", lambda config: None)
    found = device.why_not_adaptive(config(**changes))
    assert found is None if reason is None else reason in found


def test_auto_falls_back_to_a_schedule_by_batch_size(model, device, monkeypatch):
    """A CPU has no attention graphs, so `auto` falls back; with data parallelism it verifies drafts of fixed length."""
    monkeypatch.setattr(front, "why_not_adaptive", device.why_not_adaptive)
    said, speculative = [], {"num_speculative_tokens": 7}
    monkeypatch.setattr(front.LOGGER, "warning", lambda text, *parts: said.append(text % parts))
    made = configure(model, {"switch": "auto"}, speculative=speculative).speculative_config
    assert "per batch size instead of per request: vLLM's adaptive verification needs" in said.pop()
    by_size = [(1, 8, 7), (9, 32, 7), (33, 128, 3), (129, 129, 0)]
    assert [*map(tuple, made.num_speculative_tokens_per_batch_size)] == by_size
    assert not made.enable_adaptive_verification
    made = configure(model, {}, speculative=speculative, data_parallel_size=2).speculative_config
    assert "verifies 3 tokens per request at any batch size: vLLM's adaptive verification needs" in said.pop()
    assert made.num_speculative_tokens_per_batch_size is None and made.num_speculative_tokens == 3


@pytest.mark.parametrize(
    ("mismatch", "support", "longest", "reason"),
    [
        (False, "ALWAYS", None, "does not support the attention backend FAKE"),
        (True, "ALWAYS", None, None),
        (True, "UNIFORM_BATCH", None, "needs graphs for drafts of any length, which the attention backend FAKE lacks"),
        (True, "UNIFORM_BATCH", 3, "needs graphs for drafts of any length"),
        (True, "UNIFORM_BATCH", 4, None),
    ],
)
def test_backends_are_asked_before_the_engine_starts(model, device, monkeypatch, mismatch, support, longest, reason):
    """FlashInfer without trtllm-gen, and FlashAttention 2 and 4, would end the engine."""
    from vllm.v1.attention import selector
    from vllm.v1.attention.backend import AttentionCGSupport

    backend = mock.Mock(**{"supports_device_cpu_query_lens_mismatch.return_value": mismatch})
    backend.get_name.return_value, builder = "FAKE", backend.get_builder_cls.return_value
    builder.get_cudagraph_support.return_value = AttentionCGSupport[support]
    builder.get_varlen_cudagraph_max_query_len.return_value = longest
    made = configure(model, {"switch": "auto"})
    monkeypatch.setattr(selector, "get_attn_backend", lambda *args, **kwargs: backend)
    found = front._backend_problem(made)
    assert found is None if reason is None else reason in found
    assert made.speculative_config.enable_adaptive_verification, "it is as it was"
