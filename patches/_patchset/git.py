# SPDX-License-Identifier: Apache-2.0
"""Run git without the user's configuration, and compute git's object ids without git."""

import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

NAME, EMAIL = "SAM RL recipes", "patches@localhost"
BASE_TAG = "patchset-base"

FILE, EXECUTABLE, SYMLINK = "100644", "100755", "120000"

# Entries of a tree: path relative to its root -> (mode, blob id).
Entries = dict[str, tuple[str, str]]


class Failure(Exception):
    """One sentence for the user: what is wrong, where, and what to do."""


class GitFailure(Failure):
    """A git command that failed; `reason` is its first error message."""

    def __init__(self, command: str, cwd: Path, reason: str):
        super().__init__(f"git {command} failed in {cwd}: {reason}")
        self.reason = reason


def write_file(path: Path, data: bytes) -> None:
    """Write a file; an OSError names it."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def object_id(kind: str, body: bytes) -> str:
    """Git's SHA-1 id (40 hex digits) of a `blob` or `tree` with these bytes."""
    return hashlib.sha1(f"{kind} {len(body)}\0".encode() + body, usedforsecurity=False).hexdigest()


def blob_id(data: bytes) -> str:
    """Git's id of a file with these bytes, without any filter or line-end conversion."""
    return object_id("blob", data)


def tree_id(entries: Entries) -> str:
    """Git's id of the tree with exactly these files, regardless of ignore rules and attributes."""
    root: dict[str, Any] = {}
    for path, entry in entries.items():
        *folders, name = path.split("/")
        node = root
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = entry

    def write(node: dict[str, Any]) -> str:
        rows = []
        for name, child in node.items():
            raw = os.fsencode(name)
            if isinstance(child, dict):
                rows.append((raw + b"/", b"40000 " + raw, write(child)))
            else:
                rows.append((raw, child[0].encode() + b" " + raw, child[1]))
        return object_id("tree", b"".join(head + b"\0" + bytes.fromhex(oid) for _, head, oid in sorted(rows)))

    return write(root)


def scan(root: Path) -> Entries:
    """Entries of all files below root, except its `.git` and `.patchset`."""
    entries: Entries = {}
    for folder, folders, names in os.walk(root):
        if folder == os.fspath(root):
            folders[:] = [f for f in folders if f not in (".git", ".patchset")]
            names = [n for n in names if n != ".git"]
        for name in names + [f for f in folders if os.path.islink(os.path.join(folder, f))]:
            path = os.path.join(folder, name)
            if os.path.islink(path):
                entry = SYMLINK, blob_id(os.fsencode(os.readlink(path)))
            else:
                entry = file_mode(path), blob_id(Path(path).read_bytes())
            entries[os.path.relpath(path, root)] = entry
    return entries


def file_mode(path: Path | str) -> str:
    """Git's mode of a regular file on disk."""
    return EXECUTABLE if os.stat(path).st_mode & 0o100 else FILE


def run(*args: str | Path, cwd: Path, data: bytes | None = None, date: str | None = None) -> bytes:
    """Run git in cwd under a neutral identity and return its standard output.

    Ignores the user's and the system's configuration and all GIT_* variables. date: the author's and committer's date.
    Raises GitFailure if git fails, Failure if it is not installed.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") and k not in ("HOME", "XDG_CONFIG_HOME")}
    env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1", "LC_ALL": "C"}
    for role in ("AUTHOR", "COMMITTER"):
        env |= {f"GIT_{role}_NAME": NAME, f"GIT_{role}_EMAIL": EMAIL}
        if date:
            env[f"GIT_{role}_DATE"] = date
    settings = ("core.autocrlf=false", "core.quotePath=true", "core.fsmonitor=false", "gc.auto=0", "safe.directory=*")
    command = ["git", *(word for setting in settings for word in ("-c", setting)), *map(str, args)]
    try:
        done = subprocess.run(command, check=False, cwd=cwd, env=env, input=data or b"", capture_output=True)
    except FileNotFoundError as error:
        raise Failure("git is not installed or not on PATH; install it and run again.") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        errors = [line for line in lines if line.startswith(("error:", "fatal:"))]
        raise GitFailure(str(args[0]), cwd, (errors or lines or ["no message"])[0])
    return done.stdout


def text(*args: str | Path, cwd: Path, **options: Any) -> str:
    """Like run(), with the output decoded and stripped."""
    return run(*args, cwd=cwd, **options).decode().strip()


def init(folder: Path, bare: bool = False) -> None:
    """Create a repository that stores files byte for byte, regardless of their .gitattributes."""
    options = ["--bare"] if bare else []
    run("init", "--quiet", "--initial-branch=patches", *options, folder, cwd=folder.parent)
    git_dir = folder if bare else folder / ".git"
    (git_dir / "info").mkdir(exist_ok=True)
    (git_dir / "info" / "attributes").write_text("* -text -eol -ident -filter -working-tree-encoding\n")
