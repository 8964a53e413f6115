# SPDX-License-Identifier: Apache-2.0
"""Dry runs of every recipe: the configuration of the installed verl accepts the recipe's settings.

Each pin set's environment runs this file with its own verl.
"""

import dataclasses
import importlib.metadata
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from hook_checks import forget_files
from hydra.errors import ConfigCompositionException, InstantiationException
from omegaconf import OmegaConf
from sam_core.engines.verl import hooks
from sam_core.options import Options
from verl.utils.config import omega_conf_to_dataclass

from llm_rl import config, launch, pin_set
from llm_rl.errors import UserError
from llm_rl.key_map import KeyMap
from llm_rl.pin_set import PATCHES, RELEASES, RecipePins
from llm_rl.recipe import KEYS, MAPPINGS

QWEN3 = launch.ROOT / "llm_rl" / "qwen3"
ABSTRACT = {"dapo", "dapo_qwen3_article"}
NAMES = sorted(path.stem for path in QWEN3.glob("dapo*.yaml") if path.stem not in ABSTRACT)
STATES = "dapo_qwen3_5_27b_8gpu"
"""The recipe of a model whose layers keep a state; tests/verl_plugin composes it with `sam`."""
INSTALLED = f"verl {importlib.metadata.version('verl')}"
PIN_SET = Path(sys.prefix).name
OTHERS = [other for other in map(RecipePins, pin_set.names()) if other.verl != INSTALLED]
DAPO_IN_CHECKOUT = INSTALLED == "verl 0.6.1"
DAPO = """
defaults: [%s, _self_]
data: {gen_batch_size: 1}
reward_model: {reward_manager: dapo, overlong_buffer: {enable: false, len: 0, penalty_factor: 0.0, log: false}}
algorithm:
  filter_groups:
    {_target_: verl.trainer.config.FilterGroupsConfig, enable: false, metric: null, max_num_gen_batches: 0}
"""
"""Configuration of recipe/dapo of verl 0.6.1, which is only in verl's git tag, not in its package."""
# Settings in the article's tables, in the order of test_recipes_are_the_articles.
ARTICLE = {
    "dapo_qwen3_32b_32die": (32, 34816, 32, 96, 128, 8, 3, 8),
    "dapo_qwen3_235b_a22b_128die": (128, 34816, 128, 128, 64, 4, 3, 8),
    "dapo_qwen3_32b_128die_customer": (128, 34816, 512, 1536, 256, 8, 4, 4),
}


@pytest.fixture(autouse=True)
def pinned(monkeypatch, tmp_path):
    """Select this environment's pin set; for verl 0.6.1, make the parts of a checkout that the launcher needs."""
    monkeypatch.setenv("PIN", PIN_SET)
    unset = "RAY_ADDRESS HCCL_OP_EXPANSION_MODE PYTORCH_NPU_ALLOC_CONF SAM_RL_INTERFACE VERL_CHECKOUT"
    for name in unset.split():
        monkeypatch.delenv(name, raising=False)
    if DAPO_IN_CHECKOUT:
        config_folder = tmp_path / "recipe" / "dapo" / "config"
        config_folder.mkdir(parents=True)
        (config_folder.parent / "main_dapo.py").touch()
        for name in ("trainer", "megatron_trainer"):
            (config_folder / f"dapo_{name}.yaml").write_text(DAPO % f"ppo_{name}")
        (tmp_path / "verl").symlink_to(RecipePins.verl_package())
        monkeypatch.setenv("VERL_CHECKOUT", str(tmp_path))


def dry_run(name, *overrides):
    return launch.main([str(QWEN3 / f"{name}.yaml"), *overrides, "--dry-run"])


@pytest.fixture
def given(capsys):
    """given(name, *overrides): the lines that a dry run prints before verl's command, and the command's words."""

    def run(name, *overrides):
        code = dry_run(name, *overrides)
        printed = capsys.readouterr()
        assert code == 0, printed.err
        *lines, last = printed.out.splitlines()
        return lines, shlex.split(last)

    return run


