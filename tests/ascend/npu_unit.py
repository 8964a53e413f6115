# SPDX-License-Identifier: Apache-2.0
"""Checks of functions of vllm-ascend and of its stand-in that need no engine. All run in one process on platform npu.

usage: npu_unit.py   (prints one JSON object: the name of each check, with null or the text of the exception)
A check is a function of this module, npu_graphs, npu_options or client_checks whose name begins with `check_`. A test
reports the result of each check.
"""

import dataclasses
import json
import os
import tempfile
import types
from pathlib import Path
from unittest import mock

import client_checks
import npu_graphs
import npu_options
import numpy as np
import torch
import torch_npu  # noqa: F401  registers the device
from ascend_engine import OLD
from batch_rows import check_allowed_tokens_move
from npu_graphs import set_ascend_config


def check_rank_of_data_parallelism_names_the_history():
    """This check is for vLLM 0.11. With 0.23, test_history.py starts an engine with a data-parallel rank."""
    from vllm_ascend.spec_decode import get_spec_decode_method

    group = mock.patch("vllm.distributed.parallel_state.get_tp_group")  # a mock counts as the first rank
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
    """Return how many of 67 batch sizes get a graph if the target and the draft model of `method` have 48 layers."""
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
    """Check the input batches of vllm-ascend 0.11 and of vLLM 0.11."""
    from vllm.v1.worker import gpu_input_batch
    from vllm_ascend.worker import npu_input_batch

    for module in (npu_input_batch, gpu_input_batch):
        check_allowed_tokens_move(module, [8])


def check_upstreams_verification_returns_logprob_token_ids():
    """The log-probabilities belong to the sampled tokens, also where another request asks for the 2 best tokens."""
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
    from vllm_ascend.sample.rejection_sampler import GREEDY_TEMPERATURE, AscendRejectionSampler

    set_ascend_config()
    torch.manual_seed(0)
    counts = [2, 0, 1, 3]
    ends = np.cumsum(np.array(counts) + 1)
    logits = torch.randn(ends[-1], 50)
    logprobs, of_drafts = logits.log_softmax(1), [i for i in range(len(logits)) if i not in ends - 1]
    drafts = [part.tolist() for part in logits[of_drafts].argmax(1).split(counts)]
    drafts[3][1] = 49 - drafts[3][1]  # a draft token that is refused
    metadata = SpecDecodeMetadata.make_dummy(drafts, torch.device("cpu"))
    metadata.bonus_logits_indices, metadata.target_logits_indices = torch.tensor(ends - 1), torch.tensor(of_drafts)
    given = dict.fromkeys(field.name for field in dataclasses.fields(SamplingMetadata))
    given |= {"all_greedy": True, "all_random": False, "no_penalties": True}
    given |= {"generators": {}, "bad_words_token_ids": {}}
    given |= {"temperature": torch.full((4,), float(GREEDY_TEMPERATURE)), "logitsprocs": LogitsProcessors()}
    given |= {"output_token_ids": [[] for _ in counts], "spec_token_ids": drafts}
    sampling = SamplingMetadata(**given | {"max_num_logprobs": 2, "logprob_token_ids": {0: [7], 3: [4, 9, 11]}})
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
        import vllm_ascend.worker.worker  # noqa: F401  avoids a circular import of its modules
    modules = (npu_options, npu_graphs, client_checks)
    for name, check in [*globals().items(), *(item for module in modules for item in vars(module).items())]:
        if not name.startswith("check_"):
            continue
        try:
            results[name] = check()
        except BaseException as error:  # pytest.raises fails with a BaseException
            results[name] = f"{type(error).__name__}: {error}"
    channel.write(json.dumps(results))
    channel.close()
