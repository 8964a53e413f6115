# SPDX-License-Identifier: Apache-2.0
"""Hosts of the test bed: systemd-nspawn containers over one Debian, on a bridge without a route out.

The hosts live in the mount, network and process namespaces that ci/test-bed makes: the kernel removes mounts,
interfaces and processes with the last process of the run, however it ends. Only control groups remain; `sweep` removes
them.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import npu

HERE = Path(__file__).resolve().parent
NETWORK = "10.231.0"
CONTROLLER = f"{NETWORK}.1"
DEVICES = [*(f"davinci{die}" for die in range(16)), "davinci_manager", "devmm_svm", "hisi_hdc"]
REBOOT = 133  # exit status of systemd-nspawn --keep-unit when the host wants to start again
# Paths that a comparison leaves out, because a running system or a login writes files there.
NOISE = ("etc/machine-id", "etc/resolv.conf", "etc/.updated", "root/.ansible", "root/.bash_history", "run", "tmp")
NOISE += ("usr/lib/python3", "var/.updated", "var/lib/apt", "var/cache", "var/lib/dbus", "var/lib/systemd", "var/log")
NOISE += ("var/tmp",)


def call(*words: str | Path) -> str:
    """Return the output of a command; raises CalledProcessError."""
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def groups(folder: Path) -> list[Path]:
    """This checkout's control group in each hierarchy that systemd uses (its own one of version 1, and version 2)."""
    mounts = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options):
            mounts[kind] = Path(fields.split()[4])
    name = f"sam-bed-{folder.stat().st_dev:x}-{folder.stat().st_ino:x}"
    return [mount / name for mount in mounts.values()]


def sweep(folder: Path) -> None:
    """Removes the control groups of `folder`'s hosts; a group is busy until its last process is gone."""
    deadline = time.monotonic() + 5
    while any(group.exists() for group in groups(folder)) and time.monotonic() < deadline:
        for group in groups(folder):
            for path, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(path)
        time.sleep(0.05)


