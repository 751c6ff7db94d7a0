"""Whatever the grammar of a required call allows, derender reads as calls, and they are valid.

render writes the grammar, generate's library follows it, derender parses; ``jsonschema`` judges the
arguments. Each family is tried with its markers as special tokens, as added tokens, and as text.
"""

import json
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from support.schemas import objects, schemas
from triptych.reply import ReplySpec
from triptych.response_template import family_names, find_family
from triptych.wire import StructuredOutputs
from triptych_derender.derenderer import Derenderer
from triptych_derender.token_table import parse_token_table
from triptych_generate.bindings import GrammarError, compile_grammar, make_compiler
from triptych_generate.constraint import Constraint
from triptych_generate.grammars import model_tokens
from triptych_render.call_grammar import CallGrammar, call_schemas
from triptych_render.encoder import Encoder
from unit.derender.channel_toys import Reply, answered, derenderer_of, spec_of, streamed, whole
from unit.derender.toys import byte_alphabet

HELD = [name for name in family_names() if (f := find_family(name, Path())) and f.call_syntax]
MARKERS = {
    "deepseek-r1": [
        *("<think>", "</think>", "<\uff5ctool▁calls▁begin\uff5c>", "<\uff5ctool▁call▁begin\uff5c>"),
        *("<\uff5ctool▁sep\uff5c>", "<\uff5ctool▁call▁end\uff5c>", "<\uff5ctool▁calls▁end\uff5c>"),
    ],
    "gemma3": ["<end_of_turn>"],
    "gpt-oss": ["<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|start|>", "<|call|>"],
    "hermes": ["<tool_call>", "</tool_call>"],
    "llama3": ["<|python_tag|>", "<|eom_id|>", "<|eot_id|>"],
    "mistral": ["[TOOL_CALLS]", "</s>"],
    "mistral-args": ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "</s>"],
    "qwen3": ["<think>", "</think>", "<tool_call>", "</tool_call>"],
}
ANCHORS = {
    "deepseek-r1": "<\uff5cAssistant\uff5c>",
    "gemma3": "<start_of_turn>model\n",
    "gpt-oss": "<|start|>assistant",
    "llama3": "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "mistral": "[/INST]",
    "mistral-args": "[/INST]",
}
EOS = "<|im_end|>"
NAMES = ["get_weather", "add"]
#: A walk that took them all would write strings and lists without end.
CLOSERS = {b'"', b"}", b"]", b'"}'}
#: Begins surrogates too, which UTF-8 does not have; xgrammar lets them pass.
SURROGATES = 0xED


@dataclass(frozen=True)
class Panels:
    """The three panels over one tokenizer."""

    grammar: CallGrammar
    derenderer: Derenderer
    compiler: Any
    eos_id: int

    @property
    def tokens(self) -> list[bytes]:
        return self.derenderer.table.bytes_of


@cache
def panels(name: str, kind: str) -> Panels:
    """``kind``: whether the markers are ``special`` tokens, ``added`` ones, or ``text``."""
    family = find_family(name, Path())
    assert family is not None
    assert family.call_syntax is not None
    content = tokenizer_json(MARKERS[name], kind)
    encoder = Encoder(Tokenizer.from_str(content), fingerprint="f")
    table = parse_token_table(content.encode())
    derenderer = derenderer_of(name, table)
    eos_id = table.num_tokens - 1
    tokens = model_tokens(
        derenderer.vocabulary().tokens,
        vocab_size=table.num_tokens,
        eos_token_ids=frozenset({eos_id}),
    )
    return Panels(
        CallGrammar(family, family.call_syntax, encoder), derenderer, make_compiler(tokens), eos_id
    )


def tokenizer_json(markers: list[str], kind: str) -> str:
    """Ids 0 to 255 are the bytes; then come tokens that look like markers, the markers, and EOS."""
    letters = byte_alphabet()
    words = ['"}', "</", "</th", "<|", "\n```", "[/", *(markers if kind == "text" else [])]
    raws = [bytes([byte]) for byte in range(256)] + [word.encode() for word in words]
    vocab = {"".join(letters[byte] for byte in raw): index for index, raw in enumerate(raws)}
    added = [] if kind == "text" else markers
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return json.dumps(
        {
            "added_tokens": [
                {"id": len(raws) + n, "content": text, "special": special, **flags}
                for n, (text, special) in enumerate(
                    [(text, kind == "special") for text in added] + [(EOS, True)]
                )
            ],
            "pre_tokenizer": {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": False,
            },
            "decoder": {
                "type": "ByteLevel",
                "add_prefix_space": True,
                "trim_offsets": True,
                "use_regex": True,
            },
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        }
    )


