# SPDX-License-Identifier: Apache-2.0
"""The command line of patchset."""

import argparse
import json
import sys
from typing import Any

from . import check, pins, series, target, work
from .git import Failure
from .pins import PinSet, plural

TARGET_HELP = """
target, one of:
  --env VENV   the packages installed in this environment; modules that are not installed are skipped
  --to DIR     the source trees DIR/<module>, or DIR itself as the source tree of the one --module
  neither      the current environment: $VIRTUAL_ENV, else the one that runs this tool
"""


def parser() -> argparse.ArgumentParser:
    """All commands and options."""
    top = argparse.ArgumentParser(
        prog="patchset",
        description="Patches on pinned releases: edit them as commits, store them as files, apply them.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    sdists = argparse.ArgumentParser(add_help=False)
    sdists.add_argument(
        "--sdists",
        metavar="DIR",
        help="folder with the source distributions (default: $PATCHSET_SDISTS, then .cache/sdists, then a download)",
    )
    targets = argparse.ArgumentParser(add_help=False)
    place = targets.add_mutually_exclusive_group()
    place.add_argument("--env", metavar="VENV", help="an environment, by its top folder")
    place.add_argument("--to", metavar="DIR", help="a folder of source trees, or one source tree")
    targets.add_argument("--module", action="append", default=[], metavar="M", help="only this module (repeatable)")

    def command(
        name: str, summary: str, more: str = "", parents: tuple[argparse.ArgumentParser, ...] = (), **pinset: Any
    ) -> argparse.ArgumentParser:
        """Add a command with an argument PINSET, which `pinset` describes to argparse; return its parser."""
        sub = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.\n{more}",
            parents=parents,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_argument("pinset", metavar="PINSET", **pinset)
        return sub

    sub = command(
        "import",
        "create a git repository of a module, with one commit per patch",
        "Edit there: add commits, `git commit --fixup`, `git rebase -i --autosquash patchset-base`; then export.\n"
        "The pinned release is the tag patchset-base.",
        (sdists,),
    )
    sub.add_argument("module", metavar="MODULE")
    sub.add_argument("--to", metavar="DIR", help="the new repository (default: .cache/patchset/<PINSET>/<MODULE>)")

    sub = command(
        "export",
        "write the commits of a repository made by import as the stored patches",
        "Removes stale patches and updates the record in pins.toml, all or nothing.",
        (sdists,),
    )
    sub.add_argument("module", metavar="MODULE")
    sub.add_argument("--from", dest="source", metavar="DIR", help="the repository (default: the default of import)")

    fitting = {"nargs": "?", "help": "default: the one whose versions are installed"}
    command(
        "apply",
        "apply the patches, all or nothing; skips modules that are already patched",
        "A module that is missing in the folder --to DIR is unpacked there first.\n" + TARGET_HELP,
        (targets, sdists),
        **fitting,
    )
    command("drop", "restore the original files, all or nothing", TARGET_HELP, (targets,), **fitting)

    sub = command(
        "status",
        "list the patches, the tree ids, and the state of a target",
        "The state of a module is original, patched, partly patched (by an interrupted apply or drop: call it again),\n"
        "modified (with the files) or wrong version; exit status 1 for the last three.\n" + TARGET_HELP,
        (targets,),
        nargs="?",
        help="default: the one whose versions are installed, else all",
    )
    sub.add_argument("--json", action="store_true", help="only {pin set: {module: state}}; exit status 0")

    sub = command(
        "check",
        "check the stored patches against each other, the record and the source distributions",
        "Exit status 1 with a sentence for each problem.",
        (sdists,),
        nargs="?",
        help="default: all",
    )
    sub.add_argument("--offline", action="store_true", help="skip the checks that need the source distributions")

    sub = command("pin", "print a value of pins.toml, for scripts; a list is printed one element per line")
    sub.add_argument("key", metavar="KEY", help="for example runtime.npu.torch")
    return top


def fitting(args: argparse.Namespace) -> list[tuple[PinSet, target.Target]]:
    """The named pin set, or those that fit the target best and equally well; all if none fits."""
    pinsets = [PinSet(name) for name in chosen(args)]
    places = [target.find(pinset, args.module, args.env, args.to) for pinset in pinsets]
    fits = [target.fit(place) if len(places) > 1 else (0, 0) for place in places]
    return [(pinset, place) for pinset, place, fit in zip(pinsets, places, fits, strict=True) if fit == max(fits)]


def choose(args: argparse.Namespace) -> tuple[PinSet, target.Target]:
    """The pin set and the target of a command. Without PINSET, raises Failure unless exactly one pin set fits best."""
    best = fitting(args)
    (pinset, place), *others = best
    if not others:
        return pinset, place
    fits = any(target.fit(place))
    if fits or args.to:
        fit = "more than one fits" if fits else "none fits"
        raise Failure(f"Name the pin set, one of {', '.join(pinset.name for pinset, _ in best)}: {fit} {place.root}.")
    present = sorted({site.present for _, place in best for site in place.sites if site.present})
    has = f"{', '.join(present)}, which no pin set patches" if present else "no module that a pin set patches"
    plugin = "use sam_core's plugin if it supports that release of vLLM (docs/gpu.md), " if present else ""
    pinned = (f"{name.name} ({', '.join(f'{m.name} {m.version}' for m in name.modules.values())})" for name, _ in best)
    raise Failure(
        f"{place.root} has {has}: {plugin}install the modules that you use from one of {', '.join(pinned)}, or name "
        "another environment with --env."
    )


def chosen(args: argparse.Namespace) -> list[str]:
    """The name of the given pin set, or all names."""
    return [args.pinset] if args.pinset else pins.names()


def status(args: argparse.Namespace) -> bool:
    """The command status; returns whether all is in order."""
    places = fitting(args)
    here = any(site.present for _, place in places for site in place.sites)
    if here and not args.json and len(places) > 1 and not any(target.fit(places[0][1])):
        choose(args)  # raises Failure
    if args.json:
        print(json.dumps({pinset.name: target.states(place) for pinset, place in places}))
        return True
    reports = []
    for pinset, place in places:
        print(pinset.name)
        for module in pinset.modules.values():
            record, patches = module.recorded(), series.load(module)
            count = plural(len(patches), "patch")
            print(f"  {module.name} {module.version}: {count}, tree {record.tree} -> {record.patched_tree}")
            for patch in patches:
                print(f"    {patch.file.name[:4]} {patch.subject}")
        lines, in_order = target.report(place)
        print("\n".join(lines))
        reports.append(in_order)
    return all(reports)


def run_check(args: argparse.Namespace) -> bool:
    """The command check; returns whether all is in order."""
    problems = {name: check.check(PinSet(name), args.sdists, args.offline) for name in chosen(args)}
    for name, sentences in problems.items():
        print("\n".join(sentences) or f"{name}: in order{' (offline)' if args.offline else ''}")
    return not any(problems.values())


def run(args: argparse.Namespace) -> int:
    """Run a command; returns its exit status."""
    lines: list[str] = []
    match args.command:
        case "status":
            return 0 if status(args) else 1
        case "check":
            return 0 if run_check(args) else 1
        case "pin":
            value = pins.value(args.pinset, args.key)
            lines = value if isinstance(value, list) else [str(value)]
        case "import":
            lines = work.import_(PinSet(args.pinset).module(args.module), args.to, args.sdists)
        case "export":
            lines = work.export(PinSet(args.pinset).module(args.module), args.source, args.sdists)
        case "apply" | "drop":
            pinset, place = choose(args)
            print(f"{pinset.name} in {place.root}")
            lines = target.change(place, args.command == "drop", getattr(args, "sdists", None))
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
    return 1
