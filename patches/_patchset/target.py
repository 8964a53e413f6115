# SPDX-License-Identifier: Apache-2.0
"""Where patches are applied: the packages of a Python environment, or source trees in a folder."""

import json
import os
import sys
from dataclasses import dataclass, field
from email.parser import HeaderParser
from importlib.metadata import Distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

from . import git, sdist, series
from .git import Failure
from .pins import Module, PinSet, plural
from .staging import Stage


@dataclass
class Site:
    """One module at a target; its files are in root/prefix."""

    module: Module
    root: Path
    prefix: str = ""
    present: str = ""  # the distribution or "source tree"; empty: missing
    refusal: tuple[str, str] | None = None  # why it must not be changed: the state's name, and a sentence
    tree: bool = False  # a whole source tree, not an installed package
    editable: Path | None = None  # the source tree that an editable install points to

    @property
    def pinned(self) -> str:
        """The pinned release as a requirement for pip."""
        return f"{next(iter(self.module.dists))}=={self.module.version}"

    def __str__(self) -> str:
        return f"{self.module.name} {self.module.version}" + (f" ({self.present})" if self.present else "")

    @property
    def folder(self) -> Path:
        """Folder of its files."""
        return self.root / self.prefix

    def files(self) -> series.Files:
        """The current content of the files that the patches touch."""
        return series.read_files(self.folder, self.module.recorded().blobs)


PARTLY, CALL_AGAIN = "partly patched", "apply or drop was interrupted: call it again"


@dataclass
class State:
    """A module's state. name: original, patched, PARTLY, modified, wrong version, not installed, ..."""

    name: str
    details: list[str] = field(default_factory=list)  # the modified files, or the sentence of a refusal


@dataclass
class Target:
    """A folder and the modules that may be in it."""

    root: Path
    sites: list[Site]


def find(pinset: PinSet, modules: list[str], env: str | None, to: str | None) -> Target:
    """The target that the options name: a folder, an environment, or the current environment."""
    chosen = [pinset.module(name) for name in modules] or list(pinset.modules.values())
    if to is not None:
        return in_folder(Path(to).absolute(), chosen)
    return in_environment(Path(env or os.environ.get("VIRTUAL_ENV") or sys.prefix).absolute(), chosen)


def in_environment(env: Path, modules: list[Module]) -> Target:
    """The modules in an environment's site-packages."""
    folders = {path.resolve() for name in ("site", "dist") for path in env.glob(f"lib*/python3*/{name}-packages")}
    if not folders:
        raise Failure(f"{env} is not a Python environment: it has no lib/python3*/site-packages.")
    targets = [Target(folder, [installed(module, folder) for module in modules]) for folder in sorted(folders)]
    used = [target for target in targets if any(site.present for site in target.sites)]
    if len(used) > 1:
        raise Failure(f"{env} has the packages in several folders: {', '.join(str(t.root) for t in used)}.")
    return (used or targets)[0]


def installed(module: Module, folder: Path) -> Site:
    """A module in an environment."""
    site = Site(module, folder)
    for name, versions in module.dists.items():
        for dist in Distribution.discover(name=name, path=[str(folder)]):
            site.present = f"{dist.metadata['Name']} {dist.version}"
            origin = json.loads(dist.read_text("direct_url.json") or "{}")
            if origin.get("dir_info", {}).get("editable"):
                site.editable = Path(unquote(urlsplit(origin["url"]).path))
                site.refusal = (
                    "editable install",
                    (
                        f"{site.present} in {folder} is an editable install: patch its source tree with "
                        f"--module {module.name} --to {site.editable}."
                    ),
                )
            elif dist.version.partition("+")[0] not in versions:
                site.refusal = wrong_version(site, site.present)
            if site.refusal:
                return site
    return site


def wrong_version(site: Site, present: str) -> tuple[str, str]:
    """The refusal of a module whose version is not the pinned one."""
    module = site.module
    return "wrong version", (
        f"{present} is in {site.folder}, but {module.pinset.name} patches {module.name} {module.version}: "
        f"install {site.pinned}, or name the other modules with --module."
    )


