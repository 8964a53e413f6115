# SPDX-License-Identifier: Apache-2.0
"""Changes to many files below one root, all or nothing, even if the process is killed.

During a change <root>/.patchset holds:

    lock            locked with flock by the process that changes the root
    stage/<n>       each new file or new folder, complete and synced
    journal.json    the list of moves and deletions; its creation (one rename) is the commit

Before the journal exists, the target is unchanged. Then the moves are made one by one. If the process is killed in
between, old and new files coexist until the next patchset command on this root completes the moves.
"""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any, Self

from .git import Failure, blob_id

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


def heal(root: Path) -> None:
    """Finish or discard the change of an interrupted command below root; wait for a running command."""
    if (root / BOX).exists():
        with Transaction(root):
            pass


class Transaction:
    """A change: in `with Transaction(root) as change:`, stage with write, delete and place, then commit.

    Entering acquires the lock and finishes an interrupted change. Leaving without commit changes nothing. Raises
    Failure if the root cannot be written.
    """

    def __init__(self, root: Path):
        self.root = root
        self.box = root / BOX
        self.stage = self.box / "stage"
        self.journal = self.box / "journal.json"
        self.moves: list[dict[str, Any]] = []
        self.lock = -1

    def __enter__(self) -> Self:
        try:
            self._take_lock()
            try:
                self._recover()
                shutil.rmtree(self.stage, ignore_errors=True)
                self.stage.mkdir()
            except BaseException:
                self._leave()
                raise
        except OSError as error:
            raise Failure(f"{not_written(self.root, error)}.") from error
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        done = self.journal.exists()
        self._leave()
        if isinstance(error, OSError) and str(error.filename or self.box).startswith(str(self.box)):
            end = "call again to finish the change" if done else "nothing was changed"
            raise Failure(f"{not_written(self.root, error)}; {end}.") from error

    def write(self, path: str, data: bytes, mode: int) -> None:
        """Stage a file with these permission bits and the owner of the file that it replaces."""
        target, staged = self.root / path, self.stage / str(len(self.moves))
        with open(staged, "xb") as out:
            out.write(data)
            os.fchmod(out.fileno(), mode)
            if os.geteuid() == 0:
                owner = (target if target.exists() else self._parent(target)).stat()
                os.fchown(out.fileno(), owner.st_uid, owner.st_gid)
            out.flush()
            os.fsync(out.fileno())
        self.moves.append({"path": path, "before": self._content(path), "after": blob_id(data), "stage": staged.name})

    def delete(self, path: str) -> None:
        """Stage the removal of a file and of folders that become empty."""
        self.moves.append({"path": path, "before": self._content(path), "after": "", "stage": ""})

    def place(self, path: str) -> Path:
        """Stage a new folder; return an empty folder that becomes root/path at commit."""
        if self._content(path):
            raise Failure(f"{self.root / path} was just created by another process: run again; nothing was changed.")
        staged = self.stage / str(len(self.moves))
        staged.mkdir()
        self.moves.append({"path": path, "before": "", "after": "folder", "stage": staged.name})
        return staged

    def commit(self) -> None:
        """Make the staged changes. Raises Failure, with nothing changed, if a folder cannot be written."""
        if not self.moves:
            return
        for move in self.moves:
            parent = self._parent(self.root / move["path"])
            if not os.access(parent, os.W_OK | os.X_OK, effective_ids=True):
                number = errno.EROFS if os.statvfs(parent).f_flag & os.ST_RDONLY else errno.EACCES
                error = OSError(number, os.strerror(number))
                raise Failure(f"{not_written(parent, error)}; nothing was changed.")
            if parent.stat().st_dev != self.stage.stat().st_dev:
                raise Failure(f"{parent} and {self.root} are on different file systems; nothing was changed.")
        if any(move["after"] == "folder" for move in self.moves):
            os.sync()
        part = self.box / "journal.part"
        with open(part, "w") as out:
            json.dump(self.moves, out, indent=1)
            out.flush()
            os.fsync(out.fileno())
        sync(self.stage)
        os.replace(part, self.journal)
        sync(self.box)
        self._roll_forward(self.moves)

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
        if not self.journal.exists():
            shutil.rmtree(self.stage, ignore_errors=True)
            for name in ("journal.part", "lock"):
                (self.box / name).unlink(missing_ok=True)
            try:
                self.box.rmdir()
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                    raise
        os.close(self.lock)

    def _recover(self) -> None:
        try:
            moves = json.loads(self.journal.read_bytes())
        except FileNotFoundError:
            return
        except ValueError:
            moves = None
        if moves is not None and all(self._applies(move) for move in moves):
            print(f"finishing an interrupted change of {self.root}", file=sys.stderr)
            self._roll_forward(moves)
        else:
            print(f"discarding an interrupted change of {self.root}: it no longer fits", file=sys.stderr)
            self.journal.unlink()

    def _applies(self, move: dict[str, Any]) -> bool:
        """Whether a move of the journal is done, or its target is still unchanged."""
        content = self._content(move["path"])
        if content == move["after"] and not (self.stage / (move["stage"] or "-")).exists():
            return True
        return content == move["before"] and (not move["stage"] or (self.stage / move["stage"]).exists())

    def _content(self, path: str) -> str:
        """The blob id of a file, "folder" for a folder with content, or ""."""
        target = self.root / path
        if target.is_dir():
            return "folder" if any(target.iterdir()) else ""
        try:
            return blob_id(target.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return ""

    def _roll_forward(self, moves: list[dict[str, Any]]) -> None:
        folders = set()
        for move in moves:
            target = self.root / move["path"]
            if not move["stage"]:
                target.unlink(missing_ok=True)
            elif (self.stage / move["stage"]).exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(self.stage / move["stage"], target)
            cache = target.parent / "__pycache__"
            for stale in cache.glob(f"{target.stem}.*.pyc") if target.suffix == ".py" else ():
                stale.unlink(missing_ok=True)
            if not move["stage"]:
                remove_empty(cache, self.root)
                remove_empty(target.parent, self.root)
            folders.add(self._parent(target))
        for folder in folders:
            if folder.is_dir():
                sync(folder)
        self.journal.unlink()
        sync(self.box)

    def _parent(self, target: Path) -> Path:
        return next(folder for folder in target.parents if folder.is_dir())


def remove_empty(folder: Path, root: Path) -> None:
    """Remove a folder and its parents below root as long as they are empty."""
    while folder != root and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def sync(folder: Path) -> None:
    """Sync a folder's entries to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
