"""References to secrets become values here, in the replica's start, and nowhere else."""

from __future__ import annotations

from tf_operator.secrets.preflight import check
from tf_operator.secrets.resolver import resolve
from tf_operator.secrets.session import Login, VaultSession

__all__ = ["Login", "VaultSession", "check", "resolve"]
