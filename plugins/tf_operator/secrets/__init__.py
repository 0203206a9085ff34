"""References to secrets become values here, in the replica's start, and nowhere else."""

from __future__ import annotations

from tf_operator.secrets.model import Fetched, Lease
from tf_operator.secrets.preflight import check
from tf_operator.secrets.resolver import fetch, resolve
from tf_operator.secrets.session import Login, VaultSession

__all__ = ["Fetched", "Lease", "Login", "VaultSession", "check", "fetch", "resolve"]
