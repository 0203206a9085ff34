#!/usr/bin/env python3
"""A replica command for tests: records how it was started, then does what its flags say. Standard library only.

    --out DIR          write DIR/<role>-<index>-<n>.json; n counts this replica's starts from 1 (default: $PROBE_OUT)
    --bind             listen on the replica's own address, as the first action
    --wait-peers       connect to every other address of the cluster before going on
    --wait-file FILE   go on when FILE exists
    --patience S       seconds that the two above, and the connection of --until-lost, may take (default: 60; for a file
                       3600: a test that is late makes it late, too)
    --until-lost ROLE  connect to ROLE's first address, and go on when that connection breaks
    --print MODE       tqdm | badutf8 | loud | lines:N | traceback | text:TEXT | env:NAME | files:DIR
    --spawn-child      start a child that ignores TERM and lives on in a session of its own
    --eat-memory MB    use that much memory
    --sleep S          wait (a word that is no number: for ever)
    --on-term HOW      exit0 | exit143 | ignore | slow:S (default: what SIGTERM does to any program)
    --result JSON      write it to $TF_OPERATOR_RESULT
    --signal NAME      end by sending itself this signal
    --exit N           exit code
    --fail-times K     only this replica's first K starts end with --exit or --signal, later ones with 0 (needs --out)

Flags may be given more than once for --print and --wait-file. Everything else is recorded and ignored.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

SWITCHES = ("bind", "wait-peers", "spawn-child")
VALUES = (
    "out",
    "print",
    "wait-file",
    "patience",
    "until-lost",
    "eat-memory",
    "sleep",
    "on-term",
    "result",
    "signal",
    "exit",
    "fail-times",
)


def parse(argv):
    """Flags as lists of their values. argparse would take longer to import than all else here together."""
    flags, words = {}, list(argv)
    while words:
        name, equals, value = words.pop(0).partition("=")
        if not name.startswith("--"):
            continue
        name = name[2:]
        if name in SWITCHES:
            flags[name] = [True]
        elif name in VALUES:
            flags.setdefault(name, []).append(value if equals else words.pop(0))
    return flags


def who(config):
    """Role and index, `none-0` without a TF_CONFIG."""
    task = config.get("task", {})
    return task.get("type", "none"), task.get("index", 0)


class Record:
    """The JSON file of this start."""

    def __init__(self, folder, role, index):
        self.path, self.number = None, 1
        self.content = {
            "role": role,
            "index": index,
            "tf_config": os.environ.get("TF_CONFIG"),
            "env": dict(os.environ),
            "argv": sys.argv[1:],
            "cwd": str(Path.cwd()),
            "uid": os.getuid(),
            "pid": os.getpid(),
            "gpus": visible_gpus(),
            "started": time.time(),
            "stopped": None,
        }
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._claim(folder, f"{role}-{index}")

    def _claim(self, folder, name):
        """Take the next free number; the file is there with its content or not at all."""
        new = Path(folder, f"{name}-{socket.gethostname()}-{os.getpid()}.new")
        while True:
            self.content["start"] = self.number
            new.write_text(json.dumps(self.content))
            try:
                os.link(new, Path(folder, f"{name}-{self.number}.json"))
            except FileExistsError:
                self.number += 1
                continue
            new.unlink()
            self.path = Path(folder, f"{name}-{self.number}.json")
            return

    def write(self, **more):
        """Replace the file, with what is new in it."""
        self.content.update(more)
        if self.path:
            new = self.path.with_suffix(".new")
            new.write_text(json.dumps(self.content))
            new.replace(self.path)


def visible_gpus():
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if text is None else [part for part in text.split(",") if part and part != "-1"]


def split_address(address):
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def listen(address):
    host, port = split_address(address)
    server = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((host, port))
    server.listen(64)
    return server


def wait_for(what, ready, patience):
    deadline = time.monotonic() + patience
    while not ready():
        if time.monotonic() > deadline:
            sys.exit(f"probe: waited {patience:.0f} s for {what}")
        time.sleep(0.02)


def answers(address):
    try:
        socket.create_connection(split_address(address), timeout=1).close()
    except OSError:
        return False
    return True


def lose(address, patience):
    wait_for(address, lambda: answers(address), patience)
    # What answered a moment ago may be gone: that is a loss, too.
    with contextlib.suppress(OSError), socket.create_connection(split_address(address)) as connection:
        connection.recv(1)
    print("probe: lost connection", flush=True)


def obey_term(how):
    def end(code):
        def handler(*_):
            print(f"probe: TERM, exit {code}", flush=True)
            os._exit(code)

        return handler

    def slow(*_):
        print("probe: TERM, saving", flush=True)
        time.sleep(float(how.partition(":")[2]))
        print("probe: saved", flush=True)
        os._exit(0)

    if how == "ignore":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif how.startswith("slow:"):
        signal.signal(signal.SIGTERM, slow)
    elif how in ("exit0", "exit143"):
        signal.signal(signal.SIGTERM, end(int(how[4:])))


def show_tqdm(_):
    for step in range(1, 201):
        sys.stdout.write(f"\r{step / 2:5.1f}%|{'#' * (step // 10):<20}| {step}/200")
        sys.stdout.flush()
    print("\nprobe: training done")


def show_badutf8(_):
    sys.stdout.buffer.write(b"good \xc3\xa9 bad \xff\xfe\xc3( end\n")


def show_loud(_):
    for number in range(100_000):
        sys.stdout.write(f"{number:06d} {'x' * 92}\n")


def show_lines(count):
    for number in range(int(count)):
        print(f"line {number}")


def show_traceback(_):
    lines = [f'  File "train.py", line {number}, in step_{number}' for number in range(8)]
    print("Traceback (most recent call last):", *lines, "ValueError: loss is nan", sep="\n", file=sys.stderr)


def show_env(name):
    print(f"{name}={os.environ.get(name)}")


def show_files(folder):
    for path in sorted(Path(os.environ.get(folder, folder)).iterdir()):
        print(path.name, f"{path.stat().st_mode & 0o777:o}", path.read_text(errors="replace"))


PRINTERS = {
    "tqdm": show_tqdm,
    "badutf8": show_badutf8,
    "loud": show_loud,
    "lines": show_lines,
    "traceback": show_traceback,
    "text": print,
    "env": show_env,
    "files": show_files,
}


def show(mode):
    kind, _, value = mode.partition(":")
    PRINTERS[kind](value)
    sys.stdout.flush()


def spawn_child(record):
    pid = os.fork()
    if pid == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(3600)
    record.write(child=pid)


def doze(text):
    try:
        time.sleep(float(text))
    except ValueError:
        while True:
            time.sleep(3600)


def finish(flags, record):
    if "result" in flags:
        Path(os.environ["TF_OPERATOR_RESULT"]).write_text(flags["result"][-1])
    record.write(stopped=time.time())
    sys.stdout.flush()
    if record.number > int(flags.get("fail-times", [sys.maxsize])[-1]):
        sys.exit(0)
    if "signal" in flags:
        number = getattr(signal, flags["signal"][-1])
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    sys.exit(int(flags.get("exit", [0])[-1]))


def main():
    flags = parse(sys.argv[1:])
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    cluster, (role, index) = config.get("cluster", {}), who(config)
    own = cluster[role][index] if role in cluster else None
    patience, file_patience = (float(flags.get("patience", [default])[-1]) for default in ("60", "3600"))
    server = listen(own) if "bind" in flags and own else None
    obey_term(flags.get("on-term", [""])[-1])
    record = Record(flags.get("out", [os.environ.get("PROBE_OUT")])[-1], role, index)
    for mode in flags.get("print", []):
        show(mode)
    if "spawn-child" in flags:
        spawn_child(record)
    if "wait-peers" in flags:
        for address in (address for group in cluster.values() for address in group if address != own):
            wait_for(address, lambda address=address: answers(address), patience)
    for file in flags.get("wait-file", []):
        wait_for(file, lambda file=file: Path(file).exists(), file_patience)
    eaten = b"x" * (int(flags.get("eat-memory", [0])[-1]) << 20)
    record.write(ready=True)
    for lost in flags.get("until-lost", []):
        lose(cluster[lost][0], patience)
    doze(flags.get("sleep", ["0"])[-1])
    del eaten, server
    finish(flags, record)


if __name__ == "__main__":
    main()
