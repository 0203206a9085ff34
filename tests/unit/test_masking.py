"""Case C-50: secrets are starred out of a program's output, and ordinary output stays as it was."""

from __future__ import annotations

import base64
import json
import random
import time
from urllib.parse import quote

import pytest

from tf_operator.masking import MIN_LENGTH, Masker, mask_texts, too_short

PASSWORD = "pass-18-characters"
PEM = "-----BEGIN-LIKE-LINE\nMIIEvQIBADANBgkqhkiG9w0B"
LEAVES = json.dumps({"user": "u-long-name", "pw": "p-long-value"})


def masked(texts: list[str], data: bytes, size: int) -> bytes:
    masker = Masker(texts)
    chunks = [masker.feed(data[at : at + size]) for at in range(0, len(data), size)]
    return b"".join(chunks) + masker.flush()


def expected(texts: list[str], data: bytes) -> bytes:
    """The definition, slowly: everything any text covers, overlapping ones as one."""
    spans: list[tuple[int, int]] = []
    at = 0
    while at < len(data):
        ends = [at + len(text) for text in texts if data.startswith(text.encode(), at)]
        if ends:
            if spans and at < spans[-1][1]:
                spans[-1] = (spans[-1][0], max(spans[-1][1], *ends))
            else:
                spans.append((at, max(ends)))
        at += 1
    out, done = b"", 0
    for start, end in spans:
        out += data[done:start] + b"***"
        done = end
    return out + data[done:]


def test_the_example_of_case_50() -> None:
    texts = [text for value in ("a", PASSWORD, PEM, LEAVES) for text in mask_texts(value)]
    normal = [f"normal line {n} has an a in it" for n in range(50)]
    printed = [
        "a",
        PASSWORD,
        f"before {PASSWORD} after",
        *reversed(PEM.splitlines()),
        "pw is p-long-value",
        LEAVES,
        *normal,
    ]
    out = masked(texts, "\n".join(printed).encode(), 7).decode().split("\n")
    assert out == ["a", "***", "before *** after", "***", "***", "pw is ***", "***", *normal]


@pytest.mark.parametrize(
    "printed",
    [
        PASSWORD,
        base64.b64encode(PASSWORD.encode()).decode(),
        base64.b64encode(PASSWORD.encode()).decode().rstrip("="),
        base64.urlsafe_b64encode(PASSWORD.encode()).decode(),
        quote("p/ss wörd&more", safe=""),
        "p%2Fss+w%C3%B6rd%26more",
        json.dumps("p/ss wörd&more")[1:-1],
    ],
)
def test_spellings(printed: str) -> None:
    texts = mask_texts(PASSWORD) + mask_texts("p/ss wörd&more")
    assert masked(texts, f"x={printed};".encode(), 1000) == b"x=***;"


@pytest.mark.parametrize("length", range(6, 12))
def test_base64_of_a_longer_text_that_begins_with_the_secret(length: int) -> None:
    """`echo $SECRET | base64` encodes a line feed too."""
    secret = "Zk7-xQ_9#pLw"[:length]
    printed = base64.b64encode(f"{secret}\n".encode())
    out = masked(mask_texts(secret), printed, 1000)
    assert out.startswith(b"***")
    assert len(out) <= len(b"***") + 4


def test_wrapped_base64_of_a_long_secret() -> None:
    secret = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=300))
    out = masked(mask_texts(secret), base64.encodebytes(secret.encode()), 10)
    assert set(out.replace(b"***", b"").strip()) <= set(b"\n")


def test_bytes_that_are_no_text() -> None:
    keytab = bytes(range(128, 256)) + b"\x00\xff\x05\x02realm"
    out = masked(mask_texts(keytab), b"\xff\xfe" + keytab + b"\x80" + base64.b64encode(keytab), 13)
    assert out == b"\xff\xfe***\x80***"


@pytest.mark.parametrize(
    ("value", "short"),
    [
        ("a", True),
        ("abcde", True),
        ("abcdef", False),
        ("", False),
        (PASSWORD, False),
        ('{"user": "u", "pw": "long-enough"}', True),
        ('{"user": "long-too", "n": 1}', False),
        (b"\xff", True),
        ("123456", False),
    ],
)
def test_too_short(value: str | bytes, short: bool) -> None:
    assert too_short(value) is short


def test_nothing_is_derived_from_a_short_text() -> None:
    assert mask_texts("abcde") == []
    assert mask_texts("") == []
    assert all(len(text) >= MIN_LENGTH for text in mask_texts('{"a":"b"}\n{\n  \n}'))


def test_deep_json_is_just_a_text() -> None:
    value = "[" * 100_000
    assert value in mask_texts(value)


def test_only_what_may_become_a_secret_is_held_back() -> None:
    masker = Masker(["secret-one", "secret-two-long"])
    assert masker.feed(b"name: ") == b"name: "
    assert masker.feed(b"Password? ") == b"Password? "
    assert masker.feed(b"say sec") == b"say "
    assert masker.feed(b"ond") == b"second"
    assert masker.feed(b"secret-tw") == b""
    assert masker.flush() == b"secret-tw"
    assert masker.flush() == b""
    assert masker.feed(b"secret-one!") == b"***!"


def test_the_longer_text_wins_also_across_a_border() -> None:
    masker = Masker(["abcdef", "abcdefghij"])
    assert masker.feed(b"abcdef") == b""
    assert masker.feed(b"ghij.") == b"***."
    assert masker.feed(b"abcdefg") == b""
    assert masker.flush() == b"***g"


def test_overlapping_texts_leave_no_tail() -> None:
    for size in range(1, 12):
        assert masked(["abcdef", "defghi", "hijklm"], b"<abcdefghijklm>", size) == b"<***>"


def test_no_texts_no_change() -> None:
    assert Masker([]).feed(b"abc") == b"abc"
    assert Masker([""]).feed(b"abc") == b"abc"
    assert Masker([]).flush() == b""


@pytest.mark.parametrize("seed", range(300))
def test_against_the_definition(seed: int) -> None:
    rng = random.Random(seed)
    alphabet = "ab"[: rng.randint(1, 2)] + "c" * rng.randint(0, 1)
    texts = ["".join(rng.choices(alphabet, k=rng.randint(1, 9))) for _ in range(rng.randint(1, 5))]
    data = "".join(rng.choices(alphabet + "d", k=rng.randint(0, 80))).encode()
    for size in (1, 2, 3, 7, 100):
        assert masked(texts, data, size) == expected(texts, data), (texts, data, size)


def test_a_loud_program_is_not_slowed_down() -> None:
    """Megabytes a second on a loaded machine: the bound catches a quadratic way, not a slow minute."""
    texts = [text for n in range(20) for text in mask_texts(f"{n}-{random.Random(n).random()}-secret")]
    data = b"epoch 12 step 1234 loss 0.1234 time 12.3 and a few words more\n" * 33_000
    began = time.process_time()
    assert masked(texts, data, 65536) == data
    assert time.process_time() - began < 4


def test_text_that_nearly_repeats_itself_is_not_quadratic() -> None:
    secret = "a" * 4000 + "b"
    began = time.process_time()
    data = b"a" * 200_000
    assert masked([secret], data, 8192) == data
    assert time.process_time() - began < 10


def test_something_beside_the_stream_is_masked_by_itself() -> None:
    masker = Masker(["S3cr3t-abc"])
    assert masker.feed(b"before S3cr") == b"before "
    assert masker.whole(b'{"key": "S3cr3t-abc", "end": "S3cr"}') == b'{"key": "***", "end": "S3cr"}'
    assert masker.feed(b"3t-abc after") == b"*** after"
