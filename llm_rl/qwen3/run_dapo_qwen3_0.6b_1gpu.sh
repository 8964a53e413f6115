#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# DAPO of Qwen3-0.6B on one GPU of 24 GB or more; it starts its own Ray, or joins a running one. Examples:
#   run_dapo_qwen3_0.6b_1gpu.sh --dry-run            print what would run, and the memory
#   run_dapo_qwen3_0.6b_1gpu.sh                      SAM drafts what pays off in each step
#   run_dapo_qwen3_0.6b_1gpu.sh sam=off              the baseline
# SAM_RL_MODELS, SAM_RL_DATA: folders of models and data. PYTHON: the interpreter (default python3).
export PIN=${PIN:-gpu} PYTHON=${PYTHON:-python3}
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

launch llm_rl/qwen3/dapo_qwen3_0.6b_1gpu.yaml "$@"