@pytest.mark.parametrize(("name", "sam"), [*((name, "auto") for name in NAMES if name != STATES), (STATES, "off")])
def test_every_recipe_composes(name, sam, given, capsys):
    if DAPO_IN_CHECKOUT and name.endswith(("_cpu", "gpu")):
        assert dry_run(name) == 1
        assert ("cannot run recipes on a CPU" if "cpu" in name else "only drafts on Ascend") in capsys.readouterr().err
        return
    lines, words = given(name, f"sam={sam}")
    for setting in ("method=sam", f"sam.switch={sam}"):
        assert (f"{RecipePins(PIN_SET).speculation}{setting}" in words) == (sam != "off")
    assert words[3] == ("recipe.dapo.main_dapo" if DAPO_IN_CHECKOUT else "verl.trainer.main_ppo")
    assert lines[0].startswith(f"# {name.replace('_', '-')}: pin set {PIN_SET}, sam {sam}")
    exported = dict(line.removeprefix("export ").split("=", 1) for line in lines if line.startswith("export "))
    for variable in exported.keys() - {"PATH"}:  # every worker on every host gets it too
        prefix = f"+ray_kwargs.ray_init.runtime_env.env_vars.{variable}="
        (value,) = (word.removeprefix(prefix).strip("'") for word in words if word.startswith(prefix))
        assert shlex.split(exported[variable]) == [value]


@pytest.mark.skipif(DAPO_IN_CHECKOUT, reason="refuses all recipes for GPUs")
def test_state_layers_need_a_later_vllm(capsys):
    assert dry_run(STATES) == 1
    assert re.fullmatch(
        "error: layers of Qwen3.5-27B keep a state, .* install vLLM 0.32 or later, or set sam=off\n",
        capsys.readouterr().err,
    )


@pytest.mark.parametrize("name", ARTICLE)
def test_both_profiles_compose(name, given):
    for profile in ("article", "recommended"):
        lines, words = given(name, f"profile={profile}")
        backend = "fsdp2" if profile == "recommended" and "235b" not in name else "megatron"
        assert any(re.match(f"# training +{backend}, data parallel", line) for line in lines)
        title = f"trainer.experiment_name={name.replace('_', '-')}"
        assert (title if profile == "article" else f"{title}-recommended") in words
        for key in ("actor_rollout_ref.rollout.seed", "data.seed"):
            assert f"{key}=1" in words
        assert DAPO_IN_CHECKOUT or "reward.custom_reward_function.path=pkg://llm_rl.rewards" in words


def test_experts_are_spread_over_the_ranks_that_the_engine_is_told_of(given):
    """verl 0.6.1's own keys have no effect in its synchronous rollout, so the sizes are set in vLLM's engine."""
    lines, words = given("dapo_qwen3_235b_a22b_128die")
    sizes = {"data_parallel_size=32", "expert_parallel_size=128"}
    if DAPO_IN_CHECKOUT:
        sizes = {"data_parallel_size=1", "expert_parallel_size=1"}
        vllm = "+actor_rollout_ref.rollout.engine_kwargs.vllm."
        assert {f"{vllm}data_parallel_size=32", f"{vllm}enable_expert_parallel=true"} <= set(words)
    assert {f"actor_rollout_ref.rollout.{size}" for size in sizes} <= set(words)
    assert "# rollout                    32 engines of TP 4, EP 128, DP 32" in lines
    assert "#   weights per die          7.0 GiB" in lines


def composed(*overrides):
    from hydra import compose, initialize_config_dir

    folder = RecipePins.verl_package() / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        rollout = compose("ppo_trainer", ["actor_rollout_ref.rollout.name=vllm", *overrides]).actor_rollout_ref.rollout
    return rollout, omega_conf_to_dataclass(rollout)


@pytest.mark.skipif(not DAPO_IN_CHECKOUT, reason="this verl has the engine's own speculative_config")
def test_the_option_block_reaches_the_engine():
    """OmegaConf's configuration and its dataclass give the same arguments; without `enable` the block adds none."""
    from verl.workers.config import uses_sam, vllm_engine_kwargs

    block, engine = "actor_rollout_ref.rollout.speculative.", "actor_rollout_ref.rollout.engine_kwargs.vllm."
    given = [f"{block}sam.rule=oldest", f"{block}sam.sources=[request]", f"{block}num_speculative_tokens=5"]
    ours = {"method": "sam", "num_speculative_tokens": 5, "sam": {"rule": "oldest", "sources": ["request"]}}
    on, ngram, logprobs = f"{block}enable=true", f"{block}method=ngram", f"+{engine}max_logprobs=3"
    for overrides, kwargs, sam in (
        ([*given, on], {"speculative_config": ours}, True),
        ([on], {"speculative_config": {"method": "sam", "sam": {}}}, True),
        (given, {}, False),
        ([], {}, False),
        ([on, ngram, logprobs], {"max_logprobs": 3, "speculative_config": {"method": "ngram"}}, False),
    ):
        for rollout in composed(*overrides):
            assert (vllm_engine_kwargs(rollout), uses_sam(rollout)) == (kwargs, sam)
    refused = [(f"+{engine}speculative_config.method=sam", vllm_engine_kwargs, "are both given: keep one")]
    refused.append(("actor_rollout_ref.rollout.name=sglang", uses_sam, "is for vLLM, and rollout.name is sglang"))
    for override, function, reason in refused:
        for rollout in composed(on, override):
            with pytest.raises(ValueError, match=reason):
                function(rollout)
    unset = {name for name, value in composed()[0].speculative.sam.items() if value is None}
    assert unset == {field.name for field in dataclasses.fields(Options)}


