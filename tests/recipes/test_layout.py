# SPDX-License-Identifier: Apache-2.0
"""The layout's arithmetic, compared with figures worked out by hand from public shapes, and refused layouts."""

import json
import re
from pathlib import Path

import pytest

from llm_rl import communicators, config, layout, space
from llm_rl.errors import UserError
from llm_rl.layout import GIB
from llm_rl.shape import SHAPES, Shape, embedding, read_shape

QWEN3 = Path(layout.__file__).parent / "qwen3"
B32, B235 = "dapo_qwen3_32b_32die", "dapo_qwen3_235b_a22b_128die"
GPUS, GPU, STATES = "dapo_qwen3_8b_8gpu", "dapo_qwen3_0.6b_1gpu", "dapo_qwen3_5_27b_8gpu"
OURS = "profile=recommended"


def load(name=B32, changes=""):
    """Return a recipe with overrides, and its model's shape or None."""
    recipe = config.load(QWEN3 / f"{name}.yaml", changes.split())
    return recipe, SHAPES.get(Path(recipe.model.path).name)


@pytest.mark.parametrize(
    ("model", "parameters", "experts", "weights", "kv_token", "kv_of_8"),
    [
        ("Qwen3-0.6B", 0.596, 0, 1.11, 112, 14),
        ("Qwen3-32B", 32.762, 0, 61.0, 256, 32),
        ("Qwen3-235B-A22B", 235.09, 227.10, 437.9, 188, 47),
        ("Qwen3.5-9B", 8.954, 0, 16.7, 32, 8),
        ("Qwen3.5-27B", 26.896, 0, 50.1, 64, 16),
    ],
)
def test_shapes(model, parameters, experts, weights, kv_token, kv_of_8):
    """Parameters in 10^9, bf16 weights in GiB, and KV cache in KiB per token, on one die and on each of 8 dies."""
    shape = SHAPES[model]
    assert (shape.parameters / 1e9, shape.expert_parameters / 1e9) == pytest.approx((parameters, experts), abs=6e-3)
    assert 2 * shape.parameters / GIB == pytest.approx(weights, abs=0.05)
    assert (shape.kv_bytes(1), shape.kv_bytes(8)) == (kv_token * 1024, kv_of_8 * 1024)


def test_states_of_a_request():
    """A request's states in MiB with 0, 3, 7 and 15 draft tokens, and on each of four devices."""
    states = SHAPES["Qwen3.5-9B"].state_bytes
    assert [round(states(1, k) / 2**20) for k in (0, 3, 7, 15)] == [49, 201, 414, 876]
    assert states(4, 3) == states(1, 3) / 4 and SHAPES["Qwen3-8B"].state_bytes(1, 3) == 0


def test_states_are_counted():
    recipe, model = load(STATES)
    lines, _ = layout.report(recipe, model)
    assert any(re.fullmatch("  states +150 MiB per request with k = 3", line) for line in lines)
    drafts, without = (layout.rollout(*load(STATES, change)) for change in ("", "sam=off"))
    added = (model.state_bytes(4, 3) - model.state_bytes(4)) / GIB
    assert drafts.sequence - without.sequence == pytest.approx(added) and drafts.kv == without.kv
    assert without.mean_tokens - drafts.mean_tokens == pytest.approx(added * GIB / model.kv_bytes(4))


