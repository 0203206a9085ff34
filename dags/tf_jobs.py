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


def name_of(file: Path) -> str:
    """The name of the DAG that stands for a faulty job file, told from those of that name in other folders."""
    place = file.relative_to(jobs)
    return ".".join(["invalid", *place.parts[:-1], place.stem if place.suffix == ".yaml" else place.name])


def read(file: Path) -> DAG | str:
    """The DAG of one job file, or what is wrong with it."""
    try:
        return as_dag(TensorFlowJob.from_file(file), project_dir=project, fileloc=__file__)
    except Exception as error:  # whatever is wrong with one file must not take the others with it
        text = str(error) if isinstance(error, JobError) else f"{file}: {type(error).__name__}: {error}"
        logging.getLogger(__name__).error("%s", text)
        return text


def read_all() -> dict[str, DAG]:
    """The DAGs of all job files, by DAG id. Of files that share a name none is run: which one is meant nobody knows."""
    found: dict[str, list[tuple[Path, DAG]]] = {}
    faults: list[tuple[Path, str]] = []
    for file in sorted(path for path in jobs.rglob("*") if path.suffix in (".yaml", ".yml", ".json")):
        dag = read(file)
        if isinstance(dag, str):
            faults.append((file, dag))
        else:
            found.setdefault(dag.dag_id, []).append((file, dag))
    dags = {name: of_name[0][1] for name, of_name in found.items() if len(of_name) == 1}
    for name, of_name in found.items():
        for file, _ in of_name if len(of_name) > 1 else ():
            others = ", ".join(str(other.relative_to(jobs)) for other, _ in of_name if other != file)
            text = f"{file}: name = {name}: {others} has that name, too; give each job a name of its own"
            faults.append((file, text))
    for file, text in faults:
        name = name_of(file)
        # a/b.yaml and a.b.yaml come to one name, and a sound job may have it.
        while (told := broken_dag(name, text)).dag_id in dags:
            name += "_"
        dags[told.dag_id] = told
    return dags


globals().update(read_all())
