"""The digits data set as the programs see it: an encrypted file, opened with the key in DIGITS_DATA_KEY."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from cryptography.fernet import Fernet, InvalidToken

KEY_VARIABLE = "DIGITS_DATA_KEY"


class DataError(Exception):
    """The data cannot be used. One line, without the key."""


class Digits(NamedTuple):
    """Images as 64 numbers in 0..1, labels 0..9; a fifth is held out for the test."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def key_from_environment() -> Fernet:
    """Return the cipher for the key in the environment; DataError if it is missing or no key at all."""
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not key:
        raise DataError(f"{KEY_VARIABLE} is not set: the data set is encrypted, its key comes from the job's secrets")
    try:
        return Fernet(key)
    except ValueError:
        pass
    raise DataError(f"{KEY_VARIABLE} is no key: 32 bytes in URL-safe base64 are needed, got {len(key)} characters")


def load(path: Path, cipher: Fernet) -> Digits:
    """Read and decrypt the data set. DataError if it is not there or the key is another one's."""
    images, labels = decrypt(path, cipher)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order], labels[order]
    cut = len(images) * 4 // 5
    return Digits(images[:cut], labels[:cut], images[cut:], labels[cut:])


def decrypt(path: Path, cipher: Fernet) -> tuple[np.ndarray, np.ndarray]:
    """Return images and labels. DataError as for `load`."""
    try:
        token = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}: python -m digits.prepare writes the data set") from None
    try:
        plain = cipher.decrypt(token)
    except InvalidToken:
        raise DataError(f"{path}: the key in {KEY_VARIABLE} does not open this data set") from None
    with np.load(io.BytesIO(plain), allow_pickle=False) as arrays:
        return arrays["images"], arrays["labels"]


def encrypt(path: Path, cipher: Fernet, images: np.ndarray, labels: np.ndarray) -> None:
    """Write the data set. It is there whole or not at all."""
    buffer = io.BytesIO()
    np.savez(buffer, images=images, labels=labels)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_bytes(cipher.encrypt(buffer.getvalue()))
    part.replace(path)
