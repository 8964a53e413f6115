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
from .git import EXECUTABLE, Failure
from .journal import Transaction, heal
from .pins import Module, PinSet, plural


@dataclass
class Site:
    """One module at a target; its files lie in root/prefix."""

    module: Module
    prefix: str = ""
    found: str = ""  # the distribution or "source tree"; empty: not there
    wrong: tuple[str, str] | None = None  # why it must not be touched: in two words, and as a sentence
    tree: bool = False  # a whole source tree, not an installed package

    def __str__(self) -> str:
        return f"{self.module.name} {self.module.version}" + (f" ({self.found})" if self.found else "")


@dataclass
class State:
    """What inspect() found. kind: original, patched, unpatched (the pin set has no patch for it) or modified."""

    kind: str
    files: list[str] = field(default_factory=list)  # the modified ones, each with what is wrong


@dataclass
class Target:
    """A folder and the modules that were looked for in it."""

    root: Path
    sites: list[Site]

    def path(self, site: Site, file: str) -> str:
        """A file of the module relative to root."""
        return f"{site.prefix}/{file}" if site.prefix else file


def find(pinset: PinSet, modules: list[str], env: str | None, to: str | None) -> Target:
    """The target that the options name: a folder, an environment, or without both the current environment.

    An interrupted change there is finished first.
    """
    chosen = [pinset.module(name) for name in modules] or list(pinset.modules.values())
    if to is not None:
        return in_folder(Path(to).absolute(), chosen)
    return in_environment(Path(env or os.environ.get("VIRTUAL_ENV") or sys.prefix).absolute(), chosen)


def in_environment(env: Path, modules: list[Module]) -> Target:
    """The modules that are installed in an environment's site-packages."""
    folders = {path.resolve() for name in ("site", "dist") for path in env.glob(f"lib*/python3*/{name}-packages")}
    if not folders:
        raise Failure(f"{env} is not a Python environment: it has no lib/python3*/site-packages.")
    for folder in folders:
        heal(folder)
    targets = [Target(folder, [installed(module, folder) for module in modules]) for folder in sorted(folders)]
    used = [target for target in targets if any(site.found for site in target.sites)]
    if len(used) > 1:
        raise Failure(f"{env} has the packages in several places: {', '.join(str(t.root) for t in used)}.")
    return (used or targets)[0]


def installed(module: Module, folder: Path) -> Site:
    """What an environment has of a module."""
    site = Site(module)
    for name, versions in module.dists.items():
        for dist in Distribution.discover(name=name, path=[str(folder)]):
            site.found = f"{dist.metadata['Name']} {dist.version}"
            origin = json.loads(dist.read_text("direct_url.json") or "{}")
            if origin.get("dir_info", {}).get("editable"):
                source = unquote(urlsplit(origin["url"]).path)
                site.wrong = (
                    "editable install",
                    (
                        f"{site.found} in {folder} is an editable install: patch its source tree with "
                        f"--module {module.name} --to {source}."
                    ),
                )
            elif dist.version.partition("+")[0] not in versions:
                site.wrong = wrong_version(module, site.found, folder)
            if site.wrong:
                return site
    return site


def wrong_version(module: Module, found: str, place: Path) -> tuple[str, str]:
    """Site.wrong of a module of another version than the pinned one."""
    return "wrong version", (
        f"{found} is in {place}, but {module.pinset.name} patches {module.name} {module.version}: "
        f"install {next(iter(module.dists))}=={module.version}, or leave it out with --module."
    )


def in_folder(root: Path, modules: list[Module]) -> Target:
    """The modules' source trees in a folder, root/<module> each, or the folder itself as the tree of one module."""
    if root.exists() and not root.is_dir():
        raise Failure(f"{root} is not a folder.")
    heal(root)
    if any((root / name).exists() for name in (".git", "PKG-INFO", "pyproject.toml", "setup.py")):
        if len(modules) > 1:
            raise Failure(f"{root} is itself a source tree: name its one module with --module.")
        return Target(root, [source_tree(modules[0], root, "")])
    return Target(root, [source_tree(module, root, module.name) for module in modules])


