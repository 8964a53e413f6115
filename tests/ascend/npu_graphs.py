# SPDX-License-Identifier: Apache-2.0
"""Checks of captured graphs that need no engine. npu_unit.py runs them, and test_graphs.py reports them as tests."""

import multiprocessing
import tempfile
import types

import numpy as np
import torch


def set_ascend_config():
    """Set upstream's defaults for the settings that the sampler and the runner of 0.23 read."""
    import vllm_ascend.ascend_config as module

    verification = types.SimpleNamespace(
        enable_block_verify=False, enable_entropy_verify=False, posterior_threshold=0.95, posterior_alpha=0.4
    )
    settings = {"enable_reduce_sample": False, "rejection_sampler_config": verification, "enable_sp_by_pass": False}
    module._ASCEND_CONFIG = types.SimpleNamespace(ascend_compilation_config=None, eplb_config=None, **settings)


def graph_runner(mode, max_num_seqs=32, sizes=range(4, 65, 4), ranks=(0, 1), vllm=False):
    """Return a runner that drafts 3 tokens, with the attributes that graph dispatch needs. ranks: (rank, size).

    vllm: whether to return vLLM's own runner, which captures its graphs on a GPU.
    """
    from vllm.config import CompilationConfig
    from vllm.v1.attention.backend import AttentionCGSupport
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

    set_ascend_config()
    compilation = CompilationConfig(mode=3, cudagraph_mode=mode, cudagraph_capture_sizes=list(sizes))
    compilation.max_cudagraph_capture_size = max(sizes)
    compilation.set_splitting_ops_for_v1(all2all_backend="naive", data_parallel_size=ranks[1])
    parallel = {"data_parallel_rank": ranks[0], "data_parallel_size": ranks[1], "tensor_parallel_size": 1}
    speculative = types.SimpleNamespace(method="sam", num_speculative_tokens=3)
    config = types.SimpleNamespace(
        additional_config={"enable_flashcomm1": False, "refresh": True},
        compilation_config=compilation,
        lora_config=None,
        observability_config=types.SimpleNamespace(cudagraph_metrics=False),
        parallel_config=types.SimpleNamespace(**parallel),
        scheduler_config=types.SimpleNamespace(max_num_seqs=max_num_seqs),
        speculative_config=speculative,
    )
    runner_class = GPUModelRunner if vllm else NPUModelRunner
    runner = runner_class.__new__(runner_class)
    runner.vllm_config, runner.compilation_config = config, compilation
    runner.parallel_config, runner.speculative_config = config.parallel_config, speculative
    runner.model_config = types.SimpleNamespace(is_encoder_decoder=False)
    runner.ascend_config = types.SimpleNamespace(dp_allreduce_on_npu=False)
    runner.dp_rank, runner.dp_size = ranks
    runner.max_num_reqs, runner.use_aclgraph, runner.uniform_decode_query_len = max_num_seqs, False, 4
    runner.input_batch = types.SimpleNamespace(lora_id_to_lora_request={}, num_computed_tokens_cpu=np.ones(64, int))
    runner.cudagraph_dispatcher = CudagraphDispatcher(config)
    resolved = compilation.resolve_cudagraph_mode_and_sizes(AttentionCGSupport.ALWAYS, None, 4, 1)
    runner.cudagraph_dispatcher.initialize_cudagraph_keys(resolved, 4)
    runner.cudagraph_dispatcher.add_decode_query_len(1)
    return runner


def graph_of(runner, lengths, **how):
    """Return the graph for requests of these lengths: its mode, tokens, requests, and the most tokens of any rank."""
    mode, graph, _, across, _ = runner._determine_batch_execution_and_padding(
        num_tokens=sum(lengths),
        num_reqs=len(lengths),
        num_scheduled_tokens_np=np.array(lengths),
        max_num_scheduled_tokens=max(lengths),
        use_cascade_attn=False,
        **how,
    )
    return mode.name, graph.num_tokens, graph.num_reqs, across if across is None else across.max().item()


