"""`tf-operator schema`: the JSON Schema of job files, for editors."""

from __future__ import annotations

import json

import typer


def schema() -> None:
    """Print the JSON Schema of job files."""
    from tf_operator.job_spec import TensorFlowJob

    typer.echo(json.dumps(TensorFlowJob.json_schema(), indent=2))
