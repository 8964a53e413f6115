# SPDX-License-Identifier: Apache-2.0
"""Random schedules on vLLM's own runner and on vllm-ascend's (schedules.py).

`pytest tests/ascend/test_schedules.py --schedules 500` runs 500 schedules, `--first-schedule SEED --schedules 1` runs
the schedule of one seed.
"""

import functools
import json
from pathlib import Path

import pytest
from ascend_engine import OLD, start
from request_table import table

pytestmark = pytest.mark.skipif(
    OLD, reason="vLLM 0.11 does not verify drafts where its core is in the caller's process"
)
PROGRAM = Path(__file__).parents[1] / "common" / "schedules.py"
SCHEDULES = {"cpu": 15, "npu": 2}
"""Default number of random schedules; a schedule takes five times as long on the stand-in for torch_npu."""
CASES = {"cpu": [], "npu": ["log-probabilities"]}
"""Names of the cases in schedule_cases.py that also run; an empty list runs all cases."""
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1",  # so that a request can reuse an id
}
HAPPENED = ["aborts", "pause", "preemptions", "reset", "turns", "empty steps", "steps with drafts", "steps without"]


@pytest.fixture(scope="module")
def found(request):
    """Return a function that gives the results of schedules.py on a platform. The platforms run in parallel."""
    count, first = request.config.getoption("--schedules"), request.config.getoption("--first-schedule")
    asked = {item.callspec.params.get("platform") for item in request.session.items if hasattr(item, "callspec")}
    processes = {}
    for platform, few in SCHEDULES.items():
        words = ("--count", str(count or few), "--first", str(first), "--cases", *CASES[platform])
        if platform in asked | {"cpu"}:
            processes[platform] = start(platform, str(PROGRAM), *words, environment=ENVIRONMENT)

    @functools.cache
    def printed(platform):
        """Return the schedules in which an arm differs, counts of what happened, and the results of cases by name."""
        out, _ = processes[platform].communicate()
        *others, last = map(json.loads, out.splitlines() or ["null"])
        assert last and "covered" in last, "schedules.py failed: see its standard error"
        cases = {each["case"]: each for each in others if "case" in each}
        return [each for each in others if "seed" in each], last["covered"], cases

    return printed


@pytest.mark.parametrize("platform", SCHEDULES)
def test_schedules_agree_with_plain(found, platform):
    faults, covered, _ = found(platform)
    said = [f"schedule {each['seed']}, {each['arm']}: {each['faults'][0]}" for each in faults]
    assert not faults, "\n".join(said)
    assert covered["verified"] > 0 and covered["accepted"] > 0


def agrees(found, name, platform="cpu"):
    case = found(platform)[2][name]
    assert not case["faults"], "\n".join(case["faults"])
    assert case["accepted"] > 0


def test_turns_are_those_of_a_plain_engine(found):
    """The turns of a session have different lengths, and end inside drafts or while steps are in flight."""
    agrees(found, "turns")


def test_answers_that_end_by_their_grammar(found):
    """The requests also set ignore_eos. A grammar may end while a step is in flight."""
    agrees(found, "grammars")


def test_ids_that_come_again(found):
    """A new request reuses the id of a request that was aborted while a step was in flight."""
    agrees(found, "ids")


def test_prompts_of_embeddings(found):
    """A prompt of embeddings uses a batch row that held the tokens of another request."""
    agrees(found, "embeds")


def test_prompt_logprobs_outlive_a_reset(found):
    agrees(found, "prompt log-probabilities")


@pytest.mark.parametrize("platform", SCHEDULES)
def test_log_probabilities(found, platform):
    """Some requests ask for log-probabilities of chosen tokens, others for those of the most likely tokens."""
    agrees(found, "log-probabilities", platform)


def test_schedules_reach_everything(found):
    _, covered, _ = found("cpu")
    missed = [what for what in HAPPENED if not covered.get(what)]
    assert not missed, f"no schedule had {missed}"


def test_parameters_are_drafted_as_the_table_says(found):
    """The table is patches/<pin set>/requests.toml. Drafts were accepted for each drafted parameter; each refused
    parameter was in a request, and no draft was verified for it."""
    _, covered, _ = found("cpu")
    held = [group for group in table()["parameters"] + table()["kinds"] if __name__ in group.get("test", "")]
    drafted, refused = ({name for group in held for name in group.get(status, ())} for status in ("drafted", "refused"))
    missed = sorted(name for name in drafted if not covered.get(f"accepted {name}"))
    assert not missed, f"no draft of a request with {missed} was accepted"
    wrong = sorted(name for name in refused if not covered.get(f"ran {name}") or covered.get(f"verified {name}"))
    assert drafted and refused and not wrong, f"{wrong} were drafted, or never tried"
