"""What runs in the container before and around the program: a few lines of /bin/sh, the secrets on its standard input.

The shell stays as the program's parent. Beside it a watchdog ends the program when no watcher has left a sign for too
long, and carries out a KILL whose watcher died. Both live in the container, so they need nobody outside.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tf_operator.runners.base import Launch, SecretBundle

HOME = "/run/tf_operator"
"""A tmpfs of the container, its user's alone."""
SECRETS_DIR = f"{HOME}/secrets"
MASK_FILE = f"{HOME}/mask"
PID_FILE = f"{HOME}/pid"
"""The program's own process, as the container numbers it."""
BEAT_FILE = f"{HOME}/beat"
END = "#tf_operator:complete"
"""Last line of the hand-over: a starter that died in the middle has written no such line."""

# dash and ash understand all of it. The program is no background job: a shell would have it ignore SIGINT, and would
# put other things on its standard input. The shell's own messages ("Killed") go to /dev/null, the program's do not.
# `trap :` and not `trap ''`: what is ignored stays ignored in the program. The watchdog counts its own naps: no clock
# that is set can fool it. Under WSL there is one device file for all GPUs, so that their number tells nothing; nor does
# it on a host without a driver, whose engine takes requests for devices all the same.
ENTRY = r"""
exec 3>&2 2>/dev/null
tell() { printf '%s %s\n' "$tf_mark" "$1" >&3; }
script=$(cat)
exec </dev/null
case $script in
*'#tf_operator:complete') eval "$script" ;;
*) tf_mark=tf_operator; tell 'fault the start was not completed'; exit 125 ;;
esac
unset script
trap : TERM INT HUP QUIT USR1 USR2
others() {
  for p in /proc/[0-9]*; do
    p=${p#/proc/}
    case $p in 1|$$|$tf_dog) continue ;; esac
    read -r line <"/proc/$p/stat" || continue
    set -- ${line##*) }
    case $1,$2 in Z,*|X,*|*,0|*,$tf_dog) continue ;; esac
    return 0
  done
  return 1
}
dog() {
  trap 'kill -CONT -1; left=${left:-$tf_kill}' TERM
  seen= naps=0 left=
  while :; do
    sleep "$tf_nap"
    beat=; read -r beat <"$tf_home/beat"
    if [ "$beat" = "$seen" ]; then naps=$((naps + 1)); else seen=$beat naps=0; fi
    if [ -n "$left" ]; then
      left=$((left - 1))
      [ "$left" -gt 0 ] || kill -KILL -1
    elif [ "$naps" -ge "$tf_naps" ]; then
      tell orphan
      : >"$tf_home/stop"
      kill -TERM -1; kill -CONT -1
      left=$tf_kill
    fi
  done
}
( dog >/dev/null </dev/null & echo $! >"$tf_home/dog" )
read -r tf_dog <"$tf_home/dog"
found=
case $1 in
*/*) [ -f "$1" ] && found=$1 ;;
*) IFS=:; for d in $PATH; do [ -f "$d/$1" ] && [ -x "$d/$1" ] && { found=$d/$1; break; }; done; unset IFS ;;
esac
cd "$tf_dir" || { tell "fault cannot enter working_dir $tf_dir"; exit 125; }
case $1 in */*) [ -f "$1" ] && found=$1 ;; esac
[ -n "$found" ] || { tell "fault command not found: $1"; exit 127; }
[ -x "$found" ] || { tell "fault cannot execute $1: permission denied"; exit 126; }
tf_seen=0
for p in /dev/nvidia[0-9]*; do [ -e "$p" ] && tf_seen=$((tf_seen + 1)); done
[ -e /proc/driver/nvidia/version ] || [ "$tf_seen" -gt 0 ] || tf_gpus=0
[ "$tf_seen" -eq "$tf_gpus" ] || [ -e /dev/dxg ] || {
  tell "final given $tf_gpus GPUs, but the container has $tf_seen: look at the engine's runtime"
  exit 125
}
trap 'term=1' TERM
unset PWD OLDPWD SHLVL TINI_KILL_PROCESS_GROUP
( read -r tf_pid tf_rest </proc/self/stat; echo "$tf_pid" >"$tf_home/pid"; exec "$@" 2>&3 3>&- )
code=$?
[ -f "$tf_home/stop" ] && term=1
while [ -n "$term" ] && others; do sleep 0.1 || sleep 1; done
exit $code
"""


def hand_over(launch: Launch, mark: str, kill_after: float) -> bytes:
    """The shell script for the entry's standard input: settings, secret files, texts to mask, secret variables."""
    nap = min(1.0, launch.orphan_timeout / 5)
    lines = [
        f"tf_mark={_quote(mark)}",
        f"tf_home={HOME}",
        f"tf_dir={_quote(launch.working_dir)}",
        f"tf_gpus={len(launch.devices)}",
        f"tf_nap={nap:g}",
        f"tf_naps={max(2, round(launch.orphan_timeout / nap))}",
        f"tf_kill={max(1, round(kill_after / nap))}",
        "umask 077",
        *_files(launch),
        "umask 022",
    ]
    lines += [f"export {name}={_quote(value)}" for name, value in _exported(launch).items()]
    return ("\n".join([*lines, END]) + "\n").encode("utf-8", "surrogateescape")


def renewal(secrets: SecretBundle, masks: Sequence[str], signal: str | None) -> bytes:
    """A script for a shell's standard input: `masks` are known before a file is replaced, each file atomically."""
    lines = ["set -e", "umask 077", *_replace(MASK_FILE, json.dumps(list(masks)).encode(), 0o400)]
    for file in secrets.files:
        lines += _replace(f"{SECRETS_DIR}/{file.name}", file.content, file.mode)
    if signal:
        lines += [f"read -r pid <{PID_FILE}", f'kill -{signal.removeprefix("SIG")} "$pid"']
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")


def _replace(path: str, content: bytes, mode: int) -> list[str]:
    folder, _, name = path.rpartition("/")
    # No secret file's name begins with a dot.
    new = f"{folder}/.{name}.new"
    return [f"rm -f {_quote(new)}", _write(new, content, mode), f"mv -f {_quote(new)} {_quote(path)}"]


def _exported(launch: Launch) -> Mapping[str, str]:
    return {**launch.secrets.env, **({"TF_OPERATOR_SECRETS_DIR": SECRETS_DIR} if launch.secrets.files else {})}


def _files(launch: Launch) -> list[str]:
    secrets = launch.secrets
    lines = [_write(MASK_FILE, json.dumps(list(secrets.mask)).encode(), 0o400)] if secrets.mask else []
    if secrets.files:
        lines.append(f"mkdir -m 700 {SECRETS_DIR}")
        lines += [_write(f"{SECRETS_DIR}/{file.name}", file.content, file.mode) for file in secrets.files]
    return lines


def _write(path: str, content: bytes, mode: int) -> str:
    """Octal for every byte: any content, by the shell alone."""
    octal = "".join(f"\\0{byte:03o}" for byte in content)
    target = _quote(path)
    return f"printf %b '{octal}' >{target}; chmod {mode:o} {target}"


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
