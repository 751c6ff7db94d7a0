"""Unknown JSON fields are ignored, with one log line per field name in a process's life."""

import logging
from collections.abc import Mapping

import msgspec

_log = logging.getLogger(__name__)
_seen: set[str] = set()
_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def log_unknown_fields(body: bytes, shapes: Mapping[str, type[msgspec.Struct]]) -> None:
    """Log the field names in ``body`` that ``shapes`` (by path; "" is the body) do not have."""
    top = _decoder.decode(body)
    for path, shape in shapes.items():
        raw = top.get(path)
        fields = top if not path else _decoder.decode(raw) if raw is not None else {}
        for name in fields.keys() - set(shape.__struct_fields__):
            full_name = f"{path}.{name}".lstrip(".")[:80]
            if full_name not in _seen and len(_seen) < 1000:
                _seen.add(full_name)
                _log.info("ignoring the unknown field %r", full_name)
