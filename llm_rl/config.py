# SPDX-License-Identifier: Apache-2.0
"""Recipe configurations: a child file over its bases, overrides from the command line, verl's settings.

A file states only what differs from its base. Every key is in llm_rl/schema.py; verl's own keys that have none there go
under `verl:` as verl names them, and are checked by composing (llm_rl/verl.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from sam_core.engines.verl import ROUTER_CONFIG
from sam_core.options import VERIFY, Options

from llm_rl import schema
from llm_rl.schema import NEW, OLD

ROOT = Path(__file__).resolve().parent.parent
ENDLESS = 100_000
"""Epochs: more than any run takes, so that its steps alone end it."""
EXEC_TIMEOUT = {OLD: 10800, NEW: 1836}
"""Seconds that a collective of an NPU may wait. verl 0.6.1's ranks meet in one right after generating, where the fastest
waits for the slowest answer; verl 0.9.1 generates in servers, and CANN's default will do."""
PATHS = ("model.path", "data.train_files", "data.val_files")


class ConfigError(ValueError):
    """One sentence: what is wrong in a recipe's configuration, where, and what to do."""


def load(path: Path, overrides: list[str]) -> DictConfig:
    """Merge `path` over the chain of its bases, then `overrides` (key=value); raise ConfigError.

    In the result every key of the schema is set, paths of models and data are absolute, those in a file being relative
    to the repository, and sections are OmegaConf mappings.
    """
    config = _merge(path)
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise ConfigError(f"override {override!r} is not of the form key=value")
        try:
            value = OmegaConf.create({"value": yaml.safe_load(value)}).value
            OmegaConf.update(config, key, value, force_add=True)
        except (OmegaConfBaseException, yaml.YAMLError, AttributeError, TypeError, ValueError) as e:
            raise ConfigError(f"override {override!r} cannot be used: {str(e).splitlines()[0]}") from None
        _check_keys(
            OmegaConf.create({}) if value is None else OmegaConf.from_dotlist([override]), f"override {override!r}"
        )
    _validate(config, path)
    for name in PATHS:
        OmegaConf.update(config, name, str((ROOT / OmegaConf.select(config, name)).resolve()))
    return config


def values(config: DictConfig) -> dict[str, Any]:
    """The resolved value of every key of the schema."""
    plain = OmegaConf.to_container(config, resolve=True)
    return {name: _at(plain, name) for name in schema.BY_NAME}


def options(config: DictConfig) -> Options:
    """The options of the SAM proposer; raise ValueError with one sentence."""
    sam = OmegaConf.to_container(config.sam_options, resolve=True)
    return Options.from_engine(sam.pop("k"), sam, verify=VERIFY)


def history(config: DictConfig, run_dir: Path) -> str | None:
    """Folder in which the engines' history outlives the run; a run that has checkpoints to go on from keeps it, too."""
    own, sam = values(config), options(config)
    if own["sam"] == "off" or "history" not in sam.sources:
        return None
    return sam.history or (f"{run_dir}/history" if own["checkpoints.every"] else None)


def sleeps(config: DictConfig) -> bool:
    """Whether the engines' weights go to their host's memory while the actor trains.

    verl then puts an engine to sleep: on NPUs at level 1, which keeps the weights so; on GPUs at level 2, which drops them.
    """
    changed = {name.lstrip("+"): value for name, value in _leaves(OmegaConf.to_container(config.verl, resolve=True))}
    keys = ("free_cache_engine", "enable_sleep_mode")
    asked = all(changed.get(f"actor_rollout_ref.rollout.{key}", True) for key in keys)
    return asked and config.cluster.device == "npu"


