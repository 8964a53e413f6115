#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Pack files and the output of commands into one archive, with secrets removed."""

from __future__ import annotations

DOCUMENTATION = r"""
module: support_archive
short_description: One .tar.gz of files and command outputs for support, secrets masked
options:
  dest: {description: The archive, type: path, required: true}
  top: {description: Name of the folder in it, type: str, required: true}
  files: {description: Files to take (patterns of glob), type: list, elements: str, default: []}
  newest: {description: "Lists of patterns, whose newest files are taken", type: list, elements: list, default: []}
  newest_mb: {description: MB that each list of C(newest) may take in all, type: int, default: 500}
  archives: {description: Archives of this module to combine unchanged, type: list, elements: path, default: []}
  commands: {description: "Commands by the name of their output", type: dict, default: {}}
  limit_mb: {description: MB at the end of each file or output that are taken, type: int, default: 20}
  secrets: {description: Secret variables and their values, type: dict, default: {}}
"""
RETURN = r"""
names: {description: What is in it, type: list, elements: str, returned: always}
"""

import glob
import io
import os
import subprocess
import tarfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sam_rl.ascend.plugins.module_utils.secrets import mask


def tail(path, limit):
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - limit))
        return file.read(limit)


def newest(patterns, limit, total):
    """Yield matching files, newest first, until `total` bytes are used; each counts with at most `limit` bytes."""
    states = {}
    for pattern in patterns:
        for path in glob.glob(pattern, recursive=True):
            if os.path.isfile(path):
                states[os.path.realpath(path)] = os.stat(path)
    for path, state in sorted(states.items(), key=lambda item: -item[1].st_mtime):
        total -= min(state.st_size, limit)
        if total < 0:
            return
        yield path


def output(command, limit):
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{' '.join(command)}: {error}\n".encode()
    return done.stdout[-limit:]


def main():
    module = AnsibleModule(
        argument_spec={
            "dest": {"type": "path", "required": True},
            "top": {"type": "str", "required": True},
            "files": {"type": "list", "elements": "str", "default": []},
            "newest": {"type": "list", "elements": "list", "default": []},
            "newest_mb": {"type": "int", "default": 500},
            "archives": {"type": "list", "elements": "path", "default": []},
            "commands": {"type": "dict", "default": {}},
            "limit_mb": {"type": "int", "default": 20},
            "secrets": {"type": "dict", "default": {}, "no_log": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    limit = params["limit_mb"] << 20
    names: list[str] = []
    if module.check_mode:
        module.exit_json(changed=True, names=names)
    fresh = f"{params['dest']}.new"
    try:
        os.makedirs(os.path.dirname(fresh), exist_ok=True)
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(handle, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:

            def add(name, data):
                info = tarfile.TarInfo(f"{params['top']}/{name}")
                info.size, info.mode = len(data), 0o600
                archive.addfile(info, io.BytesIO(data))
                names.append(name)

            for name, command in sorted(params["commands"].items()):
                add(name, mask(output(command, limit), params["secrets"]))
            paths = [path for pattern in params["files"] for path in sorted(glob.glob(pattern)) if os.path.isfile(path)]
            for patterns in params["newest"]:
                paths += newest(patterns, limit, params["newest_mb"] << 20)
            for path in paths:
                add(path.lstrip("/"), mask(tail(path, limit), params["secrets"]))
            for path in params["archives"]:
                with open(path, "rb") as part:
                    add(os.path.basename(path), part.read())
        os.replace(fresh, params["dest"])
    except OSError as error:
        module.fail_json(msg=f"{params['dest']}: the archive cannot be written ({error}): free some space there.")
    module.exit_json(changed=True, names=names)


if __name__ == "__main__":
    main()
