"""The grammar of an answer that has to be tool calls, as xgrammar's structural tag.

An answer is reasoning, where the family thinks and the prompt leaves it open, and then calls of the
allowed tools, written as the family writes them. Added tokens of the tokenizer are held by their
ids, as the tokenizer itself would write them; everything else as text.
"""

import json
from collections.abc import Sequence
from typing import Any

from triptych.errors import InvalidRequestError
from triptych.response_template import CallSyntax, ReasoningSyntax, ResponseFamily
from triptych_render.encoder import Encoder

#: Of a function that has no parameters, or does not say which.
_NO_PARAMETERS = {"type": "object", "properties": {}}
#: White space characters in one place of the arguments: without a limit a model may go on with it.
_MAX_WHITESPACE = 1

_Format = dict[str, Any]


class CallGrammar:
    """Writes the grammars of one model."""

    def __init__(self, family: ResponseFamily, syntax: CallSyntax, encoder: Encoder) -> None:
        self._ends = family.reasoning_ends
        self._syntax = syntax
        self._encoder = encoder

    def structural_tag(
        self, prompt: str, schemas: Sequence[tuple[str, dict[str, Any]]], *, allows_several: bool
    ) -> str:
        """The grammar of an answer to ``prompt``.

        Args:
            prompt: text; its end says whether the answer may still begin with reasoning.
            schemas: name and parameters of each function that may be called.
            allows_several: calls one after the other, where the family can write them.
        """
        syntax = self._syntax
        call = _either([self._call(name, schema) for name, schema in schemas])
        elements = [*self._text(syntax.begin), call]
        if allows_several and syntax.separator is not None:
            more = _sequence([*self._text(syntax.separator), call])
            elements.append({"type": "star", "content": more})
        elements += self._text(syntax.end)
        if syntax.reasoning is not None:
            elements = [*self._reasoning(syntax.reasoning, prompt.rstrip()), *elements]
        return json.dumps(
            {"type": "structural_tag", "format": _sequence(elements)}, ensure_ascii=False
        )

    def _call(self, name: str, schema: dict[str, Any]) -> _Format:
        before, after = self._syntax.call.replace("{name}", name).split("{arguments}")
        arguments = {
            "type": "json_schema",
            "json_schema": schema,
            "max_whitespace_cnt": _MAX_WHITESPACE,
        }
        return _sequence([*self._text(before), arguments, *self._text(after)])

    def _reasoning(self, syntax: ReasoningSyntax, prompt: str) -> list[_Format]:
        """What the prompt leaves open of it: all, what follows its beginning, or nothing."""
        if prompt.endswith(syntax.close.rstrip()):
            return []
        rest = [
            {"type": "grammar", "grammar": text_without(self._ends or [syntax.close])},
            *self._text(syntax.close),
        ]
        if prompt.endswith(syntax.open.rstrip()):
            return rest
        return [{"type": "optional", "content": _sequence([*self._text(syntax.open), *rest])}]

    def _text(self, text: str) -> list[_Format]:
        return [
            {"type": "token", "token": part}
            if isinstance(part, int)
            else {"type": "const_string", "value": part}
            for part in self._encoder.split_at_added(text)
        ]


def call_schemas(tools: Sequence[Any], name: str | None) -> list[tuple[str, dict[str, Any]]]:
    """Name and parameters of the tools that may be called: of ``name``, or of all.

    Errors about a schema name its place in the request, which it carries as ``$comment``.

    Raises:
        InvalidRequestError: parameters that are not an object's.
    """
    found = []
    for index, tool in enumerate(tools):
        function = tool["function"]
        if name is not None and function["name"] != name:
            continue
        place = f"tools[{index}].function.parameters"
        schema = function.get("parameters") or _NO_PARAMETERS
        if "properties" in schema or "additionalProperties" in schema:
            schema = {"type": "object", **schema}
        if schema.get("type") != "object":
            raise InvalidRequestError(
                f"{place}.type must be object where tool_choice requires a call", param=place
            )
        found.append((function["name"], {**schema, "$comment": place}))
    return found


def text_without(ends: Sequence[str]) -> str:
    """EBNF of the texts in which none of ``ends`` occurs: a state for each beginning of one.

    xgrammar's own ``any_text`` counts bytes: it would let special tokens pass, and half characters.
    """
    prefixes = sorted({end[:length] for end in ends for length in range(len(end))} | {""})
    names = {prefix: f"s{number}" for number, prefix in enumerate(prefixes)}
    chars = sorted({char for end in ends for char in end})
    others = "".join(_class_char(char) for char in chars)
    rules = ["root ::= s0"]
    for prefix, name in names.items():
        ways = ['""', f"[^{others}] s0"]
        for char in chars:
            seen = prefix + char
            if not any(seen.endswith(end) for end in ends):
                longest = next(each for each in _suffixes(seen) if each in names)
                ways.append(f"[{_class_char(char)}] {names[longest]}")
        rules.append(f"{name} ::= {' | '.join(ways)}")
    return "\n".join(rules)


def _suffixes(text: str) -> list[str]:
    return [text[start:] for start in range(len(text) + 1)]


def _class_char(char: str) -> str:
    return f"\\U{ord(char):08x}"


def _sequence(elements: list[_Format]) -> _Format:
    return elements[0] if len(elements) == 1 else {"type": "sequence", "elements": elements}


def _either(elements: list[_Format]) -> _Format:
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": elements}
