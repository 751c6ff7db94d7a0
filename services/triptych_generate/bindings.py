"""xgrammar's native library, loaded without its Python package.

``import xgrammar`` imports transformers' tokenizer classes, and with them ``tokenizers``, which
generate must not need. The classes below are xgrammar's own (``xgrammar/tvm_ffi_binding``), so the
package's version is bounded in pyproject.toml.
"""

import functools
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from triptych.json_schema import join_path, prepared, subschemas
from triptych.structured import kind_of, prepared_tag, schema_of
from triptych.wire import StructuredOutputs

_RAW_VOCABULARY = 0
_PARAM = "sampling_params.structured_outputs"
#: Time of day, source file and checked expression in front of a message of the library.
_NOISE = re.compile(r"^\[[\d:]+\] \S+:\d+: (?:Check failed: .*? is false: )?")
_MESSAGE_CHARS = 300
_ANY_OBJECT = {"type": "object"}
#: A character of a string as xgrammar has it where lengths are bounded, and as JSON has it. In its
#: serialized grammars: a class, its length, that it is negated, first and last of each range.
_CHAR_OF_BOUNDED = [1, 9, 1, 34, 34, 92, 92, 13, 13, 10, 10]
_CHAR_IN_JSON = [1, 9, 1, 34, 34, 92, 92, 0, 31, 10, 10]


class MissingLibraryError(Exception):
    """xgrammar is not installed."""


class GrammarError(Exception):
    """A grammar that cannot be compiled. ``where`` is the place in the request."""

    def __init__(self, message: str, where: str) -> None:
        super().__init__(message)
        self.message = message
        self.where = where


@dataclass(frozen=True, slots=True)
class Native:
    """The classes of the library."""

    Grammar: Any
    TokenizerInfo: Any
    GrammarCompiler: Any
    GrammarMatcher: Any


@functools.cache
def native() -> Native:
    """The library, loaded at the first call.

    Raises:
        MissingLibraryError: it is not installed.
    """
    found = importlib.util.find_spec("xgrammar")
    if found is None or not found.submodule_search_locations:
        raise MissingLibraryError
    import tvm_ffi
    from tvm_ffi.libinfo import load_lib_module

    folder = Path(found.submodule_search_locations[0])
    load_lib_module("xgrammar", "xgrammar_bindings", extra_lib_paths=[folder])

    def native_class(name: str) -> Any:
        made = type(name, (tvm_ffi.Object,), {})
        return tvm_ffi.register_object(f"xgrammar.tvm_ffi_binding.{name}")(made)

    native_class("CompiledGrammar")
    return Native(
        Grammar=native_class("Grammar"),
        TokenizerInfo=native_class("TokenizerInfo"),
        GrammarCompiler=native_class("GrammarCompiler"),
        GrammarMatcher=native_class("GrammarMatcher"),
    )


def make_compiler(tokens: list[bytes]) -> Any:
    """The compiler over a vocabulary: ``tokens`` by id, and after them an end marker.

    Ids without bytes are never allowed. The marker stands for every token that may end the output:
    which ones those are depends on the request and is no part of a compiled grammar.
    """
    size = len(tokens)
    info = native().TokenizerInfo([*tokens, b""], _RAW_VOCABULARY, size + 1, [size], False)
    max_threads, has_cache, cache_bytes, is_dynamic = 1, False, -1, False
    return native().GrammarCompiler(info, max_threads, has_cache, cache_bytes, is_dynamic)


def compile_grammar(compiler: Any, outputs: StructuredOutputs) -> Any:
    """The compiled grammar of ``outputs``, which ``check_structured`` has passed.

    Raises:
        GrammarError: it cannot be compiled; ``where`` is the smallest part that cannot.
    """
    kind = kind_of(outputs, "")
    try:
        return compiler.compile_grammar_ebnf(_grammar(kind, outputs))
    except RuntimeError as error:
        raise GrammarError(_plain(error), _failing_place(kind, outputs)) from error


