# SPDX-License-Identifier: Apache-2.0
"""The patch-set tool, run as its users run it on a small pin set of two synthetic modules, with real git."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

PATCHES = Path(__file__).resolve().parents[2] / "patches"
DISTS = {"alpha": ["alpha-engine", "alpha-cpu"], "beta": ["beta"]}
UV = os.environ.get("UV") or shutil.which("uv") or shutil.which("uv", path=os.path.dirname(sys.executable))
TRAILERS = "Upstream: not submitted: a test\nRemove-when: never\nTests: tests/test_it.py::test_hook\n"

ALPHA = {
    "PKG-INFO": (0o644, b"Metadata-Version: 2.1\nName: alpha-engine\nVersion: 1.2.0\n"),
    ".gitignore": (0o644, b"*.so\nbuilt/\n"),
    ".gitattributes": (0o644, b"* text=auto eol=crlf ident export-subst\n*.py -diff\n"),
    "alpha/__init__.py": (0o644, b"# $Id$ $Format:%H$\nfrom .core import run\n"),
    "alpha/built/kernel.so": (0o755, b"\x7fELF\0\r\n"),
    "alpha/core.py": (0o644, "".join(f"line_{n} = {n}\n" for n in range(40)).encode()),
    "alpha/core/x.py": (0o644, b"sorted = 'after core.py, as core/'\n"),
    "alpha/dos.py": (0o644, b"one = 1\r\ntwo = 2\r\nthree = 3\r\n"),
    "alpha/tool.py": (0o755, b"#!/usr/bin/env python3\n"),
    "alpha/old/gone.py": (0o644, b"gone = True\n"),
}
BETA = {"beta/__init__.py": (0o644, b"beta = 1\n"), "beta/loop.py": (0o644, b"def loop():\n    pass\n")}


def make_sdist(path: Path, files: dict, links: dict | None = None) -> str:
    """Write a source distribution; return its sha256."""
    top = path.name.removesuffix(".tar.gz")
    with tarfile.open(path, "w:gz") as archive:
        for name, (mode, data) in files.items():
            member = tarfile.TarInfo(f"{top}/{name}")
            member.mode, member.size = mode, len(data)
            archive.addfile(member, io.BytesIO(data))
        for name, where in (links or {}).items():
            member = tarfile.TarInfo(f"{top}/{name}")
            member.type, member.linkname = tarfile.SYMTYPE, where
            archive.addfile(member)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def git(*args: str, cwd: Path) -> str:
    identity = ["-c", "user.name=Dev", "-c", "user.email=dev@example.org", "-c", "core.autocrlf=false"]
    return subprocess.run(["git", *identity, *args], cwd=cwd, check=True, capture_output=True, text=True).stdout.strip()


def snapshot(root: Path) -> dict:
    """Every file and folder below root but .git: modes and contents."""
    found = {}
    for path in sorted(root.rglob("*")):
        if ".git" not in path.relative_to(root).parts:
            data = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
            found[str(path.relative_to(root))] = path.lstat().st_mode, data
    return found


class Repo:
    """A repository with the tool, one pin set and its source distributions."""

    def __init__(self, root: Path):
        self.root, self.sdists, self.set = root, root / "sdists", root / "patches" / "pins-1"

    def run(self, *args: object, code: int | None = 0, before: str = "", **env: str) -> str:
        """Run patchset in a process forked from this one for speed; return what it printed, including errors.

        before: Python code that the process runs first. code: expected exit status; None allows any.
        """
        with tempfile.TemporaryFile() as printed:
            if (child := os.fork()) == 0:
                os.dup2(printed.fileno(), 1), os.dup2(printed.fileno(), 2)
                os._exit(self.main([str(arg) for arg in args], before, env))
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            printed.seek(0)
            out = printed.read().decode()
        assert "Traceback" not in out, out
        assert code is None or status == code, out
        return out

    def main(self, args: list[str], before: str, env: dict[str, str]) -> int:
        """Run patchset in the forked process; return its exit status."""
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.environ.pop("VIRTUAL_ENV", None), os.environ.pop("UV", None)
        os.environ.update({"PATCHSET_SDISTS": str(self.sdists)} | env)
        sys.path.insert(0, str(self.root / "patches"))
        for name in [name for name in sys.modules if name.partition(".")[0] == "_patchset"]:
            del sys.modules[name]  # another test may have imported this repository's modules
        tempfile.tempdir = str(self.root / "tmp")  # files of a killed process are deleted with the test's folder
        try:
            from _patchset.cli import main

            exec(before, {})
            status = main(args)
        except SystemExit as error:
            status = error.code or 0
        except BaseException:
            traceback.print_exc()
            status = 70
        sys.stdout.flush(), sys.stderr.flush()
        return status

    def pinned(self, module: str = "alpha") -> dict:
        return tomllib.loads((self.set / "pins.toml").read_text())["module"][module]

    def working(self, module: str = "alpha") -> Path:
        return self.root / ".cache" / "patchset" / "pins-1" / module

    def patch(self, number: int, module: str = "alpha") -> Path:
        return next((self.set / module).glob(f"{number:04}-*.patch"))


def build(root: Path) -> Repo:
    """A repository whose alpha has three patches (edits, one of an executable, a new and a deleted file), beta one."""
    repo = Repo(root)
    repo.sdists.mkdir(parents=True)
    repo.set.mkdir(parents=True)
    shutil.copytree(PATCHES / "_patchset", root / "patches" / "_patchset", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("patchset", "apply.sh"):
        shutil.copy(PATCHES / name, root / "patches" / name)
    (root / "tests").mkdir()
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o777)
    (root / "tests" / "test_it.py").write_text("def test_hook(): pass\nclass TestIt:\n    def test_in(self): pass\n")
    alpha = make_sdist(repo.sdists / "alpha_engine-1.2.0.tar.gz", ALPHA, {"docs/link": "../alpha/core.py"})
    beta = make_sdist(repo.sdists / "beta-0.3.tar.gz", BETA)
    (repo.set / "pins.toml").write_text(
        '# by hand\nname = "pins-1"\n\n[runtime.cpu]\nray = "1"\n\n[module.alpha]\nversion = "1.2.0"\n'
        f'dists = ["alpha-engine", "alpha-cpu"] # two\nsdist_sha256 = "{alpha}"\n\n'
        f'[module.beta]\nversion = "0.3"\ndists = ["beta"]\nsdist_sha256 = "{beta}"\n'
    )
    repo.run("import", "pins-1", "alpha")
    work = repo.working()
    edit(work / "alpha/core.py", b"line_5 = 5\n", b"line_5 = 5\nhook = 1\n")
    edit(work / "alpha/dos.py", b"two = 2\r\n", b"two = 22\r\n")
    commit(work, "Hook the core — with a dash")
    (work / "alpha/new").mkdir()
    (work / "alpha/new/__init__.py").write_bytes(b"new = 1\n")
    edit(work / "alpha/tool.py", b"python3", b"python3.11")
    (work / "alpha/old/gone.py").unlink()
    commit(work, "[Spec] Add, delete and edit")
    edit(work / "alpha/core.py", b"hook = 1\n", b"hook = 2\n")
    commit(work, "Hook again")
    repo.run("export", "pins-1", "alpha")
    repo.run("import", "pins-1", "beta")
    edit(repo.working("beta") / "beta/loop.py", b"pass", b"return 1")
    commit(repo.working("beta"), "Return")
    repo.run("export", "pins-1", "beta")
    return repo


def edit(file: Path, old: bytes, new: bytes) -> None:
    data = file.read_bytes()
    assert old in data
    file.write_bytes(data.replace(old, new))


def commit(work: Path, subject: str) -> None:
    git("add", "--all", "--force", cwd=work)
    git("commit", "--quiet", "--allow-empty", "-m", f"{subject}\n\nWhy.\n\n{TRAILERS}", cwd=work)


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    return build(tmp_path_factory.mktemp("template") / "repo").root


@pytest.fixture
def repo(template, tmp_path):
    shutil.copytree(template, tmp_path / "repo", symlinks=True)
    return Repo(tmp_path / "repo")


def make_venv(root: Path, *modules: str, version: str | None = None, dist: str | None = None) -> Path:
    """Make a virtual environment; return its site-packages with installed modules: package, built file, dist-info."""
    site = root / "lib" / "python3.11" / "site-packages"
    for module in modules:
        for name, (mode, data) in (ALPHA | BETA).items():
            if name.startswith(f"{module}/"):
                (site / name).parent.mkdir(parents=True, exist_ok=True)
                (site / name).write_bytes(data)
                (site / name).chmod(mode)
        (site / module / "_built.abi3.so").write_bytes(b"built")
        name, number = dist or DISTS[module][-1], version or {"alpha": "1.2.0+cpu", "beta": "0.3"}[module]
        info = site / f"{name.replace('-', '_')}-{number}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    site.mkdir(parents=True, exist_ok=True)
    return site


@pytest.fixture
def venv(tmp_path):
    """The site-packages of a virtual environment with both modules."""
    return make_venv(tmp_path / "venv", "alpha", "beta")


# ---- import and export


def test_import_then_export_changes_nothing(repo, tmp_path):
    stored = snapshot(repo.set)
    config = tmp_path / "config"
    config.write_text(
        "[diff]\nnoprefix = true\nalgorithm = patience\ncontext = 9\nrenames = copies\nmnemonicPrefix = true\n"
        "[core]\nautocrlf = true\nabbrev = 8\n[format]\nsignature = me\nnumbered = true\nattach = true\npretty = raw\n"
        "[i18n]\nlogOutputEncoding = latin1\n[user]\nname = Other\nemail = other@example.org\n[log]\ndate = iso\n"
    )
    env = {"GIT_CONFIG_GLOBAL": str(config), "GIT_DIR": str(tmp_path / "nowhere"), "TZ": "Asia/Tokyo"}
    env["GIT_AUTHOR_NAME"] = "Other"
    work = tmp_path / "work"
    repo.run("import", "pins-1", "alpha", "--to", work, **env)
    with open(work / ".git/config", "a") as local:
        local.write(config.read_text())
    (work / ".git/info/attributes").write_text("*.py diff=python\n" + (work / ".git/info/attributes").read_text())
    assert "nothing changed" in repo.run("export", "pins-1", "alpha", "--from", work, **env)
    assert snapshot(repo.set) == stored
    head = b"From " + b"0" * 40 + b" Mon Sep 17 00:00:00 2001\nFrom: SAM RL recipes <patches@localhost>\n"
    assert repo.patch(1).read_bytes().startswith(head)


def test_export_removes_stale_files_and_leaves_renames_plain(repo):
    git("reset", "--quiet", "--hard", "HEAD~1", cwd=repo.working())
    git("mv", "alpha/__init__.py", "alpha/init.py", cwd=repo.working())
    commit(repo.working(), "Move")
    repo.run("export", "pins-1", "alpha")
    assert [file.name[:4] for file in sorted((repo.set / "alpha").iterdir())] == ["0001", "0002", "0003"]
    assert b"deleted file mode 100644" in repo.patch(3).read_bytes() and repo.patch(3).name == "0003-Move.patch"
    assert repo.pinned()["recorded"]["patched_tree"] == git("rev-parse", "HEAD^{tree}", cwd=repo.working())
    assert repo.run("check") == "pins-1: in order\n"


def test_a_patch_that_does_not_apply_is_left_for_git_am(repo, tmp_path):
    edit(repo.patch(1), b" line_6 = 6\n", b" line_6 = 7\n")
    message = repo.run("import", "pins-1", "alpha", "--to", tmp_path / "w", code=1)
    assert "git am --continue" in message and "0001" not in git("log", "--format=%s", cwd=tmp_path / "w")
    assert "middle of" in repo.run("export", "pins-1", "alpha", "--from", tmp_path / "w", code=1)
    assert "is in use" in repo.run("import", "pins-1", "alpha", "--to", tmp_path / "w", code=1)


EDIT = "sed -i s/env/ENV/ alpha/tool.py"
SPOIL = [
    (EDIT, "uncommitted changes, for example alpha/tool.py"),
    (f"{EDIT}; git commit -aq --fixup=HEAD", "is not squashed"),
    (f'git checkout -qb side HEAD~1; {EDIT}; git commit -aqm "$GOOD"; git merge -q --no-edit patches', "is a merge"),
    ('git commit -qm "$GOOD" --allow-empty', "changes nothing"),
    ('sed -i s/Name/NAME/ PKG-INFO; git commit -aqm "$GOOD"', "changes PKG-INFO, outside alpha/"),
    ('chmod +x alpha/dos.py; git commit -aqm "$GOOD"', "makes alpha/dos.py a link or a submodule, or changes whether"),
    (f"{EDIT}; git commit -aqm 'Subject\n\nbefore\n---\nafter\n\n{TRAILERS}'", "would not restore 0"),
    ('git checkout -q --orphan other; git commit -qm "$GOOD"', "is not based on the tag"),
]


@pytest.mark.parametrize(("spoil", "words"), SPOIL)
def test_export_refuses(repo, spoil, words):
    stored = snapshot(repo.set)
    who = {f"GIT_{role}_{what}": "x" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = os.environ | who | {"GOOD": f"Subject\n\nWhy.\n\n{TRAILERS}"}
    subprocess.run(spoil, shell=True, check=True, cwd=repo.working(), env=environment)
    assert words in repo.run("export", "pins-1", "alpha", code=1)
    assert snapshot(repo.set) == stored


# ---- apply, drop and status on an environment


def test_apply_drop_apply(repo, venv):
    cache = venv / "alpha/__pycache__"
    cache.mkdir()
    for name in ("core.cpython-311.pyc", "core.cpython-311.opt-1.pyc", "__init__.cpython-311.pyc"):
        (cache / name).write_bytes(b"stale")
    (venv / "alpha/core.py").chmod(0o640)
    twin = venv.parent / "hardlink.py"
    os.link(venv / "alpha/core.py", twin)
    before = snapshot(venv)
    out = repo.run("apply", "pins-1", "--env", venv.parents[2])
    assert "alpha 1.2.0 (alpha-cpu 1.2.0+cpu): patched, 5 files\nbeta 0.3 (beta 0.3): patched, 1 file\n" in out
    after = snapshot(venv)
    assert {path: entry for path, entry in after.items() if before.get(path) != entry} == {
        path: (before.get(path, (0o100644, None))[0], data)
        for path, data in {
            "alpha/core.py": ALPHA["alpha/core.py"][1].replace(b"line_5 = 5\n", b"line_5 = 5\nhook = 2\n"),
            "alpha/dos.py": ALPHA["alpha/dos.py"][1].replace(b"2\r", b"22\r"),
            "alpha/new/__init__.py": b"new = 1\n",
            "alpha/tool.py": b"#!/usr/bin/env python3.11\n",
            "beta/loop.py": b"def loop():\n    return 1\n",
        }.items()
    } | {"alpha/new": after["alpha/new"]}
    gone = {"alpha/old", "alpha/old/gone.py"} | {f"alpha/__pycache__/core.cpython-311{s}.pyc" for s in ("", ".opt-1")}
    assert before.keys() - after.keys() == gone
    assert twin.read_bytes() == ALPHA["alpha/core.py"][1]
    assert repo.run("apply", "pins-1", "--env", venv.parents[2]).count("already patched") == 2
    assert snapshot(venv) == after
    assert repo.run("drop", "pins-1", "--env", venv.parents[2]).count("original again") == 2
    assert snapshot(venv) == {k: v for k, v in before.items() if "/core.cpython" not in k}
    repo.run("apply", "--env", venv.parents[2])
    assert snapshot(venv) == after


def test_the_current_environment_is_the_default(repo, venv):
    env = os.environ | {"VIRTUAL_ENV": str(venv.parents[2]), "PYTHON": sys.executable}
    for words in ("patched, 1 file", "already patched"):
        said = subprocess.check_output(["sh", repo.root / "patches/apply.sh"], env=env, text=True)
        assert f"beta 0.3 (beta 0.3): {words}" in said
    assert (venv / "alpha/new/__init__.py").exists()


def test_what_is_not_installed_is_skipped(repo, tmp_path):
    site = make_venv(tmp_path / "venv", "beta")
    out = repo.run("apply", "pins-1", "--env", tmp_path / "venv")
    assert "alpha 1.2.0: not installed, skipped\nbeta 0.3 (beta 0.3): patched" in out
    assert not (site / "alpha").exists()
    make_venv(tmp_path / "bare")
    assert "has none of alpha 1.2.0, beta 0.3" in repo.run("apply", "pins-1", "--env", tmp_path / "bare", code=1)
    assert "is not a Python environment" in repo.run("apply", "pins-1", "--env", tmp_path, code=1)


def test_wrong_version_is_refused_for_all(repo, tmp_path):
    site = make_venv(tmp_path / "venv", "alpha")
    make_venv(tmp_path / "venv", "beta", version="0.4")
    before = snapshot(site)
    for command in ("apply", "drop"):
        out = repo.run(command, "pins-1", "--env", tmp_path / "venv", code=1)
        assert "beta 0.4 is in" in out and "install beta==0.3" in out
    assert "beta 0.3 (beta 0.4): wrong version" in repo.run("status", "--env", tmp_path / "venv", code=1)
    assert snapshot(site) == before


def test_a_distribution_may_have_versions_of_its_own(repo, tmp_path):
    pins = repo.set / "pins.toml"
    pins.write_text(pins.read_text().replace('"alpha-cpu"]', '"alpha-cpu==1.2.0.post1", "alpha-engine==1.2.1"]'))
    installed = [("alpha-engine", "1.2.0", 0), ("alpha-engine", "1.2.1", 0), ("alpha-cpu", "1.2.0.post1", 0)]
    installed += [("alpha-cpu", "1.2.0", 1), ("alpha-engine", "1.2.0.post1", 1)]
    for dist, version, code in installed:
        env = tmp_path / dist / version
        make_venv(env, "alpha", dist=dist, version=version)
        out = repo.run("apply", "pins-1", "--env", env, code=code)
        assert (f"alpha 1.2.0 ({dist} {version}): patched" in out) != code
        assert ("install alpha-engine==1.2.0" in out) == code


def test_an_editable_install_is_refused_with_the_way_out(repo, venv, tmp_path):
    """The tool refuses, and names the command that patches its source tree instead. `status` then reads this tree."""
    trees, env = tmp_path / "the trees", ("--env", venv.parents[2])
    direct = {"url": f"file://{tmp_path}/the%20trees/beta", "dir_info": {"editable": True}}
    (venv / "beta-0.3.dist-info/direct_url.json").write_text(json.dumps(direct))
    out = repo.run("apply", "pins-1", *env, code=1)
    assert f"--module beta --to {trees}/beta" in out and not (venv / "alpha/new").exists()
    repo.run("apply", "pins-1", "--module", "beta", "--to", trees)
    states = json.loads(repo.run("status", "pins-1", *env, "--json"))
    assert states == {"pins-1": {"alpha": "original", "beta": "patched"}}


@pytest.mark.parametrize(
    ("path", "spoil", "words"),
    [
        ("alpha/core.py", lambda file: edit(file, b"39", b"40"), "alpha/core.py (changed)"),
        ("alpha/core.py", lambda file: edit(file, b"\n", b"\r\n"), "alpha/core.py (line ends changed to CRLF)"),
        ("alpha/dos.py", lambda file: file.unlink(), "alpha/dos.py (missing)"),
        ("alpha/new/__init__.py", lambda file: (file.parent.mkdir(), file.touch()), "__init__.py (in the way"),
    ],
)
def test_modified_file_is_named_and_nothing_written(repo, venv, path, spoil, words):
    spoil(venv / path)
    before = snapshot(venv)
    again = "reinstall alpha-cpu==1.2.0+cpu"
    for command, more in (("apply", again), ("drop", again), ("status", ": modified\n")):
        out = repo.run(command, "pins-1", "--env", venv.parents[2], code=1)
        assert words in out and more in out
    assert "beta 0.3 (beta 0.3): original" in out
    assert snapshot(venv) == before


def test_status_can_be_read_by_programs(repo, venv, tmp_path):
    env, there = ("--env", venv.parents[2]), ("--to", tmp_path / "none")
    assert "no module 'gamma'" in repo.run("apply", "pins-1", *env, "--module", "gamma", code=1)
    repo.run("apply", "pins-1", *env, "--module", "alpha")
    assert json.loads(repo.run("status", "--json", *env)) == {"pins-1": {"alpha": "patched", "beta": "original"}}
    assert "    0001 Hook the core — with a dash\n    0002 [Spec] Add" in repo.run("status", *env)
    (venv / "alpha" / "core.py").write_text("changed\n")
    assert json.loads(repo.run("status", "--json", *env))["pins-1"]["alpha"] == "modified"
    assert json.loads(repo.run("status", "--json", *there))["pins-1"]["beta"] == "not there"


def test_the_pin_set_that_fits_is_chosen(repo, venv, tmp_path):
    other, env = repo.root / "patches" / "pins-2", ("--env", venv.parents[2])
    shutil.copytree(repo.set, other)
    edit(other / "pins.toml", b'name = "pins-1"', b'name = "pins-2"')
    edit(other / "pins.toml", b'version = "0.3"', b'version = "0.4"')
    make_venv(tmp_path / "bare")
    for command in ("apply", "status"):
        said = repo.run(command, *env)
        assert said.startswith("pins-1") and "pins-2" not in said
    assert repo.run("status", "--env", tmp_path / "bare").count(": not installed") == 4
    said = repo.run("apply", "--env", tmp_path / "bare", code=1)
    assert "has no module that a pin set patches: install the modules that you use from one of pins-1 (alpha" in said
    edit(other / "pins.toml", b'version = "0.4"', b'version = "0.3"')
    out = repo.run("drop", *env, code=1)
    assert "Name the pin set, one of pins-1, pins-2: more than one" in out
    assert "no pin set 'pins-3': patches/ has pins-1, pins-2" in repo.run("drop", "pins-3", code=1)
    for info in ("alpha_cpu-1.2.0+cpu", "beta-0.3"):
        (venv / f"{info}.dist-info/METADATA").write_text(f"Name: {info.partition('-')[0]}\nVersion: 9\n")
    for command in ("apply", "status"):
        said = repo.run(command, *env, code=1)
        assert "has alpha_cpu 9, beta 9, which no pin set patches: use sam_core's plugin if it supports" in said


NOBODY = """
import os
"".encode("raw-unicode-escape")  # the email package wants this codec, which the other user may not read
os.setegid(65534), os.seteuid(65534)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="switches from root to another user")
@pytest.mark.parametrize("writable", [[], ["", "alpha"]])
def test_tree_that_cannot_be_written(repo, venv, tmp_path, writable):
    for folder in [tmp_path, *tmp_path.parents[:-2]]:
        folder.chmod(0o755)
    for name in writable:
        os.chown(venv / name, 65534, 65534)
    before = snapshot(venv)
    out = repo.run("apply", "pins-1", "--env", venv.parents[2], before=NOBODY, code=1)
    assert "cannot be written" in out and len(out.splitlines()) == 2
    assert "original" in repo.run("status", "--env", venv.parents[2], before=NOBODY)
    assert snapshot(venv) == before


