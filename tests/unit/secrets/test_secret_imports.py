"""What importing the package must not load."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["tf_operator.secrets", "tf_operator.secrets.environment", "tf_operator.masking"])
def test_heavy_packages_are_left_alone(module: str) -> None:
    heavy = "{'hvac', 'requests', 'airflow', 'tensorflow', 'docker'} & set(sys.modules)"
    program = f"import sys, {module}; print({heavy} or 'none')"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "none"


def test_masking_needs_the_standard_library_only() -> None:
    """The detached keeper imports it."""
    program = (
        "import sys, tf_operator.masking; print([n for n in sys.modules if n in ('pydantic', 'tenacity', 'psutil')])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"
