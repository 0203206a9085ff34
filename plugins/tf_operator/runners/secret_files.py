"""A private, memory-backed directory per program for the secrets it reads from files."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

MEMORY = Path("/dev/shm")
_MEMORY_KINDS = ("tmpfs", "ramfs")


def secrets_dir(state_dir: Path, key: str) -> Path:
    """The directory of one identity: always the same, so that whoever comes next can remove it."""
    return base_dir() / f"{state_mark(state_dir)}{key}"


def base_dir() -> Path:
    """What holds the secrets directories of this user."""
    return MEMORY / f"tf_operator-{os.getuid()}"


def state_mark(state_dir: Path) -> str:
    """How the names of the directories begin that belong to one state directory."""
    return f"{hashlib.sha256(os.fsencode(state_dir)).hexdigest()[:12]}."


def write(folder: Path, files: Iterable[tuple[str, bytes, int]]) -> None:
    """Make the directory and its files (name, content, mode). Raises OSError where it is not memory or not private."""
    base = folder.parent
    if _kind_of(base.parent) not in _MEMORY_KINDS:
        raise OSError(f"secret files need a memory-backed directory, and {base.parent} is none")
    base.mkdir(mode=0o700, exist_ok=True)
    # Everybody may make a directory in shared memory: one that waits for us there under our name is a trap.
    about = base.lstat()
    if about.st_uid != os.getuid() or about.st_mode & 0o170077 != 0o040000:
        raise OSError(f"{base} is not a directory that only this user can read: remove it")
    remove(folder)
    folder.mkdir(mode=0o700)
    for name, content, mode in files:
        _write(folder / name, content, mode)


def replace(folder: Path, files: Iterable[tuple[str, bytes, int]]) -> None:
    """Replace files of the directory, each atomically: whoever reads one gets the old or the new, and all of it."""
    for name, content, mode in files:
        # No secret file's name begins with a dot.
        new = folder / f".{name}.new"
        new.unlink(missing_ok=True)
        _write(new, content, mode)
        new.replace(folder / name)


def _write(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        os.fchmod(descriptor, mode)


def remove(folder: Path) -> None:
    """Remove the directory with whatever the program added. Absence is normal."""
    for path, names, files in os.walk(folder, topdown=False):
        for file in files:
            (Path(path) / file).unlink(missing_ok=True)
        for name in names:
            child = Path(path) / name
            child.unlink() if child.is_symlink() else child.rmdir()
    # What others put in its place or around it, where everybody may write, holds nothing of ours.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        folder.rmdir()


def _kind_of(path: Path) -> str:
    """The kind of file system a path is on, from the mount table."""
    best, kind = 0, ""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, what, *_ = line.split(" ")
        if len(place) >= best and path.is_relative_to(place):
            best, kind = len(place), what
    return kind
