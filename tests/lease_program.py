#!/usr/bin/env python3
"""A training that needs its database all the time: a query each step, as the user of its secret file.

    lease_program.py OUT SECONDS PSQL PORT [FILE]

The file is read at the start and at each SIGHUP, as a program does that keeps its connection. It ends with 0 once all
its starts together have trained for SECONDS, and FILE exists. OUT gets a JSON line for each step. Standard library
only.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STEP = 0.5


def credentials():
    return json.loads(Path(os.environ["TF_OPERATOR_SECRETS_DIR"], "db.json").read_text())


def query(psql, port, known):
    address = ["-h", "127.0.0.1", "-p", port, "-U", known["username"], "-d", "postgres"]
    environment = {"PATH": os.defpath, "PGPASSWORD": known["password"], "PGCONNECT_TIMEOUT": "10"}
    ran = subprocess.run([psql, "-XqAt", *address, "-c", "SELECT 1"], env=environment, capture_output=True, text=True)
    return ran.returncode == 0, ran.stderr.strip()


def main():
    out, seconds, psql, port = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4]
    awaited = [Path(name) for name in sys.argv[5:]]
    signals = []
    signal.signal(signal.SIGHUP, lambda *_: signals.append(time.time()))
    known, heard = credentials(), 0
    trained = json.loads(out.read_text().splitlines()[-1])["trained"] if out.exists() else 0.0
    print(f"training as {known['username']} from {trained:.0f} s on, by the password {known['password']}", flush=True)
    while trained < seconds or not all(file.exists() for file in awaited):
        begun = time.monotonic()
        if len(signals) > heard:
            known, heard = credentials(), len(signals)
            print(f"told to read the password again: {known['password']}", flush=True)
        good, error = query(psql, port, known)
        time.sleep(STEP)
        trained += time.monotonic() - begun
        step = {"pid": os.getpid(), "user": known["username"], "good": good, "told": heard, "trained": trained}
        with out.open("a") as file:
            file.write(json.dumps({**step, "error": error}) + "\n")


main()
