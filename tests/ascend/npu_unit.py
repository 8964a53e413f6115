# SPDX-License-Identifier: Apache-2.0
"""Checks of vllm-ascend's and the stand-in's functions that need no engine, all in one process on platform npu.

usage: npu_unit.py   (prints one JSON object, {check: null, or the text of what it raised})
A check is a function of this module, npu_graphs, npu_options, client_checks or stop_checks whose name begins with
`check_`; each stands for one test.
"""

import dataclasses
import itertools
import json
import os
import sys
import tempfile
import types
from pathlib import Path
from unittest import mock

import client_checks
import npu_graphs
import npu_options
import numpy as np
import stop_checks
import torch
import torch_npu  # noqa: F401  registers the device
from ascend_engine import OLD
from batch_rows import check_allowed_tokens_move
from npu_graphs import set_ascend_config
from sam_core.noise import Noise
from torch.utils._python_dispatch import TorchDispatchMode


def check_rank_of_data_parallelism_names_the_history():
    """In 0.11; with 0.23 an engine has one."""
    from vllm_ascend.spec_decode import get_spec_decode_method

    group = mock.patch("vllm.distributed.parallel_state.get_tp_group")  # whose rank is the first
    with tempfile.TemporaryDirectory() as folder, group:
        config = types.SimpleNamespace(
            speculative_config=types.SimpleNamespace(num_speculative_tokens=3, sam={"history": folder}),
            model_config=types.SimpleNamespace(
                max_model_len=32, get_vocab_size=lambda: 50, tokenizer=None, enforce_eager=True
            ),
            compilation_config=None,
            parallel_config=types.SimpleNamespace(data_parallel_rank=3, distributed_executor_backend="mp"),
            scheduler_config=types.SimpleNamespace(async_scheduling=False),
        )
        proposer = get_spec_decode_method("sam", config, None, types.SimpleNamespace(requests={}))
        assert proposer.texts.saved.texts == Path(folder) / "engine-3/pool", proposer.texts.saved.texts


def graph_sizes(method):
    """How many of 67 batch sizes get a graph for a target of 48 layers, speculating by `method` with such a draft."""
    from vllm_ascend.utils import update_aclgraph_sizes

    compilation = types.SimpleNamespace(cudagraph_capture_sizes=list(range(1, 68)))
    compilation.init_with_cudagraph_sizes = lambda sizes: setattr(compilation, "cudagraph_capture_sizes", sizes)
    model = types.SimpleNamespace(hf_config=types.SimpleNamespace(num_hidden_layers=48), architectures=["Qwen3"])
    speculative = types.SimpleNamespace(method=method, draft_model_config=model, num_speculative_tokens=1)
    parallel = types.SimpleNamespace(data_parallel_size=1, tensor_parallel_size=1, enable_expert_parallel=False)
    config = types.SimpleNamespace(model_config=model, parallel_config=parallel, compilation_config=compilation)
    config.speculative_config = speculative if method else None
    update_aclgraph_sizes(config)
    return len(compilation.cudagraph_capture_sizes)


def check_graph_sizes_count_no_draft_layers():
    sizes = {method: graph_sizes(method) for method in (None, "sam", "ngram", "eagle3")}
    assert sizes == {None: 36, "sam": 36, "ngram": 36, "eagle3": 18}, sizes


def check_rows_of_allowed_tokens_move_with_their_requests():
    """In the batches of vllm-ascend 0.11 and vLLM 0.11."""
    from vllm.v1.worker import gpu_input_batch
    from vllm_ascend.worker import npu_input_batch

    for module in (npu_input_batch, gpu_input_batch):
        check_allowed_tokens_move(module, [8])


class Operations(TorchDispatchMode):
    """Names of the operations that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def verifying_step(counts, drafts, logits, sampling):
    """Tokens of a step of vllm-ascend's rejection sampler; logits: of each request a row a draft and one more."""
    from vllm.v1.sample.sampler import Sampler
    from vllm_ascend.sample.rejection_sampler import AscendRejectionSampler

    metadata = types.SimpleNamespace(draft_token_ids=drafts, num_draft_tokens=counts, max_spec_len=max(counts))
    metadata.target_logits_indices = metadata.bonus_logits_indices = None
    set_ascend_config()
    rejection_sampler = AscendRejectionSampler(Sampler(), by_sam_core=True)
    if OLD:
        return rejection_sampler.verify(metadata, logits, sampling).sampled_token_ids
    return rejection_sampler(metadata, None, logits, sampling).sampled_token_ids


def sampling_of(greedy, generators):
    """SamplingMetadata of requests that are greedy or not."""
    from vllm_ascend.sample.rejection_sampler import GREEDY_TEMPERATURE

    not_asked = ("top_k", "top_p", "max_num_logprobs", "logprob_token_ids", "allowed_token_ids_mask")
    return types.SimpleNamespace(
        **dict.fromkeys(not_asked),
        all_greedy=all(greedy),
        all_random=not any(greedy),
        temperature=torch.tensor([float(GREEDY_TEMPERATURE) if one else 1.0 for one in greedy]),
        generators=generators,
        no_penalties=True,
        bad_words_token_ids={},
        logitsprocs=types.SimpleNamespace(argmax_invariant=[], non_argmax_invariant=[]),
    )


