# SPDX-License-Identifier: Apache-2.0
"""Download a file over HTTP, resuming an interrupted download."""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

from sam_core.files import write_json

from llm_rl.errors import UserError

TRIES = 5
"""Number of consecutive broken connections without a received byte after which a download fails."""
TIMEOUT = 60
"""Seconds without a byte after which a connection counts as broken."""
CHUNK = 1 << 20


class _Broken(Exception):
    """The connection ended before the file did."""


def fetch(url: str, path: Path, pause: float = 2.0) -> None:
    """Download `url` to `path`, completely or not at all. Raises UserError.

    The received part stays in `<path>.part`, its address and the server's identifier of this version of the file in
    `<path>.part.json`. A later call resumes there, or starts over if the file has changed. After a broken connection it
    waits `pause` seconds and resumes, at most TRIES times in a row without progress.

    No library does this for any address: huggingface_hub only downloads from its hub, pooch cannot resume.
    """
    part, record = (path.with_name(path.name + end) for end in (".part", ".part.json"))
    left = TRIES
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            _receive(url, part, record)
            os.replace(part, path)
            record.unlink(missing_ok=True)
            return
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise UserError(f"{url} cannot be downloaded: HTTP {error.code} {error.reason}") from None
            reason = f"HTTP {error.code} {error.reason}"
        except (_Broken, urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            reason = str(getattr(error, "reason", error) or type(error).__name__)
        size = part.stat().st_size if part.exists() else 0
        left = TRIES if size > before else left - 1
        if not left:
            kept = f"; the first {size} bytes are kept in {part}: call again to resume" if size else ""
            raise UserError(f"{url} cannot be downloaded: {reason}{kept}")
        print(f"{reason}; retrying in {pause:g} s", file=sys.stderr, flush=True)
        time.sleep(pause)


def _receive(url: str, part: Path, record: Path) -> None:
    """Receive the missing bytes of `url` into `part`. Raises _Broken if the connection ends early."""
    start, version = _arrived(url, part, record)
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", f"bytes={start}-")
        request.add_header("If-Range", version)
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        part.unlink()  # longer than the file
        raise _Broken("the part that was kept does not fit the file") from None
    with answer:
        if answer.status != 206:  # all of it: another version, or a server that cannot resume
            start = 0
        total = start + int(answer.headers["Content-Length"]) if answer.headers["Content-Length"] else None
        # A weak tag does not identify bytes, so it cannot guarantee that two parts belong together.
        tag = answer.headers["ETag"] or ""
        version = tag if tag and not tag.startswith("W/") else answer.headers["Last-Modified"]
        write_json(record, {"url": url, "version": version})
        show = _progress(total)
        with open(part, "r+b" if start else "wb") as file:
            file.seek(start)
            file.truncate()
            while data := answer.read(CHUNK):
                file.write(data)
                show(file.tell())
            if total is not None and file.tell() != total:
                raise _Broken(f"the connection ended after {file.tell()} of {total} bytes")


def _arrived(url: str, part: Path, record: Path) -> tuple[int, str]:
    """Number of bytes in `part`, and the version of the file that they belong to; 0 if it is unknown."""
    try:
        known = json.loads(record.read_text())
        if known["url"] == url and known["version"]:
            return part.stat().st_size, known["version"]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return 0, ""


def _progress(total: int | None) -> Callable[[int], None]:
    """A function that prints the progress for a number of bytes: twice a second on a terminal, every 10 s in a log."""
    live = sys.stderr.isatty()
    begin, first, last = time.monotonic(), None, 0.0

    def show(size: int) -> None:
        nonlocal first, last
        first = size if first is None else first
        now, done = time.monotonic(), size == total
        if now - last < (0.5 if live else 10) and not done:
            return
        last = now
        rate = (size - first) / max(now - begin, 1e-3) / 1e6
        of = f" of {total / 1e6:.1f} MB ({size / total:.0%})" if total else " MB"
        text = f"{size / 1e6:.1f}{of}, {rate:.1f} MB/s"
        print(f"\r{text}   " if live else text, end="\n" if done or not live else "", file=sys.stderr, flush=True)

    return show


def is_url(source: str) -> bool:
    return urllib.parse.urlparse(source).scheme in ("http", "https")
