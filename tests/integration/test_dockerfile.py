"""configs/docker/Dockerfile, built as docs/docker.md says, on Debian's Python; replicas run in what it makes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pip
import pytest
from contract.docker_kit import DockerKit
from docker_engine import IMAGE
from vault_helpers import PROJECT

from tf_operator.runners.base import Exit

pytestmark = pytest.mark.docker

TRAINING = ("tensorflow", "scikit-learn", "cryptography", "tf-keras")


def build(kit: DockerKit, context: Path, *arguments: str) -> None:
    """`docker build`, with no network: the engine of the tests has none."""
    command = ["docker", "-H", kit.engine.url, "build", "--network=none", *arguments, str(context)]
    # The builder that comes with the engine: Debian has the other one in a package of its own.
    env = os.environ | {"DOCKER_BUILDKIT": "0"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def python_base(kit: DockerKit, folder: Path, wheels: Path) -> str:
    """An image with Python and pip, where pip finds its packages in `wheels`: what an index is elsewhere."""
    context = folder / "base"
    shutil.copytree(Path(pip.__file__).parent, context / "pip")
    shutil.move(wheels, context / "wheels")
    lines = [f"FROM {IMAGE}", "COPY pip /usr/lib/python3/dist-packages/pip", "COPY wheels /wheels"]
    lines.append("ENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels")
    (context / "Dockerfile").write_text("\n".join(lines) + "\n")
    build(kit, context, "-t", "tf-operator-test:python")
    return "tf-operator-test:python"


def training_image(kit: DockerKit, folder: Path, wheels: Path, packages: str) -> str:
    """What the project's Dockerfile makes of it."""
    tag = "tf-operator-test:training"
    arguments = ("--build-arg", f"BASE={python_base(kit, folder, wheels)}", "--build-arg", f"PACKAGES={packages}")
    build(
        kit,
        PROJECT / "configs" / "docker",
        "-f",
        str(PROJECT / "configs" / "docker" / "Dockerfile"),
        *arguments,
        "-t",
        tag,
    )
    return tag


def prints(kit: DockerKit, image: str, script: str) -> str:
    """What a replica's program prints in the image."""
    handle = kit.start("python", "-c", script, runtime={"image": image, "options": {"pull_policy": "never"}})
    assert kit.wait(handle) == Exit(code=0), kit.output(handle)
    return kit.output(handle).decode()


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder for wheels."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    return folder


def test_the_dockerfile_makes_a_training_image_of_a_python_base(kit: DockerKit, tmp_path: Path, wheels: Path) -> None:
    """Debian's Python refuses pip until it is told, and has no `python`."""
    with zipfile.ZipFile(wheels / "trainer-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("trainer.py", "NAME = 'trains'\n")
        wheel.writestr("trainer-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: trainer\nVersion: 1.0\n")
        wheel.writestr("trainer-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("trainer-1.0.dist-info/RECORD", "trainer.py,,\n")
    image = training_image(kit, tmp_path, wheels, "trainer==1.0")
    told = prints(kit, image, "import os, trainer; print(trainer.NAME, os.environ['HOME'], os.getuid() != 0)")
    assert told == "trains /tmp True\n"


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_dockerfile_installs_tensorflow(kit: DockerKit, tmp_path: Path, wheels: Path) -> None:
    """What the examples need, with the versions of constraints.txt; about 3 GB for a while."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "-d", str(wheels)]
    subprocess.run([*command, "-c", str(PROJECT / "constraints.txt"), *TRAINING], check=True, timeout=600)
    image = training_image(kit, tmp_path, wheels, " ".join(TRAINING))
    script = "import cryptography, sklearn, tensorflow as tf, tf_keras; print(tf.__version__, tf.reduce_sum([1, 2]))"
    assert "2.21" in prints(kit, image, script)