def step_of(counts, greedy, vocabulary=50):
    """Arguments of verifying_step for requests with these numbers of drafts; every second one has a seed."""
    torch.manual_seed(0)
    logits = 6 * torch.randn(sum(counts) + len(counts), vocabulary)
    of_drafts = torch.cat([torch.arange(count + 1) < count for count in counts])
    best = logits[of_drafts].argmax(1)
    drafts = torch.where(torch.rand(len(best)) < 0.8, best, 0).int()
    generators = {i: torch.Generator(device="npu").manual_seed(i) for i in range(0, len(counts), 2)}
    return counts, drafts, logits, sampling_of(greedy, generators)


def check_a_step_waits_for_nothing():
    waits = {"_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "repeat_interleave"}
    for counts in ([3] * 32, [3, 0, 1, 2] * 8):
        kinds = itertools.product(([False] * 32, [True] * 32, [True, False] * 16), (False, True))
        for greedy, seeded in kinds:
            arguments = step_of(counts, greedy)
            arguments[-1].generators = Noise(range(32), range(32), counts, "npu") if seeded else {}
            with Operations() as operations:
                verifying_step(*arguments)
            assert not waits.intersection(operations.names), waits.intersection(operations.names)
            assert len(operations.names) < (110 if seeded else 55), (greedy[:2], seeded, len(operations.names))


def check_a_step_gives_the_tokens_of_the_loops():
    sys.path.append(str(Path(__file__).parents[1] / "verify"))
    import loops

    for greedy in ([False] * 24, [True] * 24, [i % 3 == 0 for i in range(24)]):
        counts = [3, 0, 1, 2, 5, 4, 0, 3] * 3
        found = verifying_step(*step_of(counts, greedy))
        _, drafts, logits, sampling = step_of(counts, greedy)
        batch = types.SimpleNamespace(counts=counts, drafts=drafts, probs=logits.softmax(1), k=max(counts))
        batch.is_greedy = torch.tensor(greedy)
        wanted = loops.rejection_sample(batch, *loops.draw(counts, sampling.generators, logits.shape[1]))
        own = [i for i in range(24) if i in sampling.generators or greedy[i]]
        assert torch.equal(found[own], wanted[own]), (greedy, found, wanted)
        assert (found[own] >= 0).sum().item() - len(own) > 5


def check_upstreams_verification_returns_logprob_token_ids():
    """Aligned with the tokens, in a batch with another request's log-probabilities."""
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
    from vllm_ascend.sample.rejection_sampler import AscendRejectionSampler

    set_ascend_config()
    counts, drafts, logits, sampling = step_of([2, 0, 1, 3], [True] * 4)
    logprobs = logits.log_softmax(1)
    ends = np.cumsum(np.array(counts) + 1)
    parts = [part.tolist() for part in drafts.split(counts)]
    metadata = SpecDecodeMetadata.make_dummy(parts, torch.device("cpu"))
    metadata.bonus_logits_indices = torch.tensor(ends - 1)
    metadata.target_logits_indices = torch.tensor([i for i in range(len(logits)) if i not in ends - 1])
    sampling.output_token_ids, sampling.spec_token_ids = [[] for _ in counts], parts
    sampling.max_num_logprobs, sampling.logprob_token_ids = 2, {0: [7], 3: [4, 9, 11]}
    sampling.thinking_budget_state_holder = None
    sampling = dataclasses.make_dataclass("Sampling", vars(sampling))(**vars(sampling))
    sampler = AscendRejectionSampler(Sampler())
    output = sampler(metadata, None, logits.clone(), sampling)
    tokens, lists = sampler.parse_output(output.sampled_token_ids, 50, logprobs_tensors=output.logprobs_tensors)
    assert sum(map(len, tokens)) > len(counts)
    for i, answer in enumerate(tokens):
        found = lists.slice_request(i, len(answer))
        for at, token in enumerate(answer):
            row = logprobs[ends[i] - counts[i] - 1 + at]
            wanted = sampling.logprob_token_ids.get(i, row.topk(2).indices.tolist())
            ids = found.logprob_token_ids[at][: len(wanted) + 1]
            assert ids.tolist() == [token, *wanted], (i, at, ids, token, wanted)
            assert np.allclose(found.logprobs[at][: len(wanted) + 1], row[torch.from_numpy(ids).long()], atol=1e-5)


def check_fused_moe_decoding_is_kept():
    from vllm_ascend.utils import speculative_enable_dispatch_gmm_combine_decode as is_kept

    configs = {method: mock.Mock(**{"speculative_config.method": method}) for method in ("sam", "medusa")}
    kept = {method: is_kept(config) for method, config in configs.items()}
    assert kept == {"sam": True, "medusa": False}, kept


if __name__ == "__main__":
    results = {}
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if not OLD:
        import vllm_ascend.worker.worker  # noqa: F401  its modules import each other: this order works
    modules = (npu_options, npu_graphs, client_checks, stop_checks)
    for name, check in [*globals().items(), *(item for module in modules for item in vars(module).items())]:
        if not name.startswith("check_"):
            continue
        try:
            results[name] = check()
        except BaseException as error:  # pytest.raises has its own
            results[name] = f"{type(error).__name__}: {error}"
    channel.write(json.dumps(results))
    channel.close()
