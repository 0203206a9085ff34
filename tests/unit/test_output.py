"""Lines out of bytes: case C-32, broken UTF-8, long lines, loud programs."""

from __future__ import annotations

import pytest
from fakes import FakeClock

from tf_operator.output import MAX_LINE, MAX_RATE, MAX_TAIL_LINE, OutputLines


def lines_of(data: bytes, size: int = 10**9) -> list[str]:
    out: list[str] = []
    lines = OutputLines(out.append, FakeClock())
    for at in range(0, len(data), size):
        lines.feed(data[at : at + size])
    lines.close()
    return out


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\rb\rc", ["a", "b", "c"]),
        (b"\r  0%\r 50%\r100%\ndone\n", ["  0%", " 50%", "100%", "done"]),
        ("ä€😀\n".encode(), ["ä€😀"]),
        (b"nul \x00 in it\n", ["nul \ufffd in it"]),
        (b"good \xc3\xa9 bad \xff\xfe\xc3( end\n", ["good é bad \ufffd\ufffd\ufffd( end"]),
        (b"no end", ["no end"]),
        (b"", []),
    ],
)
def test_lines_whatever_the_chunks(data: bytes, expected: list[str], size: int) -> None:
    assert lines_of(data, size) == expected


def test_a_line_is_not_held_back_for_ever() -> None:
    out = lines_of(b"x" * (3 * MAX_LINE), 1000)
    assert all(len(line) <= MAX_LINE + 40 for line in out)
    assert sum(line.count("x") for line in out) >= 3 * MAX_LINE - 2000
    assert lines_of(b"x" * (2 * MAX_LINE) + b"\nnext\n") == [f"{'x' * MAX_LINE} [cut, {2 * MAX_LINE} bytes]", "next"]


def test_a_loud_program_is_thinned_out_and_its_last_lines_are_known() -> None:
    clock, out = FakeClock(), []  # type: ignore[var-annotated]
    lines = OutputLines(out.append, clock)
    lines.feed(b"".join(b"%d\n" % n for n in range(5000)))
    assert len(out) == MAX_RATE
    assert lines.tail[-1] == "4999"
    assert lines.thinned
    clock.sleep(1.0)
    lines.feed(b"later\n")
    assert out[MAX_RATE:] == [f"[{5000 - MAX_RATE} lines left out here, over {MAX_RATE} a second]", "later"]


def test_lines_left_out_at_the_end_are_told() -> None:
    out = lines_of(b"x\n" * (MAX_RATE + 3))
    assert out[-1] == f"[3 lines left out here, over {MAX_RATE} a second]"


def test_the_tail_is_short_enough_for_a_message() -> None:
    lines = OutputLines(lambda _: None, FakeClock(), keep=3)
    lines.feed(b"a\nb\nc\nd\n" + b"y" * 5000 + b"\n")
    assert lines.tail == ("c", "d", "y" * MAX_TAIL_LINE)


@pytest.mark.parametrize(("whole", "tail"), [(True, ("t", "one", "two")), (False, ("one", "two"))])
def test_recalled_lines_are_in_the_tail_alone(whole: bool, tail: tuple[str, ...]) -> None:
    out: list[str] = []
    lines = OutputLines(out.append, FakeClock())
    lines.recall(b"t\none\ntwo\n", whole)
    assert lines.tail == tail
    assert out == []


def test_pending_counts_what_is_no_line_yet() -> None:
    lines = OutputLines(lambda _: None, FakeClock())
    lines.feed(b"one\ntw")
    assert lines.pending == 2
    lines.feed(b"o\n")
    assert lines.pending == 0