class Host:
    """One container. `root` is its file system; `upper` has only the files that differ from the base. All hosts share
    the folder srv/sam-rl, where files that root creates belong to nobody, as with root_squash."""

    def __init__(self, folder: Path, base: Path, number: int, key: Path) -> None:
        self.name = f"bed{number + 1}"
        self.number = number
        self.address = f"{NETWORK}.{11 + number}"
        self.folder = folder / self.name
        self.base = base
        self.key = key
        self.interface = "cluster0" if number == 2 else "host0"
        self.root = self.folder / "root"
        self.upper = self.folder / "disk" / "upper"
        self.process: subprocess.Popen | None = None

    def create(self) -> None:
        """Creates a bare host from the base, the login key, an address, and simulated NPUs and time source."""
        disk = self.folder / "disk"
        for folder in (disk, self.root):
            folder.mkdir(parents=True)
        call("mount", "-t", "tmpfs", "-o", "size=6g,mode=755", f"sam-{self.name}", disk)
        for folder in (self.upper, disk / "work"):
            folder.mkdir()
        options = f"lowerdir={self.base},upperdir={self.upper},workdir={disk / 'work'}"
        call("mount", "-t", "overlay", "-o", options, f"sam-{self.name}", self.root)
        address = f"Address={self.address}/24\nLinkLocalAddressing=no\n"
        network = f"[Match]\nName={self.interface}\n[Network]\n{address}"
        names = "".join(f"{NETWORK}.{11 + number} bed{number + 1}\n" for number in range(3))
        # Like the unit of Debian's chrony, whose alias `systemctl enable` refuses.
        unit = "[Service]\nExecStart=/usr/bin/sleep infinity\n"
        unit += "[Install]\nWantedBy=multi-user.target\nAlias=chronyd.service\n"
        dies = npu.healthy(self.number)["dies"]
        files = {
            "etc/hostname": f"{self.name}\n",
            "etc/hosts": f"127.0.0.1 localhost\n{names}",
            "etc/hccn.conf": "".join(f"address_{die['phy']}={die['ip']}\n" for die in dies),
            "etc/chrony/chrony.conf": "pool 2.debian.pool.ntp.org iburst\n",
            "etc/sam-bed/clock": "0.000012\n",
            "etc/systemd/network/20-cluster.network": network,
            "etc/systemd/system/chrony.service": unit,
            "root/.ssh/authorized_keys": self.key.with_suffix(".pub").read_text(),
        }
        if self.interface != "host0":
            folder = "etc/systemd/network/10-bridge"
            files[f"{folder}.netdev"] = f"[NetDev]\nName={self.interface}\nKind=bridge\n"
            files[f"{folder}.network"] = f"[Match]\nName=host0\n[Network]\nBridge={self.interface}\n"
        for path, text in files.items():
            self.write(path, text)
        (self.root / "root/.ssh").chmod(0o700)
        for program in ("npu-smi", "hccn_tool", "msnpureport", "npu-exporter", "chronyc", "all-reduce", "docker"):
            shutil.copy(HERE / "fakes" / program, self.root / "usr/local/bin")
        self.set_npu(npu.healthy(self.number))
        images = self.folder.parent / "images"
        for folder in (images, self.root / "var/lib/sam-bed-images"):
            folder.mkdir(exist_ok=True)
        call("mount", "--bind", images, self.root / "var/lib/sam-bed-images")
        exported = self.folder.parent / "exported"
        shared, mounted = self.folder.parent / "sam-rl", self.root / "srv/sam-rl"
        for folder in (exported, shared, mounted):
            folder.mkdir(exist_ok=True)
        if not shared.is_mount():
            squash = ["--force-user=nobody", "--force-group=nogroup", "--chown-deny", "--chgrp-deny"]
            call("bindfs", *squash, exported, shared)
        call("mount", "--bind", shared, mounted)
        wants = self.root / "etc/systemd/system/multi-user.target.wants"
        for unit in ("systemd-networkd", "ssh"):
            link = wants / f"{unit}.service"
            if not link.is_symlink():
                link.symlink_to(f"/lib/systemd/system/{unit}.service")

    def start(self) -> None:
        """Starts the host; it starts again by itself when it asks for a reboot."""
        inside = []
        for group in groups(self.folder.parent.parent):
            (group / self.name).mkdir(parents=True, exist_ok=True)
            inside.append(group / self.name / "cgroup.procs")
        words = ["systemd-nspawn", "--boot", "--quiet", "--register=no", "--keep-unit", f"--machine={self.name}"]
        words += [f"--directory={self.root}", "--network-bridge=bed0", "--console=pipe", "--link-journal=no"]
        words += ["--resolv-conf=off", "--timezone=off", *(f"--bind=/dev/null:/dev/{name}" for name in DEVICES)]
        script = "".join(f"echo $$ > {path}; " for path in inside)
        script += f'while :; do "$@"; [ $? = {REBOOT} ] || exit; done'
        environment = {**os.environ, "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network"}  # lets net.* be set
        with open(self.folder / "console", "ab") as console:
            streams = {"stdin": subprocess.DEVNULL, "stdout": console, "stderr": console}
            command = ["bash", "-c", script, "bash", *words]
            self.process = subprocess.Popen(command, env=environment, start_new_session=True, **streams)

    def wait(self) -> None:
        """Waits until the system is up; if it does not start, raises AssertionError with the end of the console."""
        while self.process.poll() is None:
            state = self.run("systemctl", "is-system-running", check=False).strip()
            if state in ("running", "degraded"):
                assert state == "running", self.run("systemctl", "--failed", "--no-legend")
                return
            time.sleep(0.1)
        raise AssertionError(f"{self.name} did not start:\n{(self.folder / 'console').read_text()[-2000:]}")

    def stop(self) -> None:
        """Kills the host, as if its power failed."""
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        while leader := self.leader():
            with contextlib.suppress(ProcessLookupError):
                os.kill(leader, signal.SIGKILL)
            time.sleep(0.05)

    def remove(self) -> None:
        self.stop()
        for mount in (self.root, self.folder / "disk"):
            if mount.is_mount():
                call("umount", "--lazy", mount)
        shutil.rmtree(self.folder, ignore_errors=True)

    def leader(self) -> int | None:
        """Process id of the host's systemd, found by its control group; None while there is none."""
        found = []
        for group in groups(self.folder.parent.parent):
            try:
                text = (group / self.name / "payload/init.scope/cgroup.procs").read_text()
            except OSError:  # systemd has not started yet, or has ended
                continue
            found += [int(pid) for pid in text.split()]
        return min(found, default=None)

    def run(self, *words: str, check: bool = True) -> str:
        """Return the output of a command in the host, without ssh; with check=False a failure raises no error."""
        leader = self.leader()
        if leader is None:
            return ""
        command = ["nsenter", "--target", str(leader), "--mount", "--uts", "--ipc", "--net", "--pid", *words]
        return subprocess.run(command, capture_output=True, text=True, check=check).stdout

    def until(self, happens: Callable[[], bool], what: str) -> None:
        """Waits until `happens`; prints `what`, which pytest shows if the test is stopped."""
        print(f"{self.name}: waiting until {what}")
        while not happens():
            time.sleep(0.1)

    def write(self, path: str, text: str) -> None:
        """Writes a file atomically and creates its folders; `path` is relative to the host's root."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f".{file.name}.new")
        new.write_text(text)
        new.rename(file)

    def npu(self) -> dict:
        """Return the state of the host's NPUs, as npu.py describes it."""
        return json.loads((self.root / "etc/sam-bed/npu.json").read_text())

    def set_npu(self, state: dict) -> None:
        """Makes npu-smi and hccn_tool report `state`."""
        self.write("etc/sam-bed/npu.json", json.dumps(state))
        folder = self.root / "etc/sam-bed/say"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for call, text in npu.outputs(state).items():
            (folder / call).write_text(f"{text}\n")

    def reset(self) -> None:
        """Sets the simulated devices and the clock to the state of a healthy host."""
        self.set_npu(npu.healthy(self.number))
        self.write("etc/sam-bed/clock", "0.000012\n")

    def files(self) -> dict[str, tuple]:
        """Files that differ from the base, {path: (mode, size, mtime in ns)}, without folders and NOISE."""
        found = {}
        for path in self.upper.rglob("*"):
            name = str(path.relative_to(self.upper))
            if path.is_dir() and not path.is_symlink() or name.startswith((*NOISE, "etc/sam-bed")):
                continue
            state = path.lstat()
            found[name] = (state.st_mode, state.st_size, state.st_mtime_ns)
        return found

    def processes(self) -> list[str]:
        """Command lines of the processes in the host."""
        lines = self.run("ps", "-eo", "args", "--no-headers").splitlines()
        return [line.strip() for line in lines if line.strip() and not line.startswith("ps -eo")]

    def units(self) -> list[str]:
        """Names of the loaded services, sockets, timers and mounts."""
        words = ("systemctl", "list-units", "--all", "--plain", "--no-legend", "--type=service,timer,socket,mount")
        return sorted(line.split()[0] for line in self.run(*words).splitlines())

    def reserved(self) -> str:
        """The reserved ports, which the kernel assigns to no client."""
        return self.run("cat", "/proc/sys/net/ipv4/ip_local_reserved_ports").strip()

    def ports(self) -> set[int]:
        """Listening TCP ports."""
        return {int(line.split()[3].rpartition(":")[2]) for line in self.run("ss", "-Hltn").splitlines()}


