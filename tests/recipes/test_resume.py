# SPDX-License-Identifier: Apache-2.0
"""Resuming a broken run: whenever the run is killed, the logs hold each step once. Also llm_rl's plugin of verl, where
it changes logs, prompts and checkpoints."""

import json
import shutil
from unittest import mock

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint import FileSystemWriter, save

from llm_rl import resume
from llm_rl.errors import UserError

EVERY_STEP = {"rollout/spec/tokens": 10, "rollout/spec/drafted": 1, "timing_s/gen": 1.0, "timing_s/step": 1.0}


LAYOUTS = {
    "fsdp": ["model", "optim", "extra_state"],
    "fsdp, hf_model alone": ["huggingface"],
    "0.6.1": ["dist_ckpt", "huggingface"],
    "0.9.1": ["model/huggingface", "optimizer/dist_ckpt", "extra/dist_ckpt"],
    "0.9.1, model alone": ["model/huggingface"],
    "0.9.1, use_megatron_fsdp": ["model/huggingface", "model/dist_ckpt"],
}
"""Kinds of FSDP's files, or Megatron's folders, by release and settings of verl."""


def make_checkpoint(run_dir, step, layout="fsdp"):
    """Write a checkpoint of two dies as verl does."""
    folder = run_dir / "checkpoints" / f"global_step_{step}"
    actor = folder / "actor"
    actor.mkdir(parents=True)
    for part in LAYOUTS[layout]:
        if layout == "fsdp":
            for rank in (0, 1):
                torch.save(step, actor / f"{part}_world_size_2_rank_{rank}.pt")
        elif part.endswith("dist_ckpt"):
            save({"step": step}, storage_writer=FileSystemWriter(actor / part), no_dist=True)
            (actor / part / "metadata.json").write_text("{}")
        else:
            make_weights(actor / part)
    if layout.startswith("0.9.1"):
        listed = LAYOUTS[layout if layout.endswith("alone") else "0.9.1"]
        (actor / "ckpt_contents.json").write_text(json.dumps({"contents": {part: {"path": part} for part in listed}}))
        for part in ("model", "optimizer", "extra"):
            (actor / part / "dist_ckpt").mkdir(parents=True, exist_ok=True)  # verl makes it even if it stays empty
    torch.save(step, folder / "data.pt")
    (run_dir / "checkpoints" / resume.TRACKER).write_text(str(step))


def make_weights(folder):
    """Write weights as mbridge does: two files, and the index of the model's folder, which also names a third file."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    names = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict(zip("ABC", names, strict=True))})
    )
    for name in names[:2]:
        save_file({"A": torch.ones(3)}, folder / name)


def add(run_dir, name, *rows):
    with (run_dir / f"{name}.jsonl").open("a") as f:
        f.write("".join(json.dumps(row) + "\n" for row in rows))


def log_step(run_dir, step):
    """Log a step: rows of two engines with 10 tokens in all, an answer, and the step's line."""
    for engine, rows in (("engine-0", 3), ("engine-1", 2)):
        add(run_dir, engine, *([100.0 * step + row, 0.1, 2, 2, 0, 0] for row in range(rows)))
        add(run_dir, engine, [100.0 * step + 50, 0.1, 0, 0, 0, 0])
    add(run_dir, "answers-7", [step, 0, 0, "x", [1], None])
    add(run_dir, "steps", {"step": step, "data": EVERY_STEP})


@pytest.fixture
def run_dir(tmp_path, request):
    """A run of four steps that has kept its last two checkpoints; the fixture's parameter is their layout."""
    for step in (1, 2, 3, 4):
        log_step(tmp_path, step)
    for step in (2, 3, 4):
        make_checkpoint(tmp_path, step, getattr(request, "param", "fsdp"))
    shutil.rmtree(tmp_path / "checkpoints/global_step_2/actor")  # as verl prunes old checkpoints
    return tmp_path


def point(run_dir, every, ranks=None):
    return resume.point(run_dir, resume.checkpoints(run_dir), every, ranks)


def rewind(run_dir, step):
    resume.rewind(run_dir, resume.checkpoints(run_dir), step, keep=2)


def state(run_dir):
    """Return the steps in each log, the tokens in the engine logs, the checkpoints and the tracker."""
    steps = [entry["step"] for entry in resume.read_steps(run_dir / "steps.jsonl")]
    answers = [json.loads(line)[0] for p in run_dir.glob("answers-*") for line in p.read_text().splitlines()]
    tokens = [json.loads(line)[3] for path in run_dir.glob("engine-*") for line in path.read_text().splitlines()]
    tracker = run_dir / "checkpoints" / resume.TRACKER
    kept = sorted(p.name for p in (run_dir / "checkpoints").glob("*_*") if p.is_dir())
    return steps, answers, sum(tokens), kept, tracker.read_text() if tracker.exists() else None