@pytest.mark.parametrize(
    ("name", "weights", "sequence", "kv", "full", "mean"),
    [
        (B32, 7.6, 1.125, (36, 38.8), (32, 34.5), (9.1, 9.93)),
        (B235, 7.0, 1.65, (39, 41.5), (24, 25.2), (13.7, 14.46)),
        (GPUS, 15.3, 3.09, (43.9, 47.9), (14.2, 15.5), (9.99, 10.90)),
        (GPU, 1.1, 0.27, (6.3, 10.3), (23.0, 37.6), (1.23, 2.01)),
        (STATES, 12.5, 0.19, (26.9, 30.9), (139.3, 160.1), (4.18, 6.23)),
    ],
)
def test_rollout_memory(name, weights, sequence, kv, full, mean):
    """GiB per die, full sequences and thousands of mean tokens, with 8 GiB reserved and with 4 plus communicators."""
    low, high = (layout.rollout(*load(name), reserve) for reserve in (8.0, 4.0))
    assert low.weights == pytest.approx(weights, abs=0.05)
    assert low.sequence == pytest.approx(sequence, abs=0.01)
    assert (low.kv, high.kv) == pytest.approx(kv, abs=0.6)
    assert (low.full_sequences, high.full_sequences) == pytest.approx(full, abs=0.6)
    assert (low.mean_tokens / 1e3, high.mean_tokens / 1e3) == pytest.approx(mean, abs=0.06)


@pytest.mark.parametrize(("name", "total", "host"), [(GPUS, 18.4, 92), (GPU, 10.3, 7), (STATES, 52.9, 301)])
def test_recipes_of_gpus_fit(name, total, host):
    """The recipes' comments name these GiB per GPU in training and per host; no warning of preemption is given."""
    lines, warnings = layout.report(*load(name))
    assert not warnings and any(line.startswith("  total") for line in lines)
    train = layout.training(*load(name))
    assert train.total == pytest.approx(total, abs=0.05) and train.host == pytest.approx(host, abs=0.5)
    assert layout.report(*load(name, "rollout.expected_length=11000"))[1], "the warning means something"


def test_waves_of_requests():
    for changes, waves in (("data.gen_batch_size=32", (128, 1)), ("", (384, 3))):  # the public original; ours
        roll = layout.rollout(*load(B32, changes))
        assert (roll.requests, roll.waves) == waves


@pytest.mark.parametrize(
    ("name", "changes", "states", "logits", "host"),
    [
        (B32, OURS, (3.8, 3.8, 7.6), 2.6, 183),
        (B235, "train.backend=fsdp", (6.8, 6.8, 13.7), 5.2, 328),
        (B32, "", (3.8, 7.6, 11.4), 1.3, 183),
        (B235, "", (4.2, 8.5, 20.5), 1.3, 328),
    ],
)
def test_training_memory(name, changes, states, logits, host):
    """Weights, gradients, optimizer and logits in GiB per die; the offloaded optimizer in GiB per host."""
    train = layout.training(*load(name, changes))
    assert (train.weights, train.gradients, train.optimizer) == pytest.approx(states, abs=0.06)
    assert train.logits == pytest.approx(logits, abs=0.05) and round(train.host) == host


@pytest.mark.parametrize(
    ("name", "changes", "die", "host"),
    [
        (GPUS, "", 0, 4 * 8.19 / 1.0737),  # FSDP: float32, always in host memory
        (B32, "", 0, 16 * 3.8),  # Megatron: the weights of each die once more
        (B32, "train.param_offload=false rollout.gpu_memory_utilization=0.6", 3.8, 0),
    ],
)
def test_the_reference_model_is_counted(name, changes, die, host):
    """A KL divergence in the loss or in the reward adds a reference model; its memory is in GiB."""
    recipe, model = load(name, changes)
    without, needed = layout.training(recipe, model), space.needs(recipe, model)
    for key in ("use_kl_loss", "use_kl_in_reward"):
        recipe, model = load(name, f"{changes} algorithm.{key}=true")
        train = layout.training(recipe, model)
        assert train.total - without.total == pytest.approx(die, abs=0.05)
        assert space.needs(recipe, model).memory - needed.memory == pytest.approx(host, abs=0.5)
        assert any(line.startswith("  reference") for line in layout.report(recipe, model)[0])


@pytest.mark.parametrize("lora", ["lora_rank=8", "lora.rank=8", "lora_adapter_path=/adapter"])
def test_with_lora_the_actor_is_the_reference(lora):
    lines = layout.report(*load(GPUS, f"algorithm.use_kl_loss=true verl.actor_rollout_ref.model.{lora}"))[0]
    assert not any(line.startswith("  reference") for line in lines)


