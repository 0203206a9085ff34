"""The two Linux process controls that Python has no function for. Standard library only: the keeper imports it."""

from __future__ import annotations

import ctypes
import os

_SET_PDEATHSIG, _SET_NAME, _SET_CHILD_SUBREAPER = 1, 15, 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(number: int) -> None:
    """Have this process signalled when its parent ends. To be called in a child, before exec."""
    _prctl(_SET_PDEATHSIG, number)


def become_subreaper() -> None:
    """Orphans below this process become its children, wherever they try to hide."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def set_name(name: str) -> None:
    """The name `ps` and `top` show, 15 bytes."""
    _prctl(_SET_NAME, ctypes.c_char_p(name.encode()))


def _prctl(option: int, value: int | ctypes.c_char_p) -> None:
    argument = ctypes.c_ulong(value) if isinstance(value, int) else value
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")
