"""A response template made ready: its regions, its channels, and how its tool calls are read.

Imported only where a template is used, because it imports transformers.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from transformers.utils.chat_parsing import parse_response
from transformers.utils.chat_parsing.response_templates import load_response_template

from triptych.errors import SetupError
from triptych.response_template import Channel, ResponseFamily
from triptych_derender.call_reader import CallForm
from triptych_derender.regions import RegionReader
from triptych_derender.spans import PlainRegion, RegionState, Span
from triptych_derender.text_stream import characters

#: What transformers raises on text that a content parser does not take.
_PARSE_ERRORS = (ValueError, TypeError, AttributeError, LookupError, RecursionError)


class ReplyTemplate:
    """A family's template; every request of a model uses the same one."""

    def __init__(self, family: ResponseFamily) -> None:
        """Compile it.

        Raises:
            SetupError: transformers does not take the template.
        """
        self.family = family
        spec = family.response_template
        try:
            self._fields: dict[str, dict[str, Any]] = spec["fields"]
            texts = {
                name: field
                for name, field in self._fields.items()
                if family.channel(name) != "tool_calls"
            }
            self._forms = {
                name: _call_form(field) for name, field in self._fields.items() if name not in texts
            }
            json_fields = {name for name, form in self._forms.items() if form is not None}
            self._with_calls = RegionReader(load_response_template(spec), json_fields)
            self._without_calls = RegionReader(load_response_template({**spec, "fields": texts}))
            self._wholes = {
                name: load_response_template(
                    {**spec, "fields": {name: {**field, "optional": True}}}
                )
                for name, field in self._fields.items()
                if name in self._forms
            }
            self._plain_regions = {
                with_calls: dict(self._list_plain_regions(with_calls=with_calls))
                for with_calls in (False, True)
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SetupError(
                f"response template {family.name}: {error} (--response-template none does without)"
            ) from error

    def read(
        self, state: RegionState, text: str, *, is_end: bool, with_calls: bool
    ) -> tuple[RegionState, list[Span]]:
        reader = self._with_calls if with_calls else self._without_calls
        return reader.read(state, text, is_end=is_end)

    def knows(self, field: str | None) -> bool:
        """Whether a state may be in this field."""
        return field is None or field in self._fields

    def channel(self, field: str | None) -> Channel:
        return "markup" if field is None else self.family.channel(field)

    def plain_region(self, field: str | None, *, with_calls: bool) -> PlainRegion | None:
        return self._plain_regions[with_calls].get(field)

    def is_stripped(self, field: str | None) -> bool:
        arguments = self._fields.get(field or "", {}).get("content_args") or {}
        return bool(arguments.get("strip", True))

    def call_form(self, field: str | None) -> CallForm | None:
        return self._forms.get(field or "")

    def parse_calls(
        self, field: str | None, text: str, tools: Sequence[object]
    ) -> list[tuple[str, str]]:
        """The calls of a whole region, read by transformers; none if it cannot be read."""
        assert field is not None
        try:
            message = parse_response(text, self._wholes[field], prefix="", tools=list(tools))
            values = _flat(message.get(field))
            return [_name_and_arguments(value) for value in values]
        except _PARSE_ERRORS:
            return []

    def after_anchor(self, prompt: str) -> str | None:
        """What a prompt already says of the answer; None if its beginning is not in ``prompt``."""
        matches = list(self._with_calls.start_anchor.finditer(prompt))
        return prompt[matches[-1].end() :] if matches else None

    def _list_plain_regions(self, *, with_calls: bool) -> Iterator[tuple[str | None, PlainRegion]]:
        reader = self._with_calls if with_calls else self._without_calls
        for field in (None, *reader.fields):
            name = reader.implicit if field is None else field
            channel, starts = self.channel(name), reader.tag_starts(field)
            if starts is not None and channel in ("content", "reasoning_content"):
                yield field, PlainRegion(channel, self.is_stripped(name), starts)


def _call_form(field: dict[str, Any]) -> CallForm | None:
    """How a field's calls are read as they come, as its ``transform`` says; None if they cannot."""
    if field.get("content") != "json" or field.get("content_args"):
        return None
    transform = field.get("transform") or {"function": "{content}"}
    function = transform.get("function") if isinstance(transform, dict) else None
    if function == "{content}":
        return CallForm()
    if not isinstance(function, dict):
        return None
    name, arguments = (str(function.get(key)).strip("{}") for key in ("name", "arguments"))
    if arguments == "content":
        return CallForm(name_capture=name)
    keys = [key.removeprefix("content.") for key in (name, arguments)]
    return CallForm(name_key=keys[0], argument_keys=(keys[1],))


def _flat(value: Any) -> list[Any]:
    """Calls as one list: a field may hold one, a list, or a list of lists."""
    if isinstance(value, list):
        return [each for item in value for each in _flat(item)]
    return [] if value is None else [value]


def _name_and_arguments(value: Any) -> tuple[str, str]:
    function = value.get("function", value)
    name, arguments = function["name"], function["arguments"]
    if not isinstance(name, str) or not name or not isinstance(arguments, dict | str):
        raise ValueError("not a call")
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return characters(name), characters(arguments)
