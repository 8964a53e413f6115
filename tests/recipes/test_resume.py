# SPDX-License-Identifier: Apache-2.0
"""Going on with a broken run: wherever a kill falls, the logs hold each step once; and what verl's patches add to
that."""

import json
import shutil
import zipfile
from types import SimpleNamespace

import pytest
import torch

from llm_rl import launch, resume
from llm_rl.errors import UserError

EVERY_STEP = {"rollout/spec/tokens": 10, "rollout/spec/drafted": 1, "timing_s/gen": 1.0, "timing_s/step": 1.0}


def make_checkpoint(run_dir, step):
    folder = run_dir / "checkpoints" / f"global_step_{step}"
    (folder / "actor").mkdir(parents=True)
    (folder / "actor" / "model.pt").write_text(str(step))
    with zipfile.ZipFile(folder / "data.pt", "w") as f:
        f.writestr("data", str(step))
    (run_dir / "checkpoints" / resume.TRACKER).write_text(str(step))


def log_step(run_dir, step, replicas=2):
    """What a step leaves: engine rows of 10 tokens, answers, its line."""
    for replica in range(replicas):
        with (run_dir / f"engine-{replica}.jsonl").open("a") as f:
            for row in range(5 // replicas + (replica < 5 % replicas)):
                f.write(json.dumps([100.0 * step + row, 0.1, 2, 2, 0, 0]) + "\n")
            f.write(json.dumps([100.0 * step + 50, 0.1, 0, 0, 0, 0]) + "\n")
    with (run_dir / "answers-7.jsonl").open("a") as f:
        f.write(json.dumps([step, 0, 0, "x", [1], None]) + "\n")
    with (run_dir / "steps.jsonl").open("a") as f:
        f.write(json.dumps({"step": step, "data": EVERY_STEP}) + "\n")


@pytest.fixture
def run_dir(tmp_path):
    """A run of four steps with a checkpoint at each, the last two of which are kept."""
    for step in (1, 2, 3, 4):
        log_step(tmp_path, step)
    for step in (3, 4):
        make_checkpoint(tmp_path, step)
    (tmp_path / "checkpoints" / "global_step_2").mkdir()  # verl leaves a pruned checkpoint's folder
    (tmp_path / "checkpoints" / "global_step_2" / "data.pt").touch()
    return tmp_path


def state(run_dir):
    """Steps in each log, tokens of the engine logs, checkpoints, tracker."""
    steps = [entry["step"] for entry in resume.read_steps(run_dir / "steps.jsonl")]
    answers = [json.loads(line)[0] for p in run_dir.glob("answers-*") for line in p.read_text().splitlines()]
    tokens = [json.loads(line)[3] for path in run_dir.glob("engine-*") for line in path.read_text().splitlines()]
    tracker = run_dir / "checkpoints" / resume.TRACKER
    kept = sorted(p.name for p in (run_dir / "checkpoints").glob("*_*") if p.is_dir())
    return steps, answers, sum(tokens), kept, tracker.read_text() if tracker.exists() else None


def steps_1_to(n, *checkpoints):
    steps = list(range(1, n + 1))
    return steps, steps, 10 * n, [f"global_step_{c}" for c in checkpoints], str(n) if n else None


def half_written_tracker(run_dir):
    (run_dir / "checkpoints" / resume.TRACKER).write_text("")


def garbled_tracker(run_dir):
    (run_dir / "checkpoints" / resume.TRACKER).write_text("\x00\x00")


def in_the_next_rollout(run_dir):
    """Rows that the engine wrote early, and half a line."""
    early = {"engine-0": "[500.0, 0.1, 2, 2, 0, 0]\n", "answers-7": '[5, 0, 0, "x", [1], null]\n', "steps": ""}
    for name, rows in early.items():
        with (run_dir / f"{name}.jsonl").open("a") as f:
            f.write(rows + "[5,")


def in_a_checkpoint(run_dir):
    make_checkpoint(run_dir, 5)
    data = run_dir / "checkpoints" / "global_step_5" / "data.pt"
    data.write_bytes(data.read_bytes()[:-9])
    half_written_tracker(run_dir)


def before_the_actor_is_written(run_dir):
    (run_dir / "checkpoints" / "global_step_5" / "actor").mkdir(parents=True)


def between_a_checkpoint_and_its_line(run_dir):
    log = (run_dir / "steps.jsonl").read_bytes()
    log_step(run_dir, 5)
    (run_dir / "steps.jsonl").write_bytes(log)
    make_checkpoint(run_dir, 5)


KILLS = [lambda run_dir: None, half_written_tracker, garbled_tracker, in_the_next_rollout, in_a_checkpoint]
KILLS += [before_the_actor_is_written, between_a_checkpoint_and_its_line]


@pytest.mark.parametrize("kill", KILLS)
def test_wherever_the_kill_falls_each_step_is_there_once(kill, run_dir):
    kill(run_dir)
    for _ in range(2):  # a second kill while the first one is mended changes nothing
        assert resume.point(run_dir, 1) == 4
        resume.rewind(run_dir, 4, keep=2)
        assert state(run_dir) == steps_1_to(4, 3, 4)


def test_a_checkpoint_is_whole_with_its_actor_and_its_last_file(run_dir):
    assert resume.complete(run_dir / "checkpoints") == [3, 4]
    in_a_checkpoint(run_dir)
    (run_dir / "checkpoints" / "global_step_3" / "actor" / "model.pt").unlink()  # as verl prunes
    assert resume.complete(run_dir / "checkpoints") == [4]


def test_steps_behind_the_checkpoint_are_done_again(run_dir):
    shutil.rmtree(run_dir / "checkpoints" / "global_step_4")
    assert resume.point(run_dir, 2) == 3
    (run_dir / "history").mkdir()
    resume.rewind(run_dir, 3, keep=2)
    assert state(run_dir) == steps_1_to(3, 3)
    assert (run_dir / "history").exists()
    log_step(run_dir, 4)
    assert state(run_dir)[:3] == steps_1_to(4)[:3]


def test_without_checkpoints_a_run_starts_again(run_dir):
    with pytest.raises(UserError, match="has a checkpoint of step 4, which a run without checkpoints would remove"):
        resume.point(run_dir, 0)
    shutil.rmtree(run_dir / "checkpoints")
    assert resume.point(run_dir, 0) == 0
    engine = run_dir / "history" / "replica-0" / "engine-0"
    engine.mkdir(parents=True)
    for name in ("pool", "switch.json", "lock", "../../routes.json"):
        (engine / name).touch()
    resume.rewind(run_dir, 0, keep=2)
    assert state(run_dir) == ([], [], 0, [], None)
    left = [path for path in (run_dir / "history").rglob("*") if path.is_file()]
    assert left == [engine / "lock"], "drafts of the run before would flatter this one; an engine of it may still end"
    assert not list(run_dir.glob("*.jsonl"))
    assert resume.point(run_dir / "new", 1) == 0


def test_a_log_that_is_not_the_checkpoints_is_refused(run_dir):
    lines = (run_dir / "steps.jsonl").read_text().splitlines(keepends=True)
    (run_dir / "steps.jsonl").write_text("".join(lines[:2]))
    with pytest.raises(UserError, match="has a checkpoint of step 4, and its steps.jsonl ends at step 2"):
        resume.point(run_dir, 1)
    (run_dir / "steps.jsonl").write_text("".join([*lines[:2], lines[3]]))  # a step is missing
    with pytest.raises(UserError, match="ends at step 2"):
        resume.point(run_dir, 1)


@pytest.mark.parametrize("name", ["steps", "engine-0", "answers-7"])
def test_a_broken_line_is_named(run_dir, name):
    path = run_dir / f"{name}.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], '{"step": 2, "da\n', *lines[1:]]))
    with pytest.raises(UserError, match=rf"{name}.jsonl, line 2, is not JSON"):
        resume.rewind(run_dir, resume.point(run_dir, 1), keep=2)


SETTINGS = {"name": "n", "pin_set": "p", "sam": "off", "sam_options": {"k": 3, "threshold": 8}}


def record_of(run_dir, steps=8, seed=1, trees=None):
    settings = SETTINGS | {"seed": seed, "steps": steps}
    recipe = SimpleNamespace(**settings, options=SimpleNamespace(threshold=8), model_dump=lambda: settings)
    plan = SimpleNamespace(recipe=recipe, run_dir=run_dir, table=[])
    return launch.begin_record(plan, trees or {"verl": "1"}, 4)


def test_a_run_goes_on_only_as_what_it_was(run_dir):
    with pytest.raises(UserError, match="run.json of the run to go on with cannot be read"):
        record_of(run_dir)
    config = SETTINGS | {"seed": 1, "steps": 4}
    first = {"attempts": [{"after_step": 0}], "tree_ids": {"verl": "1"}, "config": config}
    (run_dir / "run.json").write_text(json.dumps(first))
    assert [attempt["after_step"] for attempt in record_of(run_dir, steps=8)["attempts"]] == [0, 4]
    for change in ({"seed": 2}, {"trees": {"verl": "2"}}):
        with pytest.raises(UserError, match="holds 4 steps of a run with another (seed|tree_ids): go on"):
            record_of(run_dir, **change)


def test_a_step_may_be_logged_in_parts(tmp_path):
    """As by fully_async, and by each trainer that validates before its first step; the last line may be half
    written."""
    log, tokens, seconds = tmp_path / "steps.jsonl", "rollout/spec/tokens", "timing_s/step"
    parts = [(0, {"val": 1}), (1, {tokens: 5}), (1, {seconds: 1.0}), (2, {tokens: 7})]
    log.write_text("".join(json.dumps({"step": step, "data": data}) + "\n" for step, data in parts) + '{"step": 2, "da')
    assert resume.read_steps(log) == [{"step": 1, "data": {tokens: 5, seconds: 1.0}}]


def test_file_logger_adds_to_the_log(tmp_path, monkeypatch):
    from verl.utils.tracking import FileLogger

    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "steps.jsonl"))
    for step in (1, 2):
        FileLogger("project", "run").log({"timing_s/step": 1.5}, step)
    assert [entry["step"] for entry in resume.read_steps(tmp_path / "steps.jsonl")] == [1, 2]