def tools_of(parameters: list[Any]) -> list[Any]:
    return [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in zip(NAMES, parameters, strict=True)
    ]


def prompt_of(name: str, ending: str) -> str:
    """A prompt after which reasoning is still open, begun, or closed."""
    family = find_family(name, Path())
    assert family is not None
    assert family.call_syntax is not None
    prompt = "Hi" + ANCHORS.get(name, "<|im_start|>assistant\n")
    reasoning = family.call_syntax.reasoning
    if reasoning is None or ending == "open":
        return prompt
    begun = f"{reasoning.open}\n"
    return prompt + (begun if ending == "begun" else f"{begun}Hm.{reasoning.close}")


def walk(made: Panels, tag: str, draw: random.Random, max_tokens: int = 250) -> list[int] | None:
    """Ids of a random output that the grammar allows; None if it found no end."""
    compiled = compile_grammar(made.compiler, StructuredOutputs(structural_tag=tag))
    constraint = Constraint(compiled, vocab_size=len(made.tokens), end_ids={made.eos_id})
    output: list[int] = []
    while len(output) < max_tokens:
        mask = constraint.allowed(output)
        mask[SURROGATES] = False
        allowed = [int(each) for each in mask.nonzero()[0]]
        closing = [each for each in allowed if made.tokens[each] in CLOSERS or each == made.eos_id]
        tempting = [each for each in allowed if len(made.tokens[each]) > 2]
        chance = draw.random()
        if closing and chance < 0.4:
            allowed = closing
        elif tempting and chance < 0.7:
            allowed = tempting
        output.append(draw.choice(allowed))
        if output[-1] == made.eos_id:
            return output
    return None


@settings(max_examples=25)
@pytest.mark.parametrize("name", HELD)
@given(
    kind=st.sampled_from(["special", "added", "text"]),
    parameters=st.lists(objects(schemas), min_size=2, max_size=2),
    choice=st.sampled_from(["required", *NAMES]),
    is_parallel=st.booleans(),
    ending=st.sampled_from(["open", "begun", "closed"]),
    seed=st.integers(0, 999),
)
def test_every_output_of_the_grammar_is_valid_calls(
    name: str,
    kind: str,
    parameters: list[Any],
    choice: str,
    is_parallel: bool,
    ending: str,
    seed: int,
) -> None:
    made, tools = panels(name, kind), tools_of(parameters)
    allowed = NAMES if choice == "required" else [choice]
    prompt = prompt_of(name, ending)
    schemas_of = call_schemas(tools, None if choice == "required" else choice)
    tag = made.grammar.structural_tag(prompt, schemas_of, allows_several=is_parallel)
    try:
        output = walk(made, tag, random.Random(seed))
    except GrammarError as error:
        assume("Invalid range" not in error.message)  # bounds that no number meets
        raise
    assume(output is not None)
    assert output is not None
    spec = spec_of(tools=tools, tool_choice="required", parallel_tool_calls=is_parallel)
    reply = read(made.derenderer, spec, output, prompt)
    for called, arguments in reply.named_calls():
        assert called in allowed
        jsonschema.validate(arguments, parameters[NAMES.index(called)])
    assert reply.calls
    assert is_parallel or len(reply.calls) == 1
    assert reply.content == ""
    assert reply.finish[0][0] == "tool_calls"


def read(derenderer: Derenderer, spec: ReplySpec, output: list[int], prompt: str) -> Reply:
    """What derender makes of ``output``, whole and streamed token by token."""
    given_ids = answered(output, "stop", prompt=list(prompt.encode()))
    reply = whole(derenderer, spec, given_ids)
    by_token = streamed(derenderer, spec, given_ids, range(len(output)))
    assert (by_token.content, by_token.reasoning) == (reply.content, reply.reasoning)
    assert by_token.calls == reply.calls
    return reply
