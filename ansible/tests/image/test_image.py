# SPDX-License-Identifier: Apache-2.0
"""Tests that podman builds and runs the image of a pin set on a stand-in for vllm-ascend's image in a local registry.

Real: podman, the registry, the role's Containerfile and build.sh, the sources of vLLM, vllm-ascend and verl, the
hash-locked packages. Stand-ins: the base image (Debian, no CANN) and torch_npu. The base's third-party packages are
mounted, so that the base stays small; except for PyTorch, their versions are those of the day of the base's release.
"""

from __future__ import annotations

import base64
import copy
import functools
import hashlib
import http.server
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE.parent / "bed"))

import prepare  # noqa: E402

PIN_SET = "vllm-0.11"  # its image has the Python of Debian's current release
PINS = tomllib.loads((ROOT / "patches" / PIN_SET / "pins.toml").read_text())
VERSIONS = {name: module["version"] for name, module in PINS["module"].items()}
REGISTRY, INDEX = 20981, 20982  # ports on 127.0.0.1
LOGIN = "me:hunter2"
PROXY = {"http_proxy": f"http://{LOGIN}@127.0.0.1:9", "no_proxy": "127.0.0.1"}
PODMAN = """#!/usr/bin/env bash
# podman as a machine without systemd runs it: without the slice, with limits that need no rights.
words=()
echo "$*" >>{log}
while [[ $# -gt 0 ]]; do
    case $1 in
        --cgroup-parent) shift ;;
        build | run) words+=("$1" --volume {packages}:/opt/packages:ro) ;;
        *) words+=("$1") ;;
    esac
    shift
done
exec /usr/bin/podman "${{words[@]}}"
"""
LIMITS = """[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
"""
REGISTRY_SETTINGS = """version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: 127.0.0.1:{port}}}
log: {{accesslog: {{disabled: true}}, level: error}}
"""


def run(*words: object, environment: dict | None = None, check: bool = True) -> str:
    """Return the output of a command. If the command fails, raise an AssertionError with the end of the output."""
    command, both = [str(word) for word in words], {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, env=environment, text=True, **both)
    assert done.returncode == 0 or not check, done.stdout[-6000:]
    return done.stdout


class Files(http.server.SimpleHTTPRequestHandler):
    """Serves files to callers who send the password, and without a password if the path begins with /open/."""

    def do_GET(self) -> None:
        if self.path.startswith("/open/"):
            self.path = self.path.removeprefix("/open")
        elif self.headers.get("Authorization") != "Basic " + base64.b64encode(LOGIN.encode()).decode():
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic realm=index")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("image")


