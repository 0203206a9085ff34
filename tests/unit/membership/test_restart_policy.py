"""The table of exit codes: the same in the code and in docs/recovery.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tf_operator.membership import Member, Status
from tf_operator.membership.messages import NOT_STARTED
from tf_operator.membership.restart_policy import TRIED_AGAIN, EndKind, kind_of
from tf_operator.runners.base import Exit

DOCS = Path(__file__).resolve().parents[3] / "docs" / "recovery.md"


def documented() -> dict[str, dict[str, bool]]:
    """The table below the heading that names `restart_policy`, cell by cell."""
    rows = [line for line in DOCS.read_text().splitlines() if line.startswith("|")]
    head = next(number for number, row in enumerate(rows) if "| `on_failure` (default) |" in row)
    policies = [cell.split("`")[1] for cell in rows[head].split("|")[2:5]]
    table = {}
    for row in rows[head + 2 : head + 2 + len(EndKind)]:
        kind, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        table[kind] = {policy: cell == "again" for policy, cell in zip(policies, cells, strict=True)}
        assert set(cells) <= {"again", "final"}, row
    return table


def test_docs_and_code_have_the_same_table() -> None:
    assert documented() == {str(kind): dict(row) for kind, row in TRIED_AGAIN.items()}


@pytest.mark.parametrize(
    ("end", "final", "kind"),
    [
        (Exit(1), False, EndKind.CODE),
        (Exit(127), False, EndKind.CODE),
        (Exit(NOT_STARTED), False, EndKind.CODE),
        (Exit(128), False, EndKind.SIGNAL),
        (Exit(255), False, EndKind.SIGNAL),
        (Exit(143, "SIGTERM"), False, EndKind.SIGNAL),
        (Exit(137, oom_limit=1 << 20), False, EndKind.MEMORY),
        (Exit(0, stopped=True), False, EndKind.STOPPED),
        (Exit(143, "SIGTERM", stopped=True), False, EndKind.STOPPED),
        (Exit(NOT_STARTED, reason="Vault is sealed"), False, EndKind.NOT_STARTED),
        (Exit(NOT_STARTED, reason="secret/x: forbidden"), True, EndKind.HOPELESS),
    ],
)
def test_kinds_of_ends(end: Exit, final: bool, kind: EndKind) -> None:
    assert kind_of(Member("a1", 1, "h:1", Status.EXITED, end=end, final=final)) is kind
