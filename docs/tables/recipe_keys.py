# SPDX-License-Identifier: Apache-2.0
"""The table of a recipe's keys in docs/recipe-keys.md: values and meanings from llm_rl.recipe, defaults from dapo.yaml,
and the meanings in Chinese from here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from tables._records import check_keys, table

from llm_rl import pin_set
from llm_rl.recipe import KEYS, MAPPINGS, Key

BASE = Path(__file__).resolve().parents[2] / "llm_rl" / "qwen3" / "dapo.yaml"

CHINESE = {
    "name": "配方的名称，也是运行目录的名称",
    "profile": "文章的设置，或我们的设置；null：该配方没有两套设置",
    "pin_set": "使用的版本和补丁，即 patches/ 中的一个目录；run_*.sh 启动它的环境，或 PYTHON",
    "seed": "数据次序、引擎和按种子采样的种子",
    "steps": "训练步数；调大后，已完成的运行会继续",
    "sam": "投机解码：off 关闭；batch 在运行中的请求数不超过 sam_options.threshold 时进行；auto 每步以划算为准",
    "model.path": "模型目录（Hugging Face 格式）",
    "model.use_remove_padding": "训练时把序列紧密拼接",
    "data.train_files": "训练用的 parquet 文件",
    "data.val_files": "验证集的 parquet 文件",
    "data.train_batch_size": "每个训练步的 prompt 数",
    "data.gen_batch_size": "每轮生成的 prompt 数；trainer 不分轮时为同时在途的 prompt 数上限，须为训练 batch 的整数倍",
    "data.max_prompt_length": "prompt 的最大 token 数",
    "data.max_response_length": "回答的最大 token 数",
    "data.truncation": "超长的 prompt 从哪一侧截断，或报错",
    "data.filter_overlong_prompts": "事先去掉更长的 prompt",
    "data.shuffle": "按种子打乱 prompt 的次序",
    "algorithm.adv_estimator": "优势估计方法，仅限不需要 critic 的（不能用 gae）",
    "algorithm.clip_ratio_low": "裁剪范围：向下的幅度",
    "algorithm.clip_ratio_high": "裁剪范围：向上的幅度（clip-higher）",
    "algorithm.clip_ratio_c": "dual clip 的界限",
    "algorithm.loss_agg_mode": "损失的聚合方式；token-mean：每个 token 权重相同",
    "algorithm.entropy_coeff": "熵奖励的权重",
    "algorithm.use_kl_loss": "损失中加入与初始模型的 KL 散度",
    "algorithm.use_kl_in_reward": "奖励中加入该项",
    "algorithm.filter_groups": "动态采样：各回答得分全同的 prompt 会被替换",
    "algorithm.filter_metric": "动态采样比较的得分",
    "algorithm.max_num_gen_batches": "一步生成了这么多个 batch 仍凑不够 prompt，就结束运行",
    "algorithm.overlong.enable": "超长惩罚：回答接近最大长度时扣分",
    "algorithm.overlong.len": "从最大长度之前多少个 token 起惩罚递增",
    "algorithm.overlong.penalty_factor": "达到最大长度时的惩罚",
    "rollout.n": "每个 prompt 的回答数",
    "rollout.temperature": "采样温度",
    "rollout.top_p": "top-p（nucleus）采样",
    "rollout.top_k": "top-k 采样；-1：不限",
    "rollout.tensor_model_parallel_size": "共同存放一个引擎权重的设备数",
    "rollout.data_parallel_size": "共同存放一个模型各专家的引擎数",
    "rollout.expert_parallel_size": "共同存放专家的设备数：1，或张量并行数乘以数据并行数",
    "rollout.max_num_seqs": "一个引擎同时运行的请求数上限",
    "rollout.max_num_batched_tokens": "每个引擎步的 token 数上限",
    "rollout.gpu_memory_utilization": "引擎可占用的显存比例",
    "rollout.enforce_eager": "eager 模式，不捕获图",
    "rollout.expected_length": "预计的 prompt 加回答的平均 token 数，用于预警抢占",
    "rollout.expected_round": "一轮生成预计的秒数；一步的所有轮次之和须小于 step_timeout",
    "train.backend": "训练状态如何切分",
    "train.tensor_parallel": "仅 Megatron：共同存放每一层的设备数",
    "train.pipeline_parallel": "仅 Megatron：流水线并行的段数",
    "train.context_parallel": "仅 Megatron：共同处理一条序列的设备数",
    "train.expert_parallel": "仅 Megatron：共同存放专家的设备数",
    "train.expert_tensor_parallel": "仅 Megatron：共同存放一个专家的设备数",
    "train.first_stage_layers": "仅 Megatron：第一段的层数；null：与其他段相同",
    "train.last_stage_layers": "仅 Megatron：最后一段的层数；null：与其他段相同",
    "train.sequence_parallel": "仅 FSDP：共同处理一条序列的设备数（Ulysses）",
    "train.param_offload": "两次更新之间把参数和梯度放在主机内存",
    "train.optimizer_offload": "两次更新之间把优化器状态放在主机内存",
    "train.recompute": "反向传播时重新计算激活值",
    "train.torch_compile": "编译训练步",
    "train.ppo_mini_batch_size": "每次更新的 prompt 数",
    "train.micro_batch_size": "每个设备一次前向处理的回答数；用 train.max_tokens_per_die 时为 null",
    "train.max_tokens_per_die": "每个设备一次前向处理的最大 token 数；用 train.micro_batch_size 时为 null",
    "train.lr": "学习率",
    "train.lr_warmup_steps": "达到该学习率所用的步数",
    "train.weight_decay": "AdamW 的权重衰减",
    "train.clip_grad": "梯度的最大范数",
    "trainer.logger": "训练步的日志写到哪里；必须含 file",
    "trainer.val_before_train": "第一步之前先做验证集评测",
    "trainer.test_freq": "每隔多少步做一次验证集评测；-1：从不",
    "trainer.step_timeout": "多少秒没有完成一步（含启动）即结束运行",
    "trainer.hang_timeout": "从第二步起，多少秒内既没有引擎步、检查点也不增长即结束运行；"
    "至少取此前各步生成以外耗时的三倍",
    "checkpoints.every": "每隔多少个训练步保存一次检查点；0：不保存，中断后从头开始",
    "checkpoints.keep": "保留的最新检查点数；最近一次启动之前的也保留同样多",
    "checkpoints.write_rate": "所有主机一起写入运行目录的速度，GB/s；null：未测量",
    "cluster.device": "verl 用什么设备训练",
    "cluster.nodes": "主机数",
    "cluster.dies_per_node": "每台主机参与训练的设备数",
    "cluster.rollout_nodes": "在另有主机生成的 trainer 模式中，除 cluster.nodes 之外只生成的主机数",
    "trainer.mode": "verl 的 trainer（[模式](recipes.zh.md#trainer-模式)）",
    "cluster.die_memory": "每个设备的显存，GiB；null：不检查",
    "cluster.interface": "主机之间的网络接口；null：以各主机的环境为准",
    "cluster.hccl_ports": "为 HCCL 预留的端口，起-止",
}

WORDS = {
    "en": {bool: "true, false", str: "text", list: "list", int: "integer", float: "number"}
    | {"bound": "{} ≥ {:g}", "null": "{} or null", "required": "each recipe", "variable": "`${}`, else {}"},
    "zh": {bool: "true、false", str: "文本", list: "列表", int: "整数", float: "数"}
    | {"bound": "{} ≥ {:g}", "null": "{}，或 null", "required": "各配方", "variable": "`${}`，未设时 {}"},
}


def values(key: Key, words: dict[Any, str]) -> str:
    """The allowed values of a key."""
    choices = tuple(pin_set.names()) if key.name == "pin_set" else key.kind
    if isinstance(choices, tuple):
        text = ", ".join(f"`{word}`" for word in choices)
    else:
        text = words[key.kind]
        text = text if key.min_value is None else words["bound"].format(text, key.min_value)
    return words["null"].format(text) if key.optional else text


def default(name: str, base: Any, words: dict[Any, str]) -> str:
    """The value of a key in dapo.yaml."""
    for part in name.split("."):
        if not isinstance(base, dict) or part not in base:
            return words["required"]
        base = base[part]
    if isinstance(base, str) and (variable := re.fullmatch(r"\$\{oc\.env:(\w+),(.*)\}", base)):
        return words["variable"].format(variable[1], "null" if variable[2] == "null" else f"`{variable[2]}`")
    if isinstance(base, bool) or base is None:
        return str(base).lower().replace("none", "null")
    if isinstance(base, float):
        return f"{base:g}"
    return f"`{', '.join(base)}`" if isinstance(base, list) else f"`{base}`" if isinstance(base, str) else str(base)


def recipe_keys(language: str) -> str:
    words, base = WORDS[language], yaml.safe_load(BASE.read_text())
    check_keys("CHINESE in docs/tables/recipe_keys.py", CHINESE, {*KEYS} - {*MAPPINGS})
    head, meanings = ["键", "取值", "默认值", "含义"], CHINESE
    if language == "en":
        head = ["key", "values", "default", "meaning"]
        meanings = {name: key.meaning for name, key in KEYS.items()}
    rows = [
        [f"`{name}`", values(KEYS[name], words), default(name, base, words), meanings[name]]
        for name in KEYS
        if name not in MAPPINGS
    ]
    return table(head, rows, left=4)


TABLES = {"recipe_keys": recipe_keys}
