#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains two steps by the recipe for one GPU, without and with SAM, and compares them. Needs a GPU, and verl, vLLM and
# this repository in the environment of python3, or of the interpreter that PYTHON names (docs/gpu.md). Examples:
#   tests/gpu/train.sh                                          the tiny model of this repository
#   tests/gpu/train.sh model.path=/models/Qwen3-0.6B data.max_response_length=2048      sums, by that model
# Prints both runs' tables (rollout/spec/*: in runs/gpu-train/auto/steps.jsonl) and the report's first lines: how many
# sampled tokens are equal, by seeds and places. The weights are sent to the engine, and it sleeps and wakes, each step.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
recipe=${RECIPE:-run_dapo_qwen3_0.6b_1gpu.sh}
out=${OUT:-$root/runs/gpu-train}
tiny=llm_rl/qwen3/tiny
settings=(
    steps=2 sam_options.verify=seeded env.SAM_ANSWER_LOG=1 checkpoints.every=0
    "model.path=$tiny" "data.train_files=$tiny/train.parquet" "data.val_files=$tiny/test.parquet"
    data.max_prompt_length=128 data.max_response_length=1024 data.train_batch_size=8 data.gen_batch_size=24
    train.ppo_mini_batch_size=8 algorithm.overlong.len=256
)
for sam in off auto; do
    "$root/llm_rl/qwen3/$recipe" "${settings[@]}" "$@" "sam=$sam" --run-dir "$out/$sam"
done
cd "$root"
"${PYTHON:-python3}" -m llm_rl.reports report --off "$out/off" --on "$out/auto" --out "$out/report"
grep -m 20 . "$out/report/report.md"
