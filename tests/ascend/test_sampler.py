# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's rejection sampler over the stand-in: upstream's unit tests of patched files, and what sam_core.verify
gives it."""

import importlib.metadata
import os
import tarfile
from pathlib import Path

import pytest
from ascend_engine import OLD, start
from distribution import loaded, samples_as_the_model

SDIST = f"vllm_ascend-{importlib.metadata.version('vllm_ascend')}.tar.gz"
UPSTREAMS = ["tests/ut/sample/test_rejection_sampler.py"] + ([] if OLD else ["tests/ut/test_ascend_config.py"])
PASSED = 6 if OLD else 42
FOLDERS = [os.environ.get("PATCHSET_SDISTS"), Path(__file__).parents[2] / ".cache" / "sdists"]


@pytest.mark.skipif(OLD, reason="0.11 has no logprob_token_ids")
def test_upstreams_verification_returns_logprob_token_ids(checked): ...


def test_an_engines_samples_follow_the_models_distribution(sam, model):
    """By rejection sampling, drafts for batches of any size: 9,984 tokens in pairs."""
    sam.ask("keep_off", threshold=64)
    samples_as_the_model(sam, loaded(model), 4_992, 64)
    sam.ask("keep_off", threshold=8)


def test_upstreams_own_unit_tests(tmp_path, monkeypatch):
    sdist = next((Path(folder, SDIST) for folder in FOLDERS if folder and Path(folder, SDIST).is_file()), None)
    if sdist is None:
        pytest.skip(f"{SDIST}, which holds upstream's tests, is in neither $PATCHSET_SDISTS nor .cache/sdists")
    shared = ("__init__.py", "ut/__init__.py", "ut/base.py", "ut/conftest.py", "ut/sample/")
    wanted = (*(f"tests/{name}" for name in shared), *UPSTREAMS)
    with tarfile.open(sdist) as archive:
        for member in archive:
            path = member.name.partition("/")[2]
            if member.isfile() and path.startswith(wanted):
                (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / path).write_bytes(archive.extractfile(member).read())
    monkeypatch.chdir(tmp_path)
    printed, _ = start("npu", "-m", "pytest", "-q", "-p", "no:cacheprovider", *UPSTREAMS).communicate()
    assert f"\n{PASSED} passed" in printed, printed
