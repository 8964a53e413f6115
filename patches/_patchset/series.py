# SPDX-License-Identifier: Apache-2.0
"""Stored patches: reading them, running them over files, and writing commits as them."""

import email.header
import email.parser
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from . import git, sdist
from .git import EXECUTABLE, FILE, Failure, blob_id
from .pins import Module, Record

FILE_NAME = re.compile(r"(\d{4})-[A-Za-z0-9._-]+\.patch")
SECTION = re.compile(r"diff --git a/([A-Za-z0-9_./+-]+) b/\1")
INDEX = re.compile(r"index ([0-9a-f]{40})\.\.([0-9a-f]{40})(?: (\d{6}))?")
TRAILER = re.compile(r"([A-Za-z][A-Za-z-]*): +(\S.*)")
NONE = "0" * 40

# Files by path below the root of the source distribution: (mode, content).
Files = dict[str, tuple[str, bytes]]


@dataclass
class Change:
    """One file of a patch; a mode is "" where there is no file, a blob None where only the mode changes."""

    path: str
    modes: tuple[str, str] = (FILE, FILE)
    blobs: tuple[str, str] | None = None


@dataclass
class Patch:
    """One stored patch."""

    file: Path
    data: bytes
    subject: str
    trailers: list[tuple[str, str]]
    changes: list[Change] = field(default_factory=list)


def load(module: Module) -> list[Patch]:
    """The module's patches in order; raises Failure on one that cannot be read or reaches outside the module."""
    return [parse(module, file) for file in sorted(module.folder.glob("*.patch"))]


def parse(module: Module, file: Path) -> Patch:
    """Read one stored patch."""
    data = file.read_bytes()
    head, found, body = data.partition(b"\ndiff --git ")
    if b"\r" in head:
        raise Failure(f"{file} has CRLF line ends: export it again, and keep git from converting *.patch files.")
    if not found or not head.startswith(b"From "):
        raise Failure(f"{file} is not a patch as `patchset export` writes it: export it again.")
    mail = email.parser.BytesParser().parsebytes(data.split(b"\n", 1)[1])
    subject = str(email.header.make_header(email.header.decode_header(mail["Subject"] or "")))
    subject = re.sub(r"^\[PATCH\] ", "", re.sub(r"\s*\n\s*", " ", subject))
    message = head.partition(b"\n\n")[2].decode(errors="replace")
    trailers = [m.groups() for m in map(TRAILER.fullmatch, message.strip().rpartition("\n\n")[2].splitlines()) if m]
    patch = Patch(file, data, subject, trailers)
    for line in (found + body).decode(errors="replace").split("\n"):
        read_line(module, patch, line)
    return patch


def read_line(module: Module, patch: Patch, line: str) -> None:
    """Take up one header line of a patch's diff (no line of a hunk starts like one)."""
    if line.startswith("diff --git "):
        section = SECTION.fullmatch(line)
        if not section:
            raise Failure(f"{patch.file} renames a file or names it oddly ({line!r}): export the patch again.")
        path = section[1]
        if not path.startswith(f"{module.name}/") or ".." in path.split("/") or ".git" in path.split("/"):
            raise Failure(f"{patch.file} changes {path}, which is outside {module.name}/: a patch stays inside it.")
        patch.changes.append(Change(path))
        return
    words = line.split(" ")
    if not patch.changes or words[0] not in ("index", "old", "new", "deleted"):
        return
    change = patch.changes[-1]
    old, new = change.modes
    if words[0] == "index":
        index = INDEX.fullmatch(line)
        if not index:
            raise Failure(f"{patch.file} has shortened blob ids ({line!r}): export the patch again.")
        change.blobs = "" if index[1] == NONE else index[1], "" if index[2] == NONE else index[2]
        change.modes = (index[3], index[3]) if index[3] else change.modes
    elif line.startswith("old mode "):
        change.modes = words[-1], new
    elif line.startswith("new mode "):
        change.modes = old, words[-1]
    elif line.startswith("new file mode "):
        change.modes = "", words[-1]
    elif line.startswith("deleted file mode "):
        change.modes = words[-1], ""
    if not {*change.modes} <= {"", FILE, EXECUTABLE}:
        raise Failure(f"{patch.file} makes {change.path} a link or submodule: a patch changes ordinary files only.")


