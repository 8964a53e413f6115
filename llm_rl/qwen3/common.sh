# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by every run_*.sh: finds the repository and the pin set's environment, and defines `launch`.
# PIN or the override pin_set=... chooses the pin set, PYTHON another interpreter, for example in a container.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
for word in "$@"; do
    if [[ $word == pin_set=* ]]; then PIN=${word#pin_set=}; fi
done
export PIN=${PIN:-vllm-0.23}
pin=$PIN
if [[ ! -f $root/patches/$pin/pins.toml ]]; then
    choices=$(cd "$root/patches" && echo */pins.toml)
    echo "error: $pin is not a pin set: choose from ${choices//\/pins.toml/}" >&2
    exit 1
fi
python=${PYTHON:-$root/.venvs/$pin/bin/python}
if [[ -d $python || ! -x $(command -v "$python") ]]; then
    remedy="run ci/setup-env $pin first"
    [[ $pin != gpu ]] || remedy="install what docs/gpu.md names"
    echo "error: there is no program $python: ${PYTHON:+set PYTHON to an interpreter, or unset it and }$remedy" >&2
    exit 1
fi
[[ $python != */* ]] || python=$(realpath -s "$python")
cd "$root"

launch() {
    exec "$python" -m llm_rl.launch "$@"
}
