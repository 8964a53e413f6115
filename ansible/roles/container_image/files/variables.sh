# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash source=/dev/null
# CANN's variables, and jemalloc where the image has it, as in an interactive shell of vllm-ascend's image.
for file in /usr/local/Ascend/ascend-toolkit/set_env.sh /usr/local/Ascend/nnal/atb/set_env.sh; do
    [[ ! -f $file ]] || . "$file"
done
for file in /usr/lib/*-linux-gnu/libjemalloc.so.2 /usr/lib64/libjemalloc.so.2; do
    [[ ! -f $file ]] || export LD_PRELOAD=$file
done
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:/usr/local/lib
