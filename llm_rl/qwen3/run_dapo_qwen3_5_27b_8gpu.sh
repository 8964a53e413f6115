#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# DAPO of Qwen3.5-27B on one node of 8 GPUs of 80 GB; it starts its own Ray, or joins a running one. Examples:
#   run_dapo_qwen3_5_27b_8gpu.sh --dry-run            print what would run, and the memory
#   run_dapo_qwen3_5_27b_8gpu.sh                      SAM drafts 3 tokens while at most 32 requests run
#   run_dapo_qwen3_5_27b_8gpu.sh sam=off              the baseline
# SAM_RL_MODELS, SAM_RL_DATA: folders of models and data. PYTHON: the interpreter (default python3).
export PIN=${PIN:-gpu} PYTHON=${PYTHON:-python3}
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

launch llm_rl/qwen3/dapo_qwen3_5_27b_8gpu.yaml "$@"
