#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The test bed's recipe, put next to the others in its copy of the repository: bed_job.py on the cluster's Ray.
# shellcheck source=../../../../llm_rl/qwen3/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

exec "$python" "$root/llm_rl/qwen3/bed_job.py" "$@"
