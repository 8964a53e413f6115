#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Take or give back the lock of a cluster, a file on its first host. The action of the same name calls this."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_lock
short_description: Lock of a cluster against a second playbook
options:
  path: {description: The file, type: path, default: /run/sam-rl.lock}
  state: {description: Whether the lock is taken or given back, type: str, choices: [held, free], default: held}
  owner: {description: "Who asks: user, machine, process, what", type: dict, required: true}
  minutes: {description: After which a holder without a sign of life loses the lock, type: int, default: 1440}
  break: {description: Take it from its holder, type: bool, default: false}
author: [the authors of this repository]
"""
EXAMPLES = r"""
- name: Take the lock
  sam_rl.ascend.cluster_lock:
    what: provision
"""
RETURN = r"""
holder: {description: Who holds the lock instead and its age in seconds or null, type: dict, returned: always}
"""

import json
import os
import time

from ansible.module_utils.basic import AnsibleModule

SAME = ("user", "machine", "process")


def read(path):
    """(who holds the lock, seconds since their last sign of life), or None."""
    try:
        age = time.time() - os.stat(path).st_mtime
        with open(path) as file:
            return json.load(file), age
    except FileNotFoundError:
        return None
    except ValueError:  # the holder was ended while it wrote
        return {}, age


def take(path, owner, seconds, force):
    """None if the lock is `owner`'s now, else its holder. A sign of life is the file's time."""
    while True:
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            found = read(path)
            if found is None:
                continue
            holder, age = found
            if all(holder.get(key) == owner[key] for key in SAME):
                os.utime(path)
                return None
            if not force and age < seconds:
                return {**holder, "age": age}
            try:
                os.rename(path, f"{path}.{os.getpid()}")  # of two that take it, one succeeds
                os.unlink(f"{path}.{os.getpid()}")
            except FileNotFoundError:
                pass
            continue
        with open(handle, "w") as file:
            json.dump({**owner, "since": time.time()}, file)
        return None


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "default": "/run/sam-rl.lock"},
            "state": {"type": "str", "choices": ["held", "free"], "default": "held"},
            "owner": {"type": "dict", "required": True},
            "minutes": {"type": "int", "default": 1440},
            "break": {"type": "bool", "default": False},
        },
    )
    path, owner, holder = module.params["path"], module.params["owner"], None
    if module.params["state"] == "held":
        holder = take(path, owner, 60 * module.params["minutes"], module.params["break"])
    elif (found := read(path)) and all(found[0].get(key) == owner[key] for key in SAME):
        os.unlink(path)
    module.exit_json(changed=False, holder=holder)


if __name__ == "__main__":
    main()
