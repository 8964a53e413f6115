# SPDX-License-Identifier: Apache-2.0
"""Every recipe, dry-run in the environment of each pin set: the installed verl's own configuration takes its settings.

Runs in every pin set's environment; what the other pin set's verl would say is that one's run of this file.
"""

import importlib.metadata
import shlex
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from llm_rl import config as recipe
from llm_rl import launch, schema, verl

QWEN3 = Path(launch.ROOT) / "llm_rl" / "qwen3"
ABSTRACT = {"dapo", "dapo_qwen3_article"}
NAMES = sorted(path.stem for path in QWEN3.glob("dapo*.yaml") if path.stem not in ABSTRACT)
UPSTREAM = launch.ROOT.parent / "shared" / "upstream" / "verl-0.6.1-recipe-dapo"
(PIN_SET,) = (p for p in schema.VERL if importlib.metadata.version("verl") == schema.VERL[p].split()[1])
MEGATRON = [
    *("train.backend=megatron", "train.tensor_parallel=8", "train.pipeline_parallel=2", "train.context_parallel=2"),
    *("train.sequence_parallel=1", "train.max_tokens_per_die=18432"),
]
# What the article's tables say, under the names it uses.
ARTICLE = {
    "dapo_qwen3_32b_32die": (32, 34816, 32, 96, 128, 8, 3, 8),
    "dapo_qwen3_235b_a22b_128die": (128, 34816, 128, 128, 64, 4, 3, 8),
    "dapo_qwen3_32b_128die_customer": (128, 34816, 512, 1536, 256, 8, 4, 4),
}


@pytest.fixture(autouse=True)
def pinned(monkeypatch, tmp_path):
    """The environment's own pin set; for vllm-0.11 a checkout of verl's tag, as far as the launcher needs it."""
    monkeypatch.setenv("PIN", PIN_SET)
    for name in (
        "RAY_ADDRESS",
        "HCCL_OP_EXPANSION_MODE",
        "PYTORCH_NPU_ALLOC_CONF",
        "SAM_RL_INTERFACE",
        "VERL_CHECKOUT",
    ):
        monkeypatch.delenv(name, raising=False)
    if PIN_SET == schema.OLD:
        if not UPSTREAM.is_dir():
            pytest.skip(f"recipe/dapo of verl's git tag is not at {UPSTREAM}: it is in no package")
        (tmp_path / "recipe").mkdir()
        (tmp_path / "recipe" / "dapo").symlink_to(UPSTREAM)
        (tmp_path / "verl").symlink_to(verl._package())
        monkeypatch.setenv("VERL_CHECKOUT", str(tmp_path))


def dry_run(name, *overrides):
    return launch.main([str(QWEN3 / f"{name}.yaml"), *overrides, "--dry-run"])


def allowed(name):
    return PIN_SET == schema.NEW or name not in ("dapo_qwen3_235b_a22b_128die", "dapo_qwen3_tiny_cpu")


@pytest.mark.parametrize("sam", ["off", "batch", "auto"])
@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_composes(name, sam, capsys):
    code = dry_run(name, f"sam={sam}")
    said = capsys.readouterr()
    if not allowed(name):
        assert code == 1
        assert "does not spread experts" in said.err or "has no recipe on a CPU" in said.err
        return
    assert code == 0, said.err
    *lines, last = said.out.splitlines()
    words = shlex.split(last)
    assert ("+actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config.method=sam" in words) == (sam != "off")
    assert (f"+actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config.sam.switch={sam}" in words) == (
        sam != "off"
    )
    assert words[3] == ("verl.trainer.main_ppo" if PIN_SET == schema.NEW else "recipe.dapo.main_dapo")
    assert lines[0].startswith(f"# {name.replace('_', '-')}: pin set {PIN_SET}, sam {sam}")
    exported = dict(line.removeprefix("export ").split("=", 1) for line in lines if line.startswith("export "))
    for name, value in exported.items():  # every worker on every host gets it too
        if name != "PATH":
            given = [w for w in words if w.startswith(f"+ray_kwargs.ray_init.runtime_env.env_vars.{name}=")]
            assert len(given) == 1 and shlex.split(value) == [given[0].split("=", 1)[1].strip("'")]


