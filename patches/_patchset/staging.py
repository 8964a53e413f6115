# SPDX-License-Identifier: Apache-2.0
"""Changes to many files below one root: all new files are written before the first one is replaced.

During a change <root>/.patchset holds:

    lock            locked with flock by the process that changes the root
    stage/<n>       each new file or new folder, complete and synced

Then they are renamed one by one. If the process is killed in between, old and new files coexist until the same command
is called again.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import sys
from pathlib import Path
from typing import Self

from .git import Failure

BOX = ".patchset"
NO_LOCKS = (
    "have it mounted with locks (Lustre: option flock; NFS 3: with rpc.statd running, or option nolock if no other "
    "host uses it), or use another folder"
)
FULL = "free some space"
REMEDIES = {
    errno.EACCES: "run as a user who may write there",
    errno.EPERM: "run as a user who may write there",
    errno.EROFS: "have it mounted for writing, or use another folder",
    errno.ENOTDIR: "make it a folder",
    errno.EEXIST: "make it a folder",
    errno.ENOSPC: FULL,
    errno.EDQUOT: FULL,
    **dict.fromkeys((errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL), NO_LOCKS),
}
"""What to do if a folder cannot be written, by error number."""


def not_written(folder: Path | str, error: OSError) -> str:
    """Why a folder cannot be written, and what to do; without a full stop."""
    remedy = f": {REMEDIES[error.errno]}" if error.errno in REMEDIES else ""
    return f"{folder} cannot be written ({error.strerror}){remedy}"


def wait_for(lock: int, told: str) -> None:
    """Lock an open file; if another process holds the lock, print `told` on stderr and wait. Raises OSError."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(told, file=sys.stderr, flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)


class Stage:
    """A change: in `with Stage(root) as stage:`, call write, delete and place, then commit.

    Entering acquires the lock. Leaving without commit changes nothing. Raises Failure if the root cannot be written.
    """

    def __init__(self, root: Path):
        self.root = root
        self.box = root / BOX
        self.folder = self.box / "stage"
        self.moves: list[tuple[str, Path | None]] = []
        self.begun = False
        self.lock = -1

    def __enter__(self) -> Self:
        try:
            self._take_lock()
            try:
                shutil.rmtree(self.folder, ignore_errors=True)
                self.folder.mkdir()
            except BaseException:
                self._leave()
                raise
        except OSError as error:
            raise Failure(f"{not_written(self.root, error)}.") from error
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._leave()
        if isinstance(error, OSError) and str(error.filename or self.box).startswith(str(self.box)):
            end = "call again to finish the change" if self.begun else "nothing was changed"
            raise Failure(f"{not_written(self.root, error)}; {end}.") from error

    def write(self, path: str, data: bytes, mode: int) -> None:
        """Stage a file with these permission bits and the owner of the file that it replaces."""
        target, staged = self.root / path, self.folder / str(len(self.moves))
        with open(staged, "xb") as out:
            out.write(data)
            os.fchmod(out.fileno(), mode)
            if os.geteuid() == 0:
                owner = (target if target.exists() else self._parent(target)).stat()
                os.fchown(out.fileno(), owner.st_uid, owner.st_gid)
            out.flush()
            os.fsync(out.fileno())
        self.moves.append((path, staged))

    def delete(self, path: str) -> None:
        """Stage the removal of a file and of folders that become empty."""
        self.moves.append((path, None))

    def place(self, path: str) -> Path:
        """Stage a new folder; return an empty folder that becomes root/path at commit."""
        target = self.root / path
        if target.exists() and not (target.is_dir() and not any(target.iterdir())):
            raise Failure(f"{target} was just created by another process: run again; nothing was changed.")
        staged = self.folder / str(len(self.moves))
        staged.mkdir()
        self.moves.append((path, staged))
        return staged

    def commit(self) -> None:
        """Make the staged changes. Raises Failure, with nothing changed, if a folder cannot be written."""
        for path, _ in self.moves:
            parent = self._parent(self.root / path)
            if not os.access(parent, os.W_OK | os.X_OK, effective_ids=True):
                number = errno.EROFS if os.statvfs(parent).f_flag & os.ST_RDONLY else errno.EACCES
                error = OSError(number, os.strerror(number))
                raise Failure(f"{not_written(parent, error)}; nothing was changed.")
            if parent.stat().st_dev != self.folder.stat().st_dev:
                raise Failure(f"{parent} and {self.root} are on different file systems; nothing was changed.")
        if any(staged and staged.is_dir() for _, staged in self.moves):
            os.sync()
        self.begun = True
        for path, staged in self.moves:
            target = self.root / path
            cache = target.parent / "__pycache__"
            for stale in cache.glob(f"{target.stem}.*.pyc") if target.suffix == ".py" else ():
                stale.unlink(missing_ok=True)
            if staged:
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(staged, target)
            else:
                target.unlink(missing_ok=True)
                remove_empty(cache, self.root)
                remove_empty(target.parent, self.root)

    def _take_lock(self) -> None:
        while True:
            self.box.mkdir(exist_ok=True)
            try:
                self.lock = os.open(self.box / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            except FileNotFoundError:
                continue
            except OSError:
                with contextlib.suppress(OSError):
                    self.box.rmdir()
                raise
            try:
                wait_for(self.lock, f"waiting for another patchset on {self.root}")
            except OSError:
                self._leave()
                raise
            try:
                if os.path.samestat(os.stat(self.box / "lock"), os.fstat(self.lock)):
                    return
            except FileNotFoundError:
                pass
            os.close(self.lock)

    def _leave(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.box / "lock").unlink(missing_ok=True)
        try:
            self.box.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise
        os.close(self.lock)

    def _parent(self, target: Path) -> Path:
        return next(folder for folder in target.parents if folder.is_dir())


def remove_empty(folder: Path, root: Path) -> None:
    """Remove a folder and its parents below root as long as they are empty."""
    while folder != root and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
