# SPDX-License-Identifier: Apache-2.0
"""Stored patches: read them, apply them to files, and write commits as patches."""

import email.header
import email.parser
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from . import git, sdist
from .git import EXECUTABLE, FILE, Failure
from .pins import Module, Record

FILE_NAME = re.compile(r"(\d{4})-[A-Za-z0-9._-]+\.patch")
SECTION = re.compile(r"diff --git a/([A-Za-z0-9_./+-]+) b/\1")
INDEX = re.compile(r"index ([0-9a-f]{40})\.\.([0-9a-f]{40})(?: (?:100644|100755))?")
MODE = re.compile(r"(old|new|new file|deleted file) mode ")
TRAILER = re.compile(r"([A-Za-z][A-Za-z-]*): +(\S.*)")
NONE = "0" * 40

# Files by path below the root of the source distribution: (mode, content).
Files = dict[str, tuple[str, bytes]]


@dataclass
class Change:
    """One file of a patch: blob ids before and after, "" if there is no file."""

    path: str
    before: str = ""
    after: str = ""


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
    trailers = [(m[1], m[2]) for m in map(TRAILER.fullmatch, message.strip().rpartition("\n\n")[2].splitlines()) if m]
    patch = Patch(file, data, subject, trailers)
    for line in (found + body).decode(errors="replace").split("\n"):
        read_line(module, patch, line)
    return patch


def read_line(module: Module, patch: Patch, line: str) -> None:
    """Add the information in a line of a patch's diff if it is a header line (lines of hunks start differently)."""
    if line.startswith("diff --git "):
        section = SECTION.fullmatch(line)
        if not section:
            raise Failure(f"{patch.file} renames a file or has an unusual path ({line!r}): export the patch again.")
        path = section[1]
        if not path.startswith(f"{module.name}/") or ".." in path.split("/") or ".git" in path.split("/"):
            raise Failure(f"{patch.file} changes {path}, outside {module.name}/: a patch must stay inside it.")
        patch.changes.append(Change(path))
    elif line.startswith("index "):
        index = INDEX.fullmatch(line)
        if not index:
            raise Failure(
                f"{patch.file} has abbreviated blob ids or a special file ({line!r}): export the patch again."
            )
        change = patch.changes[-1]
        change.before, change.after = ("" if oid == NONE else oid for oid in index.groups())
    elif MODE.match(line) and not line.endswith(f" file mode {FILE}"):
        raise Failure(
            f"{patch.file} makes {patch.changes[-1].path} a link or a submodule, or changes whether it is executable: "
            "a patch must only change contents."
        )


def blobs(patches: list[Patch]) -> dict[str, tuple[str, str]]:
    """Blob ids of each touched file before and after all patches, "" if there is no file.

    Raises Failure if a patch does not start from the result of the previous patches.
    """
    ends: dict[str, tuple[str, str]] = {}
    for patch in patches:
        for change in patch.changes:
            first, last = ends.get(change.path, (change.before, change.before))
            if change.before != last:
                raise Failure(
                    f"{patch.file} does not start from the {change.path} of the previous patches: export again."
                )
            ends[change.path] = first, change.after
    return ends


def stored(module: Module) -> list[Patch]:
    """Like load(), but raises Failure unless the record in pins.toml was written for these patches."""
    patches, recorded = load(module), module.recorded().blobs
    current = blobs(patches)
    for path in sorted({*current, *recorded}):
        if current.get(path) != recorded.get(path):
            raise Failure(
                f"{module.folder} and {module.pinset.file} disagree about {path}: run `patchset import` and "
                f"`patchset export` on {module.name}."
            )
    return patches


def transform(files: Files, patches: list[Patch], paths: Iterable[str], reverse: bool = False) -> Files:
    """Apply or revert the patches' changes of `paths` on these files in a temporary folder; return the files there."""
    with tempfile.TemporaryDirectory(prefix="patchset-") as temp:
        folder = Path(temp) / "files"
        git.init(folder)
        lay_out(files, folder)
        for patch in reversed(patches) if reverse else patches:
            command = ["apply", "--whitespace=nowarn", *(["--reverse"] if reverse else [])]
            command += [f"--include={path}" for path in paths]
            try:
                git.run(*command, cwd=folder, data=patch.data)
            except git.GitFailure as error:
                verb = "reverted" if reverse else "applied"
                raise Failure(f"{patch.file} cannot be {verb}: {error.reason}") from error
        return read_files(folder, paths)