def in_folder(root: Path, modules: list[Module]) -> Target:
    """The modules' source trees in a folder, each in root/<module>, or the folder itself as the tree of one module."""
    if root.exists() and not root.is_dir():
        raise Failure(f"{root} is not a folder.")
    if any((root / name).exists() for name in (".git", "PKG-INFO", "pyproject.toml", "setup.py")):
        if len(modules) > 1:
            raise Failure(f"{root} is itself a source tree: name its module with --module.")
        return Target(root, [source_tree(modules[0], root, "")])
    return Target(root, [source_tree(module, root, module.name) for module in modules])


def source_tree(module: Module, root: Path, prefix: str) -> Site:
    """A module's source tree in a folder."""
    site = Site(module, root, prefix, tree=True)
    folder = site.folder
    if folder.exists() and not folder.is_dir():
        raise Failure(f"{folder} is not a folder.")
    if not folder.is_dir() or not any(folder.iterdir()):
        return site
    site.present = "source tree"
    if (folder / "PKG-INFO").is_file():
        info = HeaderParser().parsestr((folder / "PKG-INFO").read_text(errors="replace"))
        if (info["Version"] or "").partition("+")[0] != module.version:
            site.refusal = wrong_version(site, f"{info['Name']} {info['Version']}")
    elif not (folder / module.name).is_dir():
        site.refusal = "no source tree", f"{folder} is not a source tree of {module.name}: it has no {module.name}/."
    return site


def inspect(site: Site) -> State:
    """The state of a module, from comparing its touched files with the record; a module without patches is patched."""
    if not site.present:
        return State("not there" if site.tree else "not installed")
    if site.editable:
        return inspect(source_tree(site.module, site.editable, ""))
    if site.refusal:
        return State(site.refusal[0], [site.refusal[1]])
    blobs, files = site.module.recorded().blobs, site.files()
    current = {path: content_id(files, path) for path in blobs}
    for name, end in (("original", 0), ("patched", 1)) if blobs else (("patched", 1),):
        if all(current[path] == ends[end] for path, ends in blobs.items()):
            return State(name)
    odd = [path for path in sorted(blobs) if current[path] not in blobs[path]]
    if odd:
        return State("modified", [f"{path} ({difference(files, path, blobs[path][0])})" for path in odd])
    return State(PARTLY, [CALL_AGAIN])


def content_id(files: series.Files, path: str) -> str:
    """The blob id of a file, "" if there is none."""
    return git.blob_id(files[path][1]) if path in files else ""


def difference(files: series.Files, path: str, original: str) -> str:
    """How a file differs from the original and the patched one. original: blob id."""
    if path not in files:
        return "missing"
    if not original:
        return "in the way of a new file"
    unix = files[path][1].replace(b"\r\n", b"\n")
    return "line ends changed to CRLF" if git.blob_id(unix) == original else "changed"


def whole_tree(site: Site) -> str:
    """How a source tree as a whole compares with the recorded tree ids."""
    tree, record = git.tree_id(git.scan(site.folder)), site.module.recorded()
    if tree in (record.tree, record.patched_tree):
        return f"tree {tree}, as recorded"
    return f"tree {tree}, not a recorded one: files that no patch touches differ from the source distribution"


def change(target: Target, reverse: bool, sdists: str | None) -> list[str]:
    """Apply the patches at the target, or drop them; return one line for each module.

    If it raises Failure, nothing has changed, or the same call finishes the change, as it does after an interruption.
    """
    verb = "drop" if reverse else "apply"
    here = [site for site in target.sites if site.present]
    fresh = [site for site in target.sites if site.tree and not site.present and not reverse]
    if not here and not fresh:
        raise Failure(f"Nothing to {verb} in {target.root}: {nothing(target)}.")
    if refusals := [site.refusal[1] for site in here if site.refusal]:
        raise Failure("\n".join(refusals))
    patches = {site.module.name: series.stored(site.module) for site in here + fresh}
    archives = {site.module.name: sdist.locate(site.module, sdists) for site in fresh}
    created = not target.root.exists()
    try:
        target.root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"{target.root} cannot be created: {error.strerror}.") from error
    lines, modified = [], []
    try:
        with Stage(target.root) as stage:
            for site in target.sites:
                state = inspect(site)
                if site in fresh:
                    unpack(stage, site, patches[site.module.name], archives[site.module.name])
                    lines.append(f"{site}: unpacked and patched")
                elif site not in here:
                    lines.append(f"{site}: {state.name}, skipped")
                elif state.name == "modified":
                    modified.append(modified_message(site, state, verb))
                elif state.name == ("original" if reverse else "patched"):
                    lines.append(f"{site}: already {state.name}")
                else:
                    count = in_place(stage, site, patches[site.module.name], reverse)
                    lines.append(f"{site}: {'original again' if reverse else 'patched'}, {plural(count, 'file')}")
            if modified:
                raise Failure("\n".join(modified))
            stage.commit()
    finally:
        if created and not any(target.root.iterdir()):
            target.root.rmdir()
    return lines


