#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Put a file into a folder, look for it from another host, or remove it: whether hosts share the folder."""

from __future__ import annotations

DOCUMENTATION = r"""
module: shared_marker
short_description: Put an empty file into a folder, look for it, or remove it
description:
  - The folder is C(folder) or its nearest ancestor that exists. Nothing of it changes for long, so changed is false.
options:
  folder: {description: The folder, type: path, required: true}
  name: {description: Name of the file; not for state put, type: str}
  state: {description: What to do, type: str, choices: [put, seen, removed], required: true}
author: [the authors of this repository]
"""
EXAMPLES = r"""
- name: Put a file into the folder
  sam_rl.ascend.shared_marker:
    folder: /data/runs
    state: put
"""
RETURN = r"""
name: {description: Name of the file, type: str, returned: for state put}
seen: {description: Whether the file is there, type: bool, returned: for state seen}
"""

import os
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sam_rl.ascend.plugins.module_utils.host_state import existing


def main():
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "name": {"type": "str"},
            "state": {"type": "str", "choices": ["put", "seen", "removed"], "required": True},
        },
        required_if=[("state", "seen", ["name"]), ("state", "removed", ["name"])],
        supports_check_mode=True,
    )
    folder, name, state = existing(module.params["folder"]), module.params["name"], module.params["state"]
    if state == "put":
        try:
            handle, path = tempfile.mkstemp(prefix=".sam-rl-shared-", dir=folder)
        except OSError as error:
            module.fail_json(
                msg=f"nothing can be written to {folder} ({error.strerror}): mend its file system or rights."
            )
        os.close(handle)
        module.exit_json(changed=False, name=os.path.basename(path))
    path = os.path.join(folder, name)
    if state == "seen":
        module.exit_json(changed=False, seen=os.path.exists(path))
    if os.path.exists(path):
        os.unlink(path)
    module.exit_json(changed=False)


if __name__ == "__main__":
    main()