def test_megatron_composes(capsys):
    assert dry_run("dapo_qwen3_32b_32die", *MEGATRON) == 0, capsys.readouterr().err
    assert "# training                   megatron, data parallel 1" in capsys.readouterr().out.splitlines()


@pytest.mark.skipif(PIN_SET == schema.OLD, reason="the keys of verl 0.9.1 are composed in its own environment")
def test_every_file_is_a_recipe_or_its_base():
    assert {path.stem for path in QWEN3.glob("*.yaml")} == ABSTRACT | set(NAMES)
    assert {path.stem for path in QWEN3.glob("run_*.sh")} == {f"run_{name}" for name in NAMES}
    for name in NAMES:
        script = (QWEN3 / f"run_{name}.sh").read_text()
        assert f'launch llm_rl/qwen3/{name}.yaml "$@"' in script.splitlines()[-1]


@pytest.mark.parametrize("name", ARTICLE)
def test_recipes_are_the_articles(name):
    if not allowed(name):
        pytest.skip("this pin set refuses the recipe")
    config = recipe.load(QWEN3 / f"{name}.yaml", [])
    own = recipe.values(config)
    assert ARTICLE[name] == (
        own["cluster.nodes"] * own["cluster.dies_per_node"],
        own["data.max_response_length"],
        own["data.train_batch_size"],
        own["data.gen_batch_size"],
        own["rollout.max_num_seqs"],
        own["rollout.tensor_model_parallel_size"],
        config.sam_options.k,
        config.sam_options.threshold,
    )
    assert own["rollout.enforce_eager"] and own["sam"] == "batch"
    assert (config.sam_options.rule, list(config.sam_options.sources)) == ("oldest", ["request"])


def test_a_key_that_verl_has_not_is_refused(capsys):
    name = "dapo_qwen3_32b_32die"
    foreign = "reward_model.overlong_buffer.log" if PIN_SET == schema.NEW else "reward.num_workers"
    other = schema.VERL[schema.OLD if PIN_SET == schema.NEW else schema.NEW]
    assert dry_run(name, f"verl.{foreign}=1") == 1
    assert f"error: verl.{foreign} is a key of {other}" in capsys.readouterr().err
    assert dry_run(name, "verl.trainer.nonsense=1") == 1
    assert (
        f"{schema.VERL[PIN_SET]} rejects the recipe: Could not override 'trainer.nonsense'" in capsys.readouterr().err
    )
    assert dry_run(name, "verl.trainer.balance_batch=false") == 0


def test_another_pin_sets_environment_is_refused(capsys):
    other = schema.OLD if PIN_SET == schema.NEW else schema.NEW
    if not (launch.ROOT / "patches" / other).is_dir():
        pytest.skip("there is one pin set")
    assert dry_run("dapo_qwen3_32b_32die", f"pin_set={other}") == 1
    assert f", and pin set {other} is {schema.VERL[other]}: set PIN={other}" in capsys.readouterr().err


@pytest.mark.skipif(PIN_SET == schema.NEW, reason="verl 0.9.1 has its trainer in its package")
def test_without_the_checkout_the_launcher_says_what_it_needs(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("VERL_CHECKOUT", str(tmp_path / "recipe"))
    assert dry_run("dapo_qwen3_32b_32die") == 1
    assert "pin set vllm-0.11 trains by recipe/dapo, which is in verl's git tag alone" in capsys.readouterr().err


def test_the_table_names_verls_keys_once():
    for pin_set in schema.VERL:
        names = [name for key in schema.KEYS for name in key.all_of_verl(pin_set)]
        assert len(set(names)) == len(names)
    base = OmegaConf.load(QWEN3 / "dapo.yaml")
    assert set(schema.FREE) <= set(base)