def repair(site: Site) -> str:
    """How to restore the original files of a modified module."""
    tree = site.editable or (site.folder if site.tree else None)
    return f"restore the source tree {tree}" if tree else f"reinstall {site.present.replace(' ', '==')}"


def fit(target: Target) -> tuple[int, int]:
    """How well the pin set fits: the number of modules with known files, and of modules in the pinned version."""
    known = sum(inspect(site).name in ("original", "patched", PARTLY) for site in target.sites)
    return known, sum(bool(site.present and not site.refusal) for site in target.sites)


def nothing(target: Target) -> str:
    """The end of a sentence about a target that has no module."""
    missing = ", ".join(str(site) for site in target.sites)
    return f"it has none of {missing}: install those that you use, or name the target with --env or --to"


def modified_message(site: Site, state: State, verb: str) -> str:
    """The error message about a modified module."""
    shown = ", ".join(state.details[:5]) + (f" and {len(state.details) - 5} more" if len(state.details) > 5 else "")
    return (
        f"{site.module.name} in {site.folder} is neither the pinned original nor the patched one, "
        f"so nothing was changed: {shown}; {repair(site)} (or drop with the patches that were applied to it), then "
        f"{verb} again."
    )


def in_place(stage: Stage, site: Site, patches: list[series.Patch], reverse: bool) -> int:
    """Stage the changed files of an existing module; return their number."""
    files = site.files()
    ends = {path: ends[0 if reverse else 1] for path, ends in site.module.recorded().blobs.items()}
    changed = [path for path in sorted(ends) if content_id(files, path) != ends[path]]
    result = series.transform({path: files[path] for path in changed if path in files}, patches, changed, reverse)
    for path in changed:
        if content_id(result, path) != ends[path]:
            raise Failure(
                f"The patches in {site.module.folder} do not produce the {path} that {site.module.pinset.file} "
                f"records: run `patchset check {site.module.pinset.name}`."
            )
    for path in changed:
        file = site.folder / path
        place = str(file.relative_to(site.root))
        if path in result:
            stage.write(place, result[path][1], file.stat().st_mode & 0o7777 if path in files else 0o644)
        else:
            stage.delete(place)
    return len(changed)


def unpack(stage: Stage, site: Site, patches: list[series.Patch], archive: Path) -> None:
    """Stage the pinned source tree, patched, as a new folder."""
    record, folder = site.module.recorded(), stage.place(site.prefix)
    sdist.unpack(archive, folder)
    files = series.read_files(folder, record.blobs)
    result = series.transform(files, patches, record.blobs)
    for path in files.keys() - result.keys():
        (folder / path).unlink()
    series.lay_out(result, folder)
    if git.tree_id(git.scan(folder)) != record.patched_tree:
        raise Failure(
            f"{archive} and the patches in {site.module.folder} do not produce the tree that {site.module.pinset.file} "
            f"records: run `patchset check {site.module.pinset.name}`."
        )


def states(target: Target) -> dict[str, str]:
    """The name of each module's state at the target."""
    return {site.module.name: inspect(site).name for site in target.sites}


def report(target: Target) -> tuple[list[str], bool]:
    """Lines about each module's state at the target, and whether all is in order."""
    lines, in_order = [f"  {target.root}"], True
    for site in target.sites:
        state = inspect(site)
        lines += [f"    {site}: {state.name}", *(f"      {detail}" for detail in state.details)]
        if site.tree and site.present and not site.refusal:
            lines.append(f"      {whole_tree(site)}")
        in_order = in_order and not state.details
    return lines, in_order
