"""Write the encrypted data set: `DIGITS_DATA_KEY=... python -m digits.prepare --out FILE`.

The images come with scikit-learn, so nothing is downloaded. A file that the key opens is kept, a data set of another
key is written anew, anything else is left alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from digits.data import DataError, decrypt, encrypt, key_from_environment
from digits.replica import Arguments

FERNET = b"gAAAA"
"""How whatever the key's cipher wrote begins: its version, and a time before the year 2106."""


def prepare(out: Path) -> bool:
    """Return whether the data set was written; False where the file was right already."""
    cipher = key_from_environment()
    try:
        decrypt(out, cipher)
    except DataError:
        pass
    else:
        return False
    if out.is_dir() or (out.exists() and not out.read_bytes().startswith(FERNET)):
        raise DataError(f"{out} is something else than a data set of this program: give --out another name")
    from sklearn.datasets import load_digits  # slow to import, needed once per clone

    digits = load_digits()
    out.parent.mkdir(parents=True, exist_ok=True)
    encrypt(out, cipher, (digits.data / 16).astype(np.float32), digits.target.astype(np.int64))
    return True


def main() -> int:
    """Run the command line."""
    parser = Arguments(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    try:
        args = parser.parse_args()
        print(f"{args.out}: {'written' if prepare(args.out) else 'kept'}")
    except DataError as error:
        print(f"digits: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
