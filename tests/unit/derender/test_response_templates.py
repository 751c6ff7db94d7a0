"""Each family's format, as its documentation shows it: whole, and streamed token by token."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from triptych.errors import SetupError
from triptych.response_template import ResponseFamily, family_names, find_family
from triptych_derender.derenderer import Derenderer
from triptych_derender.token_table import parse_token_table
from unit.derender.channel_toys import (
    EOS_ID,
    TABLE,
    Reply,
    answered,
    derenderer_of,
    spec_of,
    stateless,
    streamed,
    tokens,
    whole,
)
from unit.derender.toys import MODEL, cut, stateless_chunks

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Case:
    """An output of a family after a prompt that ends in ``prompt``, and what it means."""

    family: str
    name: str
    output: str
    prompt: str = ""
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)


def cases() -> list[Case]:
    recorded = json.loads((DATA / "response_formats.json").read_text())
    return [
        Case(family, name, **{**case, "calls": [tuple(call) for call in case.get("calls", [])]})
        for family, named in recorded.items()
        for name, case in named.items()
    ]


CASES = cases()


def check(reply: Reply, case: Case) -> None:
    assert reply.reasoning == case.reasoning
    assert reply.content == case.content
    assert reply.named_calls() == case.calls
    assert reply.finish == [("tool_calls" if case.calls else "stop", None)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.family}-{case.name}")
@pytest.mark.parametrize("is_long", [True, False])
def test_output_is_read_as_documented(case: Case, is_long: bool) -> None:
    derenderer = derenderer_of(case.family)
    ids = [*tokens(case.output, is_long=is_long), EOS_ID]
    given = answered(ids, "stop", prompt=tokens(case.prompt, is_long=False))
    every = range(len(ids))
    check(whole(derenderer, spec_of(), given), case)
    check(streamed(derenderer, spec_of(), given, every), case)
    reply, states = stateless(derenderer, spec_of(), given, every)
    check(reply, case)
    assert max(map(len, states)) < 4096 + len(case.output)


def test_call_ids_have_the_length_that_a_chat_template_insists_on() -> None:
    output = tokens(
        '[TOOL_CALLS][{"name": "add", "arguments": {}}, {"name": "add", "arguments": {}}]'
    )
    ids = [
        call["id"] for call in whole(derenderer_of("mistral"), spec_of(), answered(output)).calls
    ]
    assert len(set(ids)) == 2
    assert all(len(each) == 9 and each.isalnum() for each in ids)


def test_every_family_has_a_recorded_output() -> None:
    assert {case.family for case in CASES} == set(family_names())


@pytest.mark.parametrize("family", family_names())
def test_a_prompt_without_the_anchor_says_nothing(family: str) -> None:
    """A system prompt that shows the format is no part of the answer."""
    shown = (
        "You may write <think> and <tool_call> and [TOOL_CALLS] and <|channel|>analysis<|message|>"
    )
    given = answered(tokens("Hello"), prompt=tokens(shown))
    assert whole(derenderer_of(family), spec_of(), given).content == "Hello"


def directory(tmp_path: Path, added: list[str], **config: Any) -> Path:
    tokens_json = [{"id": n, "content": content} for n, content in enumerate(added)]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens_json}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.mark.parametrize(
    ("added", "name"),
    [
        (["<|im_start|>", "<|im_end|>"], None),
        (["<think>", "</think>"], "think"),
        (["<|im_start|>", "<tool_call>", "</tool_call>"], "hermes"),
        (["<|im_start|>", "<tool_call>", "</tool_call>", "<think>", "</think>"], "qwen3"),
        (["<think>", "</think>", "<\uff5cAssistant\uff5c>"], "deepseek-r1"),
        (["<|python_tag|>", "<|start_header_id|>", "<|eom_id|>"], "llama3"),
        (["[INST]", "[/INST]", "[TOOL_CALLS]"], "mistral"),
        (["[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[THINK]"], "mistral-args"),
        (["<|start|>", "<|channel|>", "<|message|>", "<|call|>"], "gpt-oss"),
        (["<start_function_call>", "<end_function_call>"], "functiongemma"),
    ],
)
def test_auto_finds_the_family_by_its_tokens(
    tmp_path: Path, added: list[str], name: str | None
) -> None:
    family = find_family("auto", directory(tmp_path, added))
    assert (family and family.name) == name
    assert find_family("none", tmp_path) is None


def test_auto_takes_the_tokenizers_own_template_first(tmp_path: Path) -> None:
    """In the form of transformers' documentation, with its names of fields."""
    template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "thinking": {"open": "<t>", "close": "</t>", "content": "text"},
            "content": {"close": "<|im_end|>", "content": "text"},
        },
    }
    added = ["<think>", "</think>"]
    family = find_family("auto", directory(tmp_path, added, response_template=template))
    assert family is not None
    assert family.name == "tokenizer"
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"description": "Mine.", "response_template": template}))
    reply = whole(derenderer_of(str(path)), spec_of(), answered(tokens("<t> hm </t> Hi ")))
    assert (reply.reasoning, reply.content) == ("hm", "Hi")


