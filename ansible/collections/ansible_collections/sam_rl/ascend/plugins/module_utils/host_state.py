# SPDX-License-Identifier: Apache-2.0
"""Read a host's disks, ports, clock and network. The parsers do no I/O."""

from __future__ import annotations

import os
import re
import socket

REFUSED = "connection refused"


class Unreadable(ValueError):
    """Raised if the output of a command cannot be used. The message is one reason, without the host's name."""


def parse_chrony(text):
    """Return the seconds that the clock is ahead of its source, from `chronyc -c tracking`; raises Unreadable.

    The output is one line of fields separated by commas: reference, name, stratum, time, offset, ..., leap status.
    """
    fields = text.strip().splitlines()[0].split(",") if text.strip() else []
    if len(fields) < 14:
        raise Unreadable("the time source printed no line of 14 fields")
    if fields[-1] == "Not synchronised" or fields[2] == "0":
        raise Unreadable("the clock is not synchronised")
    if not re.fullmatch(r"[+-]?\d{1,12}(\.\d{1,12})?", fields[4]):
        raise Unreadable(f"the time source printed an offset of {fields[4][:40]!r}")
    return float(fields[4])


def parse_listening(text):
    """Return {port: [address as text, ...]} of the listening sockets in /proc/net/tcp or tcp6."""
    found: dict[int, list[str]] = {}
    for line in text.splitlines()[1:]:
        cells = line.split()
        if len(cells) < 4 or cells[3] != "0A" or not re.fullmatch(r"[0-9A-Fa-f]+:[0-9A-Fa-f]{4}", cells[1]):
            continue
        address, port = cells[1].split(":")
        raw = bytes.fromhex(address)
        words = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
        family = socket.AF_INET if len(words) == 4 else socket.AF_INET6
        if len(words) in (4, 16):
            found.setdefault(int(port, 16), []).append(socket.inet_ntop(family, words))
    return found


def parse_ufw(text):
    """Whether /etc/ufw/ufw.conf enables ufw. The state of ufw's unit does not tell: it is active in both cases."""
    return re.search(r"^\s*ENABLED\s*=\s*[\"']?yes\b", text, re.MULTILINE | re.IGNORECASE) is not None


def parse_kernels(text, release, left_alone):
    """Return the packages whose upgrade replaces the kernel, without those on hold, from dpkg-query's `STATE NAME`.

    release: release of the running kernel; left_alone: patterns of packages that unattended-upgrades does not upgrade.
    """
    names = re.findall(r"^ii +(linux-image\S*)", text, re.MULTILINE)
    # Each kernel version is a new package, which an upgrade installs because the package without a version requires it.
    names = [name for name in names if not re.match(r"linux-image-(unsigned-)?\d", name) or release in name]
    return [name for name in names if not any(re.match(pattern, name) for pattern in left_alone)]


def parse_locked(text):
    """Whether `dnf versionlock list` of dnf 4 or 5, or a line of dnf.conf that excludes packages, names the kernel."""
    lists = r"^(Package name: +)?kernel(-core)?(-\d|\s|$)|^exclude(pkgs)? *=.*\bkernel(-core)?(\*|[\s,]|$)"
    return re.search(lists, text, re.MULTILINE) is not None


def existing(path):
    """Return `path` or its nearest ancestor that exists."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def free_gb(path):
    """Return the free space in GB (10^9 bytes) of the file system where `path` is or will be."""
    state = os.statvfs(existing(path))
    return state.f_bavail * state.f_frsize / 1e9


def reachable(address, port, timeout, refused_is_answer=True):
    """Return None or the reason for no answer. A refused connection shows that the host answers, but no service."""
    try:
        socket.create_connection((address, port), timeout).close()
    except ConnectionRefusedError:
        return None if refused_is_answer else REFUSED
    except OSError as error:
        return error.strerror or "time-out"
    return None