def steps_1_to(n, *checkpoints):
    steps = list(range(1, n + 1))
    return steps, steps, 10 * n, [f"global_step_{c}" for c in checkpoints], str(n) if n else None


def tracker(text):
    return lambda run_dir: (run_dir / "checkpoints" / resume.TRACKER).write_text(text)


def in_the_next_rollout(run_dir):
    """Append rows of step 5 to the logs of engine and answers, and half a line to each log."""
    add(run_dir, "engine-0", [500.0, 0.1, 2, 2, 0, 0])
    add(run_dir, "answers-7", [5, 0, 0, "x", [1], None])
    for name in ("engine-0", "answers-7", "steps"):
        with (run_dir / f"{name}.jsonl").open("a") as f:
            f.write("[5,")


def in_a_checkpoint(run_dir):
    make_checkpoint(run_dir, 5)
    data = run_dir / "checkpoints" / "global_step_5" / "data.pt"
    data.write_bytes(data.read_bytes()[:-9])
    tracker("")(run_dir)


def before_the_actor_is_written(run_dir):
    (run_dir / "checkpoints" / "global_step_5" / "actor").mkdir(parents=True)


def between_a_checkpoint_and_its_line(run_dir):
    log = (run_dir / "steps.jsonl").read_bytes()
    log_step(run_dir, 5)
    (run_dir / "steps.jsonl").write_bytes(log)
    make_checkpoint(run_dir, 5)


KILLS = [lambda run_dir: None, tracker(""), tracker("\x00\x00"), in_the_next_rollout, in_a_checkpoint]


@pytest.mark.parametrize("kill", [*KILLS, before_the_actor_is_written, between_a_checkpoint_and_its_line])
def test_wherever_the_kill_falls_each_step_is_there_once(kill, run_dir):
    kill(run_dir)
    for _ in range(2):  # another kill during the recovery changes nothing
        assert point(run_dir, 1) == 4
        rewind(run_dir, 4)
        assert state(run_dir) == steps_1_to(4, 3, 4)


@pytest.mark.parametrize(
    ("run_dir", "missing"),
    [
        ("fsdp", "optim_world_size_2_rank_1.pt"),
        ("fsdp, hf_model alone", "huggingface/model-00001-of-00003.safetensors"),
        ("0.6.1", "dist_ckpt/metadata.json"),
        ("0.6.1", "huggingface/model-00002-of-00003.safetensors"),
        ("0.9.1", "ckpt_contents.json"),
        ("0.9.1", "optimizer/dist_ckpt/.metadata"),
        ("0.9.1", "optimizer/dist_ckpt/__0_0.distcp"),
        ("0.9.1", "model/huggingface/config.json"),
        ("0.9.1, model alone", "model/huggingface/model-00001-of-00003.safetensors"),
        ("0.9.1, use_megatron_fsdp", "model/dist_ckpt/.metadata"),
    ],
    indirect=["run_dir"],
)
def test_a_checkpoint_without_all_files_is_not_gone_on_from_and_this_is_said(run_dir, missing):
    assert point(run_dir, 1) == 4
    path = run_dir / "checkpoints/global_step_4/actor" / missing
    said = [f"the checkpoint of step 4 is not complete: it lacks actor/{missing}"]
    if path.suffix in (".pt", ".safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
        assert resume.incomplete(resume.checkpoints(run_dir), 3) == said
    path.unlink()
    assert point(run_dir, 1) == 3 and resume.incomplete(resume.checkpoints(run_dir), 3) == said
    rewind(run_dir, 3)
    assert state(run_dir) == steps_1_to(3, 3)


def test_checkpoints_that_cannot_be_loaded_are_refused_and_stay(run_dir):
    assert point(run_dir, 1, ranks=2) == point(run_dir, 1) == 4
    with pytest.raises(UserError, match="of world size 2, which the recipe's world size 4 cannot load: set .* to 2,"):
        point(run_dir, 1, ranks=4)
    for path in run_dir.rglob("*_rank_1.pt"):
        path.unlink()  # as if a host had written them to its own disk
    with pytest.raises(UserError, match="has no complete checkpoint, as that of step 4 lacks actor/.*_rank_1.pt"):
        point(run_dir, 1)


def test_steps_behind_the_checkpoint_are_done_again(run_dir):
    shutil.rmtree(run_dir / "checkpoints" / "global_step_4")
    assert point(run_dir, 2) == 3
    (run_dir / "history").mkdir()
    rewind(run_dir, 3)
    assert state(run_dir) == steps_1_to(3, 3)
    assert (run_dir / "history").exists()
    log_step(run_dir, 4)
    assert state(run_dir)[:3] == steps_1_to(4)[:3]


def test_without_checkpoints_a_run_starts_again(run_dir):
    with pytest.raises(UserError, match="has a checkpoint of step 4, which a run without checkpoints would remove"):
        point(run_dir, 0)
    shutil.rmtree(run_dir / "checkpoints")
    assert point(run_dir, 0) == 0
    engine = run_dir / "history" / "replica-0" / "engine-0"
    engine.mkdir(parents=True)
    for name in ("pool", "switch.json", "lock", "../../routes.json"):
        (engine / name).touch()
    rewind(run_dir, 0)
    assert state(run_dir) == ([], [], 0, [], None)
    left = [path for path in (run_dir / "history").rglob("*") if path.is_file()]
    assert left == [engine / "lock"], "drafts of the run before would flatter this one; an engine of it may still end"
    assert not list(run_dir.glob("*.jsonl"))
    assert point(run_dir / "new", 1) == 0


def test_a_log_that_is_not_the_checkpoints_is_refused(run_dir):
    lines = (run_dir / "steps.jsonl").read_text().splitlines(keepends=True)
    for last in ([], [lines[3]]):  # the log ends early, or a step is missing
        (run_dir / "steps.jsonl").write_text("".join([*lines[:2], *last]))
        with pytest.raises(UserError, match="has a checkpoint of step 4, but its steps.jsonl ends at step 2"):
            point(run_dir, 1)


@pytest.mark.parametrize("name", ["steps", "engine-0", "answers-7"])
def test_a_broken_line_is_named(run_dir, name):
    path = run_dir / f"{name}.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], '{"step": 2, "da\n', *lines[1:]]))
    with pytest.raises(UserError, match=rf"{name}.jsonl, line 2, is not JSON"):
        rewind(run_dir, point(run_dir, 1))


def test_file_logger_adds_to_the_log(tmp_path, monkeypatch):
    from verl.utils.tracking import FileLogger

    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "steps.jsonl"))
    for step, name in ((1, "timing_s/step"), (2, "timing_s/step"), (3, "rollout/spec/tokens")):
        FileLogger("project", "run").log({name: 1.5}, step)
    assert [entry["step"] for entry in resume.read_steps(tmp_path / "steps.jsonl")] == [1, 2], "part of the third"


