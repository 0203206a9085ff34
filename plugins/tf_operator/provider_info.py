"""What Airflow shows of this package among its providers."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """The provider's description, as Airflow's entry point asks for it."""
    return {
        "package-name": "tf-operator",
        "name": "TensorFlow operator",
        "description": "Distributed TensorFlow training: one job file, parallel replica tasks, one ClusterSpec.",
    }
