#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Measure how fast a host writes to a folder, as its processes write a checkpoint."""

from __future__ import annotations

DOCUMENTATION = r"""
module: storage_info
short_description: Write rate and free space of a folder's storage
options:
  folder: {description: The folder or, if it is not there, the nearest one above that is, type: path, required: true}
  counted: {description: Folder whose size is asked for; it need not be there, type: path, required: true}
  seconds: {description: Time to write, type: float, required: true}
  gb: {description: GB that the files take up at most, type: float, required: true}
"""
RETURN = r"""
written_gb: {description: GB that were written, type: float, returned: always}
seconds: {description: Time that this took, type: float, returned: always}
free_gb: {description: Free GB before, type: float, returned: always}
counted_gb: {description: GB in `counted`, type: float, returned: always}
error: {description: "Why nothing can be written, or an empty text", type: str, returned: always}
"""

import concurrent.futures
import os
import tempfile
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sam_rl.ascend.plugins.module_utils.host_state import existing, free_gb

BLOCK = os.urandom(16 << 20)
"""Random data, which storage with compression or deduplication must still write in full."""
WRITERS = 8
"""Number of files that are written at the same time."""


def write(folder, size, deadline):
    """Write to a file of at most `size` bytes until the deadline; return the bytes that have reached the storage."""
    written = 0
    with tempfile.TemporaryFile(dir=folder) as file:
        while not written or time.monotonic() < deadline:
            if file.tell() + len(BLOCK) > size:
                file.seek(0)
            file.write(BLOCK)
            file.flush()
            os.fdatasync(file.fileno())
            written += len(BLOCK)
    return written


def main():
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "counted": {"type": "path", "required": True},
            "seconds": {"type": "float", "required": True},
            "gb": {"type": "float", "required": True},
        }
    )
    given = module.params
    folder = existing(given["folder"])
    free = free_gb(folder)
    files = (os.path.join(top, name) for top, _, names in os.walk(given["counted"]) for name in names)
    counted = sum(os.lstat(file).st_size for file in files) / 1e9
    begin, written, error = time.monotonic(), 0, ""
    words = folder, given["gb"] * 1e9 / WRITERS, begin + given["seconds"]
    with concurrent.futures.ThreadPoolExecutor(WRITERS) as pool:
        try:
            written = sum(future.result() for future in [pool.submit(write, *words) for _ in range(WRITERS)])
        except OSError as problem:
            error = problem.strerror or "no reason given"
    module.exit_json(
        changed=False,
        written_gb=written / 1e9,
        seconds=time.monotonic() - begin,
        free_gb=free,
        counted_gb=counted,
        error=error,
    )


if __name__ == "__main__":
    main()