@pytest.mark.skipif(not DAPO_IN_CHECKOUT, reason="the engine refuses them")
@pytest.mark.parametrize("unknown", ["enabled=true", "sam.treshold=3", "+enabled=true"])
def test_unknown_keys_of_the_option_block_are_refused(unknown):
    with pytest.raises((ConfigCompositionException, InstantiationException)):
        composed("+" * unknown.startswith("+") + "actor_rollout_ref.rollout.speculative." + unknown.lstrip("+"))


def test_every_file_is_a_recipe_or_its_base():
    assert {path.stem for path in QWEN3.glob("*.yaml")} == ABSTRACT | set(NAMES)
    assert {path.stem for path in QWEN3.glob("run_*.sh")} == {f"run_{name}" for name in NAMES}
    for name in NAMES:
        script = (QWEN3 / f"run_{name}.sh").read_text()
        assert f'launch llm_rl/qwen3/{name}.yaml "$@"' in script.splitlines()[-1]


@pytest.mark.parametrize("name", ARTICLE)
def test_recipes_are_the_articles(name):
    recipe = config.load(QWEN3 / f"{name}.yaml", [])
    data, rollout = recipe.data, recipe.rollout
    sizes = (recipe.cluster.dies, data.max_response_length, data.train_batch_size, data.gen_batch_size)
    sizes += (rollout.max_num_seqs, rollout.tensor_model_parallel_size)
    assert ARTICLE[name] == (*sizes, recipe.sam_options["k"], recipe.options.threshold)
    assert recipe.rollout.enforce_eager and recipe.sam == "batch"
    assert (recipe.options.rule, recipe.options.sources) == ("oldest", ("request",))
    # Settings of the article's public scripts.
    train, rest = recipe.train, (rollout.temperature, rollout.n, rollout.max_num_batched_tokens, recipe.steps)
    assert rest == (0.9, 16, 36864, 20)
    assert (train.backend, train.clip_grad, train.weight_decay, train.lr_warmup_steps) == ("megatron", 10000, 0.01, 0)
    assert not recipe.algorithm.overlong.enable and not data.shuffle and data.train_files.endswith("-all.parquet")
    parallel = train.tensor_parallel, train.pipeline_parallel, train.context_parallel, train.expert_parallel
    assert parallel == ((4, 4, 4, 32) if "235b" in name else (8, 2, 2, 1))


def test_a_key_that_verl_rejects_is_refused(given, capsys):
    assert dry_run("dapo_qwen3_32b_32die", "verl.trainer.nonsense=1") == 1
    assert f"error: {INSTALLED} has no key trainer.nonsense: correct it, or write" in capsys.readouterr().err
    given("dapo_qwen3_32b_32die", "verl.trainer.balance_batch=false")


@pytest.mark.skipif(not OTHERS, reason="there is one pin set")
def test_another_pin_sets_environment_is_refused(capsys):
    for other in OTHERS:
        assert dry_run("dapo_qwen3_32b_32die", f"pin_set={other.name}") == 1
        assert f", but pin set {other.name} needs {other.verl}: set PIN={other.name}" in capsys.readouterr().err