@pytest.fixture
def trainer(make_trainer, tmp_path):
    """Makes trainers with a train batch of 4, at most 2 of them in flight, and checkpoints in tmp_path."""
    trainer = {"default_local_dir": str(tmp_path), "default_hdfs_dir": None, "resume_mode": "auto"}
    config = {
        "data": {"train_batch_size": 4, "gen_batch_size": 1},
        "algorithm": {"filter_groups": {"enable": True, "max_num_gen_batches": 3, "max_inflight_gen_batches": 2}},
        "actor_rollout_ref": {"actor": {}},
        "trainer": trainer | {"del_local_ckpt_after_load": False},
    }

    def nothing(*args, **kwargs): ...

    def make():
        made = make_trainer(config, 30, nothing)
        made.checkpoint_callback = SimpleNamespace(on_save=nothing)
        made.actor_rollout_wg = SimpleNamespace(save_checkpoint=nothing, load_checkpoint=nothing)
        return made

    return make


def test_a_step_without_prompts_to_train_on_ends(trainer):
    """3 times 2 x 4 prompts may be asked in a step, and again in the next."""
    asking = trainer()
    for _ in range(2):
        asking._add_batch_to_generate()
        for _ in range(20):
            asking._add_prompts_to_generate(1)
        with pytest.raises(ValueError, match="training step 1 has asked 24 prompts and lacks some whose answers score"):
            asking._add_prompts_to_generate(1)
        asking.asked_chunks = []


def test_prompts_without_answers_are_replaced_however_many_without_a_filter(trainer):
    """sync_refill_failed_groups asks for them alike; max_num_gen_batches counts prompts that the filter refused."""
    asking = trainer()
    asking.config.algorithm.filter_groups.enable = False
    asking._add_batch_to_generate()
    for _ in range(24):
        asking._add_prompts_to_generate(1)


def test_checkpoint_keeps_the_prompts_given_back(trainer, tmp_path):
    saving = trainer()
    saving._add_batch_to_generate()
    saving.returned_chunks = saving.asked_chunks[2:]
    saving._save_checkpoint()
    assert isinstance(torch.load(tmp_path / "global_step_1" / "returned_prompts.pt", weights_only=False), list)
    loading = trainer()
    loading._load_checkpoint()
    assert loading.global_steps == 1
    assert [list(loading._fetch_one_gen_batch()["raw_prompt"]) for _ in range(3)] == [["p2"], ["p3"], ["p0"]]
