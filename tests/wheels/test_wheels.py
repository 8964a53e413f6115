# SPDX-License-Identifier: Apache-2.0
"""What `make wheels` builds, installed in clean environments; `make test-wheels` fetches what they take."""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import sam_core

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "wheels"
NAME = f"sam_core-{sam_core.__version__}"
MACHINES = {"x86_64": "Advanced Micro Devices X86-64", "aarch64": "AArch64"}  # as readelf names them
# Prints a digest of drafts and their probabilities, and where the package is.
DRAFTS = """
import array, hashlib, math, sam_core

def zeros(kind, *shape):
    return memoryview(bytearray(4 * math.prod(shape))).cast(kind, shape)

pool = sam_core.Pool()
slots, tokens, counts = (array.array("i", row) for row in ([pool.open([7]) for _ in range(8)], [7] * 8, [1] * 8))
out, scores, lengths = zeros("i", 8, 8), zeros("f", 8, 8), zeros("i", 8)
digest = hashlib.sha256()
for step in range(150):
    for row in range(8):
        tokens[row] = tokens[row] * 48271 % 97 * 500 + (step * step + row) % 5 // 4
    pool.step(slots, tokens, counts, 8, out, lengths, scores)
    for part in (out, scores, lengths):
        digest.update(part)
assert pool.stats()["accepted_tokens"] > 100
print(digest.hexdigest(), sam_core.__file__)
"""
# Imports all modules but those that need torch or an engine.
IMPORTS = """
import importlib, pkgutil, sam_core

for module in pkgutil.walk_packages(sam_core.__path__, "sam_core."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        assert error.name in ("ray", "torch", "verl", "vllm"), error
"""


def run(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}:\n{done.stdout[-6000:]}{done.stderr[-6000:]}"
    return done.stdout


def one(folder, pattern):
    (path,) = folder.glob(pattern)
    return path


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """What ci/build-wheels makes."""
    folder = tmp_path_factory.mktemp("dist")
    (folder / "sam_core-0.0.1.tar.gz").touch()  # goes
    run(ROOT / "ci" / "build-wheels", folder)
    return folder


def need_packages(machine):
    """The folder of packages for a machine; skips the test without it."""
    if not (CACHE / machine).is_dir():
        pytest.skip(f".cache/wheels/{machine} is missing: ci/test-wheels fetches it")
    return CACHE / machine


def pip_install(python, packages, *words):
    """Installs by the pip among the packages, in an environment that need not have one."""
    pip = one(packages, "pip-*.whl") / "pip"
    offline = ["--no-index", "--find-links", packages, "--no-cache-dir", "--disable-pip-version-check"]
    run(*python, pip, "install", "--quiet", "--root-user-action=ignore", *offline, *words)


def clean_environment(folder):
    """The Python of a new environment without any package."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    return folder / "bin" / "python"


def drafted(python, folder, **options):
    """The digest that DRAFTS prints; asserts that the package is that in `folder`."""
    digest, where = run(*python, "-c", DRAFTS, **options).split()
    assert Path(where).is_relative_to(folder), where
    return digest


@pytest.fixture(scope="module")
def digest():
    """That of the sam_core which is installed here, built by this machine's compiler."""
    return drafted([sys.executable], Path(sam_core.__file__).parent)


def test_three_files_and_no_older_ones(dist):
    wheels = {f"{NAME}-cp311-abi3-manylinux_2_17_{machine}.whl" for machine in MACHINES}
    assert {path.name for path in dist.iterdir()} == wheels | {f"{NAME}.tar.gz"}


@pytest.mark.parametrize("machine", MACHINES)
def test_contents(dist, machine, tmp_path):
    with zipfile.ZipFile(one(dist, f"*_{machine}.whl")) as archive:
        archive.extractall(tmp_path)
    module = one(tmp_path / "sam_core", "*.so")
    assert module.name == "_sam.abi3.so"
    told = run("readelf", "-h", "-d", module, env={"LC_ALL": "C"})
    assert re.search(r"Machine: +(.*)", told).group(1) == MACHINES[machine]
    assert "RPATH" not in told and "RUNPATH" not in told
    for folder in (ROOT, Path(sys.base_prefix), Path.home()):
        assert str(folder).encode() + b"/" not in module.read_bytes()
    assert {"py.typed", "_sam.pyi"} <= {path.name for path in (tmp_path / "sam_core").iterdir()}
    licence = (tmp_path / f"{NAME}.dist-info" / "licenses" / "LICENSE").read_bytes()
    assert licence == (ROOT / "LICENSE").read_bytes()
    told = message_from_bytes((tmp_path / f"{NAME}.dist-info" / "METADATA").read_bytes())
    assert f"{told['Name']}-{told['Version']}" == NAME.replace("_", "-")
    assert told["License-Expression"] == "Apache-2.0" and told["Requires-Python"] == ">=3.10"
    assert "numpy" in told.get_all("Requires-Dist") and told.get_payload().startswith("# sam_core")


def test_x86_64(dist, digest, tmp_path):
    packages = need_packages("x86_64")
    python = [clean_environment(tmp_path / "env")]
    pip_install(python, packages, one(dist, "*_x86_64.whl"))
    run(*python, "-c", IMPORTS)
    assert drafted(python, tmp_path / "env") == digest


@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_later_python(dist, digest, version, tmp_path):
    python = shutil.which(f"python{version}")
    if not python or subprocess.run([python, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"python{version} is not installed")
    packages = need_packages("x86_64")
    pip_install([python], packages, "--no-deps", "--target", tmp_path / "site", one(dist, "*_x86_64.whl"))
    assert drafted([python], tmp_path / "site", env={"PYTHONPATH": str(tmp_path / "site")}) == digest


def test_aarch64(dist, digest, tmp_path):
    emulator = shutil.which("qemu-aarch64")
    if not emulator:
        pytest.skip("qemu-aarch64 is not installed (Debian: qemu-user)")
    root = CACHE / "python-aarch64"
    if not root.is_dir():
        pytest.skip(f"{root.relative_to(ROOT)} is missing: ci/test-wheels fetches it by apt where it can")
    packages = need_packages("aarch64")
    python = [emulator, "-L", root, root / "usr" / "bin" / "python3"]
    site = tmp_path / "site"
    pip_install(python, packages, "--no-compile", "--target", site, one(dist, "*_aarch64.whl"))
    environment = {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    run(*python, "-c", IMPORTS, env=environment)
    assert drafted(python, site, env=environment) == digest


def test_source_archive_with_its_tests(dist, tmp_path):
    packages = need_packages("x86_64")
    archive = one(dist, "*.tar.gz")
    python = clean_environment(tmp_path / "env")
    pip_install([python], packages, f"{archive}[corpus]", "hypothesis", "pytest")
    with tarfile.open(archive) as files:
        files.extractall(tmp_path)
    source = tmp_path / NAME
    assert (source / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    pytest_here = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    collected = run(*pytest_here, "--collect-only", "tests", cwd=source)
    assert int(re.search(r"(\d+) tests collected", collected).group(1)) > 300
    few = ["tests/test_bad_input.py", "tests/test_c.py::test_programs[test_index]", "tests/test_pool.py"]
    told = run(*pytest_here, *few, cwd=source)
    assert int(re.search(r"(\d+) passed", told).group(1)) > 50, told
    where = run(python, "-c", "import sam_core; print(sam_core.__file__)", cwd=source)
    assert Path(where).is_relative_to(tmp_path / "env")
