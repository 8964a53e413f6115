#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command with CANN's variables and the pin set's environment.
set -eo pipefail
for file in /usr/local/Ascend/ascend-toolkit/set_env.sh /usr/local/Ascend/nnal/atb/set_env.sh; do
    # shellcheck source=/dev/null
    [[ ! -f $file ]] || . "$file"
done
export PATH=/opt/sam-rl-env/bin:$PATH
exec "$@"