def verl_overrides(config: DictConfig, run_dir: Path, env: Mapping[str, str], ray: str) -> list[str]:
    """Command-line overrides for verl: what the keys say, what follows from them, and from this run.

    env: the environment of all of verl's processes, on every host; ray: address of a cluster, or `local` for one of its
    own.
    """
    own, pin_set = values(config), config.pin_set
    backend = own["train.backend"]
    settings: dict[str, Any] = {}
    for key in schema.KEYS:
        name = key.verl(pin_set, backend)
        if name and own[key.name] is not None:
            settings[name] = own[key.name]
    settings |= _derived(own, pin_set, backend)
    settings |= {
        "trainer.project_name": "sam-rl",
        "trainer.experiment_name": own["name"],
        "trainer.default_local_dir": f"{run_dir}/checkpoints",
        "trainer.total_epochs": ENDLESS,
        "+ray_kwargs.ray_init.address": ray,
    }
    if ray == "local":
        for name, value in (OmegaConf.to_container(config.local_ray, resolve=True) or {}).items():
            settings[f"{'' if name == 'num_cpus' else '+'}ray_kwargs.ray_init.{name}"] = value
    settings |= {f"+ray_kwargs.ray_init.runtime_env.env_vars.{name}": value for name, value in env.items()}
    vllm = "+actor_rollout_ref.rollout.engine_kwargs.vllm."
    if own["sam"] == "off":
        if options(config).verify != Options.verify:
            settings[vllm + "additional_config.sam_verify"] = options(config).verify
    else:
        sam = OmegaConf.to_container(config.sam_options, resolve=True) | {"history": history(config, run_dir)}
        settings |= {
            vllm + "speculative_config.method": "sam",
            vllm + "speculative_config.num_speculative_tokens": sam.pop("k"),
            **{f"{vllm}speculative_config.sam.{name}": value for name, value in sam.items()},
            vllm + "speculative_config.sam.switch": own["sam"],
        }
    set_here = {name.lstrip("+") for name in settings}
    for name, value in _leaves(OmegaConf.to_container(config.verl, resolve=True)):
        if name.lstrip("+") in set_here:
            raise ConfigError(f"verl.{name} follows from other keys of the recipe (llm_rl/config.py): set those")
        settings[name] = value
    return [f"{name}={_hydra(value)}" for name, value in settings.items()]


def _derived(own: dict[str, Any], pin_set: str, backend: str) -> dict[str, Any]:
    """verl's settings that follow from several keys, or that every recipe has."""
    rollout, actor, megatron = "actor_rollout_ref.rollout.", "actor_rollout_ref.actor.", backend == "megatron"
    settings: dict[str, Any] = {
        rollout + "name": "vllm",
        rollout + "disable_log_stats": False,
        rollout + "max_model_len": own["data.max_prompt_length"] + own["data.max_response_length"],
        "trainer.save_freq": own["checkpoints.every"] or -1,
        "trainer.resume_mode": "auto" if own["checkpoints.every"] else "disable",
        "trainer.max_actor_ckpt_to_keep": own["checkpoints.keep"],
        actor + "use_dynamic_bsz": own["train.max_tokens_per_die"] is not None,
    }
    if own["cluster.device"] == "npu":
        settings["actor_rollout_ref.nccl_timeout"] = EXEC_TIMEOUT[pin_set]  # of process groups, whatever their backend
    if own["train.max_tokens_per_die"] is not None:
        settings[actor + "ppo_max_token_len_per_gpu"] = own["train.max_tokens_per_die"]
    else:
        settings[actor + "ppo_micro_batch_size_per_gpu"] = own["train.micro_batch_size"]
        settings[rollout + "log_prob_micro_batch_size_per_gpu"] = own["train.micro_batch_size"]
    if not (megatron and pin_set == OLD):
        settings["actor_rollout_ref.model.enable_gradient_checkpointing"] = own["train.recompute"]
    if megatron and own["train.recompute"]:
        layers = actor + "megatron.override_transformer_config.recompute_"
        settings |= {layers + "granularity": "full", layers + "method": "uniform", layers + "num_layers": 1}
    if pin_set == NEW:
        settings |= {
            rollout + "seed": own["seed"],
            rollout + "router_config_path": str(ROUTER_CONFIG),
            "algorithm.filter_groups.max_inflight_gen_batches": own["data.gen_batch_size"]
            // own["data.train_batch_size"],
            "reward.reward_manager.name": "dapo",
            "+reward.reward_kwargs.overlong_buffer_cfg.log": False,
            "+reward.reward_kwargs.max_resp_len": own["data.max_response_length"],
        }
        return settings | ({"model_engine": "megatron"} if megatron else {})
    settings |= {"reward_model.reward_manager": "dapo"}
    if megatron:
        settings |= {actor + "megatron.grad_offload": own["train.param_offload"], actor + "megatron.use_mbridge": True}
        settings["critic.strategy"] = "megatron"
        if own["cluster.device"] == "npu":  # MindSpeed is told through the transformer's configuration
            layers = f"+{actor}megatron.override_transformer_config."
            settings[layers + "use_flash_attn"] = True
            if own["train.context_parallel"] > 1:
                settings[layers + "context_parallel_size"] = own["train.context_parallel"]
    return settings


def _merge(path: Path) -> DictConfig:
    if not path.is_file():
        raise ConfigError(f"there is no recipe configuration {path}")
    try:
        config = OmegaConf.load(path)
    except Exception as e:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(e).split())}") from None
    if not isinstance(config, DictConfig):
        raise ConfigError(f"{path} must be a mapping of keys")
    base = config.pop("base", None)
    _check_keys(config, str(path))
    if not base:
        return config
    below = _merge(path.parent / base)
    inherited = dict(_leaves(OmegaConf.to_container(below)))
    for name, value in _leaves(OmegaConf.to_container(config)):
        if name in inherited and inherited[name] == value and type(inherited[name]) is type(value):
            raise ConfigError(f"{path} sets {name} to {value!r}, as its base {base} does: leave it out")
    return OmegaConf.merge(below, config)