def test_a_model_that_is_not_counted_is_named():
    assert layout.report(*load(GPUS, "verl.reward.reward_model.enable=true"))[1] == [
        "verl.reward.reward_model.enable adds a model whose memory is not counted"
    ]


@pytest.mark.parametrize(
    ("name", "changes", "engine", "trainer"),
    [
        # Engine: world and tensor, vllm-ascend's 200 MiB each. Trainer: world, tensor, pipeline, context twice, data
        # and context, tensor and pipeline, 300 each; pipeline and both of context have 20 more for point to point.
        (B32, "", 2 * 2 * 200, 2 * (7 * 300 + 3 * 20)),
        (B32, OURS, 2 * 2 * 200, 2 * 3 * 200),  # world, sequence, data
        # Engine: also expert 200, data parallel 50, dispatch 300. Trainer: also three groups of experts, and tensor
        # and context. Groups of one die, here expert tensor and expert data, have no communicator.
        (B235, "", 2 * (3 * 200 + 50 + 300), 2 * (11 * 300 + 3 * 20)),
        (B235, "cluster.device=cuda", 0, 0),
    ],
)
def test_communicators_take_device_memory(name, changes, engine, trainer):
    """Each group of more than one die takes twice its buffer, in MiB."""
    recipe, model = load(name, changes)
    assert 1024 * communicators.engine_memory(recipe) == pytest.approx(engine)
    assert 1024 * communicators.trainer_memory(recipe) == pytest.approx(trainer)
    train = layout.training(recipe, model)
    parts = train.weights + train.gradients + train.optimizer + train.logits
    assert train.total - parts == pytest.approx(trainer / 1024)


def test_an_engines_communicators_are_in_its_reserve_until_they_leave_activations_too_little():
    ours, theirs, large = (layout.rollout(*load(B235, c)).kv for c in (OURS, "", "env.HCCL_BUFFSIZE='2000'"))
    assert theirs == ours
    assert theirs - large == pytest.approx(2 * (3 * 200 + 50 + 2000) / 1024 + layout.ACTIVATIONS - layout.RESERVE)


def test_the_buffer_that_the_dispatch_to_experts_needs():
    """A die's 64 tokens (64 requests of 4 tokens on 4 dies) go to 128 experts in rows of 8,704 bytes and return from 8
    in rows of 8,192 bytes. The buffer has twice these bytes and 11 MiB."""
    assert communicators.dispatch_buffer(*load(B235)) == -(-2 * 64 * (128 * 8704 + 8 * 8192) // 2**20) + 11 == 155
    assert communicators.dispatch_buffer(*load(B235, "rollout.max_num_seqs=4096")) > 8 * 144
    assert communicators.dispatch_buffer(*load()) == 0


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        (B32, 64 * (16 + 16 + 64 + 32) + 2 * 256),  # 12.5, 10, 62.5 and 31.25; 185.5
        (B235, 94 * (32 + 16 + 32 + 16) + 2 * 512),  # 18, 16, 24 and 12, an expert a die; 296.75
        (GPU, 28 * (8 + 4 + 16 + 8) + 512),  # 8, 4, 12 and 6; 296.75, tied
    ],
)
def test_weights_of_a_sleeping_engine_are_pinned_in_blocks_of_powers_of_two(name, blocks):
    """Blocks in MiB: a layer's matrices, then the vocabulary's. The comments give the sizes before rounding."""
    assert layout.rollout(*load(name, "cluster.die_memory=64")).pinned == blocks / 1024


def test_a_recipe_that_will_preempt_requests_warns():
    for name, warnings in ((B235, 0), ("dapo_qwen3_tiny_cpu", 0), ("dapo_qwen3_32b_128die_customer", 1)):
        found = layout.report(*load(name))[1]
        assert len(found) == warnings
    assert (
        "will preempt requests: 256 concurrent requests leave 4553 tokens for each, and 10252 are expected" in found[0]
    )


