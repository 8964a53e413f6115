#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# DAPO of a tiny Qwen3 on this machine's CPU. Examples:
#   run_dapo_qwen3_tiny_cpu.sh                       SAM drafts what pays off in each step
#   run_dapo_qwen3_tiny_cpu.sh sam=batch             the article's switch: while at most 8 requests run
#   run_dapo_qwen3_tiny_cpu.sh sam=off               the baseline
#   run_dapo_qwen3_tiny_cpu.sh steps=20 sam_options.k=4 sam_options.rule=oldest
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

launch llm_rl/qwen3/dapo_qwen3_tiny_cpu.yaml "$@"
