#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# remove-created.sh WORK_DIR: removes what the playbooks created there: runs, the copies that .sam-rl-created lists (ending in /) and,
# once they are empty, the folders that it lists. Mounts stay. Prints `removed NAME`, and `left NAME` for what is not theirs.
set -euo pipefail
cd "$1" 2>/dev/null || exit 0

remove() {
    for path; do
        [[ -e $path ]] || continue
        if rm -rf --one-file-system -- "$path"; then echo "removed $path"; fi
    done
}

for request in runs/*/request.json; do
    [[ -e $request ]] || continue
    run=$(basename "$(dirname "$request")")
    remove "runs/$run" "metrics/$run.prom" "metrics/$run.json"
done
created=()
[[ ! -f .sam-rl-created ]] || mapfile -t created < <(sort -ru .sam-rl-created)
for name in "${created[@]}"; do
    path=${name%/}
    if [[ -z $path || $path == /* || $path == *..* ]]; then
        echo "left $name" # not a name that a playbook writes
    elif [[ $name == */ ]]; then
        remove "$path" "$path".{complete,copying,lock,verified{,.new,.json}}
    elif [[ $path != . && -d $path ]] && ! mountpoint -q "$path" && [[ ! $(ls -A "$path") ]]; then
        rmdir "$path" && echo "removed $path"
    fi
done
left=$(find . -mindepth 1 -maxdepth 2 ! -path ./.sam-rl-created \( ! -type d -o -empty -o -path './*/*' \) -printf 'left %P\n' | sort)
[[ -z $left ]] || echo "$left"
if [[ " ${created[*]} " == *" . "* && ! $(find . -mindepth 1 -maxdepth 1 ! -name .sam-rl-created) ]]; then
    rm -f .sam-rl-created
    mountpoint -q . || { cd / && rmdir "$1" && echo "removed $1"; }
fi
