"""`python -m tf_operator.services airflow | demo`; `pools` and `clean` are for the services themselves."""

from __future__ import annotations

import sys


def main(argv: list[str]) -> int:
    """Run one of the commands; its exit code."""
    match argv:
        case ["clean"]:
            return 0
        case ["pools"]:
            return 0
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
