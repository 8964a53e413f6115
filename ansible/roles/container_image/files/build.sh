#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Inside the image: unpack the pinned sources, patch them, compare their tree ids with the record, install them.
# Needs PIN_SET; uses PIP_INDEX_URL if it is set. The last lines must say `patched` three times.
set -euo pipefail

src=/opt/sam-rl-src
env=/opt/sam-rl-env
trees=/opt/sam-rl-build/trees
if [[ -n ${PIP_INDEX_URL:-} ]]; then
    export UV_DEFAULT_INDEX=$PIP_INDEX_URL
else
    unset PIP_INDEX_URL
fi
for file in /usr/local/Ascend/ascend-toolkit/set_env.sh /usr/local/Ascend/nnal/atb/set_env.sh; do
    set +u
    # shellcheck source=/dev/null
    [[ ! -f $file ]] || . "$file"
    set -u
done
devlib=/usr/local/Ascend/ascend-toolkit/latest/$(uname -m)-linux/devlib
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:$devlib

pin() { "$src/patches/patchset" pin "$PIN_SET" "$1"; }

python3 -m venv --system-site-packages "$env"
export PATH=$env/bin:$PATH
pip install --no-cache-dir "$(grep -m1 "^uv==" "$src/ci/tools.in")" # by which patchset finds the pinned sources
pip install --no-cache-dir "torch==$(pin runtime.npu.torch)" "torch_npu==$(pin runtime.npu.torch_npu).*" setuptools wheel

# The sources are checked by sha256 when they are unpacked; the patched trees by their ids.
"$src/patches/patchset" apply "$PIN_SET" --to "$trees"
state=$("$src/patches/patchset" status "$PIN_SET" --to "$trees")
for module in vllm vllm_ascend verl; do
    if [[ $state != *"tree $(pin "module.$module.recorded.patched_tree"), as recorded"* ]]; then
        echo "error: the patched tree of $module is not the recorded one: $state" >&2
        exit 1
    fi
done
export SETUPTOOLS_SCM_PRETEND_VERSION
SETUPTOOLS_SCM_PRETEND_VERSION=$(pin module.vllm.version)
VLLM_TARGET_DEVICE=empty pip install --no-cache-dir "$trees/vllm"
pip uninstall --yes triton
SETUPTOOLS_SCM_PRETEND_VERSION=$(pin module.vllm_ascend.version)
SOC_VERSION=ascend910_9391 COMPILE_CUSTOM_KERNELS=1 pip install --no-cache-dir --no-build-isolation "$trees/vllm_ascend"
unset SETUPTOOLS_SCM_PRETEND_VERSION
pip install --no-cache-dir "$trees/verl"
pip install --no-cache-dir --no-deps --no-build-isolation "$src/sam_core" "$src"
"$src/patches/patchset" status "$PIN_SET" --env "$env"
