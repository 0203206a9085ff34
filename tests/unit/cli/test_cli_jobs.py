"""`tf-operator validate | plan | schema`: output, one-line errors, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tf_operator.cli.main import main

JOB = """\
name: digits
params: {workers: {type: integer, default: 2, maximum: 4}, tag: {type: string, default: a}}
program: {command: [python, train.py, "--tag={{ params.tag }}"]}
replicas:
  chief: {}
  evaluator: {}
  ps: {}
  worker: {replicas: "{{ params.workers }}", gpus: 1}
"""


@pytest.fixture
def job_path(tmp_path: Path) -> Path:
    """A project with one job."""
    folder = tmp_path / "configs" / "jobs"
    folder.mkdir(parents=True)
    path = folder / "digits.yaml"
    path.write_text(JOB)
    return path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command: exit code, standard output, standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        streams = capsys.readouterr()
        return code, streams.out, streams.err

    return run


Cli = Callable[..., tuple[int, str, str]]


def test_validate_says_ok(cli: Cli, job_path: Path) -> None:
    assert cli("validate", job_path) == (0, f"{job_path}: job digits: ok\n", "")


def test_what_the_system_refuses_is_one_line(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leases" / "x.json").mkdir(parents=True)
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__STATE_DIR", str(tmp_path))
    monkeypatch.setattr("tf_operator.cli.clean.SETTLED", -1.0)
    code, _, err = cli("clean")
    assert (code, err) == (
        2,
        f"tf-operator: {tmp_path}/leases/x.json: Is a directory; run it as the user this belongs to, with space on the"
        " disk\n",
    )


def test_validate_tells_jobs_that_share_a_name(cli: Cli, job_path: Path) -> None:
    draft = job_path.with_name("draft.yaml")
    draft.write_text(JOB)
    code, out, err = cli("validate", job_path, job_path, draft)
    assert (code, out.count("ok")) == (2, 2)
    assert err == f"{draft}: name = digits: {job_path} has that name, too; give each job a name of its own\n"


def test_validate_tells_every_file_and_fault_on_stderr(cli: Cli, job_path: Path) -> None:
    faulty = job_path.with_name("faulty.yaml")
    faulty.write_text("name: faulty\nretries: -1\ncomand: x\nreplicas: {worker: {}}\n")
    code, out, err = cli("validate", faulty, job_path, job_path.with_name("absent.json"))
    assert (code, out) == (2, f"{job_path}: job digits: ok\n")
    assert [line.split(": ")[0].removeprefix(f"{job_path.parent}/") for line in err.splitlines()] == [
        "faulty.yaml:2",
        "faulty.yaml:3",
        "absent.json",
    ]


def test_plan_as_json(cli: Cli, job_path: Path) -> None:
    code, out, err = cli("plan", job_path, "--param", "workers=3", "--param", "tag=7", "--json")
    plan = json.loads(out)
    assert (code, err, sorted(plan)) == (0, "", ["cluster", "pool", "pool_slots", "tasks", "tf_config"])
    assert plan["cluster"] == {
        "chief": ["chief-0.digits:2222"],
        "worker": [f"worker-{index}.digits:2222" for index in range(3)],
        "ps": ["ps-0.digits:2222"],
    }
    assert (plan["pool"], plan["pool_slots"]) == ("gpu", 3)
    names = ["chief-0", "worker-0", "worker-1", "worker-2", "ps-0", "evaluator-0"]
    assert [task["replica"] for task in plan["tasks"]] == names
    assert list(plan["tf_config"]) == names
    assert plan["tf_config"]["evaluator-0"] == {"cluster": plan["cluster"], "task": {"type": "evaluator", "index": 0}}
    assert plan["tasks"][0]["command"] == ["python", "train.py", "--tag=7"]


def test_plan_is_the_same_each_time(cli: Cli, job_path: Path) -> None:
    job_path.write_text(JOB + "model_dir: 'm/{{ ds }}/{{ run_id }}'\n")
    assert cli("plan", job_path, "--json") == cli("plan", job_path, "--json")


def test_plan_for_people(cli: Cli, job_path: Path) -> None:
    code, out, _ = cli("plan", job_path)
    assert code == 0
    assert "job digits: strategy parameter_server, pool gpu, 2 slot(s)" in out
    assert "example addresses; a run's own come from its runners" in out
    assert 'TF_CONFIG of worker-1: {"cluster": ' in out


def test_plan_takes_the_pool_s_slots_per_gpu(cli: Cli, job_path: Path) -> None:
    pools = "pools:\n  gpu: {slots: 8, slots_per_gpu: 4}\n"
    (job_path.parents[1] / "pools.yaml").write_text(pools)
    assert json.loads(cli("plan", job_path, "--json")[1])["pool_slots"] == 8


def test_plan_without_gpus_is_in_the_default_pool(cli: Cli, job_path: Path) -> None:
    job_path.write_text(JOB.replace(", gpus: 1", ""))
    plan = json.loads(cli("plan", job_path, "--json")[1])
    assert (plan["pool"], plan["pool_slots"]) == ("default_pool", 1)


@pytest.mark.parametrize(
    ("param", "message"),
    [
        ("workers=9", "params.workers = 9: the value does not fit the schema: 9 is greater than the maximum of 4; "),
        (
            "workers=two",
            "params.workers = \"two\": the value does not fit the schema: 'two' is not of type 'integer'; ",
        ),
        ("workers=NaN", 'params.workers = "NaN": the value does not fit the schema: '),
        ("workers=1e999", 'params.workers = "1e999": the value does not fit the schema: '),
        ("worker=3", "params.worker = 3: is not declared; did you mean workers?"),
        ("workers", "--param workers: must be name=value; write --param workers=3"),
        ("=3", "--param =3: must be name=value; write --param workers=3"),
    ],
)
def test_a_wrong_param_is_one_line_and_exit_2(cli: Cli, job_path: Path, param: str, message: str) -> None:
    code, out, err = cli("plan", job_path, "--param", param)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "model_dir: /usr",
            "model_dir = /usr: is a folder of the system, or a user's home; give it a folder of its own",
        ),
        ("model_dir: .", "is a project, with DAGs or job files in it"),
        (
            "run_policy: {orphan_timeout: 1m}",
            "job digits: run_policy.orphan_timeout = 60 s: a program would end before",
        ),
        ("runtime: {kind: swarm, image: i}", "runtime.kind = swarm: is not built yet; use process or docker"),
        ("scheduling: {pool: default_pool}", "job digits: scheduling.pool = default_pool: the replicas' own tasks run"),
    ],
)
def test_plan_says_what_no_run_accepts(cli: Cli, job_path: Path, change: str, message: str) -> None:
    job_path.write_text(f"{JOB}{change}\n")
    assert cli("validate", job_path)[0] == 0
    code, out, err = cli("plan", job_path)
    assert (code, out) == (2, "")
    assert all(message in line or "swarm" in line for line in err.splitlines()) and message in err


def test_plan_refuses_more_than_the_dag_runs_at_once(cli: Cli, job_path: Path) -> None:
    job_path.write_text(JOB.replace(", maximum: 4", ""))
    assert cli("plan", job_path, "--param", "workers=60", "--json")[0] == 0
    code, _, err = cli("plan", job_path, "--param", "workers=100")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("job digits: 103 replicas must run at once, the DAG's max_active_tasks is 73;")


def test_plan_refuses_a_part_of_a_gpu_that_the_pool_does_not_give(cli: Cli, job_path: Path) -> None:
    job_path.write_text(JOB.replace("gpus: 1", "gpus: 0.3"))
    (job_path.parents[1] / "pools.yaml").write_text("pools: {gpu: {slots: 8, slots_per_gpu: 4}}")
    code, _, err = cli("plan", job_path)
    assert (code, err.count("\n")) == (2, 1)
    assert "worker: gpus = 0.3: the pool has slots_per_gpu 4" in err


def test_plan_refuses_what_is_another_team_s(cli: Cli, job_path: Path) -> None:
    (job_path.parents[1] / "teams.yaml").write_text("teams: {vision: {pools: [gpu]}}")
    code, _, err = cli("plan", job_path)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("job digits: scheduling.pool = gpu: belongs to team vision, this job belongs to no team")
    (job_path.parent / "vision").mkdir()
    own = job_path.rename(job_path.parent / "vision" / job_path.name)
    assert cli("plan", own)[0] == 0


def test_plan_leaves_alone_what_only_the_worker_s_host_can_know(cli: Cli, job_path: Path) -> None:
    job_path.write_text(f"{JOB}runtime: {{python: /opt/there/bin/python}}\n")
    assert cli("plan", job_path)[0] == 0


def test_plan_takes_the_heartbeat_time_out_that_is_set(
    cli: Cli, job_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT", "30")
    job_path.write_text(f"{JOB}run_policy: {{orphan_timeout: 2m}}\n")
    assert cli("plan", job_path)[0] == 0


@pytest.mark.parametrize("arguments", [["plan"], ["nonsense"], ["validate"], ["plan", "a", "b"], ["schema", "--bla"]])
def test_wrong_usage_is_one_line_and_exit_2(cli: Cli, arguments: list[str]) -> None:
    code, out, err = cli(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("tf-operator: ")
    assert err.endswith("; see tf-operator --help\n")


def test_every_command_takes_the_project_that_the_file_lies_in(
    cli: Cli, job_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the one we stand in; what is configured comes before both."""
    here, elsewhere, set_by_hand = job_path.parents[2], tmp_path_factory.mktemp("b"), tmp_path_factory.mktemp("c")
    outside = tmp_path_factory.mktemp("d") / "brought.yaml"
    outside.write_text(JOB)
    for number, project in enumerate((here, elsewhere, set_by_hand), 1):
        (project / "configs" / "jobs").mkdir(parents=True, exist_ok=True)
        (project / ".airflow").mkdir()
        (project / ".airflow" / "services.json").write_text(json.dumps({"url": f"http://127.0.0.1:{number}"}))
    monkeypatch.chdir(elsewhere)

    def taken(file: Path) -> tuple[Path, int]:
        folder = Path(json.loads(cli("plan", file, "--json")[1])["tasks"][0]["working_dir"])
        return folder, int(cli("run", file)[2].partition("no Airflow answers at http://127.0.0.1:")[2][0])

    assert taken(job_path) == (here, 1)
    assert taken(outside) == (elsewhere, 2)
    monkeypatch.setenv("AIRFLOW__TF_OPERATOR__PROJECT_DIR", str(set_by_hand))
    assert taken(job_path) == taken(outside) == (set_by_hand, 3)