def touched(patches: list[Patch]) -> set[str]:
    """Paths that any of the patches changes."""
    return {change.path for patch in patches for change in patch.changes}


def state(entry: tuple[str, str] | None, other: tuple[str, str] | None) -> str:
    """An entry as the record writes it: with its mode only where the other side has another one."""
    if entry is None:
        return ""
    return f"{entry[0]} {entry[1]}" if other and other[0] != entry[0] else entry[1]


def chain(patches: list[Patch]) -> dict[str, tuple[str, str]]:
    """State of each touched file before and after, by the blob ids and modes in the patches alone.

    Raises Failure where a patch does not start from what the patches before it left. A file of which only the mode is
    ever changed has "?" for its blob id.
    """
    first: dict[str, tuple[str, str] | None] = {}
    last: dict[str, tuple[str, str] | None] = {}
    for patch in patches:
        for change in patch.changes:
            path, (old_mode, new_mode) = change.path, change.modes
            known = last.get(path, (old_mode, "?") if old_mode else None)
            old_blob, new_blob = change.blobs or (known[1] if known else "?",) * 2
            if path in last and known and known[1] == "?" and change.blobs:
                known = known[0], old_blob
                first[path] = first[path] and (first[path][0], old_blob)
            old = (old_mode, old_blob) if old_mode else None
            if path in last and old != known:
                raise Failure(
                    f"{patch.file} does not start from the {path} that the patches before it leave: export again."
                )
            first.setdefault(path, old)
            last[path] = (new_mode, new_blob) if new_mode else None
    return {path: (state(first[path], last[path]), state(last[path], first[path])) for path in first}


def stored(module: Module) -> list[Patch]:
    """load(), and raise Failure unless the patches are those that the record was written for."""
    patches, recorded = load(module), module.recorded().blobs
    found = chain(patches)
    for path in sorted({*found, *recorded}):
        pairs = zip(found.get(path, ("?", "?")), recorded.get(path, ("!", "!")))
        if not all(seen == kept or (kept.startswith(seen[:-1]) and seen.endswith("?")) for seen, kept in pairs):
            raise Failure(
                f"{module.folder} and {module.pinset.file} disagree about {path}: run `patchset import` and "
                f"`patchset export` on {module.name}."
            )
    return patches


def transform(files: Files, patches: list[Patch], reverse: bool = False) -> Files:
    """Apply the patches to the files in a temporary folder, or take them off again; other files are not looked at."""
    with tempfile.TemporaryDirectory(prefix="patchset-") as temp:
        folder = Path(temp) / "files"
        git.init(folder)
        lay_out(files, folder)
        for patch in reversed(patches) if reverse else patches:
            if not patch.changes:
                continue
            command = ["apply", "--whitespace=nowarn", *(["--reverse"] if reverse else []), "-"]
            try:
                git.run(*command, cwd=folder, data=patch.data)
            except Failure as error:
                told = str(error).partition(": ")[2]
                raise Failure(f"{patch.file} does not {'come off' if reverse else 'apply'}: {told}") from error
        return {
            path: (git.file_mode(folder / path), (folder / path).read_bytes())
            for path in touched(patches)
            if (folder / path).is_file()
        }


def lay_out(files: Files, folder: Path) -> None:
    """Write the files below folder."""
    for path, (mode, data) in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
        (folder / path).chmod(0o755 if mode == EXECUTABLE else 0o644)


def commit_base(folder: Path, module: Module) -> None:
    """Commit all files of the repository as the pinned release and tag the commit."""
    git.run("add", "--all", "--force", ".", cwd=folder)
    date = "2000-01-01T00:00:00+0000"
    git.run("commit", "--quiet", "--allow-empty", "-m", f"{module.name} {module.version}", cwd=folder, date=date)
    git.run("tag", git.BASE_TAG, cwd=folder)


def am(folder: Path, patches: list[Patch]) -> None:
    """Commit the patches, one by one, on the head of the repository."""
    if patches:
        options = ["--quiet", "--keep-cr", "--keep-non-patch", "--committer-date-is-author-date", "--whitespace=nowarn"]
        git.run("am", *options, *(patch.file for patch in patches), cwd=folder)


