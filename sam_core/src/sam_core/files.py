# SPDX-License-Identifier: Apache-2.0
"""Files that are written as a whole or not at all, and locks between processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of a file system that has no locks."""

NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.ESTALE)
"""Errors of writing, which name no file. Other unnamed errors, such as those of a process, concern no file."""


def check_output(path: Path, inputs: Iterable[str | os.PathLike[str]] = ()) -> None:
    """Check that a file can be written to `path`, before its content is computed.

    Raises ValueError, one sentence, if `path` is a device or a pipe, or one of `inputs`, also under another name or
    through a link; OSError, which names `path`, if `path` is a folder or its folder cannot be written to.
    """
    if path.is_dir():
        raise _named(errno.EISDIR, path)
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no regular file: name another file")
    if any(_is_same(path, other) for other in inputs):
        raise ValueError(f"{path} is also an input or another output, and would be lost: name another file")
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        raise _named(errno.ENOTDIR if os.path.exists(folder) else errno.ENOENT, path)
    if not os.access(folder, os.W_OK):
        raise _named(errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES, path)


@contextlib.contextmanager
def replacing(path: Path, inputs: Iterable[str | os.PathLike[str]] = ()) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces `path` if the block raises nothing.

    The new file keeps the permissions of the old one. If `path` is a symbolic link, its target is replaced. Raises what
    `check_output` raises, and OSError, which names `path`, if it cannot be written.
    """
    check_output(path, inputs)
    target = Path(os.path.realpath(path))
    temporary = target.parent / f".{target.name[:32]}.{os.getpid()}-{secrets.token_hex(4)}"
    in_block = False
    try:
        mode = stat.S_IMODE(os.stat(target).st_mode) if target.is_file() else None
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 | (mode or 0o666)))
        in_block = True
        yield temporary
        in_block = False
        if mode is not None:
            os.chmod(temporary, mode)
        _sync(temporary)
        os.replace(temporary, target)
    except OSError as error:
        unnamed = error.filename is None and (error.errno in NOT_WRITTEN or not in_block)
        if error.errno and (unnamed or error.filename == os.fspath(temporary)):
            raise _named(error.errno, path) from error
        raise
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
    with contextlib.suppress(OSError):  # not all file systems sync folders
        _sync(target.parent)


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add `path` to an error of writing in the block (NOT_WRITTEN), such as a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno in NOT_WRITTEN and error.filename is None:
            raise _named(error.errno, path) from error
        raise


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON with `replacing`; raises what that raises."""
    with replacing(path) as temporary, open(temporary, "w") as file:
        json.dump(value, file, indent=1)
        file.write("\n")


def _is_same(path: Path, other: str | os.PathLike[str]) -> bool:
    """Whether both are the same file, which need not exist."""
    try:
        return os.path.samefile(path, other)
    except OSError:
        return os.path.realpath(path) == os.path.realpath(other)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _named(number: int, path: str | os.PathLike[str]) -> OSError:
    return OSError(number, os.strerror(number), os.fspath(path))


def try_lock(descriptor: int, path: Path, lock_file: Callable[[int, int], None] = fcntl.flock) -> None:
    """Lock an open file for this process and its forked children; with fcntl.lockf, for this process alone.

    Raises BlockingIOError if another process holds it; ValueError, one sentence, if its file system has no locks;
    OSError.
    """
    try:
        lock_file(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise ValueError(
            f"{path.parent} is on a file system without locks ({error.strerror}): have it mounted with locks (Lustre: "
            "option flock; NFS 3: with rpc.statd running, or option nolock if no other host uses it), or name a folder "
            "elsewhere"
        ) from None


def lock(path: Path, timeout_s: float) -> int:
    """Lock a file for this process until the returned descriptor, or any other that it has for the file, is closed.

    Forked children do not hold the lock. Raises BlockingIOError if another process holds it until the timeout, and
    what `try_lock` raises.
    """
    descriptor, end = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), time.monotonic() + timeout_s
    try:
        while True:
            try:
                try_lock(descriptor, path, fcntl.lockf)
                return descriptor
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise
                time.sleep(min(0.1, timeout_s / 10))
    except (OSError, ValueError):
        os.close(descriptor)
        raise
