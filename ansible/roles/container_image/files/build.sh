#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Inside the image: add to vllm-ascend's image what training needs, patch its source trees in place, install verl, sam_core
# and llm_rl. Needs PIN_SET. Uses PIP_INDEX_URL if it is set. With MEGATRON, "URL COMMIT URL COMMIT" of Megatron-LM and
# MindSpeed, also those two. The last lines must say `patched` three times.
set -euo pipefail

src=/opt/sam-rl-src
trees=/opt/sam-rl-build/trees
workspace=/vllm-workspace
if [[ -n ${PIP_INDEX_URL:-} ]]; then
    export UV_DEFAULT_INDEX=$PIP_INDEX_URL
else
    unset PIP_INDEX_URL
fi
set +eu
# shellcheck source=/dev/null
. /opt/sam-rl-build/variables.sh
set -eu

pin() { "$src/patches/patchset" pin "$PIN_SET" "$1"; }
fail() { echo "error: $1" >&2; exit 1; }
pip() { python3 -m pip --no-cache-dir --disable-pip-version-check "$@"; }
clone() { # URL COMMIT FOLDER
    git clone --quiet --no-checkout "$1" "$3"
    git -C "$3" checkout --quiet --detach "$2" || fail "the repository of $3 has no commit $2: update its mirror"
    git -C "$3" remote remove origin # its address may have a password
}

for tree in vllm vllm-ascend; do
    [[ -d $workspace/$tree ]] || fail "the base image has no $workspace/$tree: build on $(pin runtime.npu.image)"
done
python=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[[ $python == "$(pin runtime.npu.python)" ]] || fail "the base image has Python $python: build on $(pin runtime.npu.image)"

# What is added must not break what the base image holds: pip may complain of nothing that it did not complain of before.
complaints=$(pip check | sort || true)
must_fit() { # WHAT
    local new
    new=$(comm -13 <(echo "$complaints") <(pip check | sort || true) | grep -v "^No broken" || true)
    [[ -z $new ]] || fail "$1 does not fit the base image: $new"
}
pip install --no-deps --no-build-isolation --require-hashes -r "$src/patches/$PIN_SET/image.lock"
must_fit image.lock

"$src/patches/patchset" apply "$PIN_SET" --module vllm --to "$workspace/vllm"
"$src/patches/patchset" apply "$PIN_SET" --module vllm_ascend --to "$workspace/vllm-ascend"
# verl's sources are checked by SHA-256 when they are unpacked.
"$src/patches/patchset" apply "$PIN_SET" --module verl --to "$trees"
pip install --no-deps --no-build-isolation --editable "$trees/verl"
pip install --no-deps --no-build-isolation "$src/sam_core" "$src"
must_fit verl

if [[ -n ${MEGATRON:-} ]]; then
    read -r megatron_lm megatron_commit mindspeed mindspeed_commit <<<"$MEGATRON"
    clone "$megatron_lm" "$megatron_commit" /opt/megatron_lm
    clone "$mindspeed" "$mindspeed_commit" /opt/mindspeed
    pip install --no-deps --no-build-isolation --editable /opt/megatron_lm --editable /opt/mindspeed
fi
"$src/patches/patchset" status "$PIN_SET" --env "$(python3 -c 'import sys; print(sys.prefix)')"
