# SPDX-License-Identifier: Apache-2.0
"""What a host says about its disks, ports, clock and network, read from files and one command; parsers without I/O."""

from __future__ import annotations

import os
import re
import socket

REFUSED = "connection refused"


class Unreadable(ValueError):
    """Why the output of a command cannot be used: one reason, without the host's name."""


def parse_chrony(text):
    """Seconds that the clock is ahead of its source, out of `chronyc -c tracking`; raises Unreadable.

    The fields of its one line are separated by commas: reference, name, stratum, time, offset, ..., leap status.
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
    """{port: [address, ...]} of the listening sockets in /proc/net/tcp or tcp6; addresses as text."""
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
    """Whether /etc/ufw/ufw.conf enables ufw; its unit is active either way."""
    return re.search(r"^\s*ENABLED\s*=\s*[\"']?yes\b", text, re.MULTILINE | re.IGNORECASE) is not None


def parse_kernels(text, release, left_alone):
    """Packages that bring other kernels, of dpkg-query's lines `STATE NAME`; not those on hold or left alone.

    release: that of the running kernel; left_alone: patterns of packages that unattended-upgrades does not touch.
    """
    names = re.findall(r"^ii +(linux-image\S*)", text, re.MULTILINE)
    # An upgrade brings a new package of each version, as the one without a version requires it.
    names = [name for name in names if not re.match(r"linux-image-(unsigned-)?\d", name) or release in name]
    return [name for name in names if not any(re.match(pattern, name) for pattern in left_alone)]


def parse_locked(text):
    """Whether `dnf versionlock list` of dnf 4 or 5, or a line of dnf.conf that excludes packages, names the kernel."""
    lists = r"^(Package name: +)?kernel(-core)?(-\d|\s|$)|^exclude(pkgs)? *=.*\bkernel(-core)?(\*|[\s,]|$)"
    return re.search(lists, text, re.MULTILINE) is not None


def existing(path):
    """`path` or its nearest ancestor that exists."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def free_gb(path):
    """Free space in GB (10^9 bytes) where `path` is or will be."""
    state = os.statvfs(existing(path))
    return state.f_bavail * state.f_frsize / 1e9


def reachable(address, port, timeout, refused_is_answer=True):
    """None, or why nothing answers at `address`; a refused connection is an answer of the host, not of a service."""
    try:
        socket.create_connection((address, port), timeout).close()
    except ConnectionRefusedError:
        return None if refused_is_answer else REFUSED
    except OSError as error:
        return error.strerror or "time-out"
    return None
