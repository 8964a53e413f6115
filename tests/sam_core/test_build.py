# SPDX-License-Identifier: Apache-2.0
"""The source archive holds all that a wheel needs, and the wheel all that a user needs."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

from c_programs import PROJECT

import sam_core

NAME = f"sam_core-{sam_core.__version__}"


def build(kind, source, target):
    """Call the build backend as an installer would, in the source's folder; return what it made."""
    target.mkdir()
    code = f"import sys, setuptools.build_meta as backend; backend.build_{kind}(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, target], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (made,) = target.iterdir()
    return made


IGNORED = shutil.ignore_patterns("*.so", "build", "*.egg-info", "__pycache__")


def test_sdist_builds_a_wheel_that_works(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(PROJECT, copy, ignore=IGNORED)
    sdist = build("sdist", copy, tmp_path / "sdist")
    assert sdist.name == f"{NAME}.tar.gz"
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked")
    tests = {path.name for path in (tmp_path / "unpacked" / NAME / "tests").iterdir()}
    need_the_repository = {"test_build.py", "test_cli.py", "test_design.py", "test_metrics.py"}
    assert {path.name for path in (PROJECT / "tests").iterdir()} - {"__pycache__"} == tests | need_the_repository
    wheel = build("wheel", tmp_path / "unpacked" / NAME, tmp_path / "wheel")
    assert wheel.name.startswith(f"{NAME}-cp311-abi3-linux_")  # the tests run on Python 3.11 or later
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        licence = archive.read(f"{NAME}.dist-info/licenses/LICENSE")
        metadata = archive.read(f"{NAME}.dist-info/METADATA").decode().partition("\n\n")[0]
        archive.extractall(tmp_path / "installed")
    sources = {path.name for path in (PROJECT / "src" / "sam_core").iterdir()}
    sources = {name for name in sources if name.endswith((".py", ".pyi", ".typed"))}
    assert {"__init__.py", "proposer.py", "_sam.pyi", "py.typed"} <= sources
    assert {f"sam_core/{name}" for name in sources} <= names
    assert not any("test" in name or "twin" in name for name in names)
    assert licence == (PROJECT.parent / "LICENSE").read_bytes() and not (PROJECT / "LICENSE").is_symlink()
    fields = {name: re.findall(rf"^{name}: (.*)$", metadata, re.MULTILINE) for name in ("Platform", "Provides-Extra")}
    assert fields == {"Platform": ["Linux x86-64", "Linux aarch64"], "Provides-Extra": ["corpus", "torch"]}
    assert "License-Expression: Apache-2.0\n" in metadata
    assert re.search(r"^Requires-Dist: torch.*; extra == .torch.$", metadata, re.MULTILINE)
    code = "import sam_core as s; p = s.Pool(); p.close(p.open([1, 2, 1])); print(s.__version__, s.__file__)"
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed")}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [sam_core.__version__, str(tmp_path / "installed" / "sam_core" / "__init__.py")], (
        done.stderr
    )
