#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# DAPO of a tiny Qwen3 with a tool, two turns a conversation, on this machine's CPU. Examples:
#   run_dapo_qwen3_tiny_tools_cpu.sh                       SAM drafts what pays off in each step
#   run_dapo_qwen3_tiny_tools_cpu.sh sam=off               the baseline
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

launch llm_rl/qwen3/dapo_qwen3_tiny_tools_cpu.yaml "$@"
