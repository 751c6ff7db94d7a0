"""Streamed answers in the lens: scripted ids through the real panels, seen in Chromium."""

import csv
import io
import json
import re

from playwright.sync_api import expect

from browser.conftest import OpenLens
from browser.page import (
    card,
    exported,
    exported_json,
    figure,
    fill,
    frames_passed,
    part,
    run,
    tokens,
    wait_for_end,
)
from browser.scripts import CALL, CHANNELS, UNICODE

TOOL = json.dumps([{"type": "function", "function": {"name": "get_weather"}}])
CONTENT = UNICODE.removesuffix("<|im_end|>")
MINUS = "\N{MINUS SIGN}"


def test_answer_is_shown_token_by_token(open_lens: OpenLens, scripted: dict[str, str]) -> None:
    page = open_lens(scripted["unicode"])
    run(page)
    saved = exported_json(page)
    assert [each["channel"] for each in saved["tokens"][-2:]] == ["content", "markup"]
    raw = [byte for each in saved["tokens"][:-1] for byte in each["bytes"]]
    assert bytes(raw).decode() == CONTENT
    assert page.locator(".t").count() == len(saved["tokens"]) == int(figure(page, "tokens"))
    assert tokens(page)[:3] == ["The", " sea", " is"]
    expect(part(page, ".state")).to_have_text("ended: stop")
    mean = sum(each["logprob"] for each in saved["tokens"]) / len(saved["tokens"])
    assert figure(page, "mean-logprob") == f"{mean:.3f}".replace("-", MINUS)
    expect(page.locator("#spoken")).to_contain_text(f"{len(saved['tokens'])} tokens")


def test_numbers_between_the_steps_of_a_control_are_asked_for(
    open_lens: OpenLens, scripted: dict[str, str]
) -> None:
    page = open_lens(scripted["unicode"])
    fill(page, repetition_penalty="1.05")
    page.click("#more summary")  # and it is out of sight
    run(page, temperature="0.75", top_p="0.92")
    asked = exported_json(page)["request"]
    assert (asked["temperature"], asked["top_p"]) == (0.75, 0.92)
    assert asked["repetition_penalty"] == 1.05
    page.fill("[name=max_tokens]", "-1")
    page.click("text=Score a text")  # which has no such setting
    run(page)
    assert exported_json(page)["request"]["max_tokens"] == 0


def test_pieces_of_characters_are_shown_as_bytes(
    open_lens: OpenLens, scripted: dict[str, str]
) -> None:
    page = open_lens(scripted["unicode"])
    run(page)
    saved = exported_json(page)["tokens"]
    pieces = [
        each for each in saved if bytes(each["bytes"]).decode(errors="replace") != each["token"]
    ]
    assert len(pieces) >= 4
    for piece in pieces:
        chip = page.locator(f".t[data-i='{piece['index']}'] .bytes")
        expect(chip).to_have_text(bytes(piece["bytes"]).hex(" ").upper())
    shown = "".join(
        page.evaluate(
            "(t) => [...t.childNodes].filter(n => n.nodeType === 3).map(n => n.data).join('')", span
        )
        for span in page.locator(".t:not(.mark)").element_handles()
    )
    assert shown == CONTENT


def test_pointing_at_a_token_shows_the_best_with_bars_and_ranks(
    open_lens: OpenLens, scripted: dict[str, str]
) -> None:
    page = open_lens(scripted["unicode"])
    run(page, logprobs="5")
    expect(page.locator("#card")).to_be_hidden()
    page.hover(".t >> nth=1")
    rows = page.locator("#card .card-bars li")
    assert rows.count() == 5
    assert [row.split("\n")[0] for row in rows.all_inner_texts()] == ["1", "2", "3", "4", "5"]
    assert "␣sea" in card(page)
    assert "60.7 %" in card(page)  # exp(-0.5)
    widths = [row.bounding_box() for row in page.locator("#card .bar").all()]
    assert [box["width"] for box in widths if box] == sorted(
        (box["width"] for box in widths if box), reverse=True
    )
    assert re.search(
        r"entropy ≥ \d\.\d\d nats · 5 listed, all others \(.* %\) counted as one", card(page)
    )
    page.mouse.move(2, 2)
    expect(page.locator("#card")).to_be_hidden()


