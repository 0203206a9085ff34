"""What a program gets, what is starred out, and that no value leaks on the way (the resolver's half of case C-48)."""

from __future__ import annotations

import base64
import json
import logging
import random
import string
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import hvac
import pytest
from contract.process_kit import ProcessKit
from vault_helpers import Logins, chain, put, ref

from tf_operator.errors import SecretError
from tf_operator.masking import Masker
from tf_operator.secrets import resolve
from tf_operator.services.openbao import DevOpenBao

pytestmark = pytest.mark.vault
VALUE = "S3cr3t-" + "".join(random.Random(24).choices(string.ascii_letters + string.digits, k=24))
BINARY = bytes(range(256))
FORMS = (VALUE, base64.b64encode(VALUE.encode()).decode(), quote(VALUE, safe=""))


@pytest.fixture(scope="module", autouse=True)
def secrets(openbao: DevOpenBao) -> None:
    """The secrets this module reads."""
    values = {
        "value": VALUE,
        "keytab": base64.b64encode(BINARY).decode(),
        "urlsafe": base64.urlsafe_b64encode(BINARY).decode().rstrip("="),
        "packed": base64.b64encode(VALUE.encode()).decode(),
        "object": {"user": "u", "pw": VALUE},
        "text": json.dumps({"user": "u-long-name", "pw": VALUE}),
        "quoted": json.dumps(f"{VALUE}\nsecond"),
        "broken": f"{VALUE} is neither {{",
        "nul": f"{VALUE}\0",
        "huge": VALUE * 8000,
        "null": None,
        "short": "a",
        "pem": f"-----BEGIN-----\n{VALUE}\n{VALUE[::-1]}\n-----END-----\n",
    }
    put(openbao, "kv2/data/delivery", values)


def test_environment_and_files(openbao: DevOpenBao) -> None:
    refs = [
        ref("kv2/delivery#value", env="PLAIN"),
        ref("kv2/delivery#packed", env="DECODED", decode="base64"),
        ref("kv2/delivery#object", env="OBJECT"),
        ref("kv2/delivery#text", env="TEXT", decode="json"),
        ref("kv2/delivery#quoted", env="QUOTED", decode="json"),
        ref("kv2/delivery#keytab", file="krb5.keytab", decode="base64", mode=0o440),
        ref("kv2/delivery#urlsafe", file="again.keytab", decode="base64"),
        ref("kv2/delivery#pem", file="key.pem"),
    ]
    login = Logins(openbao)
    bundle = resolve(refs, login)
    assert bundle.env == {
        "PLAIN": VALUE,
        "DECODED": VALUE,
        "OBJECT": f'{{"pw":"{VALUE}","user":"u"}}',
        "TEXT": f'{{"user":"u-long-name","pw":"{VALUE}"}}',
        "QUOTED": f"{VALUE}\nsecond",
    }
    files = {file.name: (file.content, file.mode) for file in bundle.files}
    assert files["krb5.keytab"] == (BINARY, 0o440)
    assert files["again.keytab"] == (BINARY, 0o400)
    assert files["key.pem"][0].decode().splitlines()[1] == VALUE
    assert login.seen == ["vault_default"]
    assert len([asked for asked in login.asked if "kv2/data/delivery" in asked]) == 1
    assert not [form for form in FORMS if form in repr(bundle)]


def test_one_login_per_connection(openbao: DevOpenBao) -> None:
    login = Logins(openbao)
    resolve([ref("kv2/delivery#value", connection=name, env=f"V{n}") for n, name in enumerate("abab")], login)
    assert login.seen == ["a", "b"]


def test_masks_cover_what_a_program_may_print(openbao: DevOpenBao) -> None:
    told: list[str] = []
    refs = [ref("kv2/delivery#pem"), ref("kv2/delivery#object", env="B"), ref("kv2/delivery#packed", env="C")]
    bundle = resolve(refs, Logins(openbao, register_masks=told.extend))
    assert set(told) == set(bundle.mask)
    for text in (*FORMS, VALUE[::-1], f"-- {VALUE} --"):
        masker = Masker(bundle.mask)
        assert VALUE not in (masker.feed(text.encode()) + masker.flush()).decode()


def test_a_short_secret_is_warned_of_without_its_value(openbao: DevOpenBao, caplog: pytest.LogCaptureFixture) -> None:
    bundle = resolve([ref("kv2/delivery#short")], Logins(openbao))
    assert bundle.env == {"VALUE": "a"}
    assert bundle.mask == []
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "secret kv2/delivery#short (connection vault_default): it is, or holds a part, under 6 characters:"
        " not masked in output"
    ]


