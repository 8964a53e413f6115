# SPDX-License-Identifier: Apache-2.0
"""The report's content, as blocks of render.py, in English or Chinese. A section without its data says what is missing."""

from llm_rl.reports.accuracy import accuracy_blocks
from llm_rl.reports.answers import sentence
from llm_rl.reports.compare import NAMES, arms_of, heads, load_sentence, table

LANGUAGES = {
    "en": lambda english, chinese: english,
    "zh": lambda english, chinese: chinese,
}


def blocks(summary, language, accuracy=()):
    """All blocks of the report of `summary` in "en" or "zh"; `accuracy`: what accuracy.read found."""
    say = LANGUAGES[language]
    sections = (_figures, _times, _tail, _acceptance, _costs, _drafts, _training, _sampled)
    content = [
        (
            "title",
            say("Rollout without and with suffix-automaton drafting", "不使用与使用后缀自动机投机的 Rollout 对比"),
        )
    ]
    if text := load_sentence(summary, say):
        content.append(("text", text))
    for section in sections:
        content += section(summary, say)
    return content + accuracy_blocks(accuracy, say) + _facts(summary, say)


def _others(summary):
    """The arms with speculation and their names."""
    return [(arm, summary[arm], NAMES[arm]) for arm in arms_of(summary) if arm != "off"]


def _counted(summary, say):
    first, last = summary["first_step_counted"], summary["steps"]
    text = say(
        f"Means and sums are over training steps {first} to {last}", f"均值与总和取自第 {first} 到 {last} 个训练步"
    )
    if first > 1:
        text += say(" (the first one starts the engine and is left out).", "（第一步包含引擎启动，不计入）。")
    else:
        text += say(".", "。")
    return text


def _times(summary, say):
    """The three columns of the article."""

    def seconds(arm, name):
        return "-" if summary[arm][name] is None else f"{summary[arm][name]:.2f}"

    columns = ("round_s", "rollout_s", "step_s")
    rows = [
        [
            "",
            say("mean round of generation, s", "单轮平均推理时间，秒"),
            say("rollout of a training step, s", "单步总推理时间，秒"),
            say("training step, s", "单步总时间，秒"),
        ]
    ]
    rows += [[NAMES[arm], *(seconds(arm, name) for name in columns)] for arm in arms_of(summary)]
    for _, figures, name in _others(summary):
        gains = [figures["gain"][what] for what in ("round", "rollout", "step")]
        rows.append(
            [say(f"gain, {name}", f"收益，{name}"), *("-" if gain is None else f"{gain:+.2%}" for gain in gains)]
        )
    notes = [
        say(
            "Gain = off / on - 1: +30 % says that the old way took 1.3 times as long.",
            "收益 = 关闭 / 开启 - 1：+30 % 表示原来耗时为 1.3 倍。",
        )
    ]
    notes.append(_counted(summary, say))
    if summary["off"]["round_s"] is None:
        notes.append(
            say(
                "No mean round: this trainer does not generate in rounds, or does not log `train/num_gen_batches`.",
                "没有单轮时间：该训练器不分轮生成，或其步日志中没有 `train/num_gen_batches`。",
            )
        )
    else:
        notes.append(
            say(
                "Mean round: the rollout of a training step / its rounds of generation.",
                "单轮时间：单步总推理时间 / 该步的生成轮数。",
            )
        )
    return [
        ("table", rows),
        ("list", notes),
        ("picture", "pictures/times.png", say("Seconds, and gains.", "耗时与收益。")),
    ]


def _figures(summary, say):
    rows = [["", *(say(head, "收益" if head == "gain" else head) for head in heads(summary))]]
    rows += [[say(english, chinese), *cells] for english, chinese, *cells in table(summary)]
    alike = all(arm["sampled"] for _, arm, _ in _others(summary))
    notes = [
        say(
            "Tail: engine steps with at most {0} requests running, in all runs alike. Tokens a step: what one request "
            "gains in one engine step, exactly 1 without speculation.",
            "长尾：运行请求数不超过 {0} 的引擎步，各次运行同一标准。每步 token 数：一个请求在一个引擎步中得到的"
            " token 数，不投机时恒为 1。",
        ).format(summary["threshold"]),
        say(
            "The runs sample by seed and position, so the same answers as far as it says below. Answers to prompts "
            "that dynamic sampling asked too many may be in one run only.",
            "各次运行按种子与位置采样，回答相同，程度见下文。动态采样多问的提示，其回答可能只出现在一次运行中。",
        )
        if alike
        else say(
            "The runs sample different answers, so time a token is the fairer comparison; time a training step also "
            "depends on how long the answers happened to be.",
            "各次运行采样的回答不同，因此每 token 耗时是更公平的比较；单步耗时还取决于回答碰巧有多长。",
        ),
    ]
    return [("heading", say("All figures", "全部数据")), ("table", rows), ("list", notes)]


