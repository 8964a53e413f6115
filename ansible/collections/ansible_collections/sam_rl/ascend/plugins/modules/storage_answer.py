#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ask a folder's storage for an answer within seconds: what reads a server that is gone waits without an end."""

from __future__ import annotations

DOCUMENTATION = r"""
module: storage_answer
short_description: Why the storage of a folder does not answer
options:
  folder: {description: The folder; its nearest ancestor that exists is asked, type: path, required: true}
  timeout: {description: Seconds to wait for the answer, type: float, default: 30}
author: [the authors of this repository]
"""
EXAMPLES = r"""
- name: Ask the storage
  sam_rl.ascend.storage_answer:
    folder: /data/runs
"""
RETURN = r"""
reason: {description: Why there is no answer or null, type: str, returned: always}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sam_rl.ascend.plugins.module_utils.host_state import no_answer


def main():
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "timeout": {"type": "float", "default": 30},
        },
        supports_check_mode=True,
    )
    module.exit_json(changed=False, reason=no_answer(module.params["folder"], module.params["timeout"]))


if __name__ == "__main__":
    main()
