#!/usr/bin/env python3
"""A replica command for tests: records how it was started, then does what its flags say. Standard library only.

    --out DIR          write DIR/<role>-<index>-<n>.json; n counts this replica's starts from 1 (default: $PROBE_OUT)
    --bind             listen on the replica's own address, as the first action
    --wait-peers       connect to every other address of the cluster before going on
    --wait-file FILE   go on when FILE exists
    --print MODE       tqdm | badutf8 | loud | lines:N | traceback | text:TEXT | env:NAME | files:DIR
    --spawn-child      start a child that ignores TERM and lives on in a session of its own
    --eat-memory MB    use that much memory
    --sleep S          wait (a word that is no number: for ever)
    --on-term HOW      exit0 | exit143 | ignore | slow:S (default: what SIGTERM does to any program)
    --result JSON      write it to $TF_OPERATOR_RESULT
    --signal NAME      end by sending itself this signal
    --exit N           exit code
    --fail-times K     only the first K starts of this replica end with --exit or --signal, later ones with 0 (needs --out)

Flags may be given more than once for --print and --wait-file. Everything else is recorded and ignored.
"""

# ruff: noqa: PTH  (pathlib would double what a start costs)

import json
import os
import signal
import socket
import sys
import time

SWITCHES = ("bind", "wait-peers", "spawn-child")
VALUES = ("out", "print", "wait-file", "eat-memory", "sleep", "on-term", "result", "signal", "exit", "fail-times")
PATIENCE = 60.0


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
            "cwd": os.getcwd(),
            "uid": os.getuid(),
            "pid": os.getpid(),
            "gpus": visible_gpus(),
            "started": time.time(),
            "stopped": None,
        }
        if folder:
            os.makedirs(folder, exist_ok=True)
            self._claim(folder, f"{role}-{index}")

    def _claim(self, folder, name):
        while True:
            self.path = os.path.join(folder, f"{name}-{self.number}.json")
            try:
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            except FileExistsError:
                self.number += 1
                continue
            self.content["start"] = self.number
            self.write()
            return

    def write(self, **more):
        """Replace the file, with what is new in it."""
        self.content.update(more)
        if self.path:
            with open(f"{self.path}.new", "w") as file:
                json.dump(self.content, file)
            os.replace(f"{self.path}.new", self.path)


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


def wait_for(what, ready):
    deadline = time.monotonic() + PATIENCE
    while not ready():
        if time.monotonic() > deadline:
            sys.exit(f"probe: waited {PATIENCE:.0f} s for {what}")
        time.sleep(0.02)


def answers(address):
    try:
        socket.create_connection(split_address(address), timeout=1).close()
    except OSError:
        return False
    return True


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


def show(mode):
    kind, _, value = mode.partition(":")
    out = sys.stdout
    if kind == "tqdm":
        for step in range(1, 201):
            out.write(f"\r{step / 2:5.1f}%|{'#' * (step // 10):<20}| {step}/200")
            out.flush()
        out.write("\nprobe: training done\n")
    elif kind == "badutf8":
        out.buffer.write(b"good \xc3\xa9 bad \xff\xfe\xc3( end\n")
    elif kind == "loud":
        for number in range(100_000):
            out.write(f"{number:06d} " + "x" * 92 + "\n")
    elif kind == "lines":
        for number in range(int(value)):
            out.write(f"line {number}\n")
    elif kind == "traceback":
        sys.stderr.write("Traceback (most recent call last):\n")
        for number in range(8):
            sys.stderr.write(f'  File "train.py", line {number}, in step_{number}\n')
        sys.stderr.write("ValueError: loss is nan\n")
    elif kind == "text":
        out.write(value + "\n")
    elif kind == "env":
        out.write(f"{value}={os.environ.get(value)}\n")
    elif kind == "files":
        folder = os.environ[value] if value in os.environ else value
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            with open(path, encoding="utf-8", errors="replace") as file:
                out.write(f"{name} {os.stat(path).st_mode & 0o777:o} {file.read()}\n")
    out.flush()


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
        with open(os.environ["TF_OPERATOR_RESULT"], "w") as file:
            file.write(flags["result"][-1])
    record.write(stopped=time.time())
    sys.stdout.flush()
    if record.number > int(flags.get("fail-times", [sys.maxsize])[-1]):
        sys.exit(0)
    if "signal" in flags:
        signal.signal(getattr(signal, flags["signal"][-1]), signal.SIG_DFL)
        os.kill(os.getpid(), getattr(signal, flags["signal"][-1]))
    sys.exit(int(flags.get("exit", [0])[-1]))


def main():
    flags = parse(sys.argv[1:])
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    cluster, (role, index) = config.get("cluster", {}), who(config)
    own = cluster[role][index] if role in cluster else None
    server = listen(own) if "bind" in flags and own else None
    obey_term(flags.get("on-term", [""])[-1])
    record = Record(flags.get("out", [os.environ.get("PROBE_OUT")])[-1], role, index)
    for mode in flags.get("print", []):
        show(mode)
    if "spawn-child" in flags:
        spawn_child(record)
    if "wait-peers" in flags:
        for address in (address for group in cluster.values() for address in group if address != own):
            wait_for(address, lambda address=address: answers(address))
    for file in flags.get("wait-file", []):
        wait_for(file, lambda file=file: os.path.exists(file))
    eaten = b"x" * (int(flags.get("eat-memory", [0])[-1]) << 20)
    record.write(ready=True)
    doze(flags.get("sleep", ["0"])[-1])
    del eaten, server
    finish(flags, record)


if __name__ == "__main__":
    main()