def check_graphs_of_full_decode_only():
    runner = graph_runner("FULL_DECODE_ONLY")
    check_graphs_of_decoding(runner)
    runner.input_batch.num_computed_tokens_cpu[0] = 0
    assert graph_of(runner, [1] * 5)[0] == "NONE"  # a prompt of one token


def check_graphs_of_vllms_own_runner():
    check_graphs_of_decoding(graph_runner("FULL_DECODE_ONLY", vllm=True))


def check_graphs_of_decoding(runner):
    assert graph_of(runner, [4] * 5) == ("FULL", 20, 5, None)
    assert graph_of(runner, [1] * 5) == ("FULL", 8, 8, None)
    assert graph_of(runner, [1] * 32) == ("FULL", 32, 32, None)
    assert graph_of(runner, [4] * 17) == ("NONE", 68, None, None)  # beyond the largest size
    assert graph_of(runner, [4, 4, 3]) == graph_of(runner, [4, 4, 3]) == ("NONE", 11, None, None)  # ragged
    assert graph_of(runner, [4, 1]) == ("NONE", 5, None, None) == graph_of(runner, [1, 3, 1])
    graphs = {length: set() for length in (1, 4)}
    for _, descs in runner.cudagraph_dispatcher.get_capture_descs():
        for desc in descs:
            graphs[desc.num_tokens // desc.num_reqs].add(desc.num_tokens)
    assert graphs == {1: set(range(4, 33, 4)), 4: set(range(4, 65, 4))}


def check_each_graph_is_captured_with_its_own_length():
    runner = graph_runner("FULL_AND_PIECEWISE", vllm=True)
    runner.compilation_config.cudagraph_num_of_warmups = 1
    captured = []

    def run(tokens, uniform_decode, uniform_decode_query_len, **_):
        captured.append((tokens, uniform_decode, uniform_decode_query_len))

    runner._dummy_run = run
    for mode, descs in runner.cudagraph_dispatcher.get_capture_descs():
        for desc in descs:
            runner._warmup_and_capture(desc, mode)
    assert captured[::2] == captured[1::2]  # warm-up and capture
    wanted = [(tokens, False, None) for tokens in range(4, 65, 4)]
    wanted += [(tokens, True, 4) for tokens in range(4, 65, 4)] + [(tokens, True, 1) for tokens in range(4, 33, 4)]
    assert sorted(captured[::2], key=str) == sorted(wanted, key=str)


def check_graphs_of_full_and_piecewise():
    runner = graph_runner("FULL_AND_PIECEWISE")
    assert graph_of(runner, [4] * 5) == ("FULL", 20, 5, None)
    assert graph_of(runner, [1] * 5) == ("FULL", 8, 8, None)
    assert graph_of(runner, [4, 4, 3]) == ("PIECEWISE", 12, None, None)
    assert graph_of(runner, [1, 20]) == ("PIECEWISE", 24, None, None)
    assert graph_of(runner, [4] * 17)[0] == "NONE"


STEPS_OF_RANKS = [
    # tokens of each request on rank 0 and on rank 1; mode and tokens of the common graph, its requests on each rank
    ([4] * 5, [1] * 9, ("FULL", 20), (5, 20)),
    ([4] * 2, [1] * 30, ("FULL", 32), (8, 32)),
    ([1] * 3, [4] * 8, ("FULL", 32), (32, 8)),
    ([4] * 3, [4] * 6, ("FULL", 24), (6, 6)),
    ([4] * 3, [1] * 7, ("FULL", 12), (3, 12)),
    ([4] * 12, [1] * 9, ("NONE", None), (None, None)),  # more tokens than max_num_seqs
    ([4] * 5, [30, 1, 1], ("NONE", None), (None, None)),  # a prompt
    ([4, 2], [1] * 9, ("NONE", None), (None, None)),
]


def rank_of_data_parallelism(rank, path, answers):
    from vllm_ascend.worker import model_runner_v1 as module

    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    module.get_dp_group = lambda: types.SimpleNamespace(cpu_group=torch.distributed.group.WORLD)
    module.should_skip_allreduce_across_dp_group = lambda *args: False  # a mixture of experts needs the exchange
    module.oproj_tp_enable = module.embedding_tp_enable = lambda: False
    runner = graph_runner("FULL_DECODE_ONLY", ranks=(rank, 2))
    found = [graph_of(runner, step[rank]) for step in STEPS_OF_RANKS]
    # a rank without requests runs a dummy batch (execute_dummy_batch)
    idle = {"force_uniform_decode": True} if rank else {}
    found.append(graph_of(runner, [4] if rank else [1] * 9, **idle))
    answers.put((rank, found))


def check_ranks_of_data_parallelism_agree_on_a_graph():
    """Two ranks exchange sizes and modes over gloo, as in an engine; in most steps only one of them drafts."""
    processes = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        answers = processes.SimpleQueue()
        arguments = [(rank, f"{folder}/store", answers) for rank in (0, 1)]
        ranks = [processes.Process(target=rank_of_data_parallelism, args=each) for each in arguments]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
            assert process.exitcode == 0, process.exitcode
        found = dict(answers.get() for _ in ranks)
    wanted = [(*graph, requests) for _, _, graph, requests in STEPS_OF_RANKS] + [("FULL", 12, (12, 3))]
    for (mode, tokens, requests), first, second in zip(wanted, found[0], found[1], strict=True):
        assert first[0] == second[0] == mode and first[3] == second[3], (first, second)
        if mode == "FULL":
            assert first[1] == second[1] == first[3] == tokens and (first[2], second[2]) == requests, (first, second)


def check_vllms_own_runner_pads_for_its_graphs():
    from vllm.config import CUDAGraphMode
    from vllm.v1.worker import gpu_model_runner as module

    module.get_pp_group = lambda: types.SimpleNamespace(is_last_rank=True)
    padded = {}
    for mode in (CUDAGraphMode.FULL_AND_PIECEWISE, CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, CUDAGraphMode.NONE):
        called, lengths = [], []
        runner = types.SimpleNamespace(
            compilation_config=types.SimpleNamespace(resolve_cudagraph_mode_and_sizes=lambda *_, mode=mode, **__: mode),
            cudagraph_dispatcher=types.SimpleNamespace(
                initialize_cudagraph_keys=lambda *_: None, add_decode_query_len=lengths.append
            ),
            drafter=types.SimpleNamespace(make_uniform=lambda called=called: called.append(True)),
            kv_cache_config=None,
            max_num_reqs=8,
            parallel_config=types.SimpleNamespace(tensor_parallel_size=1),
            speculative_config=types.SimpleNamespace(method="sam", use_eagle=int, uses_extract_hidden_states=int),
            uniform_decode_query_len=4,
        )
        module.GPUModelRunner._check_and_update_cudagraph_mode(runner, [], [])
        assert lengths == [1]
        padded[mode.name] = bool(called)
    assert padded == {"FULL_AND_PIECEWISE": True, "FULL": False, "PIECEWISE": False, "NONE": False}, padded


def check_sleep_forgets_all_captured_graphs():
    """With enable_sleep_mode_extra_cleanup an engine drops its graphs, and captures them again after it wakes up."""
    from vllm_ascend.compilation import acl_graph
    from vllm_ascend.device_allocator.sleep_mem_optimized import AclGraphSleepWakeupManager as Manager

    acl_graph.set_graph_params([4, 8], one_token_graphs=True)
    kept = [acl_graph._graph_params, acl_graph._one_token_graph_params]
    for params in kept:
        params.handles[4].append("of a graph")
        params.workspaces[8] = torch.zeros(1)
    Manager.reset_all_graph_params()
    Manager.clear_all_attention_workspaces()
    for params in kept:
        assert params.handles == {4: [], 8: []} and params.workspaces == {4: None, 8: None}
    acl_graph._graph_params = acl_graph._one_token_graph_params = None
