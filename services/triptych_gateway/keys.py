"""API keys: one from the settings, or several from a file that is read again when it changes."""

import hashlib
import logging
import re
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path

from triptych.errors import SetupError, UnauthenticatedError
from triptych_gateway.buckets import Bucket

#: Seconds between two looks at the file.
_LOOK_EVERY_S = 1.0
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LIMITS = ("requests_per_minute", "tokens_per_minute")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RateLimits:
    """What one key may use in a minute; None: any number."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key that is let in, by its name alone, and what it has left of its limits."""

    name: str
    limits: RateLimits = field(default_factory=RateLimits)
    requests: Bucket | None = None
    tokens: Bucket | None = None


def make_key(name: str, limits: RateLimits) -> ApiKey:
    requests, tokens = limits.requests_per_minute, limits.tokens_per_minute
    return ApiKey(
        name,
        limits,
        None if requests is None else Bucket(requests),
        None if tokens is None else Bucket(tokens),
    )


class Keys:
    """The keys, kept and found as digests under a secret of this process.

    So the time that a look-up takes says nothing of the keys.
    """

    def __init__(self, keys: dict[str, ApiKey]) -> None:
        """``keys``: each under what a client sends."""
        self._salt = secrets.token_bytes(32)
        self._keys: dict[bytes, ApiKey] = {}
        self.replace(keys)

    def find(self, given: str) -> ApiKey:
        """The key that a client sent.

        Raises:
            UnauthenticatedError: it is none of them.
        """
        key = self._keys.get(self._digest(given))
        if key is None:
            raise UnauthenticatedError("a valid API key is needed as a bearer token")
        return key

    def replace(self, keys: dict[str, ApiKey]) -> None:
        """Let in ``keys`` alone. One that was known, with the same limits, keeps its use."""
        found = {self._digest(given): key for given, key in keys.items()}
        for digest, key in found.items():
            known = self._keys.get(digest)
            if known is not None and (known.name, known.limits) == (key.name, key.limits):
                found[digest] = known
        self._keys = found

    def _digest(self, given: str) -> bytes:
        return hashlib.blake2b(given.encode("utf-8", "replace"), key=self._salt).digest()


class KeysFile:
    """The keys of a file: ``KEY [NAME] [requests_per_minute=N] [tokens_per_minute=N]`` a line."""

    def __init__(self, path: Path, default: RateLimits) -> None:
        """``default``: the limits of keys whose line gives none.

        Raises:
            SetupError: the file cannot be read, or a line is wrong; lines are never shown.
        """
        self._path = path
        self._default = default
        self._stamp = self._read_stamp()
        self._look_at = time.monotonic() + _LOOK_EVERY_S
        self._keys = Keys(parse_keys(self._read(), default))

    def find(self, given: str) -> ApiKey:
        """As ``Keys.find``, in the file as it was a second ago or later."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_EVERY_S
            self._look()
        return self._keys.find(given)

    def _look(self) -> None:
        """Take a changed file; one that is wrong is told of and the old keys stay."""
        try:
            stamp = self._read_stamp()
            if stamp == self._stamp:
                return
            self._stamp = stamp
            keys = parse_keys(self._read(), self._default)
        except SetupError as error:
            _log.error("the API keys stay as they were: %s", error)
            return
        self._keys.replace(keys)
        _log.info("read %d API keys from %s", len(keys), self._path)

    def _read_stamp(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except OSError as error:
            raise SetupError(f"cannot read {self._path}: {error.strerror}") from error
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> str:
        try:
            return self._path.read_text("utf-8-sig")
        except OSError as error:
            raise SetupError(f"cannot read {self._path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise SetupError(f"{self._path} is no UTF-8 text") from error


def parse_keys(text: str, default: RateLimits) -> dict[str, ApiKey]:
    """The keys of a file's ``text``; a key without a name is named after its line.

    Raises:
        SetupError: a line is wrong, a name or key comes twice, or there is no key.
    """
    keys: dict[str, ApiKey] = {}
    names: set[str] = set()
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        given, key = words[0], _parse_key(words[1:], number, default)
        if given in keys or key.name in names:
            raise SetupError(f"API keys, line {number}: its key or name has come before")
        keys[given] = key
        names.add(key.name)
    if not keys:
        raise SetupError("there is no API key in the file; to let nobody in, stop the gateway")
    return keys


def _parse_key(words: list[str], number: int, default: RateLimits) -> ApiKey:
    name = words.pop(0) if words and "=" not in words[0] else f"line-{number}"
    if not _NAME.fullmatch(name):
        raise SetupError(
            f"API keys, line {number}: a name has up to 64 letters, digits, dots, dashes"
        )
    limits = {limit: getattr(default, limit) for limit in _LIMITS}
    for word in words:
        limit, _, value = word.partition("=")
        if limit not in _LIMITS or not value.isdecimal() or int(value) < 1:
            raise SetupError(
                f"API keys, line {number}: after the name come {'=N or '.join(_LIMITS)}=N, N >= 1"
            )
        limits[limit] = int(value)
    return make_key(name, RateLimits(**limits))
