#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Pack parts of a git checkout, named by what is in them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: source_archive
short_description: Archive of parts of a git checkout as it is on disk, named by its tree id
description:
  - Tracked files count as they are, changed ones too; untracked files are left out.
  - The same files give the same tree id and name; an existing archive is not written again.
options:
  repository: {description: The checkout, type: path, required: true}
  paths: {description: Files and folders to pack, type: list, elements: str, required: true}
  folder: {description: Where archives go, type: path, required: true}
"""
RETURN = r"""
tree: {description: Git tree id of the parts, type: str, returned: always}
path: {description: The archive, type: str, returned: always}
"""

import os
import shutil
import subprocess
import tempfile

from ansible.module_utils.basic import AnsibleModule


def main():
    module = AnsibleModule(
        argument_spec={
            "repository": {"type": "path", "required": True},
            "paths": {"type": "list", "elements": "str", "required": True},
            "folder": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    repository, folder = module.params["repository"], module.params["folder"]

    def git(*words, **variables):
        command = ["git", "-C", repository, *words]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            module.fail_json(
                msg=f"{repository}: `git {words[0]}` failed ({reason}): run playbooks from a git checkout."
            )
        return done.stdout.strip()

    try:
        with tempfile.TemporaryDirectory(prefix="source-archive-") as scratch:
            index = os.path.join(scratch, "index")
            shutil.copyfile(git("rev-parse", "--path-format=absolute", "--git-path", "index"), index)
            git("add", "--update", "--", *module.params["paths"], GIT_INDEX_FILE=index)
            whole = git("write-tree", GIT_INDEX_FILE=index)
            listed = git("ls-tree", "-z", whole, "--", *module.params["paths"])
            done = subprocess.run(
                ["git", "-C", repository, "mktree", "-z"], input=listed, capture_output=True, text=True, check=True
            )
            tree = done.stdout.strip()
            path = os.path.join(folder, f"src-{tree}.tar.gz")
            result = {"tree": tree, "path": path}
            if os.path.exists(path):
                module.exit_json(changed=False, **result)
            if not module.check_mode:
                os.makedirs(folder, exist_ok=True)
                fresh = os.path.join(scratch, "src.tar.gz")
                git("archive", "--format=tar.gz", "--output", fresh, tree)
                module.atomic_move(fresh, path)
    except OSError as error:
        module.fail_json(msg=f"{folder}: the archive cannot be written ({error.strerror}): make it a writable folder.")
    module.exit_json(changed=True, **result)


if __name__ == "__main__":
    main()
