#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Downloads what the test bed needs, once: a bare Debian for its hosts and the wheels that they install.

The hosts have no route out, so everything is downloaded before they start, to .cache/bed: `base-<key>` is the root
folder of a bare host (debootstrap); `wheels-<key>` holds sam_core's wheel and, at the versions and hashes of the pin
set's requirements.lock, those of WANTED with their requirements and of ALONE. <key> is a hash of the inputs; each
folder is created completely or not at all, and replaces an older one.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".cache" / "bed"
TOOLS = ROOT / ".venvs" / "tools" / "bin"
SUITE = "bookworm"  # the pin sets' locks are for this release's Python
MIRROR = "http://deb.debian.org/debian"
# What a site has on its hosts before a playbook runs: a system that Ansible reaches over ssh.
PACKAGES = "systemd systemd-sysv dbus openssh-server python3 python3-apt python3-venv git iproute2 iputils-ping procps"
# Not installed, but in apt's cache as from a mirror inside the site: what the playbooks install.
CACHED = "nftables python3-packaging rsync"
MONITORING = "prometheus prometheus-node-exporter"
INVENTORY = ROOT / "ansible" / "inventories" / "bed" / "group_vars" / "npu_hosts" / "main.yml"
PIN_SET = re.search(r"^pin_set: (.+)$", INVENTORY.read_text(), re.MULTILINE).group(1)
LOCK = ROOT / "patches" / PIN_SET / "requirements.lock"
# Ray as `ray start` needs it with its dashboard, numpy for sam_core, setuptools to install llm_rl; then, without what
# it requires, verl, whose release the playbooks look at.
WANTED = "ray[default]\nnumpy\nsetuptools\n"
ALONE = "verl"


def log(text: str) -> None:
    print(f"test-bed: {text}", flush=True)


def run(command: list, failure: str) -> None:
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout[-4000:]}\ntest-bed: error: {failure}")


def key(*texts: str | bytes) -> str:
    parts = (text if isinstance(text, bytes) else text.encode() for text in texts)
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def keep(new: Path, folder: Path) -> None:
    """Renames `new` to `folder` atomically and removes older folders of the same kind."""
    new.rename(folder)
    for other in CACHE.glob(f"{folder.name.rpartition('-')[0]}-*"):
        if other != folder:
            shutil.rmtree(other)


def base() -> Path:
    """The root folder of a bare host. It is made in memory: dpkg waits for the disk after each file it writes."""
    folder = CACHE / f"base-{key(SUITE, MIRROR, PACKAGES, CACHED, MONITORING)}"
    if folder.is_dir():
        return folder
    log(f"making the base system of the hosts (Debian {SUITE}, about a minute)")
    new = CACHE / "base.new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    script = f"""
        mount -t tmpfs -o size=2g,mode=755 tmpfs {new}
        debootstrap --variant=minbase --include={PACKAGES.replace(" ", ",")} {SUITE} {new}/root {MIRROR}
        rm -rf {new}/root/var/cache/apt/archives/*.deb {new}/root/usr/share/{{doc,man,locale}}
        echo 'APT::Install-Recommends "false";' > {new}/root/etc/apt/apt.conf.d/60-sam-bed
        chroot {new}/root apt-get -qq install --download-only {CACHED} {MONITORING}
        cp -a {new}/root {new}.copy
    """
    shutil.rmtree(f"{new}.copy", ignore_errors=True)
    run(
        ["unshare", "--mount", "--propagation", "private", "bash", "-ec", script],
        f"debootstrap could not make a Debian {SUITE} from {MIRROR}: see above; call again when the mirror answers.",
    )
    new.rmdir()
    keep(Path(f"{new}.copy"), folder)
    return folder


def requirements() -> str:
    """The entries of LOCK, hashes included, for WANTED, what it requires, and ALONE."""
    entries = dict(re.findall(r"^([a-z0-9-]+)==(.*?)(?=^\S|\Z)", LOCK.read_text(), re.M | re.S))
    with tempfile.TemporaryDirectory() as scratch:
        wanted, pins = Path(scratch, "wanted"), Path(scratch, "pins")
        wanted.write_text(WANTED)
        pins.write_text("".join(f"{name}=={entry.split()[0]}\n" for name, entry in entries.items()))
        words = ["pip", "compile", "--quiet", "--no-annotate", "--no-header", "--python-version", "3.11"]
        out = Path(scratch, "out")
        run(
            [TOOLS / "uv", *words, "--constraint", pins, wanted, "--output-file", out],
            "uv could not resolve what Ray requires, see above: call again when the package index is reachable.",
        )
        names = [line.partition("==")[0] for line in out.read_text().splitlines()] + [ALONE]
    return "".join(f"{name}=={entries[name]}" for name in sorted(names))


def wheels() -> Path:
    """The folder with the wheels that the hosts install, and with their requirements.lock."""
    sources = subprocess.run(["git", "ls-files", "-s", "sam_core"], cwd=ROOT, capture_output=True, check=True).stdout
    sources += subprocess.run(
        ["git", "diff", "HEAD", "--", "sam_core"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    folder = CACHE / f"wheels-{key(LOCK.read_bytes(), WANTED, ALONE, sources)}"
    if folder.is_dir():
        return folder
    log("downloading the wheels of the hosts (about 130 MB)")
    new = CACHE / "wheels.new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    (new / "requirements.lock").write_text(requirements())
    pip = [TOOLS / "python", "-m", "pip"]
    run(
        [*pip, "download", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "-d", new]
        + ["-r", new / "requirements.lock"],
        "downloading the wheels stopped at the file that pip names above: call again, downloads are kept.",
    )
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "sam_core")
        shutil.copytree(ROOT / "sam_core", source, ignore=shutil.ignore_patterns("build", "dist", "*.egg-info"))
        run(
            [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", new, source],
            "sam_core could not be built, see above.",
        )
    keep(new, folder)
    return folder


if __name__ == "__main__":
    CACHE.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for made in [pool.submit(base), pool.submit(wheels)]:
            made.result()