def _tail(summary, say):
    content = [("heading", say("Running requests over time, and the tail", "运行请求数随时间的变化与长尾"))]
    for _, arm, name in _others(summary):
        if arm["tail_speedup"] is None:
            text = say(f"{name}: no engine step of the tail was counted.", f"{name}：没有长尾引擎步。")
        else:
            per = say(" a token", "（按每 token 计）") if arm["tail_speedup_is_per_token"] else ""
            text = say(
                f"{name}: the tail is {arm['tail_speedup']:.2f} times as fast{per}.",
                f"{name}：长尾速度为关闭时的 {arm['tail_speedup']:.2f} 倍{per}。",
            )
        content.append(("text", text))
    if not _logged(summary):
        return [*content, ("text", _no_engine_log(say))]
    caption = say(
        "The last training step's rollout on its busiest replica: running requests, the tail shaded, and the engine "
        "steps in which drafts were verified.",
        "最后一个训练步的 rollout，取最忙的副本：运行请求数，阴影为长尾，标记为验证了草稿的引擎步。",
    )
    return [*content, ("picture", "pictures/rollout.png", caption)]


def _logged(summary):
    return all(summary[arm]["step_costs"] for arm in arms_of(summary))


def _no_engine_log(say):
    return say(
        "Missing: a run's folder has no `engine-*.jsonl` that matches its step log (`SAM_STEP_LOG` names the folder).",
        "缺少数据：某次运行的目录中没有与步日志相符的 `engine-*.jsonl`（其目录由 `SAM_STEP_LOG` 指定）。",
    )


def _acceptance(summary, say):
    content = [("heading", say("Acceptance against length", "接受长度与回答长度"))]
    arms = [(arm, name) for _, arm, name in _others(summary) if arm["positions"]]
    if not arms:
        text = say(
            "Missing: no step log has `rollout/spec/steps_from_*`, which the patched verl writes for `sam`.",
            "缺少数据：步日志中没有 `rollout/spec/steps_from_*`，它由打过补丁的 verl 在使用 `sam` 时写入。",
        )
        return [*content, ("text", text)]
    starts = sorted({row["from"] for arm, _ in arms for row in arm["positions"]})
    rows = [[say("tokens of the answer before the step", "该步之前回答的 token 数")]]
    for _, name in arms:
        rows[0] += [
            say(f"{name}: steps with a draft", f"{name}：有草稿的步数"),
            say("tokens a step", "每步 token 数"),
        ]
    for at in starts:
        row = [say(f"{at:,} and more", f"{at:,} 起")]
        for arm, _ in arms:
            counts = next((row for row in arm["positions"] if row["from"] == at), None)
            row += [f"{counts['steps']:,.0f}", f"{counts['tokens'] / counts['steps']:.3f}"] if counts else ["0", "-"]
        rows.append(row)
    note = say(
        "Mean acceptance length as the article counts it: tokens that a request gains in an engine step in which it had "
        "a draft, the token that the model adds included. Each row reaches to the next one.",
        "按文章的口径计算的平均接受长度：请求在有草稿的引擎步中得到的 token 数，含模型自身给出的一个。"
        "每行到下一行为止。",
    )
    caption = say(
        "Left: tokens a step by position in the answer. Right: tokens a step by running requests, steps without drafts "
        "included.",
        "左：按回答中的位置统计的每步 token 数。右：按运行请求数统计的每步 token 数，含没有草稿的步。",
    )
    return [*content, ("table", rows), ("text", note), ("picture", "pictures/acceptance.png", caption)]


