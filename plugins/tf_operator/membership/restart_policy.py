"""Which ends of a program are tried again: by what the end is, and by the replica type's `restart_policy`.

docs/recovery.md shows `TRIED_AGAIN` as its table of exit codes; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from tf_operator.job_spec.rendered import ReplicaGroup
from tf_operator.membership.messages import NOT_STARTED, Member


class EndKind(StrEnum):
    """What an own fault is, as the docs name it."""

    CODE = "1 to 127"
    SIGNAL = "128 to 255, signals among them"
    MEMORY = "out of memory"
    STOPPED = "stopped from outside"
    """The keeper's own TERM, the orphan deadline."""
    NOT_STARTED = "not started, for a reason that may pass"
    HOPELESS = "not started, for a reason that stays"


TRIED_AGAIN: Mapping[EndKind, Mapping[str, bool]] = {
    EndKind.CODE: {"on_failure": True, "exit_code": False, "never": False},
    EndKind.SIGNAL: {"on_failure": True, "exit_code": True, "never": False},
    EndKind.MEMORY: {"on_failure": True, "exit_code": True, "never": False},
    EndKind.STOPPED: {"on_failure": True, "exit_code": True, "never": False},
    EndKind.NOT_STARTED: {"on_failure": True, "exit_code": True, "never": False},
    EndKind.HOPELESS: {"on_failure": False, "exit_code": False, "never": False},
}


def kind_of(member: Member) -> EndKind:
    """What kind of end `member` reports. ValueError if it reports none."""
    end = member.end
    if end is None:
        raise ValueError("a member that has not ended has no kind of end")
    if member.final:
        return EndKind.HOPELESS
    if end.oom_limit is not None:
        return EndKind.MEMORY
    if end.code == NOT_STARTED and end.reason is not None:
        return EndKind.NOT_STARTED
    if end.stopped:
        return EndKind.STOPPED
    return EndKind.CODE if end.code <= 127 else EndKind.SIGNAL


def why_final(group: ReplicaGroup, member: Member) -> str | None:
    """Why an own fault is not tried again, in words; None where it is."""
    kind = kind_of(member)
    if TRIED_AGAIN[kind][group.restart_policy]:
        return out_of_retries(group, member.failures + 1)
    if kind is EndKind.HOPELESS:
        return "trying again cannot help"
    if group.restart_policy == "never":
        return "restart_policy is never"
    code = member.end.code if member.end else None
    return f"restart_policy is exit_code and {code} is final (1-127)"


def out_of_retries(group: ReplicaGroup, failures: int) -> str | None:
    """Why a replica with so many faults of its own is not started again; None where it may be."""
    if failures <= group.retries:
        return None
    return f"started {failures} time{'s' if failures > 1 else ''}, retries is {group.retries}"
