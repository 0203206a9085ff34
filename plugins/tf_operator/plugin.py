"""The Airflow plugin. It declares; the work is elsewhere."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from tf_operator import preload


class TfOperatorPlugin(AirflowPlugin):
    """Makes the product known to Airflow, by name and version."""

    name = "tf_operator"
    listeners = [preload]