def test_run_without_a_project_is_one_line(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(JOB)
    code, _, err = cli("run", "mine.yaml")
    told = f"mine.yaml: {tmp_path} is no project: it has no configs/jobs; go to one, or put the file into one\n"
    assert (code, err) == (2, told)


def test_schema_is_json(cli: Cli) -> None:
    code, out, _ = cli("schema")
    assert code == 0
    assert json.loads(out)["properties"]["replicas"]


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_lists_the_commands(cli: Cli, arguments: list[str]) -> None:
    code, out, _ = cli(*arguments)
    assert code == 0
    assert all(f"\n  {name} " in out for name in ("validate", "plan", "schema"))


def test_help_and_validate_load_nothing_heavy(job_path: Path) -> None:
    script = (
        "import sys; from tf_operator.cli.main import main; main({!r}); "
        "print([m for m in ('airflow', 'tensorflow', 'docker', 'hvac', {!r}) if m in sys.modules])"
    )
    for arguments, beside in ((["--help"], "pydantic"), (["validate", str(job_path)], "rich.table")):
        command = [sys.executable, "-c", script.format(arguments, beside)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"


def test_a_user_s_mistake_shows_no_traceback(job_path: Path) -> None:
    job_path.write_text("a: [")
    command = [sys.executable, "-m", "tf_operator.cli.main", "plan", str(job_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{job_path}:1: is not YAML: did not find expected node content; correct it\n"
