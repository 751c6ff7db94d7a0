"""What Schemathesis has to know of these services."""

import re
from typing import Any

import schemathesis
from schemathesis.core.failures import Failure
from schemathesis.generation import GenerationMode

from support.refusals import is_by_rule

#: The rule that ``before_load_schema`` takes out.
_ONE_STRUCTURE = re.compile("are set; only one of them can be")


@schemathesis.check
def refused_for_what_no_schema_says(ctx: Any, response: Any, case: Any) -> None:
    """Fails where a body that the schema allows is a 400 for what the schema could have said.

    ``positive_data_acceptance`` is told to let 400 pass, since JSON schema cannot say all rules
    (``min_tokens`` is at most ``max_tokens``); this takes its place for them.
    """
    is_positive = case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE
    if not is_positive or response.status_code != 400:
        return
    message = response.json()["error"]["message"]
    if not is_by_rule(message) and not _ONE_STRUCTURE.search(message):
        raise Failure(
            operation=case.operation.label, title="A valid body is refused", message=message
        )


@schemathesis.hook
def before_load_schema(context: Any, raw_schema: dict[str, Any]) -> None:
    """Without "one field says what the output matches": its generator cannot join so many rules.

    tests/contract/test_openapi_readers.py looks at that rule.
    """
    for schema in raw_schema["components"]["schemas"].values():
        if "allOf" in schema:
            schema["allOf"] = [rule for rule in schema["allOf"] if not _is_one_structure(rule)]


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """The served model, and integers as clients write them.

    A made-up name would end nearly every request in the same 404. ``1.0`` is an integer to JSON
    schema alone: the documents say that integers are written without a fraction.
    """
    made = _without_fractions(body)
    if isinstance(made, dict) and isinstance(made.get("model"), str):
        made["model"] = "tiny"
    return made


def _is_one_structure(rule: dict[str, Any]) -> bool:
    return all("response_format" in branch.get("properties", ()) for branch in rule["anyOf"][1:])


def _without_fractions(part: Any) -> Any:
    if isinstance(part, list):
        return [_without_fractions(each) for each in part]
    if isinstance(part, dict):
        return {name: _without_fractions(each) for name, each in part.items()}
    return int(part) if isinstance(part, float) and part.is_integer() else part