def test_a_tap_keeps_the_card_until_a_tap_elsewhere(
    open_lens: OpenLens, scripted: dict[str, str]
) -> None:
    page = open_lens(scripted["unicode"], width=390)
    run(page)
    page.click(".t >> nth=2")
    page.mouse.move(2, 2)
    expect(page.locator("#card")).to_be_visible()
    token, sheet = page.locator(".t >> nth=2").bounding_box(), page.locator("#card").bounding_box()
    assert token
    assert sheet
    assert token["y"] + token["height"] <= sheet["y"]  # the sheet does not cover its token
    page.mouse.click(5, 5)
    expect(page.locator("#card")).to_be_hidden()


def test_keyboard_walks_through_the_tokens(open_lens: OpenLens, scripted: dict[str, str]) -> None:
    page = open_lens(scripted["unicode"])
    run(page)
    focused = page.locator(".t:focus")
    page.locator(".t[tabindex='0']").focus()
    for key, index in (
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("ArrowLeft", 1),
        ("Home", 0),
        ("n", 2),
    ):
        page.keyboard.press(key)
        assert focused.get_attribute("data-i") == str(index), key
    assert page.locator(".tokens [tabindex='0']").count() == 1
    assert focused.get_attribute("role") == "button"
    assert focused.get_attribute("aria-label") == "␣is, 5.0 %, rank 1"
    described = page.locator(f"#{focused.get_attribute('aria-describedby')}").text_content()
    assert described is not None
    assert described.startswith("Best: ␣is 5.0 %")
    page.keyboard.press("End")
    assert focused.get_attribute("data-i") == str(page.locator(".t").count() - 1)
    page.keyboard.press("Escape")
    expect(page.locator("#card")).to_be_hidden()
    page.keyboard.press("Enter")
    expect(page.locator("#card.pinned")).to_be_visible()


def test_arrow_down_goes_to_the_row_below(open_lens: OpenLens, scripted: dict[str, str]) -> None:
    page = open_lens(scripted["unicode"])
    run(page)
    page.locator(".t[tabindex='0']").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    below = page.locator(".t:focus").text_content()
    assert below == "G"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert page.locator(".t:focus").get_attribute("data-i") == "0"


def test_channels_are_told_apart(open_lens: OpenLens, scripted: dict[str, str]) -> None:
    page = open_lens(scripted["channels"])
    run(page, tools=TOOL)
    names = page.locator(".block-name").all_inner_texts()
    assert names == ["reasoning", "tool call"]
    assert "One city: Paris." in page.locator(".block.reasoning_content").inner_text()
    assert "I will look." in page.locator(".block.content").inner_text()
    assert '"get_weather"' in page.locator(".block.tool_calls").inner_text()
    saved = exported_json(page)["tokens"]
    assert {each["channel"] for each in saved} == {
        "content",
        "reasoning_content",
        "tool_calls",
        "markup",
    }
    written = bytes(byte for each in saved for byte in each["bytes"]).decode()
    assert written == CHANNELS  # the channels in the order in which the model wrote
    request = exported_json(page)["request"]
    assert request["tools"][0]["function"]["name"] == "get_weather"


def test_without_tools_a_call_is_content(open_lens: OpenLens, scripted: dict[str, str]) -> None:
    page = open_lens(scripted["channels"])
    run(page)
    content = "".join(page.locator(".block.content").all_text_contents())
    assert CALL in content
    assert page.locator(".block.tool_calls").count() == 0


def test_going_on_puts_the_answer_into_the_chat(
    open_lens: OpenLens, scripted: dict[str, str]
) -> None:
    page = open_lens(scripted["unicode"])
    run(page)
    page.click("text=Go on with this chat")
    page.keyboard.type("And now?")
    run(page)
    messages = exported_json(page)["request"]["messages"]
    assert [each["role"] for each in messages] == ["user", "assistant", "user"]
    assert messages[1]["content"] == CONTENT
    assert messages[2]["content"] == "And now?"