def test_engines_keep_their_weights_on_the_host_where_verl_sends_them_to_sleep_at_level_1():
    line = "  weights asleep           122 GiB per host while training, 136 when pinned"
    rollout = "verl.actor_rollout_ref.rollout."
    awake = ("cluster.device=cuda", f"{rollout}free_cache_engine=false", f"{rollout}+enable_sleep_mode=false")
    for changes in ("", *awake):
        assert [said for said in layout.report(*load(B32, changes))[0] if "asleep" in said] == [line] * (not changes)


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        (B235, "rollout.data_parallel_size=1 rollout.expert_parallel_size=1", "rollout does not fit: weights 109.5"),
        (
            B32,
            "cluster.nodes=3 rollout.data_parallel_size=4",
            "size is 32, which does not divide the number of dies, 48",
        ),
        (B32, "rollout.tensor_model_parallel_size=32", "is 32, which does not divide the number of dies per host, 16"),
        (B32, "rollout.expert_parallel_size=4", "must be 1 or tensor x data parallel size = 8, got 4"),
        (B32, "rollout.expert_parallel_size=8", "is 8, which does not divide the number of experts, 1"),
        (
            B32,
            f"{OURS} train.sequence_parallel=5",
            "sequence_parallel is 5, which does not divide the number of dies, 32",
        ),
        (B32, f"{OURS} train.tensor_parallel=8", "tensor_parallel is Megatron's: leave it at 1 with train.backend f"),
        (B32, "train.ppo_mini_batch_size=33", "batch_size is 33, which does not divide the number of prompts per"),
        (B32, f"{OURS} rollout.n=3 train.sequence_parallel=1 train.ppo_mini_batch_size=1", "not divide the number of"),
        (B235, "train.context_parallel=3", "train.tensor x pipeline x context_parallel is 48, which does not divide"),
        (B235, "train.expert_parallel=48", "expert x expert_tensor x pipeline_parallel is 192, which does not divide"),
        (B235, "train.last_stage_layers=null", "94 layers cannot be split into 4 pipeline stages"),
        (
            B32,
            f"{OURS} cluster.nodes=1 cluster.die_memory=32 rollout.gpu_memory_utilization=0.9",
            "the training does not fit: it needs 34.3 GiB and 8 GiB for activations of 32 GiB per die",
        ),
        (
            B32,
            f"{OURS} train.optimizer_offload=false rollout.gpu_memory_utilization=0.9",
            "do not fit together: 8.8 GiB of training state and communicators stay on each die, and the engine",
        ),
        (GPUS, "rollout.tensor_model_parallel_size=16", "is 16, which does not divide the number of GPUs, 8"),
        (GPUS, "cluster.die_memory=16", "GiB for activations need 26.4 GiB per GPU of"),
        (B32, "env.HCCL_BUFFSIZE='0.5'", "HCCL_BUFFSIZE must be a whole number of MiB, got '0.5'"),
        (B235, "env.HCCL_BUFFSIZE='150'", "to the experts of other dies needs 155: set env.HCCL_BUFFSIZE=155"),
    ],
)
def test_what_cannot_run_is_refused(name, changes, sentence):
    with pytest.raises(UserError) as error:
        layout.report(*load(name, changes))
    assert sentence in str(error.value)


def test_a_gpu_is_called_one():
    for name in (GPU, GPUS):
        lines, _ = layout.report(*load(name))
        assert lines[0].startswith("GPUs ") and not re.search(r"\bdies?\b", "\n".join(lines)), lines


