"""What the demo and `make airflow` start: an OpenBao with the example's secret, and an Airflow that may read it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tf_operator.services.airflow import Airflow
from tf_operator.services.airflow_settings import Setup
from tf_operator.services.interrupts import interruptible
from tf_operator.services.openbao import DevOpenBao

DEMO_GPUS = "4"


@contextmanager
def services(project: Path, port: int | None = None) -> Iterator[Airflow]:
    """Everything in `.airflow` of the project, with 4 declared GPUs; nothing of it is left afterwards.

    KeyboardInterrupt inside stands for Ctrl-C, TERM and HUP alike.
    """
    home = project / ".airflow"
    with interruptible(), DevOpenBao(home / "openbao") as openbao:
        # Airflow starts meanwhile: only the connection has to be known by then.
        seeding = _Seeding(openbao, project)
        setup = Setup(
            home=home,
            project=project,
            gpus=DEMO_GPUS,
            port=port,
            connections={"vault_default": openbao.airflow_connection_uri()},
        )
        airflow = Airflow(setup)
        try:
            seeding.start()
            airflow.start()
            seeding.finish()
            yield airflow
        finally:
            airflow.stop()


class _Seeding(threading.Thread):
    def __init__(self, openbao: DevOpenBao, project: Path) -> None:
        super().__init__(name="openbao-seed", daemon=True)
        self._openbao, self._project = openbao, project
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._openbao.seed(self._project)
        except BaseException as error:
            self._error = error

    def finish(self) -> None:
        """Wait for the end; raises what it raised."""
        self.join()
        if self._error:
            raise self._error


def wanted_port() -> int | None:
    """`PORT` of the environment; None for a free one."""
    text = os.environ.get("PORT", "")
    return int(text) if text.isdigit() else None
