# SPDX-License-Identifier: Apache-2.0
"""The table of a recipe's two profiles in docs/recipe-keys.md: values from llm_rl/qwen3, reasons from here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from tables._records import check_keys, table

QWEN3 = Path(__file__).resolve().parents[2] / "llm_rl" / "qwen3"
RECIPES = {"32B": "dapo_qwen3_32b_32die.yaml", "235B": "dapo_qwen3_235b_a22b_128die.yaml"}

REASONS = {
    "steps": (
        "20 steps are too few to judge learning",
        "文章的图只有 20 步，不足以判断学习效果",
    ),
    "sam": (
        "each request drafts as many tokens as pay off",
        "每一步为每条请求选择划算的草稿长度",
    ),
    "sam_options.k": (
        "`auto` drafts fewer if fewer pay off; 235B's experts need larger buffers",
        "不划算时 `auto` 会缩短草稿；235B 的专家需要更大的缓冲区",
    ),
    "sam_options.rule": ("weighs all sources; longer accepted drafts", "综合所有来源，被接受的草稿更长"),
    "sam_options.sources": ("siblings and earlier epochs repeat each other", "同组回答和以前各轮的回答彼此重复"),
    "sam_options.min_prob": (
        "tokens that will hardly be accepted cost verification",
        "难以被接受的 token 只增加验证开销",
    ),
    "data.train_files": (
        "about 100 copies of each prompt flatter drafts from history",
        "每个 prompt 约有 100 份，使来自历史的草稿显得比实际好",
    ),
    "data.shuffle": ("independent of the order of the file", "结果不受文件次序影响"),
    "algorithm.overlong.enable": ("as in DAPO's own recipe: shorter tails", "与 DAPO 原配方相同：长尾更短"),
    "algorithm.overlong.len": ("as in DAPO's own recipe", "与 DAPO 原配方相同"),
    "algorithm.overlong.penalty_factor": ("as in DAPO's own recipe", "与 DAPO 原配方相同"),
    "rollout.temperature": ("as in DAPO's own recipe", "与 DAPO 原配方相同"),
    "rollout.top_p": ("training uses the whole distribution", "训练按完整的分布计算对数概率"),
    "rollout.top_k": ("training uses the whole distribution", "训练按完整的分布计算对数概率"),
    "train.weight_decay": ("as in DAPO's own recipe", "与 DAPO 原配方相同"),
    "train.lr_warmup_steps": ("as in DAPO's own recipe", "与 DAPO 原配方相同"),
    "train.clip_grad": ("as in DAPO's own recipe; 10,000 is off", "与 DAPO 原配方相同；10,000 等于不裁剪"),
    "train.backend": (
        "as in verl's 32B recipe for NPUs: no Megatron or MindSpeed to install",
        "与 verl 的 NPU 32B 配方相同：不需安装 Megatron 和 MindSpeed",
    ),
    "train.tensor_parallel": ("", ""),
    "train.pipeline_parallel": ("", ""),
    "train.context_parallel": ("", ""),
    "train.sequence_parallel": ("FSDP's way to share a long sequence", "FSDP 分担长序列的方式"),
    "train.max_tokens_per_die": ("", ""),
    "env.TASK_QUEUE_ENABLE": (
        "torch_npu's default; 2 uses more memory and excludes graphs",
        "torch_npu 的默认值；2 占用更多显存，且与图模式冲突",
    ),
    "env.HCCL_BUFFSIZE": (
        "CANN's default, MiB; enough for 235B's experts, and each communicator needs it twice",
        "CANN 的默认值（MiB）；按公式已够 235B 的专家使用，而每个通信域占用两份",
    ),
    "verl.trainer.balance_batch": ("equal numbers of tokens per rank", "各 rank 的 token 数均衡"),
}


def leaves(node: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted name."""
    found: dict[str, Any] = {}
    for name, value in node.items():
        found |= leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def read(name: str, recommended: bool) -> dict[str, Any]:
    """A recipe's values by dotted name, as llm_rl.config merges them."""
    config = yaml.safe_load((QWEN3 / name).read_text())
    base, ours = config.pop("base", None), config.pop("recommended", {})
    return (read(base, recommended) if base else {}) | leaves(config) | (leaves(ours) if recommended else {})


def differences() -> dict[str, dict[str, tuple[Any, Any]]]:
    """{key: {recipe: (the article's value, ours)}} where they differ."""
    found: dict[str, dict[str, tuple[Any, Any]]] = {}
    for recipe, name in RECIPES.items():
        article, ours = read(name, False), read(name, True)
        for key in ours:
            if article[key] != ours[key]:
                found.setdefault(key, {})[recipe] = article[key], ours[key]
    return found


def shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value.rpartition("/")[2]
    return f"{value:g}" if isinstance(value, float) else f"{value:,}"


def profiles(language: str) -> str:
    found = differences()
    check_keys("REASONS in docs/tables/profiles.py", REASONS, found)
    rows = []
    for key in REASONS:
        pairs = found[key]
        one = len(pairs) == len(RECIPES) and len(set(map(str, pairs.values()))) == 1
        cells = []
        for side in (0, 1):
            cells.append(
                shown(next(iter(pairs.values()))[side])
                if one
                else "; ".join(f"{recipe}: {shown(pair[side])}" for recipe, pair in pairs.items())
            )
        rows.append([f"`{key}`", *cells, REASONS[key][language == "zh"]])
    return table(
        {"en": ["key", "`article`", "`recommended`", "reason"], "zh": ["键", "`article`", "`recommended`", "理由"]}[
            language
        ],
        rows,
        left=4,
    )


TABLES = {"profiles": profiles}