def lay_out(files: Files, folder: Path) -> None:
    """Write the files below folder."""
    for path, (mode, data) in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        git.write_file(folder / path, data)
        (folder / path).chmod(0o755 if mode == EXECUTABLE else 0o644)


def commit_base(folder: Path, module: Module) -> None:
    """Commit all files of the repository as the pinned release and tag the commit."""
    git.run("add", "--all", "--force", ".", cwd=folder)
    date = "2000-01-01T00:00:00+0000"
    git.run("commit", "--quiet", "--allow-empty", "-m", f"{module.name} {module.version}", cwd=folder, date=date)
    git.run("tag", git.BASE_TAG, cwd=folder)


def am(folder: Path, patches: list[Patch]) -> None:
    """Commit the patches one by one on the head of the repository."""
    if patches:
        options = ["--quiet", "--keep-cr", "--keep-non-patch", "--committer-date-is-author-date", "--whitespace=nowarn"]
        git.run("am", *options, *(patch.file for patch in patches), cwd=folder)


def format_commits(repo: Path) -> dict[str, bytes]:
    """The commits of the repository since its base as patch files, by name.

    The commits are first copied to a new repository with a neutral identity and without this repository's settings and
    attributes, so that the same commits give the same bytes everywhere. Raises Failure on a merge, an empty commit or
    an unsquashed fixup.
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
            tree, stripped = new_tree, git.run("stripspace", cwd=plain, data=message.encode())
            tip = git.text("commit-tree", "-p", tip, tree, cwd=plain, data=stripped, date=date)
        out = Path(temp) / "out"
        layout = ["--zero-commit", "--full-index", "--no-signature", "--no-stat", "-N", "--binary", "--no-base"]
        layout += ["--filename-max-length=64", "--subject-prefix=PATCH", "--suffix=.patch", "--no-attach"]
        diff = ["--no-renames", "--diff-algorithm=myers", "--indent-heuristic", "-U3", "--inter-hunk-context=0"]
        diff += ["--src-prefix=a/", "--dst-prefix=b/", "--no-ext-diff", "--no-textconv", "--no-color", "--no-relative"]
        if commits:
            git.run("format-patch", "--quiet", *layout, *diff, "-o", str(out), f"{base}..{tip}", cwd=plain)
        return {file.name: file.read_bytes() for file in sorted(out.glob("*"))}


def replay(module: Module, archive: Path, patches: list[Patch]) -> tuple[Record, dict[str, bytes]]:
    """Commit the patches on the source distribution's touched files; return the record and the exported patches.

    Raises Failure for the first patch that does not apply.
    """
    paths = set(blobs(patches))
    entries, files = sdist.read(archive, paths)
    with tempfile.TemporaryDirectory(prefix="patchset-") as temp:
        repo = Path(temp) / "repo"
        git.init(repo)
        lay_out(files, repo)
        commit_base(repo, module)
        for patch in patches:
            try:
                am(repo, [patch])
            except git.GitFailure as error:
                where = f"{module.name} {module.version}"
                raise Failure(f"{patch.file.name} does not apply to {where}: {error.reason}") from error
        after = git.scan(repo)
        texts = format_commits(repo)
    patched = {path: entry for path, entry in entries.items() if path not in paths} | after
    nothing = FILE, ""
    changes = {path: (entries.get(path, nothing)[1], after.get(path, nothing)[1]) for path in paths}
    return Record(git.tree_id(entries), git.tree_id(patched), changes), texts


def read_files(folder: Path, paths: Iterable[str]) -> Files:
    """The given files that exist below folder."""
    return {
        path: (git.file_mode(folder / path), (folder / path).read_bytes())
        for path in paths
        if (folder / path).is_file()
    }
