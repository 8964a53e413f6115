# SPDX-License-Identifier: Apache-2.0
"""The planner fitted to the article's figures, and what it predicts of other published runs."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sam_lab.__main__ import main
from sam_lab.plan import article, quoted


@pytest.mark.slow
def test_article(tmp_path, capsys, monkeypatch):
    quarter = replace(quoted.CLUSTERS["customer"], dies=32, gen_prompts=384, train_prompts=128)
    monkeypatch.setitem(quoted.CLUSTERS, "customer", quarter)  # as many requests an engine
    for name, fewer in {"SEEDS": (1, 2), "SPREADS": (0.5, 0.6, 0.7), "THRESHOLDS": (8, 32)}.items():
        monkeypatch.setattr(article, name, fewer)
    out = tmp_path / "article.json"
    assert main(["plan-article", "--draws", "0", "--json", str(out)]) == 0
    found, said = json.loads(out.read_text()), capsys.readouterr().out
    rows = {(row["of"], row["what"], row["sam"]): row for row in found["rows"]}
    assert len(rows) == len(found["rows"]) == 3 * (3 + 3 + 2) + 2 * 5 + 18
    assert {
        of for of, what, _ in rows if rows[of, what, "off" if what in quoted.ARTICLE["32b"] else "gain"]["fitted"]
    } == {"32b"}
    assert abs(rows["32b", "rollout", "off"]["predicted"] / 4156 - 1) < 0.01  # image 42's two stages
    assert rows["235b", "rollout", "on"]["measured"] == 12811.98 and rows["dapo", "round", "graph"]["measured"] == 3261
    for name, rounded in vars(article.NOMINAL).items():
        assert found["fit"][name]["value"] == pytest.approx(rounded, rel=0.25)
    assert "fitted" in said and "OUTSIDE" not in said
    gains = {(row["stack"], row["threshold"]): row["predicted"] for row in found["thresholds"]}
    assert gains["no waits", 8] > 1.5 * gains["article", 8] > 0 and gains["no waits", "auto"] > gains["no waits", 32]


def test_ranges_hold_what_they_claim():
    """Of many runs, each of which is missed by its own factor, as many as COVERAGE says lie inside."""
    draw = np.random.default_rng(0)
    rows = []
    for run in range(200):
        low, middle, high = np.sort(draw.uniform(90, 110, 3)).tolist()
        row = {"of": str(run), "what": "round", "kind": "s", "fitted": False, "low": low, "predicted": middle}
        rows.append(row | {"high": high, "measured": float(np.exp(np.log(middle) + draw.normal(0, 0.3)))})
    before = sum(row["low"] <= row["measured"] <= row["high"] for row in rows)
    advice = [{"low": 0.1, "predicted": 0.2, "high": 0.25}]
    factors = article._widen(rows, advice)
    inside = sum(row["inside"] for row in rows)
    assert before < 60 and abs(inside / 200 - article.COVERAGE) < 0.03
    assert factors["0"] > 1 and all(row["low"] <= row["predicted"] <= row["high"] for row in rows)
    wide = factors["thresholds"]
    assert advice[0]["low"] == pytest.approx(0.2 - 0.1 * wide) and advice[0]["high"] == pytest.approx(0.2 + 0.05 * wide)


@pytest.mark.slow
def test_the_fit_gives_the_tail_its_speed_back():
    """The cost of a verifying step is that with which the simulated tail takes as much less as image 42's."""
    model = article.Model(article.Assumptions.nominal(), (1,))
    fit = model.fit()
    plan = quoted.CLUSTERS["32b"]
    drafts = model.acceptance(plan)
    stages = {"off": (model.cost(plan, fit.launch), None), "on": (model.cost(plan, fit.launch, fit.verify), drafts)}
    (found,) = model.rounds("32b", fit, stages)
    rank = max(range(4), key=lambda rank: found["off"].traces[rank].total)
    off, on = (found[stage].traces[rank].tail(8) for stage in stages)
    assert on / off == pytest.approx(1061 / 1434, rel=1e-3)
    accepted = article.Model(replace(article.Assumptions.nominal(), accepted=0.7), (1,)).fit()
    assert accepted.verify < 0.8 * fit.verify and accepted.tokens < fit.tokens