def test_a_file_system_without_locks(repo, venv, no_locks):
    before, words = snapshot(venv), [repo.root / "patches" / "patchset", "apply", "pins-1", "--env", venv.parents[2]]
    done = subprocess.run(words, env=os.environ | no_locks(venv), capture_output=True, text=True)
    assert f"patchset: {venv} cannot be written (Function not implemented): have it mounted with locks" in done.stderr
    assert snapshot(venv) == before


FULL_OR_READ_ONLY = """
mount -t tmpfs -o size=1m none here && cp -a "$1"/. here && cd here
[ "$2" = ro ] || cat /dev/zero > fill 2> /dev/null
mount -o remount,$2 none . && find . | sort > ../before
"$3" apply pins-1 --env .
echo $? && find . | sort | diff ../before -
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("rw", "No space left on device): free some space; nothing"),
        ("ro", "Read-only file system): have it"),
    ],
)
def test_a_full_file_system_and_a_read_only_one(repo, venv, own_mounts, tmp_path, how, said):
    (tmp_path / "here").mkdir()
    words = [*own_mounts, "sh", "-c", FULL_OR_READ_ONLY, "sh", venv.parents[2], how, repo.root / "patches" / "patchset"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert f"site-packages cannot be written ({said}" in done.stderr and done.stdout.endswith("\n1\n"), done


# ---- interruption

KILL = """
import os
left = {left}
def killing(call):
    def counted(where, *args, **kwargs):
        global left
        left -= os.fspath(where).startswith({root!r})
        if left < 0:
            os._exit(99)
        return call(where, *args, **kwargs)
    return counted
