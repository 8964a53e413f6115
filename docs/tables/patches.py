# SPDX-License-Identifier: Apache-2.0
"""The tables of the pin sets' patches, from the patches' messages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tables._records import table
from tables.pin_sets import ROOT, read_pins

THREAD = re.compile(r"https://github\.com/[\w-]+/([\w-]+)/(?:pull|issues)/(\d+)|([\w-]+/[\w-]+)#(\d+)")


@dataclass(frozen=True)
class Patch:
    """The parts of a patch's message; `threads` are links to the pull requests and issues that its trailer "Upstream:"
    names."""

    number: str
    title: str
    threads: list[str]

    @classmethod
    def read(cls, path: Path) -> Patch:
        """Raise ValueError if the message lacks a part."""
        head = path.read_text().partition("\ndiff --git ")[0]
        message = re.search(r"^Subject: \[PATCH\] (.+?)\n\n(.+?)\n\n", head, re.DOTALL | re.MULTILINE)
        trailers = dict(re.findall(r"^(Upstream|Remove-when): (.+)", head, re.MULTILINE))
        if not message or len(trailers) < 2:
            raise ValueError(f"{path} lacks a body, Upstream: or Remove-when: in its message")
        threads = [link(thread) for thread in THREAD.finditer(trailers["Upstream"])]
        return cls(path.name[:4], " ".join(message[1].split()), threads)


def link(thread: re.Match[str]) -> str:
    """A link to a pull request or an issue; GitHub redirects between the two."""
    project, number, path, also = thread.groups()
    if path:
        return f"[{path.partition('/')[2]}#{also}](https://github.com/{path}/pull/{also})"
    return f"[{project}#{number}]({thread[0]})"


def patches(language: str) -> str:
    """A table for each module, with a row for each patch title and the patch's number in each pin set."""
    pin_sets = {pins["name"]: list(pins["module"]) for pins in read_pins()}
    text = []
    for module in sorted(
        {module for modules in pin_sets.values() for module in modules}, key=["vllm", "vllm_ascend", "verl"].index
    ):
        found: dict[str, dict[str, Patch]] = {}
        for name in (name for name, modules in pin_sets.items() if module in modules):
            for path in sorted((ROOT / "patches" / name / module).glob("*.patch")):
                patch = Patch.read(path)
                found.setdefault(patch.title, {})[name.removeprefix("vllm-")] = patch
        lines = [
            [", ".join(f"{name}: {patch.number}" for name, patch in of.items()), *cells(next(iter(of.values())))]
            for of in found.values()
        ]
        head = ["pin set: number", "patch", "upstream"]
        text.append(f"## {module.replace('_', '-')}\n\n{table(head, lines, left=len(head))}")
    return "\n\n".join(text)


def cells(patch: Patch) -> list[str]:
    """What a patch does, and where upstream discusses it."""
    return [cell.replace("|", "\\|") for cell in (patch.title, ", ".join(patch.threads))]


TABLES = {"patches": patches}
