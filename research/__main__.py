# SPDX-License-Identifier: Apache-2.0
"""`python -m research`: the papers' methods on recordings and on models."""

from __future__ import annotations

import sys

from sam_lab import cli

COMMANDS = {
    "compare": ("research.compare", "score the methods that need no model on recorded answers"),
    "models": ("research.models", "write a target and a draft model"),
    "tree": ("research.tree", "decode prompts with a model by every method, and plainly"),
    "article": ("research.article", "fit the planner to the article's figures, predict other published runs"),
    "papers": ("research.papers", "repeat the papers' experiments"),
}


def main(argv: list[str] | None = None) -> int:
    return cli.main("research", __doc__.partition(": ")[2], COMMANDS, argv)


if __name__ == "__main__":
    sys.exit(main())