class Bed:
    """A number of hosts on one bridge; CONTROLLER is the controller's address on it."""

    def __init__(self, folder: Path, base: Path) -> None:
        self.folder = folder
        self.base = base
        self.hosts: list[Host] = []
        self.key = folder / "key"
        self.known_hosts = folder / "known_hosts"

    def up(self, count: int) -> None:
        """Adds bare hosts until there are `count`, and waits until all of them run."""
        if not self.key.exists():
            call("ip", "link", "set", "lo", "up")
            call("ip", "link", "add", "bed0", "type", "bridge")
            call("ip", "address", "add", f"{CONTROLLER}/24", "dev", "bed0")
            call("ip", "link", "set", "bed0", "up")
            call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key)
            public = " ".join((self.base / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()[:2])
            self.known_hosts.write_text(f"{NETWORK}.* {public}\n")
        fresh = [Host(self.folder, self.base, number, self.key) for number in range(len(self.hosts), count)]
        for host in fresh:
            self.hosts.append(host)
            host.create()
            host.start()
        for host in fresh:
            host.wait()

    def down(self) -> None:
        for host in self.hosts:
            host.remove()
        self.hosts = []
        sweep(self.folder.parent)

    def reset(self) -> None:
        for host in self.hosts:
            host.reset()

    def snapshot(self) -> dict[str, dict]:
        """The files of every host, for comparison with a later snapshot."""
        return copy.deepcopy({host.name: host.files() for host in self.hosts})
