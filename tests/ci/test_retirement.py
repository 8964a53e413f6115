# SPDX-License-Identifier: Apache-2.0
"""A pin set is retired by `git rm -r` of its folder: make, patchset and tests that read pin sets work without it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PIN_SETS = sorted(path.parent.name for path in ROOT.glob("patches/*/pins.toml"))
MAKEFILE = dict(re.findall(r"^(\w+) := (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE))
QUICK, TORCH, (DEFAULT,) = (MAKEFILE[name].split() for name in ("QUICK_TESTS", "TORCH_TESTS", "DEFAULT"))


def run(*command, cwd):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(
    scope="module",
    params=[name if name == DEFAULT else pytest.param(name, marks=pytest.mark.slow) for name in PIN_SETS],
)
def retired(request, tmp_path_factory):
    """The working tree as a git repository of its own without a pin set, and that pin set's name."""
    if len(PIN_SETS) == 1:
        pytest.skip(f"{request.param} is the only pin set")
    tree = tmp_path_factory.mktemp("retired")
    files = "git ls-files -z --cached --others --exclude-standard"
    subprocess.run(f"{files} | xargs -0 cp -dp --parents -t {tree}", shell=True, cwd=ROOT)
    run("git", "init", "--quiet", cwd=tree)
    run("git", "add", "--all", cwd=tree)
    run("git", "rm", "-r", "-f", "--quiet", f"patches/{request.param}", cwd=tree)
    assert not (tree / "patches" / request.param).exists()
    return tree, request.param


def test_targets_do_without_it(retired):
    tree, name = retired
    text = (tree / "Makefile").read_text()
    targets = re.findall(r"^([a-z-]+):.*## ", text, re.MULTILINE)
    assert {"demo", "test", "test-quick", "lint", "test-mutants"} < set(targets)
    others = sorted(set(targets) - {"bench-sampler"})  # bench-sampler times the loops of the article's release
    planned = run("make", "-n", *others, cwd=tree)
    assert name not in planned
    default = default_without(name)
    assert f"ci/setup-env {default}" in planned
    wanted = [f"tools/{folder}" for folder in QUICK]
    wanted += [f"{default}/{folder}" for folder in (*TORCH, *listed(default))]
    assert not [folder for folder in wanted if folder not in planned]


def test_patches_are_right_without_it(retired):
    tree, name = retired
    status = run(sys.executable, "patches/patchset", "status", "--env", sys.prefix, cwd=tree)
    assert default_without(name) in status and name not in status
    assert "in order" in run(sys.executable, "patches/patchset", "check", "--offline", cwd=tree)


def test_quick_tests_that_read_pin_sets_pass_without_it(retired):
    tree, name = retired
    run(sys.executable, "docs/generate.py", cwd=tree)  # tables that list the pin sets
    documents = ["docs"] if name != DEFAULT else []  # they name the default set; its successor's commit changes them
    names = [f"tests/ci/test_{what}.py" for what in (*documents, "locks", "mutants")]
    names.append("tests/ci/test_retirement.py::test_every_folder_of_tests_is_run")
    report = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *names, cwd=tree)
    assert re.search(r"\d\d passed", report)


@pytest.mark.parametrize("target", ["test", "device-costs", "lock", "test-mutants"])
def test_make_refuses_an_unknown_pin_set_before_it_does_anything(target):
    done = subprocess.run(["make", target, "PIN=vllm-9.9"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode and not done.stdout
    assert f"there is no pin set vllm-9.9: choose from {PIN_SETS[0]}" in done.stderr


def default_without(name):
    """The default pin set of a tree without the pin set `name`."""
    left = [other for other in PIN_SETS if other != name]
    return DEFAULT if DEFAULT in left else left[0]


def listed(name):
    """The folders of tests that a pin set's pins.toml lists."""
    return tomllib.loads((ROOT / "patches" / name / "pins.toml").read_text())["tests"]


def test_every_folder_of_tests_is_run():
    """Folders run with .venvs/tools or in pin sets' environments, as CONTRIBUTING.md says, unless a set is retired."""
    by_pin_sets = {folder for name in PIN_SETS for folder in listed(name)}
    run = {*QUICK, *TORCH} | by_pin_sets
    assert not set(QUICK) & set(TORCH) and not {*QUICK, *TORCH} & by_pin_sets
    rows = re.findall(r"^\| (.+) \| (.+) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    table = {(env.strip("`"), name) for env, words in rows for name in re.findall(r"`(\w+)`", words.split(";")[0])}
    folders = {str(path.parent.relative_to(ROOT)) for path in ROOT.glob("tests/*/test_*.py")}
    assert run <= folders
    for folder in folders:
        named = [env for env, name in table if f"tests/{name}" == folder]
        assert named or folder == "tests/wheels"
        assert (folder in QUICK) == (named == ["tools"]), folder
        assert folder in run or not set(named) & set(PIN_SETS), folder
