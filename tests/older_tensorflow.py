"""An older TensorFlow beside the one of this environment, to show that versions live side by side."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

VERSION = "2.18.1"
PACKAGES = (f"tensorflow-cpu=={VERSION}", "cryptography")
HOME = Path(__file__).parents[1] / ".state" / f"tensorflow-{VERSION}"


def older() -> Path:
    """A virtual environment with it, made once from the package index (about 40 s), then kept."""
    HOME.parent.mkdir(parents=True, exist_ok=True)
    with (HOME.parent / f"{HOME.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (HOME / "installed").exists():
            shutil.rmtree(HOME, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(HOME)], check=True, timeout=120)
            pip = [str(HOME / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, *PACKAGES], check=True, timeout=600)
            (HOME / "installed").touch()
    return HOME


def packages(home: Path) -> Path:
    """Where a virtual environment of this Python version keeps its packages."""
    return home / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
