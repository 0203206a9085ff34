"""One DAG for each job file in configs/jobs. A faulty file gets a DAG that says so; the others are not touched."""

import logging
from pathlib import Path

from airflow.sdk import DAG

from tf_operator import settings
from tf_operator.errors import JobError
from tf_operator.job_spec import TensorFlowJob
from tf_operator.task_group import as_dag, broken_dag

project = settings.project_dir(Path(__file__).parent)
jobs = project / "configs" / "jobs"


def invalid(file: Path, text: str) -> DAG:
    """Stands for a faulty job file, told from those of that name in other folders."""
    place = file.relative_to(jobs)
    name = place.stem if place.suffix == ".yaml" else place.name
    return broken_dag(".".join(["invalid", *place.parts[:-1], name]), text)


def read(file: Path) -> DAG:
    """The DAG of one job file."""
    try:
        return as_dag(TensorFlowJob.from_file(file), project_dir=project, fileloc=__file__)
    except Exception as error:  # whatever is wrong with one file must not take the others with it
        text = str(error) if isinstance(error, JobError) else f"{file}: {type(error).__name__}: {error}"
        logging.getLogger(__name__).error("%s", text)
        return invalid(file, text)


def read_all() -> dict[str, DAG]:
    """The DAGs of all job files, by DAG id. Of files that share a name none is run: which one is meant nobody knows."""
    found: dict[str, list[tuple[Path, DAG]]] = {}
    for file in sorted(path for path in jobs.rglob("*") if path.suffix in (".yaml", ".yml", ".json")):
        dag = read(file)
        found.setdefault(dag.dag_id, []).append((file, dag))
    dags: dict[str, DAG] = {}
    for name, of_name in found.items():
        if len(of_name) == 1 or name.startswith("invalid."):
            dags[name] = of_name[0][1]
            continue
        for file, _ in of_name:
            others = ", ".join(str(other.relative_to(jobs)) for other, _ in of_name if other != file)
            told = invalid(file, f"{file}: name = {name}: {others} has that name, too; give each job a name of its own")
            dags[told.dag_id] = told
    return dags


globals().update(read_all())
