"""API keys from a file: what a line means, what is refused, and a file that changes."""

import logging
import os
from pathlib import Path

import pytest
from pydantic import SecretStr

from triptych.errors import SetupError, UnauthenticatedError
from triptych.settings import parse_settings
from triptych_gateway import keys
from triptych_gateway.__main__ import read_keys
from triptych_gateway.keys import ApiKey, KeysFile, RateLimits, parse_keys
from triptych_gateway.settings import GatewaySettings

NONE = RateLimits()
DEFAULT = RateLimits(requests_per_minute=7)


def limits_of(key: ApiKey) -> tuple[int | None, int | None]:
    return key.limits.requests_per_minute, key.limits.tokens_per_minute


def test_lines_give_keys_names_and_limits() -> None:
    text = """
    # who may ask
    sk-#1 alice
    sk-2 bob tokens_per_minute=90
    sk-3
    sk-4 requests_per_minute=3
    """
    parsed = parse_keys(text, DEFAULT)
    assert {given: key.name for given, key in parsed.items()} == {
        "sk-#1": "alice",
        "sk-2": "bob",
        "sk-3": "line-5",
        "sk-4": "line-6",
    }
    assert [limits_of(key) for key in parsed.values()] == [(7, None), (7, 90), (7, None), (3, None)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nobody",
        "s3cret a\ns3cret b",
        "s3cret a\nother a",
        "s3cret na/me",
        "s3cret alice rpm=3",
        "s3cret alice tokens_per_minute=0",
        "s3cret alice tokens_per_minute=-1",
        "s3cret alice bob",
    ],
)
def test_wrong_files_are_refused_without_their_keys(text: str) -> None:
    with pytest.raises(SetupError) as error:
        parse_keys(text, NONE)
    assert "s3cret" not in str(error.value)


def test_each_of_many_keys_is_found() -> None:
    names = {f"sk-{number}": f"n{number}" for number in range(500)}
    source = keys.Keys(parse_keys("".join(f"{key} {name}\n" for key, name in names.items()), NONE))
    assert {key: source.find(key).name for key in names} == names
    for wrong in ("sk-500", "sk-", "n1", ""):
        with pytest.raises(UnauthenticatedError):
            source.find(wrong)


def test_empty_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would let in whoever sends none, as a variable does whose secret is missing."""
    monkeypatch.setenv("TRIPTYCH_GATEWAY_API_KEY", "")
    with pytest.raises(SetupError, match=r"^TRIPTYCH_GATEWAY_API_KEY: .*at least 1"):
        parse_settings(GatewaySettings, [])


def test_line_end_of_a_key_from_a_variable_is_no_part_of_it() -> None:
    """A Kubernetes Secret made of a file has it."""
    source = read_keys(GatewaySettings(api_key=SecretStr("s3cret\n")))
    assert source is not None
    assert source.find("s3cret").name == "default"
    with pytest.raises(SetupError, match="--api-key: "):
        read_keys(GatewaySettings(api_key=SecretStr(" \n")))


def test_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    """Editors on Windows write it, and line ends of two characters."""
    path = tmp_path / "keys"
    path.write_bytes("\ufeffone alice\r\ntwo bob\r\n".encode())
    source = KeysFile(path, NONE)
    assert [source.find(given).name for given in ("one", "two")] == ["alice", "bob"]


def test_missing_file_is_a_setup_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="No such file"):
        KeysFile(tmp_path / "keys", NONE)


def rewrite(path: Path, text: str) -> None:
    """A new file in the place of ``path``, as Kubernetes and editors do it."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


@pytest.fixture
def always_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_LOOK_EVERY_S", 0.0)


@pytest.mark.usefixtures("always_looking")
def test_changed_file_takes_effect_and_keeps_the_use_of_unchanged_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("one alice\ntwo bob")
    source = KeysFile(path, DEFAULT)
    alice = source.find("one")
    rewrite(path, "one alice\nthree carol")
    assert source.find("three").name == "carol"
    assert source.find("one") is alice
    with pytest.raises(UnauthenticatedError):
        source.find("two")
    rewrite(path, "one alice requests_per_minute=9")
    assert limits_of(source.find("one")) == (9, None)


@pytest.mark.usefixtures("always_looking")
@pytest.mark.parametrize("text", ["", "one alice bob", None])
def test_wrong_change_is_told_of_and_changes_nothing(
    text: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    path.write_text("one alice")
    source = KeysFile(path, NONE)
    if text is None:
        path.unlink()
    else:
        rewrite(path, text)
    with caplog.at_level(logging.ERROR):
        assert source.find("one").name == "alice"
    assert "stay as they were" in caplog.text
    assert "one alice" not in caplog.text