def _grammar(kind: str, outputs: StructuredOutputs) -> Any:
    any_whitespace = not outputs.disable_any_whitespace
    if kind == "json":
        schema = prepared(schema_of(outputs, kind), kind)
        return _json_grammar(schema, any_whitespace=any_whitespace)
    if kind == "json_object":
        return _json_grammar(_ANY_OBJECT, any_whitespace=any_whitespace)
    if kind == "regex":
        return native().Grammar.from_regex(outputs.regex, False)
    if kind == "structural_tag":
        tag, _ = prepared_tag(outputs, kind)
        return _escaped(native().Grammar.from_structural_tag(msgspec.json.encode(tag).decode()))
    if kind == "choice":
        return native().Grammar.from_ebnf(choice_ebnf(outputs.choice or []), "root")
    return native().Grammar.from_ebnf(outputs.grammar, "root")


def choice_ebnf(texts: list[str]) -> str:
    """A grammar of exactly these texts."""
    return "root ::= " + " | ".join(f'"{"".join(map(_ebnf_char, text))}"' for text in texts)


def _ebnf_char(char: str) -> str:
    return char if char.isprintable() and char not in '"\\' else f"\\U{ord(char):08x}"


def _json_grammar(schema: Any, *, any_whitespace: bool) -> Any:
    text = msgspec.json.encode(schema).decode()
    indent = separators = max_whitespace = None
    is_strict = is_printed = is_any_order = False
    made = native().Grammar.from_json_schema(
        text,
        any_whitespace,
        indent,
        separators,
        is_strict,
        max_whitespace,
        is_printed,
        is_any_order,
    )
    return _escaped(made)


def _escaped(grammar: Any) -> Any:
    """``grammar`` with the control characters that JSON escapes kept out of all its strings.

    xgrammar lets them pass in strings whose length is bounded. Its text of a grammar is not read
    back as it was: an escape of two digits takes those that follow it as well.
    """
    made = msgspec.json.decode(str(grammar.serialize_json()))
    data, size = made["grammar_expr_data"], len(_CHAR_OF_BOUNDED)
    starts = made["grammar_expr_indptr"]
    found = [start for start in starts if data[start : start + size] == _CHAR_OF_BOUNDED]
    if not found:
        return grammar
    for start in found:
        data[start : start + size] = _CHAR_IN_JSON
    return native().Grammar.deserialize_json(msgspec.json.encode(made).decode())


def _failing_place(kind: str, outputs: StructuredOutputs) -> str:
    """The smallest part that fails alone, or all of it."""
    path = f"{_PARAM}.{kind}"
    schemas: list[tuple[str, Any]] = []
    if kind == "json":
        schemas = [(path, prepared(schema_of(outputs, kind), kind))]
    elif kind == "structural_tag":
        _, schemas = prepared_tag(outputs, path)
    for place, schema in schemas:
        try:
            _json_grammar(schema, any_whitespace=True)
        except RuntimeError:
            return join_path(place, _failing_keys(schema))
    return path


def _failing_keys(schema: Any) -> tuple[str, ...]:
    """Where the smallest part lies that fails alone; a ``$ref`` at the top selects a part."""
    keys: tuple[str, ...] = ()
    part = schema
    while True:
        for more, each in subschemas(part):
            pointer = "/".join(key.replace("~", "~0").replace("/", "~1") for key in keys + more)
            try:
                _json_grammar({**schema, "$ref": f"#/{pointer}"}, any_whitespace=True)
            except RuntimeError:
                keys, part = keys + more, each
                break
        else:
            return keys


def _plain(error: RuntimeError) -> str:
    """The library's message without its source file, in one line."""
    (first, *_) = _NOISE.sub("", str(error)).strip().splitlines() or ["it was refused"]
    return first[:_MESSAGE_CHARS]
