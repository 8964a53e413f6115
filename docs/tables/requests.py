# SPDX-License-Identifier: Apache-2.0
"""How method sam treats requests, by parameter and kind, from the requests.toml of the pin sets."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tables._records import table

ROOT = Path(__file__).resolve().parents[2]
STATUSES = ("drafted", "excluded", "refused", "untested")
WORDS = {
    "en": dict(zip(STATUSES, ("drafted", "not drafted", "refused", "not tested"), strict=True)),
    "zh": dict(zip(STATUSES, ("起草", "不起草", "拒绝", "未测试"), strict=True)),
}
HEADS = {
    "en": ("request with", "kind of request", "why"),
    "zh": ("请求带有", "请求种类", "原因"),
}
KINDS = {
    "en": {
        "sessions_of_states": "input that is streamed into one request (`StreamingInput`), to a model "
        "[with state layers](#models-with-state-layers)",
        "embeds": "prompt embeddings",
        "multi_modal": "images, video or audio",
        "lora": "a LoRA adapter",
        "pooling": "pooling: embeddings, scores, classes",
        "beam_search": "beam search",
        "priorities": "priorities (`scheduling_policy: priority`)",
        "kv_connectors": "KV connectors (`kv_transfer_config`)",
    },
    "zh": {
        "sessions_of_states": "向同一请求流式追加输入（`StreamingInput`），模型是[含状态层的模型](#含状态层的模型)",
        "embeds": "prompt 以嵌入给出",
        "multi_modal": "图像、视频或音频",
        "lora": "LoRA 适配器",
        "pooling": "池化：嵌入、打分、分类",
        "beam_search": "束搜索（beam search）",
        "priorities": "优先级（`scheduling_policy: priority`）",
        "kv_connectors": "KV connector（`kv_transfer_config`）",
    },
}
REASONS = {
    "en": {
        "excluded": "vLLM 0.11 verifies drafts only with temperature, top-k and top-p",
        "min_p": "vLLM's first runner does not apply it to draft positions",
        "logit_bias": "vLLM's first runner does not apply it to draft positions",
        "thinking_token_budget": "vLLM 0.23 does not keep to the budget with drafts",
        "logprob_token_ids": "vLLM without patches does not return them with drafts",
        "trace_decode_token_ids": "`enable_trace_replay` is refused: vLLM ignores these tokens when it verifies drafts",
        "beam_search": "each of its requests asks for one token",
        "pooling": "its answer has no tokens",
        "sessions_of_states": "the state at the end of a turn is lost",
        "best_of": "vLLM refuses it with and without drafts",
        "logits_processors": "vLLM refuses it with and without drafts",
    },
    "zh": {
        "excluded": "vLLM 0.11 验证草稿时只支持温度、top-k 和 top-p",
        "min_p": "vLLM 的第一代 runner 不把它用于草稿所在的行",
        "logit_bias": "vLLM 的第一代 runner 不把它用于草稿所在的行",
        "thinking_token_budget": "vLLM 0.23 有草稿时不能严格遵守这个上限",
        "logprob_token_ids": "不打补丁的 vLLM 有草稿时不返回它",
        "trace_decode_token_ids": "`enable_trace_replay` 会被拒绝：vLLM 验证草稿时会忽略这些 token",
        "beam_search": "它的每条请求只要一个 token",
        "pooling": "它的回答没有 token",
        "sessions_of_states": "一轮结束时的状态没有保留下来",
        "best_of": "不论有无草稿，vLLM 都拒绝",
        "logits_processors": "不论有无草稿，vLLM 都拒绝",
    },
}


def read_requests() -> dict[str, dict]:
    """requests.toml of each pin set, by column head."""
    paths = sorted(ROOT.glob("patches/*/requests.toml"))
    return {f"`{path.parent.name}`": tomllib.loads(path.read_text()) for path in paths}


def rows_of(requests: dict, section: str) -> dict[str, str]:
    """Map each name in a section of a requests.toml to its status, one of STATUSES."""
    return {name: status for group in requests[section] for status in STATUSES for name in group.get(status, ())}


def shown_names(requests: dict[str, dict], section: str) -> dict[str, list[str]]:
    """Map each name to its status in each pin set, or "absent"; leaves out names drafted wherever they exist."""
    rows = [rows_of(each, section) for each in requests.values()]
    statuses = {name: [row.get(name, "absent") for row in rows] for row in rows for name in row}
    return {name: found for name, found in statuses.items() if not {*found} <= {"drafted", "absent"}}


def section(language: str, section: str) -> str:
    """A table with one row for all names with the same status in every column and the same reason."""
    requests = read_requests()
    names, words, reasons = shown_names(requests, section), WORDS[language] | {"absent": "-"}, REASONS[language]
    grouped: dict[tuple[str, ...], list[str]] = {}
    for name, statuses in names.items():
        whys = [reasons.get(name) or reasons[status] for status in statuses if status in ("excluded", "refused")]
        cells = [words[status] for status in statuses]
        grouped.setdefault((*cells, "; ".join(dict.fromkeys(whys))), []).append(name)
    of_parameters, of_kinds, why = HEADS[language]
    head = [of_parameters if section == "parameters" else of_kinds, *requests, why]
    separator = ", " if language == "en" else "、"
    shown = KINDS[language] if section == "kinds" else {name: f"`{name}`" for name in names}
    lines = [[separator.join(shown[name] for name in group), *cells] for cells, group in grouped.items()]
    return table(head, lines, left=len(head))


TABLES = {
    "parameters": lambda language: section(language, "parameters"),
    "kinds": lambda language: section(language, "kinds"),
}
