# SPDX-License-Identifier: Apache-2.0
"""Write a report on finished runs.

    python -m llm_rl.reports report --off RUN_DIR --on RUN_DIR [--auto RUN_DIR] [--article] --out DIR

Prints a table and writes report.html and report.md, each also in Chinese (.zh), summary.json and pictures/ to DIR. If
the runs cannot be compared, or a run with speculation verified no draft, exits with status 1 and one sentence and
writes nothing.
"""

import argparse
import contextlib
import json
import sys
from pathlib import Path

from sam_core.files import replacing

from llm_rl.errors import UserError
from llm_rl.reports.answers import compare_answers, read_answers
from llm_rl.reports.compare import ARMS, NAMES, arms_of, busy_loads, summarize
from llm_rl.reports.pages import markdown, page, text_table, words
from llm_rl.reports.runs import read_run


def load(folders):
    """The summary and the Runs of {"off": folder, "on": ..., "auto": ...}; "on" or "auto" may be missing.

    Raises UserError if a folder cannot be used.
    """
    runs = {arm: read_run(folder) for arm, folder in folders.items()}
    answers = {arm: read_answers(folder) for arm, folder in folders.items()}
    sampled = {arm: compare_answers(answers["off"], answers[arm]) for arm in folders if arm != "off"}
    return summarize(runs, sampled), runs


def write(out, summary, runs, article=False):
    """Write the report to the folder `out`, all or nothing.

    article: whether to add the article's curves. Raises ValueError or OSError if the report cannot be written.
    """
    from llm_rl.reports.pictures import draw

    files = {"summary.json": (json.dumps(summary, indent=2) + "\n").encode()}
    for language, suffix in (("en", ""), ("zh", ".zh")):
        other = {"中文": "report.zh.html"} if language == "en" else {"English": "report.html"}
        pictures = draw(summary, runs, language, article)
        text = markdown(summary, language, article)
        files |= pictures | {f"report{suffix}.md": text.encode()}
        files[f"report{suffix}.html"] = page(text, language, pictures, other).encode()
    (out / "pictures").mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        for name, data in files.items():
            stack.enter_context(replacing(out / name)).write_bytes(data)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m llm_rl.reports", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="report")
    report = commands.add_parser("report", help="compare finished runs that differ only in speculation")
    report.add_argument("--off", type=Path, required=True, metavar="RUN_DIR", help="the run without speculation")
    for arm in ARMS:
        report.add_argument(f"--{arm}", type=Path, metavar="RUN_DIR", help=f"the run with {NAMES[arm]}")
    report.add_argument("--article", action="store_true", help="add the article's curves to the pictures")
    report.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the report")
    args = parser.parse_args(argv)
    folders = {arm: folder for arm in ("off", *ARMS) if (folder := getattr(args, arm))}
    if len(folders) == 1:
        parser.error("a run with speculation is needed with --off: give --on RUN_DIR, --auto RUN_DIR, or both")
    try:
        summary, runs = load(folders)
        try:
            write(args.out, summary, runs, args.article)
        except OSError as error:
            raise UserError(f"the report cannot be written to {args.out}: {error.strerror}") from None
        except ValueError as error:
            raise UserError(str(error)) from None
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    others = {arm: summary[arm] | {"name": NAMES[arm]} for arm in arms_of(summary)[1:]}
    for arm in others.values():
        print(words().verdict(summary, arm))
    if loads := busy_loads(summary):
        print(words().busy_machine(loads))
    print(text_table(summary))
    print(words().gain_note())
    for arm in others:
        if summary[arm]["sampled"]:
            print(words().equal_tokens(summary[arm]["sampled"], NAMES[arm]))
    pages = f"{args.out / 'report.html'}, {args.out / 'report.zh.html'}; the same as .md"
    print(f"report: {pages}; {args.out / 'summary.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