def test_completion_shows_what_chat_shows(open_lens: OpenLens, scripted: dict[str, str]) -> None:
    page = open_lens(scripted["unicode"])
    page.click("text=Completion")
    run(page, logprobs="4", seed="7", stop="never\nthis")
    saved = exported_json(page)
    assert saved["request"]["prompt"] == "The capital of France is"
    assert (saved["request"]["seed"], saved["request"]["stop"]) == (7, ["never", "this"])
    assert bytes(byte for each in saved["tokens"] for byte in each["bytes"]).decode() == UNICODE
    assert saved["tokens"][-1]["is_in_text"] is False
    assert all(len(each["candidates"]) >= 4 for each in saved["tokens"])
    ids = [each["token_id"] for each in saved["tokens"]]
    page.click("text=Chat")
    run(page)
    assert [each["token_id"] for each in exported_json(page)["tokens"]] == ids


def test_csv_has_every_token(open_lens: OpenLens, scripted: dict[str, str]) -> None:
    page = open_lens(scripted["unicode"])
    run(page)
    rows = list(csv.DictReader(io.StringIO(exported(page, "csv"), newline="")))
    saved = exported_json(page)["tokens"]
    assert [row["token"] for row in rows] == [each["token"] for each in saved]
    assert [bytes.fromhex(row["bytes"]) for row in rows] == [bytes(each["bytes"]) for each in saved]
    assert [float(row["logprob"]) for row in rows] == [each["logprob"] for each in saved]
    assert [json.loads(row["candidates"])[0][2] for row in rows] == [
        each["logprob"] for each in saved
    ]
    assert {row["rank"] for row in rows} == {"1"}


def test_stop_keeps_what_has_come(open_lens: OpenLens, scripted: dict[str, str]) -> None:
    page = open_lens(scripted["endless"])
    page.click("#run")
    page.wait_for_selector(".t >> nth=50")
    page.click("#stop")
    wait_for_end(page)
    expect(part(page, ".state")).to_have_text("stopped")
    expect(part(page, ".error")).to_be_hidden()
    count = page.locator(".t").count()
    assert count == int(figure(page, "tokens")) >= 50
    frames_passed(page)
    assert page.locator(".t").count() == count
    assert page.evaluate("document.activeElement.id") == "run"


def test_two_prompts_side_by_side(open_lens: OpenLens, scripted: dict[str, str]) -> None:
    page = open_lens(scripted["unicode"], width=1500)
    page.check("[name=compare]")
    question = part(page, ".messages textarea", 2)
    assert question.input_value() == part(page, ".messages textarea").input_value()
    question.fill("Another question")
    run(page)
    assert tokens(page, 1) == tokens(page, 2)
    boxes = [part(page, ".answer", n).bounding_box() for n in (1, 2)]
    assert boxes[0]
    assert boxes[1]
    assert abs(boxes[0]["y"] - boxes[1]["y"]) < 2
    assert boxes[1]["x"] > boxes[0]["x"] + boxes[0]["width"]
    with page.expect_download() as download:
        part(page, ".as-json", 2).click()
    saved = json.loads(download.value.path().read_bytes())
    assert saved["request"]["messages"] == [{"role": "user", "content": "Another question"}]
    page.uncheck("[name=compare]")
    expect(question).to_be_hidden()


def test_colours_follow_the_chosen_figure(open_lens: OpenLens, scripted: dict[str, str]) -> None:
    page = open_lens(scripted["unicode"])
    run(page)
    third = page.locator(".t >> nth=2")
    assert "l5" in (third.get_attribute("class") or "")  # 5.0 %
    page.select_option("[name=colouring]", "rank")
    assert "l0" in (third.get_attribute("class") or "")
    assert page.locator("#legend li").first.inner_text() == "1st"
    page.select_option("[name=colouring]", "probability")
    assert "l5" in (third.get_attribute("class") or "")


def test_ctrl_enter_in_the_prompt_runs(open_lens: OpenLens, scripted: dict[str, str]) -> None:
    page = open_lens(scripted["unicode"])
    part(page, ".messages textarea").focus()
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".t")
    wait_for_end(page)


def test_a_control_that_is_no_json_is_said(open_lens: OpenLens, scripted: dict[str, str]) -> None:
    page = open_lens(scripted["unicode"])
    fill(page, tools="[{")
    page.click("#run")
    expect(part(page, ".error")).to_contain_text("tools: not valid JSON")
