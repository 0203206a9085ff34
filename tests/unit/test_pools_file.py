from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tf_operator.errors import PreflightError
from tf_operator.pools import describe, disagreements, slots_per_gpu, wanted_pools


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "pools.yaml"
    file.write_text(text)
    return file


def test_auto_is_the_hosts_gpus_times_the_slots_of_one(tmp_path: Path) -> None:
    file = write(tmp_path, "pools: {gpu: {slots_per_gpu: 3, description: ours}, fleet: {slots: 64}}")
    gpu, fleet = wanted_pools(file, lambda: 4)
    assert (gpu.name, gpu.slots, gpu.description) == ("gpu", 12, "ours [tf_operator slots_per_gpu=3]")
    assert (fleet.name, fleet.slots) == ("fleet", 64)
    assert gpu.include_deferred and fleet.include_deferred


def test_gpus_are_counted_only_for_auto(tmp_path: Path) -> None:
    def count() -> int:
        raise AssertionError("nobody asked")

    assert wanted_pools(write(tmp_path, "pools: {fleet: {slots: 64}}"), count)[0].slots == 64


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "pools.yaml"
    file.write_bytes(b"pools: {gpu: {description: caf\xe9}}")
    with pytest.raises(PreflightError, match="is not UTF-8 text"):
        wanted_pools(file, lambda: 4)


def test_a_description_that_was_copied_from_airflow_has_one_mark(tmp_path: Path) -> None:
    text = "pools: {gpu: {slots_per_gpu: 4, slots: 16, description: 'ours [tf_operator slots_per_gpu=1]'}}"
    (gpu,) = wanted_pools(write(tmp_path, text), lambda: 0)
    assert gpu.description == "ours [tf_operator slots_per_gpu=4]"
    assert slots_per_gpu("tf_operator slots_per_gpu=1 was the old one [tf_operator slots_per_gpu=4]") == 4


@pytest.mark.parametrize(("description", "per_gpu"), [(None, 1), ("", 1), ("by hand", 1), (describe("x", 4), 4)])
def test_the_description_tells_the_slots_of_one_gpu(description: str | None, per_gpu: int) -> None:
    assert slots_per_gpu(description) == per_gpu


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("pools: {gpu: {slots: many}}", 'pools.gpu.slots = "many": must be auto or a whole number from 0'),
        ("pools: {gpu: {slots: 1:30}}", 'pools.gpu.slots = "1:30"'),
        ("pools: {gpu: {slots: -4}}", "pools.gpu.slots = -4"),
        ("pools: {gpu: {slots: 4.0}}", "pools.gpu.slots = 4.0"),
        ("pools: {gpu: {slots: true}}", "pools.gpu.slots = true"),
        ("pools: {gpu: {slots_per_gpu: true}}", "pools.gpu.slots_per_gpu = true"),
        ("pools: {gpu: {slots_per_gpu: 2.0}}", "pools.gpu.slots_per_gpu = 2.0"),
        ("pools: {gpu: {slots_per_gpu: 2000000000}}", "pools.gpu.slots_per_gpu = 2000000000"),
        ("pools:\n  gpu: {slots: 1}\n  gpu: {slots: 2}\n", "pools.yaml:3: pools.gpu: is given twice, first on line 2"),
        ("pools: {gpu: {description: [a]}}", "pools.yaml:1: pools.gpu.description = "),
        ("pools: " + "[" * 900 + "]" * 900, "is nested too deep"),
        ("- gpu\n", "pools.yaml:1: the file holds no pools; write a mapping with the key pools"),
        ("pools: {gpu: {slots_per_gpu: 0}}", "pools.gpu.slots_per_gpu = 0"),
        ("pools: {gpu: {slot: 1}}", "pools.gpu.slot = 1"),
        ("pool: {}", "pools"),
        ("[", "is not YAML"),
    ],
)
def test_a_faulty_file_is_one_line_with_the_field(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(PreflightError) as error:
        wanted_pools(write(tmp_path, text), lambda: 4)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="nothing.yaml: cannot be read: No such file"):
        wanted_pools(tmp_path / "nothing.yaml", lambda: 4)


def test_a_pool_that_differs_is_one_line(tmp_path: Path) -> None:
    wanted = wanted_pools(write(tmp_path, "pools: {gpu: {}, fleet: {slots: 64}, spare: {slots: 1}}"), lambda: 4)
    actual = {"gpu": replace(wanted[0], slots=2, include_deferred=False), "fleet": wanted[1]}
    assert disagreements(wanted, actual) == [
        "pool gpu: has 2 slots, wanted 4 (4 GPUs on this host x slots_per_gpu 1);"
        " does not count deferred tasks (include_deferred): jobs would share GPUs",
        "pool spare: missing, wanted with 1 slots",
    ]