def source_tree(module: Module, root: Path, prefix: str) -> Site:
    """What a folder has of a module."""
    site, folder = Site(module, prefix, tree=True), root / prefix
    if folder.exists() and not folder.is_dir():
        raise Failure(f"{folder} is not a folder.")
    if not folder.is_dir() or not any(folder.iterdir()):
        return site
    site.found = "source tree"
    if (folder / "PKG-INFO").is_file():
        info = HeaderParser().parsestr((folder / "PKG-INFO").read_text(errors="replace"))
        if (info["Version"] or "").partition("+")[0] != module.version:
            site.wrong = wrong_version(module, f"{info['Name']} {info['Version']}", folder)
    elif not (folder / module.name).is_dir():
        site.wrong = "no source tree", f"{folder} is not a source tree of {module.name}: it has no {module.name}/."
    return site


def inspect(target: Target, site: Site) -> State:
    """Compare the touched files with the record."""
    blobs = site.module.recorded().blobs
    changed = {path for path, (before, after) in blobs.items() if before != after}
    if not blobs:
        return State("unpatched")
    original, patched, odd = set(), set(), []
    for path, (before, after) in sorted(blobs.items()):
        file = series.read_file(target.root / target.path(site, path))
        is_before, is_after = series.matches(file, before), series.matches(file, after)
        if is_before:
            original.add(path)
        if is_after:
            patched.add(path)
        if is_before or is_after:
            continue
        if file is None:
            odd.append(f"{path} (missing)")
        elif not before:
            odd.append(f"{path} (in the way of a new file)")
        elif b"\r\n" in file[1] and series.matches((file[0], file[1].replace(b"\r\n", b"\n")), before):
            odd.append(f"{path} (line ends changed to CRLF)")
        else:
            odd.append(f"{path} (changed)")
    if not odd and changed <= original:
        return State("original")
    if not odd and changed <= patched:
        return State("patched")
    return State("modified", odd or [f"{path} (patched, others are not)" for path in sorted(patched & changed)])


def whole_tree(target: Target, site: Site) -> str:
    """How a source tree as a whole compares with the recorded tree ids."""
    found, record = git.tree_id(git.scan(target.root / site.prefix)), site.module.recorded()
    if found in (record.tree, record.patched_tree):
        return f"tree {found}, as recorded"
    return f"tree {found}, not a recorded one: files that no patch touches differ from the source distribution"


def change(target: Target, reverse: bool, sdists: str | None) -> list[str]:
    """Apply the patches at the target, or take them off; one line a module on what was done.

    All modules or none: raises Failure with nothing changed.
    """
    verb = "drop" if reverse else "apply"
    here = [site for site in target.sites if site.found]
    fresh = [site for site in target.sites if site.tree and not site.found and not reverse]
    if not here and not fresh:
        missing = ", ".join(f"{site.module.name} {site.module.version}" for site in target.sites)
        raise Failure(
            f"Nothing to {verb} in {target.root}: it has none of {missing}; name the target with --env or --to."
        )
    if wrong := [site.wrong[1] for site in here if site.wrong]:
        raise Failure("\n".join(wrong))
    patches = {site.module.name: series.stored(site.module) for site in here + fresh}
    archives = {site.module.name: sdist.locate(site.module, sdists) for site in fresh}
    created = not target.root.exists()
    try:
        target.root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"{target.root} cannot be made: {error.strerror}.") from error
    lines = []
    try:
        with Transaction(target.root) as transaction:
            modified = []
            for site in target.sites:
                if site in here:
                    state = inspect(target, site)
                    if state.kind == "modified":
                        modified.append(refusal(target, site, state, verb))
                        continue
                    lines.append(f"{site}: {in_place(transaction, target, site, state, patches, reverse)}")
                elif site in fresh:
                    unpack(transaction, site, patches[site.module.name], archives[site.module.name])
                    lines.append(f"{site}: unpacked and patched")
                else:
                    lines.append(f"{site}: not {'there' if site.tree else 'installed'}, skipped")
            if modified:
                raise Failure("\n".join(modified))
            transaction.commit()
    finally:
        if created and not any(target.root.iterdir()):
            target.root.rmdir()
    return lines