def _check_keys(config: DictConfig, where: str) -> None:
    """ConfigError for the first key that the schema has not."""
    for name, value in config.items_ex(resolve=False):
        if name in schema.FREE:
            continue
        if name in schema.SECTIONS and name not in schema.BY_NAME:
            if isinstance(value, DictConfig):
                for inner, _ in _leaves(OmegaConf.to_container(value), f"{name}."):
                    if inner not in schema.BY_NAME:
                        raise ConfigError(f"{schema.unknown(inner)} (in {where})")
            else:
                raise ConfigError(f"{name} is a group of keys, not a key of its own (in {where})")
        elif name not in schema.BY_NAME:
            raise ConfigError(f"{schema.unknown(str(name))} (in {where})")


def _validate(config: DictConfig, path: Path) -> None:
    if config.get("sam") is False:  # YAML reads a bare `off` as false
        config.sam = "off"
    try:
        own = values(config)
    except OmegaConfBaseException as e:
        raise ConfigError(f"{path}: {str(e).splitlines()[0]}") from None
    for key in schema.KEYS:
        if problem := key.check(own[key.name]):
            raise ConfigError(f"{key.name} {problem} (in {path} or its overrides)")
    for name in schema.FREE:
        if not isinstance(config.get(name), DictConfig):
            raise ConfigError(f"{name} must be a mapping, got {config.get(name)!r}")
    _validate_sam(config)
    _validate_together(own)
    for name, _ in _leaves(OmegaConf.to_container(config.verl)):
        if problem := schema.misplaced(name, own["pin_set"]):
            raise ConfigError(problem)


def _validate_sam(config: DictConfig) -> None:
    if "k" not in config.sam_options:
        raise ConfigError("sam_options does not set k, the tokens a draft")
    if "switch" in config.sam_options:
        raise ConfigError("the switch is chosen by sam=off, sam=batch or sam=auto, not in sam_options")
    try:
        options(config)
    except ValueError as e:
        raise ConfigError(f"sam_options: {e}") from None


def _validate_together(own: dict[str, Any]) -> None:
    """Keys that exclude or need each other; what the dies must add up to is llm_rl/layout.py's."""
    if (own["train.micro_batch_size"] is None) == (own["train.max_tokens_per_die"] is None):
        raise ConfigError("set one of train.micro_batch_size and train.max_tokens_per_die, and the other to null")
    if "file" not in own["trainer.logger"]:
        raise ConfigError("trainer.logger lacks file, whose log the launcher follows: add it")
    ports = own["cluster.hccl_ports"]
    if ports is not None and not re.fullmatch(r"\d{4,5}-\d{4,5}", ports):
        raise ConfigError(f"cluster.hccl_ports must be two port numbers, FIRST-LAST, got {ports!r}")
    if own["data.gen_batch_size"] < own["data.train_batch_size"]:
        raise ConfigError(
            f"data.gen_batch_size {own['data.gen_batch_size']} is below data.train_batch_size {own['data.train_batch_size']}"
        )
    if own["pin_set"] == NEW and own["data.gen_batch_size"] % own["data.train_batch_size"]:
        raise ConfigError(
            f"data.gen_batch_size {own['data.gen_batch_size']} is no multiple of data.train_batch_size "
            f"{own['data.train_batch_size']}, in which verl 0.9.1 counts prompts in flight"
        )
    if own["pin_set"] == OLD:
        if own["cluster.device"] == "cpu":
            raise ConfigError(
                "pin set vllm-0.11 has no recipe on a CPU: its verl 0.6.1 has no CPU platform; leave pin_set at vllm-0.23"
            )
        if max(own["rollout.data_parallel_size"], own["rollout.expert_parallel_size"]) > 1:
            raise ConfigError(
                "pin set vllm-0.11 cannot run this recipe: the rollout of its verl 0.6.1 does not spread experts over "
                f"data-parallel ranks (rollout.expert_parallel_size is {own['rollout.expert_parallel_size']}); "
                "use pin_set=vllm-0.23"
            )


def _at(node: Any, name: str) -> Any:
    for part in name.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


def _leaves(node: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted path and value of each leaf; a + on any key of a path marks the whole path as an addition to verl's."""
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            path = f"{prefix}{key}"
            yield ("+" if "+" in path else "") + path.replace("+", ""), value


def _hydra(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_hydra(v) for v in value) + "]"
    text = str(value)
    retyped = text.lower() in ("null", "true", "false", "yes", "no", "on", "off", "inf", "nan")
    if isinstance(value, str) and (retyped or not re.fullmatch(r"[A-Za-z_./][\w./:-]*", text)):
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return text
