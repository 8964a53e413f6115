# SPDX-License-Identifier: Apache-2.0
"""The table of options in docs/options.md: names, defaults and values from sam_core.options, meanings from here."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sam_core.options import DEFAULT_K, MAX_K, RULES, SOURCES, SWITCHES, VERIFY, Options
from tables._records import check_keys, table

WORDS = {"rule": RULES, "switch": SWITCHES, "verify": VERIFY}

VALUES = {
    "en": {
        "sources": f"a list of {', '.join(f'`{name}`' for name in SOURCES)}",
        "threshold": "integer, 1 or more",
        "memory_bytes": "integer from 1048576 (1 MiB) to below 2^48",
        "min_prob": "0 or more, below 1",
        "corpus": "path of a file",
        "history": "full path of a folder",
    },
    "zh": {
        "sources": f"{'、'.join(f'`{name}`' for name in SOURCES)} 的列表",
        "threshold": "不小于 1 的整数",
        "memory_bytes": "从 1048576（1 MiB）起、小于 2^48 的整数",
        "min_prob": "不小于 0、小于 1 的数",
        "corpus": "文件路径",
        "history": "目录的完整路径",
    },
}

MEANINGS = {
    "en": {
        "num_speculative_tokens": "maximum draft length; 3 by default for [models with state "
        "layers](#models-with-state-layers)",
        "rule": "[how a draft is chosen](how-it-works.md#drafts-from-a-suffix-automaton)",
        "sources": "[where drafts come from](how-it-works.md#drafts-from-a-suffix-automaton); `history` needs `group`",
        "switch": "`auto`: [each request drafts as many tokens as pay off](#switch-auto). `batch`: all draft while at "
        "most `threshold` requests run",
        "threshold": "for `switch: batch`; without `switch` it selects `batch`. The number of requests that run "
        "in one step decides whether the next one drafts",
        "memory_bytes": "host memory of one engine for texts and indexes: 4 bytes per token of a finished answer, "
        "50 to 100 of a running request. When full, the least valuable content "
        "[is freed](design-sam-core.md#failures-and-memory), and requests without an index do not draft. The "
        "plugin's [table](how-it-works.md#in-the-engine) takes up to 1/16 more, at most 48 MiB, on device and host",
        "verify": "`rejection`: rejection sampling. `seeded`: [the same text with and without "
        "drafts](ascend.md#verification)",
        "min_prob": "a draft ends before the estimated probability that all of it is accepted falls below this; "
        "0 means 2^-30. `auto` uses at most 0.02. No effect with the plugin",
        "corpus": "a text collection for all requests, built by `python -m sam_core build-corpus`; it must be on every "
        "node, and its tokens in the model's vocabulary",
        "history": "[keeps answers and learned values between runs](#history-between-runs); needs source `history`",
    },
    "zh": {
        "num_speculative_tokens": "草稿的最大长度；[含状态层的模型](#含状态层的模型)默认为 3",
        "rule": "[草稿如何选取](how-it-works.zh.md#用后缀自动机生成草稿)",
        "sources": "[草稿取自何处](how-it-works.zh.md#用后缀自动机生成草稿)；用 `history` 必须同时用 `group`",
        "switch": "`auto`：[为每条请求选择划算的草稿长度](#开关-auto)；"
        "`batch`：运行中的请求数不超过 `threshold` 时全部起草",
        "threshold": "用于 `switch: batch`；只写 `threshold` 而不写 `switch` 时，即选用 `batch`。"
        "由一步中运行的请求数决定下一步是否起草",
        "memory_bytes": "一个引擎的文本和索引可用的主机内存：已结束的回答每个 token 占 4 字节，"
        "运行中的请求 50 到 100 字节。"
        "用尽时先释放价值最小的内容（[详情](design-sam-core.md#failures-and-memory)，英文），没有索引的请求不起草。插件的"
        "[表](how-it-works.zh.md#在引擎中)另占至多它的 1/16，不超过 48 MiB，设备和主机各一份",
        "verify": "`rejection`：拒绝采样。`seeded`：无论是否启用投机解码，[文本都相同](ascend.zh.md#验证)",
        "min_prob": "草稿整段被接受的估计概率将低于此值时，草稿到此为止。取 0 时按 2^-30 计。用 `auto` 时，"
        "不高于 0.02。使用插件时不起作用",
        "corpus": "供所有请求使用的文本集，由 `python -m sam_core build-corpus` 生成；每个节点都要有，token "
        "须在模型的词表内",
        "history": "[跨运行保存回答和学到的内容](#跨运行的历史)；须用来源 `history`",
    },
}


def options(language: str) -> str:
    names = {field.name for field in fields(Options)}
    where = f"[{language!r}] in docs/tables/options.py"
    check_keys(f"MEANINGS{where}", MEANINGS[language], {"num_speculative_tokens", *names})
    check_keys(f"VALUES{where}", VALUES[language], names - {*WORDS})
    none, head = (
        ("none", ["option", "default", "values", "effect"])
        if language == "en"
        else ("无", ["选项", "默认值", "取值", "作用"])
    )
    k = "integer from 1 to {}" if language == "en" else "1 到 {} 的整数"
    rows = [["`num_speculative_tokens`", DEFAULT_K, k.format(MAX_K), MEANINGS[language]["num_speculative_tokens"]]]
    for field in fields(Options):
        default = field.default
        shown: Any
        if isinstance(default, tuple):
            shown = f"`[{', '.join(default)}]`"
        else:
            shown = none if default is None else f"`{default}`" if isinstance(default, str) else default
        values = ", ".join(f"`{word}`" for word in WORDS.get(field.name, ())) or VALUES[language][field.name]
        rows.append([f"`sam.{field.name}`", shown, values, MEANINGS[language][field.name]])
    return table(head, rows, left=4)


TABLES = {"options": options}
