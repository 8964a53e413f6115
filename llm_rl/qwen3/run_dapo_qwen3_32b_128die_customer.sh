#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# DAPO of the article's customer case, Qwen3-32B on 8 hosts of 16 dies. Run it on the Ray head, or with RAY_ADDRESS set. Examples:
#   run_dapo_qwen3_32b_128die_customer.sh                 SAM as in the article
#   run_dapo_qwen3_32b_128die_customer.sh sam=off         the baseline
#   run_dapo_qwen3_32b_128die_customer.sh profile=recommended     our settings instead of the article's
#   run_dapo_qwen3_32b_128die_customer.sh --dry-run       print what would run, and the memory
# SAM_RL_MODELS, SAM_RL_DATA: folders of models and data; SAM_RL_INTERFACE: the network interface between hosts.
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

launch llm_rl/qwen3/dapo_qwen3_32b_128die_customer.yaml "$@"
