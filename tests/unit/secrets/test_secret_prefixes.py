"""The fence of a team around its secrets."""

from __future__ import annotations

from typing import Any

import pytest

from tf_operator.job_spec.rendered import RenderedSecret
from tf_operator.secrets.prefixes import outside_prefixes


def inside(path: str, *prefixes: str, **fields: Any) -> bool:
    return not outside_prefixes([RenderedSecret(path=path, key="k", env="V", **fields)], prefixes)


@pytest.mark.parametrize(
    ("path", "prefix", "fields"),
    [
        ("secret/training/store", "secret/training", {}),
        ("/secret/training/deep/store/", "/secret/training/", {}),
        ("secret/training", "secret/training", {}),
        ("training/store", "secret/training", {"mount": "secret"}),
        ("secret/training/data/store", "secret/training", {}),
        ("team/data/store", "team/data", {"mount": "team/data"}),
        ("team/data/store", "team/data", {"kv": 1}),
        ("secret/training/store", "other:secret", {"connection": "other"}),
        ("anything/at/all", "other:", {"connection": "other"}),
        ("database/creds/reader", "database/creds/reader", {}),
    ],
)
def test_inside(path: str, prefix: str, fields: dict[str, Any]) -> None:
    assert inside(path, prefix, **fields)


@pytest.mark.parametrize(
    ("path", "prefix", "fields"),
    [
        ("secret/other/store", "secret/training", {}),
        ("secret/training2/store", "secret/training", {}),
        ("secret/train", "secret/training", {}),
        ("secret", "secret/training", {}),
        ("secret/training/../other/store", "secret/training", {}),
        ("secret/training//store", "secret/training", {}),
        ("secret/training/./store", "secret/training", {}),
        ("Secret/training/store", "secret/training", {}),
        ("training/store", "secret/training", {"mount": "other"}),
        # Read as the API's own path, these are the secrets `other/x` and `store` of the mount.
        ("secret/data/other/x", "secret/data", {}),
        ("team/data/store", "team/data", {}),
        ("team/data/store", "team/data", {"mount": "team"}),
        ("secret/data/training/store", "secret/training", {}),
        ("secret/training/store", "secret/training", {"connection": "other"}),
        ("secret/training/store", "other:secret/training", {}),
        ("secret/training/store", "", {}),
        ("secret/training/store", "/", {}),
    ],
)
def test_outside(path: str, prefix: str, fields: dict[str, Any]) -> None:
    assert not inside(path, prefix, **fields)


def test_several_prefixes_and_none() -> None:
    assert inside("kv/b/x", "kv/a", "kv/b")
    assert not inside("kv/b/x")
    refs = [RenderedSecret(path=path, key="k", env="V") for path in ("kv/c/x", "kv/a/x", "kv/b/x")]
    assert [ref.path for ref in outside_prefixes(refs, ["kv/a"])] == ["kv/c/x", "kv/b/x"]
