"""How a container ended, in the contract's words."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from typing import Any

from tf_operator.runners.base import Exit

ENDED = ("exited", "dead")


def end_of(
    state: Mapping[str, Any],
    *,
    limit: int,
    told: Sequence[str] = (),
    orphan_timeout: float = 0.0,
    stop: Mapping[str, Any] | None = None,
) -> Exit:
    """The end as `State` of inspect has it. `limit`: memory in bytes, 0 for none. `stop`: the request, if one was made;
    one that never reached the program is not why it ended.

    The container's own exit code is the shell's, so a program that exits with 137 looks like one that was killed.
    """
    code = int(state.get("ExitCode", 0)) & 0xFF
    out_of_memory = bool(state.get("OOMKilled"))
    orphan = "orphan" in told
    words = [text.partition(" ") for text in told]
    reasons = [text for kind, _, text in words if kind in ("fault", "final")]
    if orphan:
        reasons.append(f"no watcher for {orphan_timeout:g} s")
    if stop is not None and stop.get("killed") and code == 128 + signal.SIGKILL:
        reasons.append(f"killed: it did not end within {stop['grace']:g} s of SIGTERM")
    if out_of_memory and code != 128 + signal.SIGKILL:
        reasons.append(f"a process of it was killed for its memory use, limit {limit} bytes")
    if state.get("Error"):
        reasons.append(str(state["Error"]))
    return Exit(
        code=code,
        signal=signal_name(code),
        oom_limit=limit if out_of_memory and code == 128 + signal.SIGKILL else None,
        stopped=orphan or (stop is not None and bool(stop["grace"] <= 0 or stop.get("termed") or stop.get("killed"))),
        reason="; ".join(reasons) or None,
        final=any(kind == "final" for kind, _, _ in words),
    )


def signal_name(code: int) -> str | None:
    """`SIGKILL` for 137; None for codes no signal gives."""
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return None