@pytest.mark.parametrize(
    ("choice", "content"),
    [
        ("qwen", None),
        ("broken.json", "{"),
        ("broken.json", '{"description": "x"}'),
        ("broken.json", '{"description": "x", "response_template": {}}'),
        ("broken.json", '{"description": "x", "response_template": {"fields": {"content": {}}}}'),
        (
            "broken.json",
            '{"description": "x", "response_template": {}, "call_syntax": {"call": "{name}"}}',
        ),
        ("missing.json", None),
    ],
)
def test_a_template_that_cannot_be_used_is_said_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: str, content: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(choice).write_text(content)
    with pytest.raises(SetupError, match="response template"):
        derenderer_of(choice)


#: Ids, and what vLLM 0.33 sent for each as (reasoning, content), with its <think> parser; ids 8 and
#: 10 of SmolLM2 were made the tags. Recorded from its streaming derender endpoint.
VLLM_IDS = [8, 57, 1251, 803, 30, 10, 504, 2988, 314, 216, 36, 30]
VLLM_CHUNKS = [
    *[(None, None), ("I", None), (" must", None), (" add", None), (".", None), (None, None)],
    *[(None, "The"), (None, " answer"), (None, " is"), (None, " "), (None, "4"), (None, ".")],
]


@pytest.mark.model
def test_texts_are_vllms_and_white_space_waits_one_token(smollm2_dir: Path) -> None:
    tokenizer = json.loads((smollm2_dir / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        token["content"] = {8: "<think>", 10: "</think>"}.get(token["id"], token["content"])
        token["special"] = token["special"] and token["id"] not in (8, 10)
    table = parse_token_table(json.dumps(tokenizer).encode())
    chunks, _ = stateless_chunks(
        derenderer_of("think", table), spec_of(), cut(answered(VLLM_IDS), range(1, 12)), [1]
    )
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    seen = [(delta.get("reasoning_content"), delta["content"]) for delta in deltas]
    expected = list(VLLM_CHUNKS)
    expected[9:11] = [(None, None), (None, " 4")]  # it could be the last
    assert seen == expected


@pytest.mark.parametrize(
    "names", [["content", "reasoning_content"], ["reasoning_content", "content"]]
)
def test_order_of_a_templates_fields_means_nothing(names: list[str]) -> None:
    fields = {"content": {}, "reasoning_content": {"open": "<think>", "close": "</think>"}}
    template = {"start_anchor_pattern": "^", "fields": {name: fields[name] for name in names}}
    family = ResponseFamily(description="", response_template=template, name="toy")
    derenderer = Derenderer(TABLE, model=MODEL, family=family)
    ids = tokens("a<think>b</think>c")
    for reply in (
        whole(derenderer, spec_of(), answered(ids)),
        streamed(derenderer, spec_of(), answered(ids), range(len(ids))),
    ):
        assert (reply.content, reply.reasoning) == ("ac", "b")