@pytest.fixture
def trainer(make_trainer, tmp_path):
    """Return a function that makes trainers: train batch 4, at most 2 batches in flight, checkpoints in tmp_path."""
    folders = {"default_local_dir": str(tmp_path), "default_hdfs_dir": None, "resume_mode": "auto"}
    filtering = {"filter_groups": {"enable": True, "max_num_gen_batches": 3, "max_inflight_gen_batches": 2}}
    config = {"trainer": folders | {"del_local_ckpt_after_load": False}, "algorithm": filtering}
    config |= {"data": {"train_batch_size": 4, "gen_batch_size": 1}, "actor_rollout_ref": {"actor": {}}}

    def make():
        made = make_trainer(config, 30, mock.Mock())
        made.checkpoint_callback = made.actor_rollout_wg = mock.Mock()
        return made

    return make


def test_a_step_without_prompts_to_train_on_ends(trainer):
    """A step may request 3 x 2 x 4 = 24 prompts, and the next step may do so again."""
    asking = trainer()
    for _ in range(2):
        asking._add_batch_to_generate()
        for _ in range(20):
            asking._add_prompts_to_generate(1)
        with pytest.raises(ValueError, match="training step 1 has asked 24 prompts and still lacks prompts whose"):
            asking._add_prompts_to_generate(1)
        asking.train_dataloader.take({asking.train_dataloader.asked[-1]["uid"][0]})
    asking.config.algorithm.filter_groups.enable = False  # there is no limit without filtering
    for _ in range(30):
        asking._add_prompts_to_generate(1)


def test_checkpoint_keeps_the_prompts_given_back(trainer, tmp_path):
    saving = trainer()
    saving._add_batch_to_generate()
    saving.train_dataloader.take({saving.train_dataloader.asked[1]["uid"][0]})
    saving._save_checkpoint()
    assert torch.load(tmp_path / "global_step_1" / "data.pt", weights_only=False)["given"] == 4
    loading = trainer()
    loading._load_checkpoint()
    assert loading.global_steps == 1
    assert [list(loading._fetch_one_gen_batch()["raw_prompt"]) for _ in range(3)] == [["p2"], ["p3"], ["p4"]]


def test_a_checkpoint_without_prompts_given_back_loads(trainer, tmp_path):
    """A checkpoint of an earlier release or of verl alone has no prompts given back."""
    saving = trainer()
    saving._add_batch_to_generate()
    saving.train_dataloader = saving.train_dataloader._dataloader
    saving._save_checkpoint()
    loading = trainer()
    loading._load_checkpoint()
    assert list(loading._fetch_one_gen_batch()["raw_prompt"]) == ["p4"]
