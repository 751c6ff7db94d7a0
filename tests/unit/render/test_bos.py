"""How often BOS is in a prompt: every endpoint, template and post-processor (cases.md 55)."""

import json
from collections.abc import Callable

import pytest

from triptych_render.renderer import Renderer

_BOS_ID = 1
_WITH_BOS = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
_WITHOUT_BOS = "{% for m in messages %}{{ m.content }}{% endfor %}"
_CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def _ids(renderer: Renderer, endpoint: str, fields: dict[str, object]) -> list[int]:
    body = json.dumps(fields).encode()
    if endpoint == "tokenize":
        ids: list[int] = json.loads(renderer.tokenize(body))["tokens"]
        return ids
    render = renderer.render_chat if endpoint == "chat" else renderer.render_completion
    return render(body).requests[0].token_ids


@pytest.mark.parametrize(
    ("endpoint", "fields", "num_plain", "num_added"),
    [
        ("completions", {"prompt": "hi"}, 0, 1),
        ("completions", {"prompt": "<s>hi"}, 1, 1),
        ("completions", {"prompt": "hi", "add_special_tokens": False}, 0, 0),
        ("completions", {"prompt": "<s>hi", "add_special_tokens": False}, 1, 1),
        ("completions", {"prompt": [9, 10]}, 0, 0),
        ("completions", {"prompt": [_BOS_ID, 10]}, 1, 1),
        ("completions", {"prompt": [[_BOS_ID, _BOS_ID, 10]]}, 2, 2),
        ("tokenize", {"prompt": "hi"}, 0, 1),
        ("tokenize", {"prompt": "<s>hi"}, 1, 1),
        ("tokenize", {"prompt": "hi", "add_special_tokens": False}, 0, 0),
    ],
)
def test_text_gets_bos_once_where_the_tokenizer_adds_it(
    make_renderer: Callable[..., Renderer],
    endpoint: str,
    fields: dict[str, object],
    num_plain: int,
    num_added: int,
) -> None:
    for adds_bos, wanted in ((False, num_plain), (True, num_added)):
        ids = _ids(make_renderer(adds_bos=adds_bos), endpoint, fields)
        assert ids.count(_BOS_ID) == wanted
        assert ids[:wanted] == [_BOS_ID] * wanted


@pytest.mark.parametrize("endpoint", ["chat", "tokenize"])
@pytest.mark.parametrize("adds_bos", [False, True])
@pytest.mark.parametrize(
    ("template", "special", "wanted"),
    [
        (_WITH_BOS, False, 1),
        (_WITHOUT_BOS, False, 0),
        (_WITH_BOS, True, 1),
        (_WITHOUT_BOS, True, None),
    ],
)
def test_chat_has_the_templates_bos_and_no_second_one(
    make_renderer: Callable[..., Renderer],
    endpoint: str,
    adds_bos: bool,
    template: str,
    special: bool,
    wanted: int | None,
) -> None:
    renderer = make_renderer(template=template, adds_bos=adds_bos)
    ids = _ids(renderer, endpoint, {**_CHAT, "add_special_tokens": special})
    # Asked for by the request, the tokenizer's own BOS is there if the template has none.
    assert ids.count(_BOS_ID) == (int(adds_bos) if wanted is None else wanted)


def test_truncation_and_padding_of_tokenizer_json_do_not_touch_prompts(
    make_renderer: Callable[..., Renderer], make_tokenizer: Callable[..., object]
) -> None:
    tokenizer = make_tokenizer(truncation=4, padding=64)
    ids = _ids(make_renderer(tokenizer=tokenizer), "completions", {"prompt": "abcdefgh"})
    assert len(ids) == 8