PASSWORD = "pass-18-characters"
PEM = "-----BEGIN-LIKE-LINE\nMIIEvQIBADANBgkqhkiG9w0B"
NORMAL = [f"normal line {n} has an a in it" for n in range(50)]
PRINTER = f"""
import json, os, pathlib, time
short, password, pem, pair = (os.environ[name] for name in ("SHORT", "PASSWORD", "PEM", "PAIR"))
for text in (short, password, f"before {{password}} after", *pem.splitlines()[::-1], json.loads(pair)["pw"], pair):
    print(text)
print("\\n".join({NORMAL!r}), flush=True)
half = len(password) // 2
for part in (password[:half], password[half:] + "\\n"):
    os.write(1, part.encode())
    time.sleep(0.3)
keytab = pathlib.Path(os.environ["TF_OPERATOR_SECRETS_DIR"], "krb5.keytab")
print(keytab.read_bytes() == bytes(range(256)), oct(keytab.stat().st_mode), keytab.stat().st_uid == os.getuid())
"""


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[ProcessKit]:
    process_kit = ProcessKit(tmp_path)
    yield process_kit
    process_kit.close()


def test_c50_masked_output_and_exact_files_of_a_real_program(
    openbao: DevOpenBao, kit: ProcessKit, caplog: pytest.LogCaptureFixture
) -> None:
    """From OpenBao into a program that prints everything: what it got is right, what is seen of it is stars."""
    pair = {"user": "u-long-name", "pw": "p-long-value"}
    put(openbao, "kv2/data/case-50", {"short": "a", "password": PASSWORD, "pem": PEM, "pair": pair})
    names = {"SHORT": "short", "PASSWORD": "password", "PEM": "pem", "PAIR": "pair"}
    refs = [ref(f"kv2/case-50#{key}", env=name) for name, key in names.items()]
    refs.append(ref("kv2/delivery#keytab", file="krb5.keytab", decode="base64", mode=0o440))
    handle = kit.start(sys.executable, "-c", PRINTER, secrets=resolve(refs, Logins(openbao)))
    assert kit.wait(handle).code == 0
    lines = kit.output(handle).decode().splitlines()
    assert lines[:7] == ["a", "***", "before *** after", "***", "***", "***", "***"]
    assert lines[7:57] == NORMAL
    assert lines[57:] == ["***", "True 0o100440 True"]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [
        "secret kv2/case-50#short (connection vault_default): it is, or holds a part, under 6 characters:"
        " not masked in output"
    ]


FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("broken", {"decode": "base64"}, "decode: base64, but the value is no base64"),
    ("broken", {"decode": "json"}, "decode: json, but the value is no JSON"),
    ("object", {"decode": "base64"}, "decode: base64, but the value is no base64"),
    ("nul", {}, "env: VALUE: the value has a NUL byte, which no variable can hold; use file"),
    ("keytab", {"decode": "base64"}, "env: VALUE: the value has a NUL byte"),
    ("huge", {}, "bytes are too long for a variable (128 KiB); use file"),
    ("null", {}, "the key is there, but has no value (null); write one"),
    ("valeu", {}, "did you mean value?"),
]


@pytest.mark.parametrize(("key", "fields", "expected"), FAULTS)
def test_c48_no_fault_shows_a_value(
    openbao: DevOpenBao, caplog: pytest.LogCaptureFixture, key: str, fields: dict[str, Any], expected: str
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(SecretError) as caught:
        resolve([ref(f"kv2/delivery#{key}", **fields)], Logins(openbao))
    assert expected in str(caught.value)
    printed = chain(caught.value) + "".join(traceback.format_exception(caught.value)) + caplog.text
    assert not [form for form in FORMS if form in printed]
    assert openbao.token not in printed


def test_hvac_errors_with_a_value_inside_do_not_come_along(openbao: DevOpenBao) -> None:
    """A server, or a gateway before it, may put anything into the body of an error."""
    login = Logins(openbao)

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise hvac.exceptions.InternalServerError(errors=[VALUE], text=VALUE, json={"errors": [VALUE]}, url=VALUE)

    login.client.adapter.request = refuse
    with pytest.raises(SecretError) as caught:
        resolve([ref("kv2/delivery#value")], login, patience=0)
    assert VALUE not in chain(caught.value)
    assert caught.value.__context__ is None
