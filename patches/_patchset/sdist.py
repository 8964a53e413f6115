# SPDX-License-Identifier: Apache-2.0
"""The pinned source distribution of a module: find, download, read and unpack it."""

import base64
import hashlib
import http.client
import os
import posixpath
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .git import EXECUTABLE, FILE, SYMLINK, Entries, Failure, blob_id, write_file
from .pins import REPO, Module

CACHE = REPO / ".cache" / "sdists"


def file_name(module: Module) -> str:
    return f"{next(iter(module.dists)).replace('-', '_')}-{module.version}.tar.gz"


def locate(module: Module, folder: str | None) -> Path:
    """The source distribution, verified: from `folder` or $PATCHSET_SDISTS, the cache, or a download."""
    return find(module, folder) or download(module, CACHE / file_name(module))


def find(module: Module, folder: str | None) -> Path | None:
    """The source distribution, verified, in `folder` or $PATCHSET_SDISTS or the cache; None if it is in neither."""
    file = file_name(module)
    given = folder or os.environ.get("PATCHSET_SDISTS")
    if given and not Path(given).is_dir():
        raise Failure(f"{given} is not a folder; --sdists and $PATCHSET_SDISTS name the folder that holds {file}.")
    for place in (Path(given), CACHE) if given else (CACHE,):
        if (place / file).is_file():
            verify(module, place / file)
            return place / file
    return None


def verify(module: Module, file: Path, name: str | None = None) -> None:
    """Raise Failure unless the file has the pinned sha256. name: name of a download, which is not kept."""
    with open(file, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != module.sdist_sha256:
        raise Failure(
            f"{name or file} is not the pinned {module.name} {module.version}: its sha256 is {digest}, "
            f"{module.pinset.file} has {module.sdist_sha256}; {'' if name else 'remove the file or '}correct the pin."
        )


def download(module: Module, target: Path) -> Path:
    """Download the source distribution from uv's package index to the cache."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as temp:
        source = resolve(module, Path(temp))
        part = Path(temp) / target.name
        print(f"Downloading {target.name}", file=sys.stderr)
        try:
            with urllib.request.urlopen(_request(source), timeout=60) as response:
                part.write_bytes(response.read())
        except (OSError, http.client.HTTPException) as error:
            raise Failure(
                f"{target.name} could not be downloaded: {error}; call again, or put it into {target.parent}."
            ) from error
        verify(module, part, f"The downloaded {target.name}")
        os.replace(part, target)
    return target


def _request(source: str) -> urllib.request.Request:
    """A request for this address, with the password of uv's index, which uv omits from its output."""
    request = urllib.request.Request(source)
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        index, host = urlsplit(os.environ.get(name, "")), urlsplit(source)
        if index.username and (index.scheme, index.hostname, index.port) == (host.scheme, host.hostname, host.port):
            login = f"{unquote(index.username)}:{unquote(index.password or '')}"
            request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
    return request


def resolve(module: Module, temp: Path) -> str:
    """The address of the source distribution, from uv, which respects the user's index settings."""
    requirement = f"{next(iter(module.dists))}=={module.version}"
    local = REPO / ".venvs" / "tools" / "bin" / "uv"
    uv = os.environ.get("UV") or shutil.which("uv") or (str(local) if local.is_file() else None)
    if uv is None:
        raise Failure(
            f"The source distribution of {requirement} is in neither --sdists, $PATCHSET_SDISTS nor {CACHE}, and uv, "
            "which would find it, is missing: install uv (or set $UV) or put the file into one of the folders."
        )
    (temp / "req.txt").write_text(requirement + "\n")
    lock = temp / "pylock.patchset.toml"
    command = [uv, "pip", "compile", "--quiet", "req.txt", "--no-deps", "--format", "pylock.toml", "-o", str(lock)]
    done = subprocess.run(command, check=False, cwd=temp, capture_output=True, text=True)
    if done.returncode:
        reason = " ".join(done.stderr.split())
        raise Failure(f"uv did not find {requirement}: {reason or 'no message'}")
    sdist = tomllib.loads(lock.read_text())["packages"][0].get("sdist")
    if sdist is None:
        raise Failure(f"The package index has no source distribution of {requirement}; put the file into {CACHE}.")
    return str(sdist["url"]) if "url" in sdist else (temp / sdist["path"]).resolve().as_uri()


def members(file: Path) -> Iterator[tuple[str, tarfile.TarInfo, tarfile.TarFile]]:
    """Files and links of the archive, with their path below its only top folder.

    Raises Failure on a second top folder, an absolute or `..` path or link, and anything other than a file, a folder or
    a symbolic link.
    """
    try:
        with tarfile.open(file, "r:gz") as archive:
            top = None
            for member in archive:
                head, _, path = member.name.partition("/")
                top = top or head
                target = posixpath.join(posixpath.dirname(path), member.linkname) if member.issym() else path
                inside = not target.startswith("/") and not posixpath.normpath(target).startswith("..")
                known = member.isdir() or member.isreg() or member.issym()
                if head != top or ".." in path.split("/") or path.startswith("/") or not inside or not known:
                    raise Failure(f"{file}: unexpected member {member.name!r} in a source distribution.")
                if path and not member.isdir():
                    yield path, member, archive
    except (tarfile.TarError, EOFError, OSError) as error:
        raise Failure(f"{file} cannot be read as a source distribution: {error}.") from error


def read(file: Path, paths: set[str]) -> tuple[Entries, dict[str, tuple[str, bytes]]]:
    """Entries of the whole source distribution, and (mode, content) of the given paths that exist in it."""
    entries: Entries = {}
    contents = {}
    for path, member, archive in members(file):
        if member.issym():
            entries[path] = SYMLINK, blob_id(os.fsencode(member.linkname))
            continue
        data = _content(archive, member)
        mode = EXECUTABLE if member.mode & 0o100 else FILE
        entries[path] = mode, blob_id(data)
        if path in paths:
            contents[path] = mode, data
    return entries, contents


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None  # `members` yields only files and links
    return file.read()


def unpack(file: Path, folder: Path) -> None:
    """Extract the content of the source distribution's top folder to `folder`."""
    for path, member, archive in members(file):
        to = folder / path
        to.parent.mkdir(parents=True, exist_ok=True)
        if member.issym():
            to.symlink_to(member.linkname)
        else:
            write_file(to, _content(archive, member))
            to.chmod(0o755 if member.mode & 0o100 else 0o644)
