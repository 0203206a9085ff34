"""What a read of secrets gives beside the values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tf_operator.job_spec.rendered import RenderedSecret
from tf_operator.runners.base import SecretBundle


@dataclass(frozen=True)
class Lease:
    """What a dynamic engine granted for a time. No secret: without the token nobody can use its id.

    It ends with the token of the session that read it, also where it is renewable.
    """

    lease_id: str
    duration: float
    """Seconds it is good for, from the moment it was granted."""
    renewable: bool
    path: str
    """The path it was read from, as `full_path` gives it."""
    connection: str


@dataclass(frozen=True)
class Fetched:
    """Values on their way to the program, and the leases that they live by."""

    bundle: SecretBundle
    leases: tuple[Lease, ...] = ()


def full_path(ref: RenderedSecret) -> str:
    """The path with its mount, without outer slashes."""
    path, mount = ref.path.strip("/"), (ref.mount or "").strip("/")
    return path if not mount or f"{path}/".startswith(f"{mount}/") else f"{mount}/{path}"


def read_through(lease: Lease, refs: Sequence[RenderedSecret]) -> list[RenderedSecret]:
    """The references whose values live by `lease`: one read gives all of them."""
    return [ref for ref in refs if (ref.connection, full_path(ref)) == (lease.connection, lease.path)]
