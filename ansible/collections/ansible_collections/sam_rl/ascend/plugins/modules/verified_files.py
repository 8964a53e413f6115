#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Compare the files of a folder with a manifest of their SHA-256."""

from __future__ import annotations

DOCUMENTATION = r"""
module: verified_files
short_description: Compare a folder with a manifest, reading again only files that changed
options:
  folder: {description: The folder, type: path, required: true}
  manifest: {description: "Lines `sha256  path`, paths below the folder", type: str, required: true}
  record: {description: File that records size and time of verified files, type: path, required: true}
"""
RETURN = r"""
bad: {description: "path, reason", type: list, elements: dict, returned: always}
count: {description: Files in the manifest, type: int, returned: always}
"""

import concurrent.futures
import hashlib
import json
import os
import re

from ansible.module_utils.basic import AnsibleModule


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 22), b""):
            digest.update(block)
    return digest.hexdigest()


def check(folder, path, expected, known):
    """(reason or None, note on the file or None); `known` is the note of an earlier call."""
    full = os.path.join(folder, path)
    try:
        state = os.stat(full)
        note = [state.st_size, state.st_mtime_ns, expected]
        if note != known and sha256(full) != expected:
            return "another sha256", None
    except OSError as error:
        return error.strerror or "unreadable", None
    return None, note


def main():
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "manifest": {"type": "str", "required": True},
            "record": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    expected = {}
    for number, line in enumerate(module.params["manifest"].splitlines(), 1):
        found = re.fullmatch(r"([0-9a-f]{64}) [ *](\S.*)", line)
        sha256, path = found.groups() if found else ("", "/")
        if path.startswith("/") or ".." in path.split("/"):
            module.fail_json(
                msg=f"line {number} of the manifest is not `sha256  path`: make it by sha256sum in the folder."
            )
        expected[path] = sha256
    record = module.params["record"]
    try:
        with open(record) as file:
            known = json.load(file)
    except (OSError, ValueError):
        known = {}
    with concurrent.futures.ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        jobs = {
            path: pool.submit(check, module.params["folder"], path, expected[path], known.get(path))
            for path in expected
        }
        results = {path: job.result() for path, job in jobs.items()}
    bad = [{"path": path, "reason": reason} for path, (reason, note) in results.items() if reason]
    notes = {path: note for path, (reason, note) in results.items() if note}
    if notes != known and not module.check_mode:
        fresh = os.path.join(module.tmpdir, "record.json")
        with open(fresh, "w") as file:
            json.dump(notes, file)
        module.atomic_move(fresh, record)
    module.exit_json(changed=False, bad=bad, count=len(expected))


if __name__ == "__main__":
    main()