for name in ("replace", "rename", "unlink", "rmdir", "mkdir"):
    setattr(os, name, killing(getattr(os, name)))
"""


def kill_at(repo, call, root, *args):
    """Run the tool and kill it right before call number `call` of the calls that change something below root."""
    return repo.run(*args, before=KILL.format(left=call, root=str(root)), code=None)


def without_folders(tree):
    """The entries of a snapshot except folders. A killed drop or apply may leave empty folders."""
    return {path: entry for path, entry in tree.items() if entry[1] is not None}


@pytest.mark.parametrize("command", ["apply", "drop"])
def test_killed_anywhere_the_same_command_finishes_it_and_the_other_one_undoes_it(repo, venv, tmp_path, command):
    env = ("--env", venv.parents[2])
    old = without_folders(snapshot(venv))
    repo.run("apply", "pins-1", *env)
    new = without_folders(snapshot(venv))
    if command == "apply":
        repo.run("drop", "pins-1", *env)
    shutil.copytree(venv, tmp_path / "start")
    seen, call, done = set(), 0, False
    while not done:
        done = "5 files" in kill_at(repo, call, venv, command, "pins-1", *env)
        found = {path: entry for path, entry in without_folders(snapshot(venv)).items() if ".patchset" not in path}
        assert all(entry in (old.get(path), new.get(path)) for path, entry in found.items()), call
        state = json.loads(repo.run("status", "pins-1", *env, "--json"))["pins-1"]["alpha"]
        seen.add(state)
        assert state != "partly patched" or "call it again" in repo.run("status", *env, code=1)
        for then, tree in [("apply", new), ("drop", old)][:: 1 if command == "apply" else -1]:
            repo.run(then, "pins-1", *env)
            assert without_folders(snapshot(venv)) == tree, call
        shutil.rmtree(venv)
        shutil.copytree(tmp_path / "start", venv)
        call += 1
    assert seen == {"original", "partly patched", "patched"} and call > 12


def kill_at_replacing(path):
    """Code that kills the tool where it would replace the file at this path."""
    replacing = f"os._exit(99) if str(b) == {str(path)!r} else real(a, b)"
    return f"import os\nreal = os.replace\nos.replace = lambda a, b: {replacing}"


def test_interrupted_change_of_a_file_that_was_replaced_since_is_not_finished(repo, venv):
    repo.run("apply", "pins-1", "--env", venv.parents[2], before=kill_at_replacing(venv / "alpha/dos.py"), code=99)
    (venv / "alpha/dos.py").write_bytes(b"another release\n")
    assert "alpha/dos.py (changed)" in repo.run("apply", "pins-1", "--env", venv.parents[2], code=1)
    assert (venv / "alpha/dos.py").read_bytes() == b"another release\n" and not (venv / "alpha/new").exists()
    assert not (venv / ".patchset").exists()


def test_a_killed_export_is_finished_by_the_next(repo, tmp_path):
    git("reset", "--quiet", "--hard", "HEAD~2", cwd=repo.working())
    shutil.copytree(repo.set, tmp_path / "start")
    call = 0
    while "tree " not in kill_at(repo, call, repo.set, "export", "pins-1", "alpha"):
        repo.run("export", "pins-1", "alpha")
        assert repo.run("check", "--offline") == "pins-1: in order (offline)\n"
        assert len(list((repo.set / "alpha").iterdir())) == 1 and not (repo.set / ".patchset").exists()
        shutil.rmtree(repo.set)
        shutil.copytree(tmp_path / "start", repo.set)
        call += 1
    assert call > 4


def test_two_at_once_wait_for_each_other(repo, venv, tmp_path):
    inside, waits = tmp_path / "inside", tmp_path / "waits"
    slow = "import os, time, _patchset.target as t\nreal = t.inspect\ndef inspect(*a):\n"
    slow += f" open({str(inside)!r}, 'w')\n while not os.path.exists({str(waits)!r}): time.sleep(0.01)\n"
    slow += " return real(*a)\nt.inspect = inspect"
    says = "import fcntl\nreal = fcntl.flock\ndef flock(file, how):\n"
    says += f" how & fcntl.LOCK_NB or open({str(waits)!r}, 'w')\n return real(file, how)\nfcntl.flock = flock"
    with ThreadPoolExecutor() as pool:
        first = pool.submit(repo.run, "apply", "pins-1", "--env", venv.parents[2], before=slow)
        while not inside.exists() and not first.done():
            time.sleep(0.01)
        out = repo.run("apply", "pins-1", "--env", venv.parents[2], before=says)
    assert "waiting for another patchset" in out and out.count("already patched") == 2
    assert "patched, 5 files" in first.result()
    assert not (venv / ".patchset").exists()


# ---- source trees


def test_to_a_new_folder_and_back(repo, tmp_path):
    to = tmp_path / "a" / "trees"
    assert repo.run("apply", "pins-1", "--to", to).count("unpacked and patched") == 2
    assert sorted(path.name for path in to.iterdir()) == ["alpha", "beta"]
    for state, tree in (("patched", "patched_tree"), ("original", "tree")):
        said = f"(source tree): {state}\n      tree {repo.pinned()['recorded'][tree]}, as recorded"
        assert said in repo.run("status", "--to", to)
        repo.run("drop", "--to", to)
    repo.run("apply", "pins-1", "--to", to / "alpha", "--module", "alpha")
    assert repo.pinned()["recorded"]["patched_tree"] in repo.run("status", "--to", to / "alpha", "--module", "alpha")
    assert "is itself a source tree" in repo.run("apply", "pins-1", "--to", to / "alpha", code=1)
    assert (to / "alpha/docs/link").is_symlink()
    (to / "alpha/README").write_text("more")
    out = repo.run("status", "--to", to)
    assert "alpha 1.2.0 (source tree): patched" in out and "not a recorded one" in out


def test_to_a_git_checkout_leaves_its_repository_alone(repo, tmp_path):
    checkout = tmp_path / "trees" / "alpha"
    shutil.copytree(repo.working(), checkout, symlinks=True)
    git("checkout", "--quiet", "patchset-base", cwd=checkout)
    repo.run("apply", "pins-1", "--to", tmp_path / "trees")
    git("add", "--all", "--force", cwd=checkout)
    assert git("write-tree", cwd=checkout) == repo.pinned()["recorded"]["patched_tree"]
    git("reset", "--quiet", cwd=checkout)
    repo.run("drop", "pins-1", "--to", tmp_path / "trees")
    assert git("status", "--porcelain", cwd=checkout) == ""


def test_to_a_new_folder_killed_halfway_or_filled_by_another(repo, tmp_path):
    to = tmp_path / "trees"
    repo.run("apply", "pins-1", "--to", to, before=kill_at_replacing(to / "beta"), code=99)
    assert (to / "alpha").is_dir() and not (to / "beta").exists()
    said = repo.run("apply", "pins-1", "--to", to)
    assert "(source tree): already patched\nbeta 0.3: unpacked and patched\n" in said
    shutil.rmtree(to / "beta")
    make = "import pathlib, _patchset.target as t\nreal = t.sdist.locate\n"
    make += f"t.sdist.locate = lambda *a: (pathlib.Path({str(to / 'beta/x')!r}).mkdir(parents=True), real(*a))[1]"
    assert "created by another process" in repo.run("apply", "pins-1", "--to", to, before=make, code=1)
    assert [path.name for path in (to / "beta").iterdir()] == ["x"]


def test_to_is_all_or_nothing(repo, tmp_path):
    (repo.sdists / "beta-0.3.tar.gz").write_bytes(b"other")
    out = repo.run("apply", "pins-1", "--to", tmp_path / "new", code=1)
    assert "is not the pinned beta 0.3: its sha256 is" in out and not (tmp_path / "new").exists()
    no_tree(repo)
    out = repo.run("apply", "pins-1", "--to", tmp_path / "new", "--module", "alpha", code=1)
    assert "do not produce the tree that" in out and not (tmp_path / "new").exists()
    tree = tmp_path / "trees" / "beta"
    tree.mkdir(parents=True)
    (tree / "PKG-INFO").write_text("Name: beta\nVersion: 0.4\n")
    assert "beta 0.4 is in" in repo.run("apply", "pins-1", "--to", tmp_path / "trees", code=1)
    (tree / "PKG-INFO").rename(tree / "README")
    assert "is not a source tree of beta" in repo.run("apply", "pins-1", "--to", tmp_path / "trees", code=1)
    assert [path.name for path in (tmp_path / "trees").iterdir()] == ["beta"]


# ---- stored patches that are wrong, and check


def replace(number, old, new):
    return lambda repo: edit(repo.patch(number), old, new)


outside_patch = replace(1, b"a/alpha/dos.py b/alpha/dos.py", b"a/../dos.py b/../dos.py")


def pins(old, new):
    return lambda repo: edit(repo.set / "pins.toml", old, new)


def no_tree(repo):
    pins(repo.pinned()["recorded"]["patched_tree"].encode(), b"0" * 40)(repo)


CHECKS = [
    (lambda repo: repo.patch(2).rename(repo.set / "alpha/0004-x.patch"), "has the number 0003, expected 0002", True),
    (lambda repo: (repo.set / "alpha/notes.txt").touch(), "notes.txt is not a patch", True),
    (lambda repo: shutil.copytree(repo.set / "alpha", repo.set / "gamma"), "has no [module.gamma]", True),
    (replace(1, b"\n", b"\r\n"), "has CRLF line ends", True),
    (lambda repo: repo.patch(3).unlink(), "disagree about alpha/core.py", True),
    (replace(1, b"Upstream: not", b"Upstream not"), "has no trailer Upstream:", True),
    (replace(1, b"test_it.py::test_hook", b"test_it.py::TestIt::test_out"), "TestIt::test_out, which does not", True),
    (replace(1, b"test_it.py::test_hook", b"test_at.py"), "names the test tests/test_at.py, which", True),
    (outside_patch, "changes ../dos.py, outside", True),
    (replace(2, b"mode 100644", b"mode 120000"), "makes alpha/new/__init__.py a link", True),
    (replace(3, b"index ", b"index f"), "abbreviated blob ids", True),
    (replace(3, b"+hook = 2", b"+hook = 3"), "0003-Hook-again.patch differs from what export writes", False),
    (replace(3, b" line_5 = 5", b" line_5 = 6"), "0003-Hook-again.patch does not apply to alpha 1.2.0", False),
    (no_tree, "records other trees of alpha", False),
    (pins(b"# ====", b"\n# ===="), "pins.toml differs from what export writes", True),
    (pins(b"[module.alpha.recorded.blobs]", b"["), "is not valid TOML", True),
    (pins(b'patched_tree = "', b'tree_ = "'), "record of alpha is damaged", True),
    (pins(b'version = "0.3"', b""), "[module.beta] needs version", True),
]


@pytest.mark.parametrize(("spoil", "words", "offline"), CHECKS)
def test_check_finds(repo, spoil, words, offline):
    spoil(repo)
    out = repo.run("check", *(["--offline"] if offline else []), code=1)
    assert words in out, out
    assert offline or repo.run("check", "--offline") == "pins-1: in order (offline)\n"


def test_check_in_order_without_source_distributions_and_with_a_class(repo):
    replace(1, b"test_it.py::test_hook", b"test_it.py::TestIt::test_in[a::b]\nTests: tests/test_it.py")(repo)
    assert repo.run("check", "--offline", PATCHSET_SDISTS=str(repo.root / "nowhere")) == "pins-1: in order (offline)\n"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (outside_patch, "changes ../dos.py, outside"),
        (replace(3, b"+hook = 2", b"+hook = 3"), "do not produce the alpha/core.py that"),
        (replace(3, b" line_5 = 5", b" line_5 = 6"), "0003-Hook-again.patch cannot be applied"),
    ],
)
def test_apply_refuses_wrong_patches(repo, venv, spoil, words):
    spoil(repo)
    before = snapshot(venv)
    assert words in repo.run("apply", "pins-1", "--env", venv.parents[2], code=1)
    assert snapshot(venv) == before


# ---- source distributions


def repin_beta(repo, sha256):
    pins(repo.pinned("beta")["sdist_sha256"].encode(), sha256.encode())(repo)


@pytest.mark.parametrize(
    ("files", "links", "words"),
    [
        ({"../../evil.py": (0o644, b"")}, {}, "unexpected member"),
        (BETA, {"beta/link": "/etc/passwd"}, "unexpected member"),
        (BETA | {"x/.git/config": (0o644, b"")}, {}, "has a file that git does not accept"),
    ],
)
def test_hostile_source_distribution(repo, tmp_path, files, links, words):
    repin_beta(repo, make_sdist(repo.sdists / "beta-0.3.tar.gz", files, links))
    assert words in repo.run("import", "pins-1", "beta", "--to", tmp_path / "inner" / "w", code=1)
    assert list((tmp_path / "inner").iterdir()) == []


def test_missing_source_distribution(repo):
    (repo.sdists / "beta-0.3.tar.gz").unlink()
    bare = {"PATH": os.path.dirname(shutil.which("git"))}
    assert "beta==0.3 is in neither --sdists" in repo.run("check", code=1, **bare)
    nowhere = repo.root / "nowhere"
    assert f"{nowhere} is not a folder" in repo.run("check", "--sdists", nowhere, code=1)


@pytest.mark.skipif(not UV, reason="uv is neither on PATH nor next to this Python")
def test_source_distribution_found_by_uv_is_checked_and_cached(repo, tmp_path):
    index = tmp_path / "index"
    index.mkdir()
    info = b"Metadata-Version: 2.2\nName: beta\nVersion: 0.3\n"
    project = b'[project]\nname = "beta"\nversion = "0.3"\n'
    files = BETA | {"PKG-INFO": (0o644, info), "pyproject.toml": (0o644, project)}
    sha256 = make_sdist(index / "beta-0.3.tar.gz", files)
    uv = {"UV": UV, "UV_FIND_LINKS": str(index), "PATCHSET_SDISTS": ""}
    uv |= dict.fromkeys(["UV_NO_INDEX", "UV_OFFLINE", "UV_NO_CACHE"], "1")
    cached = repo.root / ".cache/sdists/beta-0.3.tar.gz"
    to = ("--to", tmp_path / "w")
    said = repo.run("import", "pins-1", "beta", *to, code=1, **uv)
    assert "The downloaded beta-0.3.tar.gz is not the pinned beta 0.3" in said
    assert not cached.exists()
    repin_beta(repo, sha256)
    repo.run("import", "pins-1", "beta", *to, **uv)
    assert cached.read_bytes() == (index / "beta-0.3.tar.gz").read_bytes()
    assert [path.name for path in cached.parent.iterdir()] == [cached.name]


def test_values_for_scripts(repo):
    assert repo.run("pin", "pins-1", "runtime.cpu.ray") == "1\n"
    assert repo.run("pin", "pins-1", "module.alpha.dists") == "alpha-engine\nalpha-cpu\n"
    assert "patches/pins-1/pins.toml has no runtime.gpu.ray." in repo.run("pin", "pins-1", "runtime.gpu.ray", code=1)


def test_the_password_of_the_index_goes_to_its_host_alone(monkeypatch):
    """The password is sent to the index's host, but not to another host or after a redirection."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "patches"))
    from _patchset import sdist

    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://me:a%40b@index.example")
    there, elsewhere = (sdist._request(f"https://{host}/x.tar.gz") for host in ("index.example", "files.example"))
    assert there.unredirected_hdrs == {"Authorization": "Basic bWU6YUBi"} and not there.headers
    assert elsewhere.unredirected_hdrs == {}