def refusal(target: Target, site: Site, state: State, verb: str) -> str:
    """The sentence about a modified module."""
    shown = ", ".join(state.files[:5]) + (f" and {len(state.files) - 5} more" if len(state.files) > 5 else "")
    restore = "restore the source tree" if site.tree else f"reinstall {site.found.replace(' ', '==')}"
    return (
        f"{site.module.name} in {target.root / site.prefix} is neither the pinned original nor the patched one, "
        f"nothing was changed: {shown}; {restore} (or drop with the patches it was patched with), then {verb} again."
    )


def in_place(transaction: Transaction, target: Target, site: Site, state: State, patches: dict, reverse: bool) -> str:
    """Stage the change of a module that is there."""
    if state.kind == "unpatched":
        return "no patch in this pin set"
    if state.kind == ("original" if reverse else "patched"):
        return f"already {state.kind}"
    series_, blobs = patches[site.module.name], site.module.recorded().blobs
    files = {}
    for path in blobs:
        file = series.read_file(target.root / target.path(site, path))
        if file is not None:
            files[path] = file
    wanted = {path: pair[0 if reverse else 1] for path, pair in blobs.items()}
    result = series.transform(files, series_, reverse)
    require(site.module, result, wanted)
    touched = 0
    for path, recorded in sorted(wanted.items()):
        before, after, place = files.get(path), result.get(path), target.path(site, path)
        if before == after:
            continue
        touched += 1
        if after is None:
            transaction.delete(place)
            continue
        bits = 0o755 if after[0] == EXECUTABLE else 0o644
        if before is not None:
            bits = (target.root / place).stat().st_mode & 0o7777
            if " " in recorded:
                bits = bits & ~0o111 | (bits >> 2 & 0o111 if after[0] == EXECUTABLE else 0)
        transaction.write(place, after[1], bits)
    return f"{'original again' if reverse else 'patched'}, {plural(touched, 'file')}"


def require(module: Module, result: series.Files, wanted: dict[str, str]) -> None:
    """Raise Failure unless the patches gave the recorded files."""
    for path, recorded in wanted.items():
        if not series.matches(result.get(path), recorded):
            raise Failure(
                f"The patches in {module.folder} do not give the {path} that {module.pinset.file} records: "
                f"run `patchset check {module.pinset.name}`."
            )


def unpack(transaction: Transaction, site: Site, patches: list[series.Patch], archive: Path) -> None:
    """Stage the pinned source tree, patched, as a new folder."""
    record, folder = site.module.recorded(), transaction.place(site.prefix)
    sdist.unpack(archive, folder)
    files = {path: file for path in record.blobs if (file := series.read_file(folder / path)) is not None}
    result = series.transform(files, patches)
    for path in files.keys() - result.keys():
        (folder / path).unlink()
    series.lay_out(result, folder)
    if git.tree_id(git.scan(folder)) != record.patched_tree:
        raise Failure(
            f"{archive} and the patches in {site.module.folder} do not give the tree that {site.module.pinset.file} "
            f"records: run `patchset check {site.module.pinset.name}`."
        )


def states(target: Target) -> dict[str, str]:
    """Each module's state at the target, in the words of report()."""
    found = {}
    for site in target.sites:
        if not site.found:
            found[site.module.name] = "not there" if site.tree else "not installed"
        else:
            found[site.module.name] = site.wrong[0] if site.wrong else inspect(target, site).kind
    return found


def report(target: Target) -> tuple[list[str], bool]:
    """Lines on each module's state at the target, and whether all is in order."""
    lines, good = [f"  {target.root}"], True
    for site in target.sites:
        if not site.found:
            lines.append(f"    {site}: not {'there' if site.tree else 'installed'}")
        elif site.wrong:
            lines += [f"    {site}: {site.wrong[0]}", f"      {site.wrong[1]}"]
            good = False
        else:
            state = inspect(target, site)
            lines.append(f"    {site}: {'no patch in this pin set' if state.kind == 'unpatched' else state.kind}")
            lines += [f"      {file}" for file in state.files]
            if site.tree:
                lines.append(f"      {whole_tree(target, site)}")
            good = good and state.kind != "modified"
    return lines, good
