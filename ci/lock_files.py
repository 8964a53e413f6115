# SPDX-License-Identifier: Apache-2.0
"""Lock files: hash-locked requirements written by `make lock`, and folders of their wheels."""

import contextlib
import hashlib
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "patches"))

from _patchset.git import Failure


def normal(dist: str) -> str:
    """A distribution's name in its normal form: Foo_Bar is foo-bar."""
    return re.sub(r"[-_.]+", "-", dist).lower()


def locked(lock: Path) -> dict[str, tuple[str, set[str]]]:
    """The entries of a lock file: {"name==version": (the entry's text, its SHA-256 hashes)}."""
    entries = {}
    for text in re.findall(r"^[A-Za-z0-9].*(?:\n[ \t]+.*)*", lock.read_text(), re.MULTILINE):
        pin = re.match(r"[A-Za-z0-9._-]+==[^ ;\\]+", text)
        hashes = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", text))
        if not pin or not hashes:
            raise Failure(f"{lock} has an entry without version or hash ({text[:60]!r}): rewrite it with make lock.")
        entries[pin.group()] = (text, hashes)
    return entries


def lacking(lock: Path, wheelhouse: Path) -> dict[str, str]:
    """The entries of `lock` for which `wheelhouse` has no file with a matching hash: {"name==version": text}."""
    found: dict[str, set[str]] = {}
    entries = locked(lock)
    names = {pin: normal(pin.replace("==", "-")) for pin in entries}
    for path in wheelhouse.glob("*"):
        for pin, name in names.items():
            if normal(path.name).startswith(name):
                with open(path, "rb") as file:
                    found.setdefault(pin, set()).add(hashlib.file_digest(file, "sha256").hexdigest())
    return {pin: text for pin, (text, hashes) in entries.items() if not hashes & found.get(pin, set())}


@contextlib.contextmanager
def lock_file(entries: Iterable[str]) -> Iterator[Path]:
    """A temporary lock file of these entries."""
    with tempfile.TemporaryDirectory(prefix="setup-env-") as folder:
        path = Path(folder) / "requirements.lock"
        path.write_text("\n".join(entries) + "\n")
        yield path
