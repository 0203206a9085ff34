"""What every program does before it restores: pass over a checkpoint that is torn."""

from __future__ import annotations

import os
import re
from pathlib import Path

from digits.data import DataError
from digits.replica import say


def pass_over_torn(folder: Path) -> None:
    """Have `checkpoint`, the file by which TensorFlow finds the newest one, name the newest one that can be read.

    A machine that crashes while it saves may leave that file empty, or a checkpoint whose data is not whole, and each
    restart would fail at it. For the leader alone, before it meets the others: so all restore the same one. Files of
    torn ones stay until their number is saved again. DataError where none can be read: whether everything is to be
    trained once more is for a person to say.
    """
    state = folder / "checkpoint"
    named = _named(state)
    found = sorted((path.stem for path in folder.glob("*-*.index")), key=_number, reverse=True)
    torn = [] if named else ["the file `checkpoint` names none"]
    for name in dict.fromkeys([named, *found] if named else found):
        fault = _fault(folder / name)
        if fault is None:
            if name != named:
                _write(state, [other for other in reversed(found) if _number(other) <= _number(name)])
                say(f"going on from {name}, the newest checkpoint that can be read: {'; '.join(torn)}")
            return
        torn.append(f"{name}: {fault}")
    if found or state.exists():
        told = "; ".join(torn)
        raise DataError(f"{folder}: no checkpoint can be read: {told}; put one back, or move them away to begin anew")


def _named(state: Path) -> str | None:
    """The newest checkpoint, as the file names it: the folder may have been moved, so without its path."""
    text = state.read_text(errors="replace") if state.exists() else ""
    found = re.search(r'^model_checkpoint_path: "(.+)"$', text, re.MULTILINE)
    return Path(found[1]).name if found else None


def _number(name: str) -> int:
    number = name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


def _fault(prefix: Path) -> str | None:
    """Read the checkpoint to its end; why that cannot be done."""
    import tensorflow as tf

    try:
        reader = tf.train.load_checkpoint(str(prefix))
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    # A file that is too short is an IndexError.
    except (tf.errors.OpError, IndexError, RuntimeError) as error:
        return str(error).splitlines()[0]
    return None


def _write(state: Path, names: list[str]) -> None:
    lines = [f'model_checkpoint_path: "{names[-1]}"']
    for name in names:
        # Without its time, CheckpointManager would not know an old one, and keep it for ever.
        saved = state.with_name(f"{name}.index").stat().st_mtime
        lines += [f'all_model_checkpoint_paths: "{name}"', f"all_model_checkpoint_timestamps: {saved}"]
    part = state.with_name(f"{state.name}.{os.getpid()}")
    part.write_text("\n".join(lines) + "\n")
    part.replace(state)