@pytest.fixture
def verl_copy(tmp_path, monkeypatch):
    """A copy of the installed verl, which the launcher uses in its place."""
    folder = tmp_path / "verl"
    shutil.copytree(RecipePins.verl_package(), folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(RecipePins, "verl_package", staticmethod(lambda: folder))
    return folder


@pytest.mark.skipif(DAPO_IN_CHECKOUT, reason="this verl has patches and no plugins")
@pytest.mark.parametrize(
    ("file", "old", "new", "sentence"),
    [
        (
            "workers/config/rollout.py",
            "",
            "def uses_sam(rollout): ...\n",
            "has the patches of an earlier release of this ",
        ),
        (
            "utils/debug/metrics.py",
            "def calculate_debug",
            "def calc_debug",
            "'sam' knows verl 0.9.1 and does not fit the",
        ),
        ("utils/tracking.py", '"wb", buffering=0', '"ab"', "FileLogger.__init__ no longer has `self.fp = open("),
        (
            "trainer/ppo/v1/trainer_base.py",
            "def _init_dataloader",
            "def _init_data",
            "PPOTrainer._init_dataloader is mis",
        ),
    ],
)
def test_a_verl_that_the_plugins_do_not_fit_is_refused(verl_copy, file, old, new, sentence, capsys):
    assert not dry_run("dapo_qwen3_tiny_cpu")
    forget_files()
    hooks.check.cache_clear()
    text = (verl_copy / file).read_text()
    (verl_copy / file).write_text(text.replace(old, new) if old else text + new)
    assert dry_run("dapo_qwen3_tiny_cpu") == 1
    printed = capsys.readouterr().err
    assert sentence in printed and printed.count("\n") == 1
    assert "`pip install --force-reinstall --no-deps verl==0.9.1`" in printed or "install verl 0.9.1" in printed


@pytest.mark.skipif(DAPO_IN_CHECKOUT, reason="this verl has patches and no plugins")
def test_plugins_that_verl_would_not_load_are_said(monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "sam_core.engines.verl.hooks", None)  # an older sam_core has no such module
        patch.delattr("sam_core.engines.verl.hooks")
        assert dry_run("dapo_qwen3_tiny_cpu") == 1
        assert "the installed sam_core does not fit these recipes (" in capsys.readouterr().err
    for value, code in (("auto", 0), ("sam, sam_rl,own", 0), ("none", 1), ("sam", 1)):
        monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", value)
        assert dry_run("dapo_qwen3_tiny_cpu") == code
        assert code == 0 or f"VERL_USE_EXTERNAL_PLUGINS is '{value}', which excludes" in capsys.readouterr().err
    monkeypatch.delenv("VERL_USE_EXTERNAL_PLUGINS")
    entry_points, ours = importlib.metadata.entry_points, "verl.plugins"
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: [] if group == ours else entry_points(group=group)
    )
    assert dry_run("dapo_qwen3_tiny_cpu") == 1
    assert "the plugins sam, sam_rl of verl are not installed: run `pip install " in capsys.readouterr().err


