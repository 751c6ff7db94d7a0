"""All 232 golden cases beside what vLLM answered: every difference is a stated one, and counted.

docs/logprobs.md says why each is on purpose. The numbers are over all eight tokenizers.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from triptych.logprobs import pack_logprobs
from triptych.wire import ChoiceDelta
from triptych_derender.choice import ChoiceState, TextRules, open_choice
from triptych_derender.lanes import Entry
from triptych_derender.pieces import Piece
from triptych_derender.text_stream import shown_text
from triptych_derender.token_table import TokenTable, parse_token_table

_DATA = Path(__file__).parent / "data"
_REPLACEMENT = "\ufffd".encode()

NUM_CASES = 232
NUM_TOKENS = 1636
NUM_CANDIDATES = 3175

#: Token strings. vLLM drops the word-start spaces of Llama 2's legacy layout.
TOKENS = {
    "after a cut character": 41,
    "invalid bytes": 23,
    "a real U+FFFD": 8,
    "word-start space": 70,
}
#: Alternatives. vLLM shows "" for one that ends inside a character.
CANDIDATES = {
    "after a cut character": 278,
    "invalid bytes": 190,
    "a real U+FFFD": 80,
    "word-start space": 93,
    "byte 20": 1,
}
#: vLLM's bytes are those of its string, ours the token's own.
BYTES = 690
#: vLLM counts the lengths of its token strings; ours are positions in the text.
OFFSETS = {
    "after a skipped special token": 88,
    "after another string": 225,
}
TEXTS = {
    "first space": 49,
    "skipped special token": 15,
    "truncated end": 26,
    "invalid bytes": 14,
}


def cases() -> Iterator[tuple[Any, TokenTable, Any]]:
    for path in sorted(_DATA.glob("golden_*.json")):
        golden = json.loads(path.read_bytes())
        table = parse_token_table(json.dumps(golden["tokenizer_json"]).encode())
        for case in golden["cases"]:
            yield golden, table, case


def run(table: TokenTable, case: Any) -> Piece:
    choice = ChoiceDelta(
        index=0,
        token_ids=case["token_ids"],
        logprobs=pack_logprobs(case["logprobs"]),
        finish_reason=case["finish_reason"],
        stop_reason=case["stop_reason"],
    )
    rules = TextRules(table=table, skip_special=case["skip_special_tokens"])
    return open_choice(ChoiceState(), rules).feed(choice)


def shown(table: TokenTable, case: Any, entry: Entry, token_id: int) -> str:
    return shown_text(table, entry.held, token_id, skip_special=case["skip_special_tokens"])


def reason(golden: Any, table: TokenTable, entry: Entry, token_id: int, theirs: str) -> str:
    """Why vLLM's string of a token or an alternative differs from ours."""
    raw = table.token_bytes(token_id)
    ours = shown_text(table, b"", token_id, skip_special=True)
    if entry.held:
        return "after a cut character"
    if golden["tokenizer"] == "mistral_v1_nomarker" and ours.lstrip(" ") == theirs.lstrip(" "):
        return "word-start space"
    if raw.endswith(_REPLACEMENT) and not theirs:
        return "a real U+FFFD"
    if table.token_text(token_id) is None and "\ufffd" in raw.decode(errors="replace"):
        return "invalid bytes"
    if raw == b" " and not theirs:
        return "byte 20"
    return f"unexplained: {ours!r}, vLLM {theirs!r}"


def test_token_strings_and_bytes_differ_only_as_stated() -> None:
    num_cases, num_tokens, num_bytes, found = 0, 0, 0, Counter[str]()
    for golden, table, case in cases():
        num_cases += 1
        for entry, theirs in zip(run(table, case).entries, case["vllm_tokens"], strict=True):
            num_tokens += 1
            num_bytes += table.token_bytes(entry.token_id) != theirs.encode()
            if shown(table, case, entry, entry.token_id) != theirs:
                found[reason(golden, table, entry, entry.token_id, theirs)] += 1
    assert found == TOKENS
    assert (num_cases, num_tokens, num_bytes) == (NUM_CASES, NUM_TOKENS, BYTES)


def test_alternatives_differ_only_as_stated() -> None:
    num_candidates, found = 0, Counter[str]()
    for golden, table, case in cases():
        for entry, theirs in zip(run(table, case).entries, case["vllm_top_tokens"], strict=True):
            for token_id, string in zip(entry.candidates.ids, theirs, strict=False):
                num_candidates += 1
                if shown(table, case, entry, token_id) != string:
                    found[reason(golden, table, entry, token_id, string)] += 1
    assert found == CANDIDATES
    assert num_candidates == NUM_CANDIDATES


def test_offsets_differ_only_as_stated() -> None:
    found = Counter[str]()
    for _, table, case in cases():
        entries, theirs = run(table, case).entries, case["vllm_tokens"]
        assert case["vllm_offsets"] == [0, *accumulate(map(len, theirs))][:-1]
        is_after_special = is_after_other = False
        text_len = 0
        for number, entry in enumerate(entries):
            assert entry.offset == text_len
            if entry.offset != case["vllm_offsets"][number]:
                assert is_after_special or is_after_other, case["name"]
                special = "after a skipped special token"
                found[special if is_after_special else "after another string"] += 1
            string = shown(table, case, entry, entry.token_id)
            is_skipped = case["skip_special_tokens"] and entry.token_id in table.special_ids
            is_after_special |= is_skipped
            is_after_other |= string != theirs[number]
            text_len += 0 if is_skipped else len(string)
    assert found == OFFSETS


def test_texts_differ_only_as_stated() -> None:
    """Ours keeps the first space, skips special tokens, and marks invalid bytes and a cut end."""
    found = Counter[str]()
    for _, table, case in cases():
        ours, theirs = run(table, case).text, case["vllm_text"]
        if ours == theirs:
            continue
        end = bytes.fromhex(case["held_hex"]).decode(errors="replace")
        if end:
            found["truncated end"] += 1
            ours = ours.removesuffix(end)
        if case["skip_special_tokens"] and (visible := without_specials(table, theirs)) != theirs:
            found["skipped special token"] += 1
            theirs = visible
        if table.start_strip == "one_space" and ours == f" {theirs}":
            found["first space"] += 1
            ours = theirs
        if ours != theirs and "\ufffd" in theirs:
            # how many marks stand for invalid bytes, and whether the emoji among them completes
            found["invalid bytes"] += 1
            ours, theirs = (re.sub("[\ufffd😀]", "", text).strip() for text in (ours, theirs))
        assert ours == theirs, case["name"]
    assert found == TEXTS


def without_specials(table: TokenTable, text: str) -> str:
    for token_id in table.special_ids:
        text = text.replace(table.token_text(token_id) or "\0", "")
    return text