def test_shape_comes_from_the_models_own_file(tmp_path):
    model = tmp_path / "Qwen3-32B"
    assert read_shape(model) == SHAPES["Qwen3-32B"]
    assert read_shape(tmp_path / "mine") is None
    model.mkdir()
    read = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    read |= {"intermediate_size": 128, "moe_intermediate_size": 32, "vocab_size": 100, "tie_word_embeddings": True}
    read["model_type"] = "qwen3"
    moe = {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "head_dim": 8}
    shapes = (Shape(2, 64, 4, 2, 16, 128, 100, tied=True), Shape(2, 64, 4, 2, 8, 32, 100, True, 8, 2))
    dense_layers = moe | {"mlp_only_layers": [0]}
    for more, shape in zip(({}, moe, dense_layers), (*shapes, None), strict=True):
        (model / "config.json").write_text(json.dumps(read | more))
        assert read_shape(model) == shape
    for unusable in ({"model_type": "qwen3"}, []):
        (model / "config.json").write_text(json.dumps(unusable))
        with pytest.raises(UserError, match="config.json cannot be read as a model's configuration"):
            read_shape(model)


ATTENTION = {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "num_hidden_layers": 32}
MIXTRAL = ATTENTION | {
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "intermediate_size": 14336,
    "vocab_size": 32000,
}
LLAMA = ATTENTION | {"intermediate_size": 14336, "vocab_size": 128256}
VL = {"text_config": ATTENTION | {"vocab_size": 151936}}
LLAMA_2 = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11008}
QWEN3_5 = {"model_type": "qwen3_5_text", "hidden_size": 4096, "intermediate_size": 12288, "vocab_size": 248320}
QWEN3_5 |= {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256, "num_hidden_layers": 32}
QWEN3_5 |= {"layer_types": [*["linear_attention"] * 3, "full_attention"] * 8, "linear_conv_kernel_dim": 4}
QWEN3_5 |= {"linear_num_key_heads": 16, "linear_key_head_dim": 128}
QWEN3_5 |= {"linear_num_value_heads": 32, "linear_value_head_dim": 128}
LLAMA_2 |= {"vocab_size": 32000}  # Llama 2 7B's file has no num_key_value_heads
MOONLIGHT = {"hidden_size": 2048, "vocab_size": 163840}


@pytest.mark.parametrize(
    ("kind", "sizes", "parameters", "largest"),
    [
        ("mixtral", MIXTRAL, 46_702_792_704, 131_072_000),
        ("llama", LLAMA, 8_030_261_248, 525_336_576),  # Llama 3.1 8B
        ("llama", LLAMA_2, 6_738_415_616, 131_072_000),
        ("qwen3_moe", {**MOONLIGHT, "mlp_only_layers": [0]}, None, 335_544_320),
        ("qwen3_vl", VL, None, 622_329_856),
        ("qwen3_5", {"text_config": QWEN3_5}, 8_953_803_264, 1_017_118_720),  # as transformers makes it
        ("deepseek_v3", MOONLIGHT, None, 335_544_320),  # Moonlight
    ],
)
def test_other_architectures_are_counted_or_named(kind, sizes, parameters, largest, tmp_path):
    """The numbers of parameters are the publishers', apart from norms."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **sizes}))
    model, recipe = read_shape(tmp_path), load(GPUS, f"model.path={tmp_path}")[0]
    assert embedding(tmp_path) == largest
    if parameters:
        assert model.parameters == pytest.approx(parameters, rel=2e-6)
    else:
        assert (
            layout.report(recipe, model)[0][-1].partition("not checked: ")[2].startswith(f"unknown architecture {kind}")
        )


@pytest.mark.parametrize("name", [B32, "dapo_qwen3_32b_128die_customer", B235])
def test_all_rounds_of_a_step_fit_the_time_of_a_step(name):
    """The article's rounds must fit; ten of its 235B's longest take 19.7 hours, and the default limit is 12 hours."""
    for profile in ("article", "recommended"):
        recipe, _ = load(name, f"pin_set=vllm-0.23 profile={profile}")
        assert recipe.rollout.expected_round * recipe.algorithm.max_num_gen_batches < recipe.trainer.step_timeout
    short = "pin_set=vllm-0.23 trainer.step_timeout=30000"
    with pytest.raises(UserError, match=r"step_timeout is 30000 s, and 10 rounds of generation .+ raise it"):
        load(name, short)
    load(name, f"{short} algorithm.filter_groups=false")