def format_commits(repo: Path) -> dict[str, bytes]:
    """The commits of the repository after its base as patch files, by name.

    They are copied into a repository of their own first, under the neutral identity and without the settings and
    attributes of this one, so that the same commits give the same bytes everywhere. Raises Failure on a merge, an
    empty commit, and a fixup that is not squashed.
    """
    commits = git.text("rev-list", "--reverse", f"{git.BASE_TAG}..HEAD", cwd=repo).split()
    with tempfile.TemporaryDirectory(prefix="patchset-") as temp:
        plain = Path(temp) / "plain"
        git.init(plain, bare=True)
        objects = (repo / git.text("rev-parse", "--git-path", "objects", cwd=repo)).resolve()
        (plain / "objects" / "info" / "alternates").write_text(f"{objects}\n")
        tree = git.text("rev-parse", f"{git.BASE_TAG}^{{tree}}", cwd=repo)
        base = tip = git.text("commit-tree", "-m", "base", tree, cwd=plain, date="2000-01-01T00:00:00+0000")
        for commit in commits:
            layout = ["--format=%T%n%P%n%ad%n%h %s%n%B", "--date=raw", "--encoding=UTF-8", "--no-show-signature"]
            shown = git.text("log", "-1", *layout, commit, cwd=repo)
            new_tree, parents, date, title, message = shown.split("\n", 4)
            if " " in parents:
                raise Failure(f"{repo}: commit {title!r} is a merge: rebase, so that each patch is one commit.")
            if title.partition(" ")[2].startswith(("fixup!", "squash!", "amend!")):
                raise Failure(f"{repo}: commit {title!r} is not squashed: git rebase -i --autosquash {git.BASE_TAG}.")
            if new_tree == tree:
                raise Failure(f"{repo}: commit {title!r} changes nothing: drop it.")
            tree, message = new_tree, git.run("stripspace", cwd=plain, data=message.encode())
            tip = git.text("commit-tree", "-p", tip, tree, cwd=plain, data=message, date=date)
        out = Path(temp) / "out"
        layout = ["--zero-commit", "--full-index", "--no-signature", "--no-stat", "-N", "--binary", "--no-base"]
        layout += ["--filename-max-length=64", "--subject-prefix=PATCH", "--suffix=.patch", "--no-attach"]
        diff = ["--no-renames", "--diff-algorithm=myers", "--indent-heuristic", "-U3", "--inter-hunk-context=0"]
        diff += ["--src-prefix=a/", "--dst-prefix=b/", "--no-ext-diff", "--no-textconv", "--no-color", "--no-relative"]
        if commits:
            git.run("format-patch", "--quiet", *layout, *diff, "-o", str(out), f"{base}..{tip}", cwd=plain)
        return {file.name: file.read_bytes() for file in sorted(out.glob("*"))}


def replay(module: Module, archive: Path, patches: list[Patch]) -> tuple[Record, dict[str, bytes]]:
    """Commit the patches on the source distribution's touched files; the record, and the patches as exported again.

    Raises Failure with the name of the first patch that does not apply.
    """
    paths = touched(patches)
    entries, files = sdist.read(archive, paths)
    with tempfile.TemporaryDirectory(prefix="patchset-") as temp:
        repo = Path(temp) / "repo"
        git.init(repo)
        lay_out(files, repo)
        commit_base(repo, module)
        for patch in patches:
            try:
                am(repo, [patch])
            except Failure as error:
                told = str(error).partition(": ")[2]
                raise Failure(f"{patch.file.name} does not apply to {module.name} {module.version}: {told}") from error
        after = {
            path: (mode, oid)
            for mode, _, oid, path in (
                line.replace("\t", " ", 1).split(" ", 3)
                for line in git.text("ls-tree", "-r", "HEAD", cwd=repo).splitlines()
            )
        }
        texts = format_commits(repo)
    patched = {path: entry for path, entry in entries.items() if path not in paths} | after
    blobs = {
        path: (state(entries.get(path), after.get(path)), state(after.get(path), entries.get(path))) for path in paths
    }
    return Record(git.tree_id(entries), git.tree_id(patched), blobs), texts


def matches(entry: tuple[str, bytes] | None, recorded: str) -> bool:
    """Whether a file (mode, content), or None, is in the recorded state."""
    if entry is None or not recorded:
        return entry is None and not recorded
    mode, _, oid = recorded.rpartition(" ")
    return blob_id(entry[1]) == oid and mode in ("", entry[0])


def read_file(path: Path) -> tuple[str, bytes] | None:
    """Mode and content of a file, None where there is none."""
    try:
        return git.file_mode(path), path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
