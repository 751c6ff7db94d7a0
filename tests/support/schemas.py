"""Random JSON schemas of all the kinds that can be held while generating."""

from typing import Any

from hypothesis import strategies as st


def _bounds(low: str, high: str, *, most: int = 4, least: int = 0) -> st.SearchStrategy[Any]:
    """Neither, one, or both of two bounds, the lower one first."""
    pair = st.lists(st.integers(least, most), min_size=2, max_size=2).map(sorted)
    both = pair.map(lambda each: {low: each[0], high: each[1]})
    return st.one_of(st.just({}), both, pair.map(lambda each: {low: each[0]}))


def _with(kind: str, *parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(*parts).map(
        lambda given: {"type": kind, **{k: v for each in given for k, v in each.items()}}
    )


values = st.none() | st.booleans() | st.integers(-99, 99) | st.text('ab"\\\n é', max_size=3)
leaves = st.one_of(
    st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"type": ["string", "null"]}]),
    _with("integer", _bounds("minimum", "maximum", least=-150, most=150)),
    _with("integer", _bounds("exclusiveMinimum", "maximum", least=-9, most=300)),
    _with("integer", st.sampled_from([{}, {"multipleOf": 3}, {"multipleOf": 70}])),
    _with("number", _bounds("minimum", "maximum", least=-20, most=20)),
    _with("string", _bounds("minLength", "maxLength")),
    _with(
        "string",
        st.sampled_from(["^a+$", "b|c", "^[a-c]{2,3}$", "^\\d{3}$", "^\\w\\S.$", "^[^a]$"]).map(
            lambda pattern: {"pattern": pattern}
        ),
    ),
    st.lists(values, min_size=1, max_size=3).map(lambda listed: {"enum": listed}),
    values.map(lambda value: {"const": value}),
)


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    properties = draw(st.dictionaries(st.sampled_from(["a", "b", 'c"', "é"]), inner, max_size=3))
    others: dict[str, Any] = draw(
        st.sampled_from([{}, {"additionalProperties": False}, {"unevaluatedProperties": False}])
        | inner.map(lambda schema: {"additionalProperties": schema})
    )
    if others.get("additionalProperties", False) is not False:
        properties.pop('c"', None)  # refused beside others
    required = [name for name in properties if draw(st.booleans())]
    return {"type": "object", "properties": properties, "required": required, **others}


schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        objects(inner),
        _with("array", inner.map(lambda each: {"items": each}), _bounds("minItems", "maxItems")),
        st.lists(inner, min_size=1, max_size=2).map(
            lambda listed: {"type": "array", "prefixItems": listed, "items": False}
        ),
        st.lists(inner, min_size=1, max_size=2).map(lambda listed: {"anyOf": listed}),
        inner.map(lambda each: {"type": "object", "propertyNames": {"maxLength": 2}}),
        inner.map(lambda each: {"patternProperties": {"^[xy]$": each}}),
    ),
    max_leaves=4,
)
referring = st.tuples(schemas, schemas).map(
    lambda pair: {
        "$defs": {"x": pair[0]},
        "properties": {"a": {"$ref": "#/$defs/x"}, "b": pair[1]},
        "required": ["a"],
    }
)