def _costs(summary, say):
    content = [("heading", say("What a draft and its verification cost", "起草与验证的开销"))]
    for _, arm, name in _others(summary):
        if arm["draft_ms"] is not None:
            content.append(
                (
                    "text",
                    say(
                        f"{name}: drafting took {arm['draft_ms']:.3f} ms of host time an engine step, steps with the "
                        "switch off included.",
                        f"{name}：起草每个引擎步占用主机 {arm['draft_ms']:.3f} 毫秒，含开关关闭的步。",
                    ),
                )
            )
    if not _logged(summary):
        return [*content, ("text", _no_engine_log(say))]
    off = {row["least"]: row for row in summary["off"]["step_costs"]}
    for _, arm, name in _others(summary):
        rows = [
            [
                say("requests running", "运行请求数"),
                say("SAM off: steps", "SAM off：步数"),
                say("ms a step", "毫秒/步"),
                say(f"{name} with drafts: steps", f"{name} 有草稿：步数"),
                say("ms a step", "毫秒/步"),
                say("tokens a step", "每步 token 数"),
                say("time a token, off / on", "每 token 耗时，关闭/开启"),
            ]
        ]
        for row in arm["step_costs"]:
            plain = off.get(row["least"])
            if not row["drafted"] or not plain or not plain["plain"]:
                continue
            numbers = f"{row['least']}" if row["least"] == row["most"] else f"{row['least']}-{row['most']}"
            cells = [numbers, f"{plain['plain']:,}", f"{plain['plain_ms']:.2f}", f"{row['drafted']:,}"]
            speedup = row["tokens_per_step"] * plain["plain_ms"] / row["drafted_ms"]
            rows.append([*cells, f"{row['drafted_ms']:.2f}", f"{row['tokens_per_step']:.3f}", f"{speedup:.2f}"])
        content.append(("table", rows))
    note = say(
        "Medians of engine steps; the switch acts one step late, hence a few drafts above the threshold. The difference "
        "of the two times is what drafting, the pass over more positions and verification cost together; contexts differ "
        "in length between the runs. Above 1 in the last column drafting gains.",
        "取引擎步耗时的中位数；开关的决定晚一步生效，因此阈值以上也有少量草稿。两个耗时之差即起草、多位置前向计算与验证"
        "的总开销；两次运行的上下文长度不尽相同。最后一列大于 1 表示投机有收益。",
    )
    return [*content, ("text", note)]


def _drafts(summary, say):
    content = [("heading", say("Drafts by source, and memory of the indexes", "草稿来源与索引内存"))]
    rows = [
        [
            say("source", "来源"),
            *(
                head
                for _, _, name in _others(summary)
                for head in (
                    say(f"{name}: proposed", f"{name}：提出"),
                    say("came true", "命中"),
                    say("share", "占比"),
                )
            ),
        ]
    ]
    names = sorted({source for _, arm, _ in _others(summary) for source in arm["by_source"]})
    for source in names:
        row = [f"`{source}`"]
        for _, arm, _ in _others(summary):
            counts = arm["by_source"].get(source, {"proposed": 0, "accepted": 0})
            proposed, accepted = counts["proposed"], counts["accepted"] or 0
            row += [f"{proposed:,.0f}", f"{accepted:,.0f}", f"{accepted / proposed:.1%}" if proposed else "-"]
        rows.append(row)
    if names:
        content.append(("table", rows))
    else:
        content.append(
            (
                "text",
                say(
                    "Missing: no step log has `rollout/spec/proposed_*`.",
                    "缺少数据：步日志中没有 `rollout/spec/proposed_*`。",
                ),
            )
        )
    for _, arm, name in _others(summary):
        if arm["index_bytes"]:
            content.append(
                (
                    "text",
                    say(
                        f"{name}: texts and indexes took {max(arm['index_bytes']) / 2**20:.1f} MiB at most at the "
                        "end of a training step.",
                        f"{name}：文本与索引在训练步结束时最多占 {max(arm['index_bytes']) / 2**20:.1f} MiB。",
                    ),
                )
            )
        else:
            content.append(
                (
                    "text",
                    say(
                        f"Missing: {name} logged no `rollout/spec/index_bytes`.",
                        f"缺少数据：{name} 没有记录 `rollout/spec/index_bytes`。",
                    ),
                )
            )
    if not names:
        return content
    caption = say(
        "Left: draft tokens by source, the dark part came true. Right: memory at the end of each training step.",
        "左：按来源统计的草稿 token，深色部分命中。右：每个训练步结束时的内存。",
    )
    return [*content, ("picture", "pictures/drafts.png", caption)]


