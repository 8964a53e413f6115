# SPDX-License-Identifier: Apache-2.0
"""The command line of patchset."""

import argparse
import json
import sys

from . import check, pins, series, target, work
from .git import Failure
from .pins import PinSet, plural

TARGET_HELP = """
target, one of:
  --env VENV   the packages installed in this environment; modules that are not installed are skipped
  --to DIR     the source trees DIR/<module>, or DIR itself as the source tree of the one --module
  neither      the current environment: $VIRTUAL_ENV, or else the one that runs this tool
"""


def parser() -> argparse.ArgumentParser:
    """All commands and options."""
    top = argparse.ArgumentParser(
        prog="patchset",
        description="Patches on pinned releases: edit them as commits, store them as files, apply them.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, summary: str, more: str = "") -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.\n{more}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def sdists(sub: argparse.ArgumentParser) -> None:
        sub.add_argument(
            "--sdists",
            metavar="DIR",
            help="folder with the source distributions (default: $PATCHSET_SDISTS, then .cache/sdists, then a download)",
        )

    def targets(sub: argparse.ArgumentParser) -> None:
        place = sub.add_mutually_exclusive_group()
        place.add_argument("--env", metavar="VENV", help="an environment, by its top folder")
        place.add_argument("--to", metavar="DIR", help="a folder of source trees, or one source tree")
        sub.add_argument("--module", action="append", default=[], metavar="M", help="only this module (repeatable)")

    sub = command(
        "import",
        "make a git repository of a module, one commit a patch",
        "Edit there: add commits, `git commit --fixup`, `git rebase -i --autosquash patchset-base`; then export.\n"
        "The pinned release is the tag patchset-base.",
    )
    sub.add_argument("pinset", metavar="PINSET")
    sub.add_argument("module", metavar="MODULE")
    sub.add_argument(
        "--from",
        dest="source",
        metavar="SOURCE",
        help="a source distribution, or a git checkout that has the pinned commit (default: see --sdists)",
    )
    sub.add_argument("--to", metavar="DIR", help="the new repository (default: .cache/patchset/<PINSET>/<MODULE>)")
    sdists(sub)

    sub = command(
        "export",
        "write the commits of such a repository as the stored patches",
        "Stale patches are removed and the record in pins.toml is brought up to date, all or nothing.",
    )
    sub.add_argument("pinset", metavar="PINSET")
    sub.add_argument("module", metavar="MODULE")
    sub.add_argument("--from", dest="source", metavar="DIR", help="the repository (default: that of import)")
    sdists(sub)

    sub = command(
        "apply",
        "apply the patches, all or nothing; again is harmless",
        "Into a folder --to DIR that lacks a module, its pinned source is unpacked first.\n" + TARGET_HELP,
    )
    sub.add_argument("pinset", nargs="?", metavar="PINSET", help="default: the one whose versions are installed")
    targets(sub)
    sdists(sub)

    sub = command("drop", "take the patches off again, all or nothing", TARGET_HELP)
    sub.add_argument("pinset", nargs="?", metavar="PINSET", help="default: the one whose versions are installed")
    targets(sub)

    sub = command(
        "status",
        "list the patches, the tree ids, and the state of a target",
        "The state of a module is original, patched, modified (with the files) or wrong version; exit status 1 for\n"
        "the last two.\n" + TARGET_HELP,
    )
    sub.add_argument("pinset", nargs="?", metavar="PINSET", help="default: all")
    sub.add_argument("--json", action="store_true", help="only {pin set: {module: state}}; exit status 0")
    targets(sub)

    sub = command(
        "check",
        "check the stored patches against each other, the record and the source distributions",
        "Exit status 1 with a sentence for each thing that is wrong.",
    )
    sub.add_argument("pinset", nargs="?", metavar="PINSET", help="default: all")
    sub.add_argument("--offline", action="store_true", help="leave out what needs the source distributions")
    sdists(sub)
    return top


def choose(args: argparse.Namespace) -> tuple[PinSet, target.Target]:
    """The pin set and the target of apply and drop; without PINSET the only one, or the only one that fits."""
    names = [args.pinset] if args.pinset else pins.names()
    fitting = []
    for name in names:
        pinset = pins.opened(name)
        found = target.find(pinset, args.module, args.env, args.to)
        if len(names) == 1:
            return pinset, found
        if any(site.found for site in found.sites) and not any(site.wrong for site in found.sites):
            fitting.append((pinset, found))
    if len(fitting) != 1:
        fit = "none fits" if not fitting else "more than one fits"
        raise Failure(f"Name the pin set, one of {', '.join(names)}: {fit} what the target has.")
    return fitting[0]


def status(args: argparse.Namespace) -> int:
    """The status command."""
    good = True
    if args.json:
        names = [args.pinset] if args.pinset else pins.names()
        found = {name: target.find(pins.opened(name), args.module, args.env, args.to) for name in names}
        print(json.dumps({name: target.states(where) for name, where in found.items()}))
        return 0
    for name in [args.pinset] if args.pinset else pins.names():
        pinset = pins.opened(name)
        print(pinset.name)
        for module in pinset.modules.values():
            record, patches = module.recorded(), series.load(module)
            count = plural(len(patches), "patch")
            print(f"  {module.name} {module.version}: {count}, tree {record.tree} -> {record.patched_tree}")
            for patch in patches:
                print(f"    {patch.file.name[:4]} {patch.subject}")
        lines, fine = target.report(target.find(pinset, args.module, args.env, args.to))
        print("\n".join(lines))
        good = good and fine
    return 0 if good else 1


def run_check(args: argparse.Namespace) -> int:
    """The check command."""
    bad = False
    for name in [args.pinset] if args.pinset else pins.names():
        problems = check.check(pins.opened(name), args.sdists, args.offline)
        print("\n".join(problems) or f"{name}: in order{' (offline)' if args.offline else ''}")
        bad = bad or bool(problems)
    return 1 if bad else 0


def run(args: argparse.Namespace) -> int:
    """Carry a command out; its exit status."""
    if args.command == "status":
        return status(args)
    if args.command == "check":
        return run_check(args)
    if args.command in ("import", "export"):
        module = pins.opened(args.pinset).module(args.module)
        if args.command == "import":
            lines = work.import_(module, args.source, args.to, args.sdists)
        else:
            lines = work.export(module, args.source, args.sdists)
    else:
        pinset, found = choose(args)
        print(f"{pinset.name} in {found.root}")
        lines = target.change(found, args.command == "drop", getattr(args, "sdists", None))
    print("\n".join(lines))
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run the command line; errors go to standard error, one sentence each."""
    args = parser().parse_args(argv)
    try:
        return run(args)
    except Failure as failure:
        print(f"patchset: {failure}", file=sys.stderr)
    except OSError as error:
        print(f"patchset: {error.filename or 'a file'}: {error.strerror or error}.", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 1
