#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pack.sh REPOSITORY FOLDER PATH...: packs the tracked files of a git checkout as they are on disk into FOLDER/src-TREE.tar.gz,
# unless it is there, and prints TREE, git's id of these files.
set -euo pipefail
cd "$1"
folder=$2
shift 2
mkdir -p "$folder"
scratch=$(mktemp -d "$folder/.pack-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
cp "$(git rev-parse --path-format=absolute --git-path index)" "$scratch/index"
GIT_INDEX_FILE=$scratch/index git add --update -- "$@"
whole=$(GIT_INDEX_FILE=$scratch/index git write-tree)
tree=$(git ls-tree -z "$whole" -- "$@" | git mktree -z)
if [[ ! -e $folder/src-$tree.tar.gz ]]; then
    git archive --format=tar.gz --output="$scratch/src.tar.gz" "$tree"
    mv "$scratch/src.tar.gz" "$folder/src-$tree.tar.gz"
fi
echo "$tree"