def _training(summary, say):
    rows = [[say("step", "训练步")]]
    for head in (say("reward", "奖励"), say("length", "长度"), say("rollout s", "rollout 秒")):
        rows[0] += [f"{head}, {NAMES[arm]}" for arm in arms_of(summary)]
    columns = [
        (summary[arm][name], form)
        for name, form in (("rewards", "+.3f"), ("lengths", ".1f"), ("rollout_s_per_step", ".1f"))
        for arm in arms_of(summary)
    ]
    rows += [
        [number + 1, *(format(values[number], form) for values, form in columns)] for number in range(summary["steps"])
    ]
    caption = say("Mean reward and mean length of the answers.", "回答的平均奖励与平均长度。")
    return [
        ("heading", say("Reward and length", "奖励与长度")),
        ("picture", "pictures/training.png", caption),
        ("table", rows),
    ]


def _sampled(summary, say):
    content = [("heading", say("Sampled tokens, one by one", "逐个比较采样的 token"))]
    for _, arm, name in _others(summary):
        if not arm["sampled"]:
            text = say(
                f"Missing: the runs off and {name} did not both log their answers (`verify: seeded` and "
                "`SAM_ANSWER_LOG=1`).",
                f"缺少数据：关闭与 {name} 两次运行没有都记录回答（需要 `verify: seeded` 与 `SAM_ANSWER_LOG=1`）。",
            )
            content.append(("text", text))
            continue
        heads = [
            say("step", "训练步"),
            say("answers of both", "共有的回答"),
            say("equal", "相同"),
            say(f"tokens, {name}", f"token，{name}"),
            say("equal", "相同"),
            say("log-probabilities differ by", "对数概率之差"),
            say("off only", "仅 SAM off"),
            say(f"{name} only", f"仅 {name}"),
        ]
        rows = []
        for row in arm["sampled"]["steps"]:
            difference = "-" if row["log_prob_difference"] is None else f"{row['log_prob_difference']:.1e}"
            tokens = [f"{row['tokens']:,}", f"{row['tokens_equal']:,}", difference]
            rows.append([row["step"], row["answers"], row["answers_equal"], *tokens, row["only_off"], row["only_on"]])
        content += [("text", sentence(arm["sampled"], name, say)), ("table", [heads, *rows])]
    return content


def _facts(summary, say):
    arms = [summary[arm] for arm in arms_of(summary)]
    rows = [["", *(NAMES[arm] for arm in arms_of(summary))]]
    for english, chinese, name in (
        ("switch", "开关", "sam"),
        ("longest draft, k", "草稿最大长度 k", "k"),
        ("rule", "规则", "rule"),
        ("sources", "来源", "sources"),
        ("least probability", "最低概率", "min_prob"),
        ("verification", "验证", "verify"),
    ):
        values = [arm[name] for arm in arms]
        if any(value is not None for value in values):
            texts = [
                ", ".join(value) if isinstance(value, list) else "-" if value is None else value for value in values
            ]
            rows.append([say(english, chinese), *texts])
    hosts = [arm["host"] for arm in arms]
    for english, chinese, name in (
        ("machine", "机器", "machine"),
        ("system", "系统", "system"),
        ("CPUs", "CPU 数", "cpus"),
    ):
        if any(hosts):
            rows.append([say(english, chinese), *((host or {}).get(name, "-") for host in hosts)])
    if any(arm["resumed_after"] for arm in arms):
        heading = say("resumed after steps (the next one is slower)", "在这些步之后续跑（下一步较慢）")
        rows.append([heading, *(", ".join(map(str, arm["resumed_after"])) or "-" for arm in arms)])
    trees = ", ".join(f"{module} `{tree}`" for module, tree in summary["tree_ids"].items())
    return [
        ("heading", say("The runs", "运行信息")),
        (
            "text",
            say(
                f"Pin set {summary['pin_set']}, seed {summary['seed']}, {summary['steps']} training steps, "
                f"threshold {summary['threshold']}. Trees: {trees}.",
                f"版本组合 {summary['pin_set']}，种子 {summary['seed']}，{summary['steps']} 个训练步，"
                f"阈值 {summary['threshold']}。补丁后的树：{trees}。",
            ),
        ),
        ("table", rows),
    ]