@pytest.fixture(scope="session")
def index(folder: Path) -> Iterator[str]:
    """The address of a package index like a site's own, with the packages of image.lock and the build tools."""
    files = folder / "index" / "files"
    lock = ROOT / "patches" / PIN_SET / "image.lock"
    words = "-m pip download --quiet --no-deps --no-build-isolation -d"
    pip = [prepare.TOOLS / "python", *words.split(), files]
    run(*pip, "--require-hashes", "-r", lock)
    run(*pip, "setuptools==79.0.1", "setuptools_scm==8.3.1", "packaging", "typing-extensions", "wheel")
    shutil.copy(ROOT / f".cache/sdists/verl-{VERSIONS['verl']}.tar.gz", files)
    for file in files.iterdir():
        name = re.sub(r"[-_.]+", "-", re.match(r"(.+?)-\d", file.name).group(1)).lower()
        (files.parent / name).mkdir(exist_ok=True)
        os.link(file, files.parent / name / file.name)
    handler = functools.partial(Files, directory=str(files.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", INDEX), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{LOGIN}@127.0.0.1:{INDEX}/"
        server.shutdown()


@pytest.fixture(scope="session")
def megatron(folder: Path, index: str) -> dict[str, object]:
    """Settings for two repositories with an empty package each, like a site's copies of Megatron-LM and MindSpeed.

    The commits are on a branch other than main, like those of vllm-0.23.
    """
    addresses, pins = {}, copy.deepcopy(PINS)
    for name, package in (("megatron_lm", "megatron"), ("mindspeed", "mindspeed")):
        tree, bare = folder / name, folder / "index" / f"{name}.git"
        (tree / package).mkdir(parents=True)
        (tree / package / "__init__.py").write_text("")
        project = f'[project]\nname = "{package}"\nversion = "0"\n[tool.setuptools]\npackages = ["{package}"]\n'
        (tree / "pyproject.toml").write_text(project)
        git = ["git", "-C", tree, "-c", "user.name=test", "-c", "user.email=test@localhost"]
        begin = (["init", "-b", "main"], ["commit", "--allow-empty", "-m", "main"], ["checkout", "-b", "core_r0.16.0"])
        for words in (*begin, ["add", "."], ["commit", "-m", name]):
            run(*git, *words)
        pins["runtime"]["npu"][name] = run(*git, "rev-parse", "HEAD").strip()
        run(*git, "checkout", "main")
        run("git", "clone", "--bare", tree, bare)
        run("git", "-C", bare, "update-server-info")  # for a server that only sends files
        addresses[f"container_image_{name}"] = f"{index}{name}.git"
    return {**addresses, "pins": pins}


@pytest.fixture(scope="session")
def environment(folder: Path) -> dict[str, str]:
    """Environment variables with which podman mounts the third-party packages and keeps its images in `folder`."""
    packages = folder / "packages"
    of_the_day = run(prepare.TOOLS / "python", ROOT / "ci/lock-image", PIN_SET, "--base").split()
    requirements = (ROOT / f"patches/{PIN_SET}/requirements.lock").read_text()
    pins = re.findall(r"^(?:torch|nvidia-[\w-]+)==[^ ]+", requirements, re.MULTILINE)
    pins += [pin for pin in of_the_day if not re.match("torch|nvidia-|(setuptools|pip)=", pin)]
    uv = [prepare.TOOLS / "uv", "pip", "install", "--quiet", "--no-deps", "--python-version", "3.11"]
    run(*uv, "--target", packages, *pins)
    programs = folder / "bin"
    programs.mkdir()
    (programs / "podman").write_text(PODMAN.format(packages=packages, log=folder / "podman.log"))
    (programs / "podman").chmod(0o755)
    texts = {"CONTAINERS_CONF": LIMITS}
    texts["CONTAINERS_STORAGE_CONF"] = (
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/storage"\nrunroot = "{folder}/run"\n'
    )
    texts["CONTAINERS_REGISTRIES_CONF"] = f'[[registry]]\nlocation = "127.0.0.1:{REGISTRY}"\ninsecure = true\n'
    for name, text in texts.items():
        (folder / f"{name}.conf").write_text(text)
    files = {name: f"{folder}/{name}.conf" for name in texts}
    return {**os.environ, **files, "PATH": f"{programs}:{os.environ['PATH']}"}


@pytest.fixture(scope="session")
def base(folder: Path, index: str, environment: dict[str, str]) -> Iterator[str]:
    """The reference (NAME@DIGEST) of the stand-in for vllm-ascend's image, in a registry on this machine."""
    context = folder / "base"
    context.mkdir()
    run("tar", "--create", "--one-file-system", "--file", context / "debian.tar", "--directory", prepare.base(), ".")
    for name in ("vllm", "vllm_ascend"):
        shutil.copy(ROOT / f".cache/sdists/{name}-{VERSIONS[name]}.tar.gz", context / f"{name}.tar.gz")
    settings = folder / "registry.yml"
    settings.write_text(REGISTRY_SETTINGS.format(folder=folder / "registry", port=REGISTRY))
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    registry = subprocess.Popen(["docker-registry", "serve", settings], **silent)
    name = f"127.0.0.1:{REGISTRY}/{PINS['runtime']['npu']['image'].partition(':')[0]}"
    everybody = f"http://127.0.0.1:{INDEX}/open/"
    versions = [f"--build-arg={key}={VERSIONS[key.lower()]}" for key in ("VLLM", "VLLM_ASCEND")]
    words = ["podman", "build", "--network=host", f"--build-arg=PIP_INDEX_URL={everybody}", *versions, "--tag", name]
    run(*words, "--file", HERE / "base.Containerfile", context, environment=environment)
    digest = folder / "digest"
    run("podman", "push", "--digestfile", digest, name, environment=environment)
    run("podman", "rmi", "--force", name, environment=environment)
    yield f"{name}@{digest.read_text()}"
    registry.terminate()


@pytest.fixture(scope="session")
def settings(folder: Path, base: str, index: str, megatron: dict[str, object]) -> dict[str, object]:
    found = {"pin_set": PIN_SET, "recipe": "dapo_qwen3_32b_32die", "container_engine": "podman", **megatron}
    found |= {"container_image_base": base, "container_image_archive": ""}
    found |= {"container_image_index": index, "container_image_proxy": PROXY}
    return found | {"cluster_interface": "lo", "install_root": f"{folder}/root", "work_dir": f"{folder}/work"}


def play(folder: Path, settings: dict, environment: dict, check: bool = True) -> str:
    """Run the part of the role that builds the image and writes in-env; return the output."""
    for name in ("root/bin", "work"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    variables = folder / "settings.json"
    variables.write_text(json.dumps(settings))
    words = [Path(sys.executable).parent / "ansible-playbook", HERE / "play.yml", "-e", f"@{variables}"]
    words += ["-e", f"ansible_python_interpreter={sys.executable}"]
    return run(*words, environment={**environment, "ANSIBLE_CONFIG": str(ROOT / "ansible/ansible.cfg")}, check=check)


@pytest.fixture(scope="session")
def image(folder: Path, settings: dict, environment: dict) -> Path:
    """The path of in-env of the built image."""
    began = time.monotonic()
    play(folder, settings, environment)
    print(f"image: built in {time.monotonic() - began:.0f} s")
    return next((folder / "root/environments").glob("*/in-env"))


def test_every_module_is_patched(image: Path, environment: dict) -> None:
    out = run(image, "status", "python3", "patches/patchset", "status", PIN_SET, "--json", environment=environment)
    assert json.loads(out.splitlines()[-1]) == {PIN_SET: dict.fromkeys(VERSIONS, "patched")}


def test_no_password_is_left(folder: Path, image: Path, environment: dict) -> None:
    """Neither the image, its history, podman's arguments nor files on the host contain a password."""
    identity = run(image, "--image", environment=environment).strip()
    said = run("podman", "history", "--no-trunc", "--format", "{{.CreatedBy}}", identity, environment=environment)
    said += run("podman", "image", "inspect", identity, environment=environment)
    assert "build.sh" in said and LOGIN not in said + (folder / "podman.log").read_text()
    places = [*(f"/opt/{name}" for name in ("megatron_lm", "mindspeed", "sam-rl-src", "sam-rl-build")), "/root", "/etc"]
    assert run(image, "find", "grep", "-rl", LOGIN, *places, environment=environment, check=False) == ""
    assert not run("grep", "-rl", LOGIN, folder / "root", check=False)


def test_the_modules_are_imported(folder: Path, image: Path, environment: dict, settings: dict) -> None:
    """The stand-in for torch_npu is copied to work_dir, because in-env mounts that folder."""
    standin = Path(settings["work_dir"]) / "npu"
    shutil.copytree(ROOT / "testing", standin)
    code = "import vllm, vllm_ascend, verl, sam_core, llm_rl.check_operators"
    code += "; from vllm.platforms import current_platform as p"
    code += "; import importlib.util as u; assert all(map(u.find_spec, ('megatron', 'mindspeed', 'mbridge')))"
    code += "; print(p.device_type, sam_core.Pool().stats()['appended'], vllm.__file__, verl.__file__)"
    (image.parent / "env").write_text(f"PYTHONPATH={standin}\nVLLM_VERSION={VERSIONS['vllm']}\n")
    out = run(image, "imports", "python3", "-c", code, environment=environment)
    device, appended, vllm, verl = out.splitlines()[-1].split()
    assert (device, appended) == ("npu", "0")
    assert vllm.startswith("/vllm-workspace/vllm/") and verl.startswith("/opt/sam-rl-build/trees/verl/")


def test_a_pull_that_breaks_off_leaves_nothing(folder: Path, settings: dict, environment: dict) -> None:
    """A truncated layer leaves no image. When the layer is complete again, the same playbook builds the image."""
    run("podman", "rmi", "--all", "--force", environment=environment)
    blob = max((folder / "registry").rglob("blobs/sha256/*/*/data"), key=lambda path: path.stat().st_size)
    whole = blob.read_bytes()
    blob.write_bytes(whole[: len(whole) // 2])
    out = play(folder, settings, environment, check=False)
    assert re.search(r"localhost: podman build failed \(.+\): no image was made", out)
    assert run("podman", "images", "--quiet", environment=environment) == ""
    blob.write_bytes(whole)
    play(folder, settings, environment)


def test_another_base_is_refused(folder: Path, settings: dict, environment: dict, index: str) -> None:
    """The build refuses a base image without vllm-ascend's source trees."""
    context = folder / "bare"
    context.mkdir()
    shutil.copy(folder / "base/debian.tar", context)
    (context / "Containerfile").write_text("FROM scratch\nADD debian.tar /\n")
    name = f"127.0.0.1:{REGISTRY}/bare"
    run("podman", "build", "--tag", name, context, environment=environment)
    run("podman", "push", "--digestfile", folder / "digest", name, environment=environment)
    bare = {**settings, "container_image_base": f"{name}@{(folder / 'digest').read_text()}"}
    out = play(folder, bare, environment, check=False)
    assert re.search(r"the base image has no /vllm-workspace/vllm:\s+build\s+on ascend/vllm-ascend:", out)


def test_archives(folder: Path, image: Path, settings: dict, environment: dict) -> None:
    """An archive for another architecture is refused and not kept. Loading an archive removes older images."""
    machine, other = ("amd64", "arm64") if platform.machine() == "x86_64" else ("arm64", "amd64")
    name, context, archive = f"localhost/sam-rl:{image.parent.name}", folder / "archive", folder / "archive.tar"
    sources = image.parent.name.rpartition("-")[0]
    context.mkdir()
    (context / "Containerfile").write_text("FROM scratch\nADD Containerfile /\n")

    def load(architecture: str) -> str:
        run("podman", "rmi", "--all", "--force", environment=environment)
        archive.unlink(missing_ok=True)
        run("podman", "build", f"--arch={architecture}", "--tag", name, context, environment=environment)
        run("podman", "save", "--output", archive, name, environment=environment)
        run("podman", "rmi", "--force", name, environment=environment)
        run("podman", "build", "--tag", "localhost/sam-rl:older", context, environment=environment)
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        loaded = {"container_image_base": "", "container_image_archive": str(archive)}
        loaded["container_image_archive_sha256"] = digest
        out = play(folder, {**settings, **loaded}, environment, check=architecture == machine)
        return " ".join(out.split())

    images = ("podman", "images", "--format", "{{.Tag}}", "localhost/sam-rl")
    out = load(other)
    assert f"localhost: {archive} is for {other}, expected one for {machine} as this host: " in out
    assert run(*images, environment=environment).split() == ["older"]
    load(machine)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    tag = f"{sources}-{hashlib.sha256(digest.encode()).hexdigest()[:8]}"
    assert run(*images, environment=environment).split() == [tag]
