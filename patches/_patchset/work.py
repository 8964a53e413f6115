# SPDX-License-Identifier: Apache-2.0
"""The working form of a module's patches: a git repository with one commit per patch."""

import os
import tempfile
from pathlib import Path

from . import git, sdist, series
from .git import Failure
from .pins import REPO, Module, PinSet, plural
from .staging import Stage


def default_folder(module: Module) -> Path:
    """The default repository of `import` and `export`."""
    return REPO / ".cache" / "patchset" / module.pinset.name / module.name


def import_(module: Module, to: str | None, sdists: str | None) -> list[str]:
    """Create the repository; return lines for the user. Raises Failure if its folder is in use or a patch fails.

    If a patch does not apply, the repository is left in the middle of `git am` for the developer to resolve.
    """
    folder = Path(to).absolute() if to else default_folder(module)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Failure(f"{folder} is in use: export and remove it, or name another folder with --to.")
    patches = series.load(module)
    folder.parent.mkdir(parents=True, exist_ok=True)
    failed = None
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temp:
        repo = Path(temp) / module.name
        unpack(module, sdist.locate(module, sdists), repo)
        try:
            series.am(repo, patches)
        except git.GitFailure as error:
            failed = error.reason
        if folder.exists():
            folder.rmdir()
        os.replace(repo, folder)
    if failed:
        raise Failure(
            f"Not every patch of {module.name} applies ({failed}): resolve it in {folder} with `git am --continue`, "
            "then export."
        )
    lines = [f"{folder}: {module.name} {module.version}, {plural(len(patches), 'patch')} on the tag {git.BASE_TAG}"]
    base, head = git.text("rev-parse", f"{git.BASE_TAG}^{{tree}}", "HEAD^{tree}", cwd=folder).split()
    if module.record and base == module.record.tree and head != module.record.patched_tree:
        lines.append(f"note: {module.pinset.file} records another patched tree; export to bring it up to date")
    return lines


def unpack(module: Module, archive: Path, repo: Path) -> None:
    """Create a repository from the source distribution."""
    git.init(repo)
    sdist.unpack(archive, repo)
    series.commit_base(repo, module)
    if git.text("rev-parse", "HEAD^{tree}", cwd=repo) != git.tree_id(git.scan(repo)):
        raise Failure(f"{archive} has a file that git does not accept, such as one below a folder named .git.")


def export(module: Module, source: str | None, sdists: str | None) -> list[str]:
    """Write the repository's commits as the module's patches and update the record, all or nothing."""
    repo = Path(source).absolute() if source else default_folder(module)
    check_repository(module, repo)
    texts = series.format_commits(repo)
    with tempfile.TemporaryDirectory(prefix="patchset-") as temp:
        folder = Path(temp) / module.name
        folder.mkdir()
        for name, data in texts.items():
            git.write_file(folder / name, data)
        patches = [series.parse(module, folder / name) for name in texts]
        record, again = series.replay(module, sdist.locate(module, sdists), patches)
        for name, data in texts.items():
            if again.get(name) != data:
                raise Failure(
                    f"`git am` would not restore {name} unchanged: look in its message for a line that reads like "
                    "part of a patch."
                )
    with Stage(module.pinset.folder) as stage:
        pinset = PinSet(module.pinset.name)  # another module may have been exported meanwhile
        pinset.module(module.name).record = record
        files = {f"{module.name}/{name}": data for name, data in texts.items()}
        files["pins.toml"] = pinset.text().encode()
        changed = []
        for path, data in files.items():
            file = module.pinset.folder / path
            if not file.is_file() or file.read_bytes() != data:
                stage.write(path, data, 0o644)
                changed.append(path)
        for file in sorted(module.folder.glob("*.patch")):
            if file.name not in texts:
                stage.delete(f"{module.name}/{file.name}")
                changed.append(f"{module.name}/{file.name} (removed)")
        stage.commit()
    return [f"{module.name}: {plural(len(texts), 'patch')}, tree {record.tree} -> {record.patched_tree}"] + (
        [f"  {path}" for path in changed] or ["  nothing changed"]
    )


def check_repository(module: Module, repo: Path) -> None:
    """Raise Failure unless the repository was made by `import`, is clean and not in the middle of an operation."""
    if not (repo / ".git").exists():
        raise Failure(f"{repo} is not a repository made by `patchset import {module.pinset.name} {module.name}`.")
    try:
        git.run("merge-base", "--is-ancestor", git.BASE_TAG, "HEAD", cwd=repo)
    except Failure as error:
        raise Failure(f"{repo}: HEAD is not based on the tag {git.BASE_TAG} that `patchset import` sets.") from error
    for name in ("rebase-merge", "rebase-apply"):
        if (repo / git.text("rev-parse", "--git-path", name, cwd=repo)).exists():
            raise Failure(f"{repo} is in the middle of a rebase or `git am`: finish it, then export.")
    if dirty := git.text("status", "--porcelain", "--untracked-files=no", cwd=repo):
        raise Failure(f"{repo} has uncommitted changes, for example {dirty.splitlines()[0][2:].strip()}.")
