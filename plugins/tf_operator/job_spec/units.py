"""Amounts as people write them: memory in bytes, durations in seconds. Errors are ValueErrors that state the rule."""

from __future__ import annotations

import re

_BYTES = {"B": 1} | {
    f"{prefix}{suffix}": base**power
    for suffix, base in (("B", 1000), ("iB", 1024))
    for power, prefix in enumerate("KMGT", start=1)
}
LONGEST = 3650 * 86400
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

MEMORY_PATTERN = r"^[0-9]+(\.[0-9]+)?([KMGT]i?)?B$"
DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?[smhd])+$"


def memory_bytes(text: object) -> int:
    """Read `512MiB`, `2GiB`, `1.5GB`: a number and one of B, KB, MB, GB, TB, KiB, MiB, GiB, TiB."""
    if not isinstance(text, str) or not re.fullmatch(MEMORY_PATTERN, text):
        raise ValueError("must be a number with a unit (B, KB, MB, GB, TB, KiB, MiB, GiB, TiB); write for example 2GiB")
    number = text.rstrip("BKMGTi")
    size = float(number) * _BYTES[text[len(number) :]]
    if not 1 <= size < 2**63:
        raise ValueError("must be more than nothing and less than 8 EiB; leave it out for no limit")
    return int(size)


def seconds(text: object) -> float:
    """Read `30s`, `5m`, `12h`, `2d`, `1h30m`."""
    if not isinstance(text, str) or not re.fullmatch(DURATION_PATTERN, text):
        raise ValueError("must be a duration with a unit (s, m, h, d); write for example 30s, 5m, 12h, 2d or 1h30m")
    found = sum(float(number) * _SECONDS[unit] for number, unit in re.findall(r"([0-9.]+)([smhd])", text))
    if found > LONGEST:
        raise ValueError("must be at most 3650d; shorten it")
    return float(found)
