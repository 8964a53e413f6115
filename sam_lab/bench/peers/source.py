# SPDX-License-Identifier: Apache-2.0
"""Source distributions of the peers, checked by their SHA-256, and what is built from them in .cache/peers."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sam_core.engines.hooks import installed

from sam_lab.cli import LabError

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".cache" / "peers"
MODEL_LEN = 65_536
"""Tokens that a row of a text can hold."""


def not_available(reason: str) -> LabError:
    """The error for a peer that cannot be run here."""
    return LabError(f"not available: {reason}")


def unpack(dist: str, version: str, sha256: str, folder: str | Path) -> None:
    """Unpack a source distribution, checked, into a folder; `patchset` has it at hand or downloads it."""
    sys.path.append(str(ROOT / "patches"))
    try:
        from _patchset import sdist
        from _patchset.git import Failure
        from _patchset.pins import released
    finally:
        sys.path.pop()
    try:
        module = released(Path(Path(__file__).name), dist, version, sha256)
        sdist.unpack(sdist.locate(module, None), Path(folder))
    except Failure as error:
        raise not_available(str(error)) from None


def build(dist: str, version: str, sha256: str, make: Callable[[Path, Path], None]) -> Path:
    """The folder of what `make(source, target)` makes of a source distribution, on first use; raises LabError."""
    folder = CACHE / f"{dist}-{version}-{sys.implementation.cache_tag}"
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
            source, target = Path(temporary) / "source", Path(temporary) / "made"
            unpack(dist, version, sha256, source)
            target.mkdir()
            make(source, target)
            try:
                os.replace(target, folder)
            except OSError:  # another process was faster
                if not folder.is_dir():
                    raise
    return folder


def imported(folder: Path, module: str) -> Any:
    """Import a module from the folder that `build` has made."""
    sys.path.append(str(folder))
    try:
        return importlib.import_module(module)
    finally:
        sys.path.remove(str(folder))


def need(module: str) -> Path:
    """The folder of an installed package that a peer is compiled with; raises LabError."""
    if (folder := installed(module)) is None:
        raise not_available(f"{module} is not installed")
    return folder


def compile_cpp(files: Sequence[Path], folders: Sequence[Path], target: Path, *more: str | Path) -> None:
    """Compile a shared library as a release build does; raises LabError."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise not_available(f"{compiler} is not on PATH")
    flags = ["-std=c++20", "-O3", "-DNDEBUG", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-strict-aliasing"]
    includes = [f"-I{path}" for path in (sysconfig.get_path("include"), *folders)]
    command = [compiler, *flags, *includes, *files, *more, "-o", target]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise not_available(f"{compiler} does not compile it: {next((x for x in lines if 'error:' in x), lines[-1])}")
