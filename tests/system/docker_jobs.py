"""The jobs of `probe_jobs` in containers, and the digits job with TensorFlow from a directory of this host."""

from __future__ import annotations

import json
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import docker
from airflow_under_test import AirflowUnderTest
from docker_engine import IMAGE, DockerEngine
from probe_jobs import PROBE
from sampling import sampled

TENSORFLOW = f"/usr/local/lib/python{sysconfig.get_python_version()}/dist-packages"
"""Where the base image's Python has packages of its host's own; unlike PYTHONPATH with their `.pth` files."""


def in_containers(job: Mapping[str, Any], out: Path, image: str = IMAGE, **runtime: Any) -> dict[str, Any]:
    """A job of probes that write to `out`, on the docker runtime."""
    out.mkdir(parents=True, exist_ok=True)
    out.chmod(0o777)
    mounts = [{"source": str(out), "target": str(out)}]
    mounts.append({"source": str(PROBE), "target": str(PROBE), "read_only": True})  # type: ignore[dict-item]
    # The image's interpreter instead of ours, wherever a command has it.
    there: dict[str, Any] = json.loads(json.dumps(job).replace(json.dumps(sys.executable), '"python"'))
    kind = {"kind": "docker", "image": image, "pull_policy": "never", "mounts": mounts}
    return there | {"runtime": kind | runtime}


def tensorflow_image(engine: DockerEngine, version: str) -> str:
    """An image whose TensorFlow is mounted: 1.5 GB need not be copied into it."""
    return engine.image(f"tf-operator-test:tensorflow-{version}", f"LABEL tensorflow={version}")


def tensorflow_runtime(airflow: AirflowUnderTest, image: str, packages: Path) -> dict[str, Any]:
    """The runtime of a digits job: packages and data are mounted."""
    data = str(airflow.project / ".state" / "dev" / "digits.npz.enc")
    mounts = [{"source": str(packages), "target": TENSORFLOW}, {"source": data, "target": data}]
    read_only = [mount | {"read_only": True} for mount in mounts]
    return {"kind": "docker", "image": image, "pull_policy": "never", "mounts": read_only}


@contextmanager
def watched(engine: DockerEngine, every: float = 0.2) -> Iterator[list[list[str]]]:
    """The identities of the living containers, time after time."""
    api = docker.APIClient(base_url=engine.url, version="auto")
    with (
        closing(api),
        sampled(lambda: [one["Labels"]["tf_operator.identity"] for one in api.containers()], every) as seen,
    ):
        yield seen


def all_texts(engine: DockerEngine) -> str:
    """Everything the engine shows of containers, networks and images."""
    api = engine.api
    inspected = [api.inspect_container(one["Id"]) for one in engine.containers()]
    names = [tag for image in api.images() for tag in image["RepoTags"] or ()]
    images = [[api.inspect_image(name), api.history(name)] for name in names]
    return json.dumps([inspected, engine.containers(), api.networks(), api.volumes(), images], default=str)


def argvs() -> Iterator[bytes]:
    """The arguments of every process of this machine."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes()
        except OSError:
            time.sleep(0)