@pytest.mark.skipif(not DAPO_IN_CHECKOUT, reason="this verl has its trainer in its package")
def test_without_the_checkout_the_launcher_says_what_it_needs(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("VERL_CHECKOUT", str(tmp_path / "recipe"))
    assert dry_run("dapo_qwen3_32b_32die") == 1
    said = f"pin set {PIN_SET} trains with recipe/dapo, which is only in verl's git tag"
    assert said in capsys.readouterr().err


def test_collectives_wait_as_long_as_the_trainer_needs(given):
    """verl 0.6.1's ranks meet right after generation, so they wait longer than the article's longest round, 7102 s."""
    timeout = RecipePins(PIN_SET).collective_timeout
    lines, words = given("dapo_qwen3_32b_32die")
    assert f"export HCCL_EXEC_TIMEOUT={timeout}" in lines and f"actor_rollout_ref.nccl_timeout={timeout}" in words
    assert timeout == 1836 if not DAPO_IN_CHECKOUT else timeout > 7102


@pytest.mark.parametrize("setting", ["profile=article", "profile=recommended"])
def test_a_kl_divergence_has_a_reference_model_like_the_actor(setting, given):
    """Megatron, then FSDP2: verl requires a micro batch size for the reference, with Megatron even with dynamic bsz."""
    lines, words = given("dapo_qwen3_32b_32die", setting, "algorithm.use_kl_loss=true")
    ref = "actor_rollout_ref.ref."
    expected = {f"{ref}log_prob_micro_batch_size_per_gpu=1"}
    expected |= {f"{ref}megatron.param_offload=true"} if "article" in setting else set()
    assert {word for word in words if word.startswith(ref)} == expected
    assert any(line.startswith("#   reference") for line in lines)


@pytest.mark.skipif(DAPO_IN_CHECKOUT, reason="this verl sends weights in pieces")
def test_the_largest_weight_fits_the_buffer_that_sends_it(given):
    """Qwen3-32B's embedding has 151,936 x 5,120 float32 values, 2,968 MiB; verl's buffer has 2,048 MiB by default."""
    _, words = given("dapo_qwen3_32b_32die", "profile=recommended")
    assert "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=2968" in words


def test_megatron_gets_the_operators_of_mindspeed(given):
    """Recipes enable the operators of verl's guide and the article's scripts, except those that break weight sync."""
    transformer = "+actor_rollout_ref.actor.megatron.override_transformer_config."
    rope = {"use_fused_rotary_pos_emb=true", "position_embedding_type=rope"}
    context = {"use_cp_send_recv_overlap=true", "use_fused_ring_attention_update=true"}
    experts = {"moe_token_dispatcher_type=alltoall", "moe_grouped_gemm=true", "moe_permute_fusion=true"}
    breaking = ("moe_zero_memory", "moe_alltoall_overlap", "swap_optimizer")

    def operators(name, *overrides):
        _, words = given(name, *overrides)
        found = {word.removeprefix(transformer) for word in words if word.startswith(transformer)}
        assert not {word for word in found if word.startswith(breaking)}
        assert not found or DAPO_IN_CHECKOUT or "actor_rollout_ref.actor.megatron.vanilla_mbridge=true" in words
        return found & (rope | context | experts)

    for profile in ("article", "recommended"):
        assert operators("dapo_qwen3_235b_a22b_128die", f"profile={profile}") == rope | context | experts
    assert operators("dapo_qwen3_32b_32die", "profile=recommended") == set()
    off = "actor_rollout_ref.actor.megatron.override_transformer_config.+use_fused_ring_attention_update=false"
    assert operators("dapo_qwen3_32b_32die", f"verl.{off}") == rope | {"use_cp_send_recv_overlap=true"}


def test_the_default_recipe_has_each_group():
    assert set(MAPPINGS) <= set(OmegaConf.load(QWEN3 / "dapo.yaml")) & set(KEYS)


def key_map():
    """Return the path of the installed verl's key map."""
    return RELEASES / f"v{INSTALLED.removeprefix('verl ').replace('.', '_')}.toml"


def test_a_key_map_names_each_key_of_a_recipe():
    path = key_map()
    for old, said in (("lr", "lacks train.lr"), ("", "names train.warmth")):
        facts = pin_set.read_facts(path)
        facts["keys"]["train"]["warmth"] = facts["keys"]["train"].pop(old, "")
        with pytest.raises(UserError, match=f"^{path} {said}: it must name, under keys"):
            KeyMap(path, facts)


def test_a_pin_set_is_a_folder(given, monkeypatch, tmp_path):
    """A folder alone makes a pin set, here a copy with one different key of verl; no other file names it."""
    folder = tmp_path / "patches" / "vllm-99.9"
    shutil.copytree(PATCHES / PIN_SET, folder)
    for file in RELEASES.glob("*.toml"):
        shutil.copy(file, tmp_path)
    monkeypatch.setattr(pin_set, "PATCHES", folder.parent)
    monkeypatch.setattr(pin_set, "RELEASES", tmp_path)
    warmth = "+actor_rollout_ref.rollout.engine_kwargs.vllm.warmth"
    with (tmp_path / key_map().name).open("a") as keys:
        keys.write(f'\n[keys.rollout]\ntemperature = "{warmth}"\n')
    lines, words = given("dapo_qwen3_32b_32die", "pin_set=vllm-99.9")
    assert "pin set vllm-99.9" in lines[0] and f"{warmth}=0.9" in words
    assert not [word for word in words if word.startswith("actor_rollout_ref.rollout.temperature=")]


def test_recipes_name_no_pin_set_but_their_default():
    files = [path for path in (launch.ROOT / "llm_rl").rglob("*") if path.suffix in (".py", ".sh", ".yaml")]
    named = {path.name: re.findall(r"\bPIN(?:,|:-)([\w.-]+)\}", path.read_text()) for path in files}
    recipes = ("dapo_qwen3_0.6b_1gpu", "dapo_qwen3_8b_8gpu", STATES)
    of_gpus = {file: ["gpu"] for recipe in recipes for file in (f"{recipe}.yaml", f"run_{recipe}.sh")}
    default = {file: ["vllm-0.23"] for file in ("dapo.yaml", "common.sh")}
    assert {name: names for name, names in named.items() if names} == of_gpus | default
