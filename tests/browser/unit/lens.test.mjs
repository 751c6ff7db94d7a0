// The lens's pure functions; `node --test tests/browser/unit` runs them alone.
import assert from "node:assert/strict";
import { test } from "node:test";

const lens = "../../../services/triptych_gateway/lens/";
const { EventParser } = await import(`${lens}sse.mjs`);
const { bytesOfKey, hex, shown, textOf, utf8, visible } = await import(`${lens}bytes.mjs`);
const { ChatReader, CompletionReader, scoredEntries } = await import(`${lens}entries.mjs`);
const { toCsv, toJson } = await import(`${lens}export.mjs`);
const { buildRequest } = await import(`${lens}request.mjs`);
const measure = await import(`${lens}measure.mjs`);

/** Every way of cutting `text` into three pieces. */
function* cuts(text) {
  for (let i = 0; i <= text.length; i += 1) {
    for (let j = i; j <= text.length; j += 1) yield [text.slice(0, i), text.slice(i, j), text.slice(j)];
  }
}

for (const [name, newline] of [["LF", "\n"], ["CRLF", "\r\n"], ["CR", "\r"]]) {
  test(`events are the same however a stream with ${name} is cut`, () => {
    const lines = [": hi", "", "data: a", "", "event: error", "data:b", "data: c:d", "", "id: 1", "", "data: [DONE]", "", ""];
    const expected = [
      { name: "message", data: "a" },
      { name: "error", data: "b\nc:d" },
      { name: "message", data: "[DONE]" },
    ];
    for (const pieces of cuts(lines.join(newline))) {
      const parser = new EventParser();
      const events = [...pieces, "\n"].flatMap((piece) => parser.feed(piece));
      assert.deepEqual(events, expected, JSON.stringify(pieces));
    }
  });
}

test("a piece of a character is shown as bytes, with what it completes", () => {
  assert.deepEqual(shown({ text: "", bytes: [0x20, 0xf0, 0x9f] }), { hex: "20 F0 9F", text: "" });
  assert.deepEqual(shown({ text: " 😀", bytes: [0x80] }), { hex: "80", text: " 😀" });
  assert.deepEqual(shown({ text: " é", bytes: utf8(" é") }), { hex: null, text: " é" });
  assert.deepEqual(shown({ text: "\ufeffx", bytes: utf8("\ufeffx") }), { hex: null, text: "\ufeffx" });
  assert.deepEqual(shown({ text: "?", bytes: null }), { hex: null, text: "?" });
});

test("bytes that are no UTF-8 have no text", () => {
  for (const bytes of [[0xff], [0xc0, 0x80], [0xed, 0xa0, 0x80], [0x41, 0xe2, 0x80]]) assert.equal(textOf(bytes), null);
  assert.equal(hex([0, 10, 255]), "00 0A FF");
});

test("white space and control characters become visible, emoji stay whole", () => {
  assert.equal(visible(" a\n\t\u0000\u200b"), "␣a⏎⇥⟨U+0000⟩⟨U+200B⟩");
  assert.equal(visible("👩\u200d🔬"), "👩\u200d🔬");
});

test("keys of completions are read back as bytes", () => {
  assert.deepEqual(bytesOfKey(" né"), utf8(" né"));
  assert.deepEqual(bytesOfKey("bytes:a\\xe2\\x80"), [0x61, 0xe2, 0x80]);
  assert.deepEqual(bytesOfKey("bytes:\\x5c"), [0x5c]);
  assert.deepEqual(bytesOfKey("bytes:"), utf8("bytes:"));
  assert.equal(bytesOfKey("token_id:12"), null);
});

const close = (a, b) => assert.ok(Math.abs(a - b) < 1e-9, `${a} is not ${b}`);
const candidates = (...ps) => ps.map((p, i) => ({ id: i, text: `${i}`, bytes: utf8(`${i}`), logprob: Math.log(p), isSampled: i === 0 }));
const entry = (...ps) => {
  const listed = candidates(...ps);
  return { index: 0, channel: "content", id: 0, text: "0", bytes: utf8("0"), logprob: listed[0].logprob, rank: null, candidates: listed, isLaterShare: false, isInText: true };
};

test("entropy of the listed is exact when they are all, and a bound when not", () => {
  close(measure.entropyAtLeast(candidates(0.5, 0.25, 0.25)), 1.5 * Math.log(2));
  const whole = [0.4, 0.3, 0.1, 0.1, 0.05, 0.05];
  const exact = whole.reduce((sum, p) => sum - p * Math.log(p), 0);
  for (let k = 1; k <= whole.length; k += 1) {
    assert.ok(measure.entropyAtLeast(candidates(...whole.slice(0, k))) <= exact + 1e-12);
  }
  assert.equal(measure.entropyAtLeast([]), null);
  const impossible = [{ logprob: -9999 }, { logprob: 0 }];
  close(measure.entropyAtLeast(impossible), 0);
});

test("a rank is exact only where all better tokens are listed", () => {
  assert.deepEqual(measure.rankOf(entry(0.2, 0.5, 0.1)), { rank: 2, isExact: true });
  assert.deepEqual(measure.rankOf(entry(0.01, 0.5, 0.3)), { rank: 3, isExact: false });
  assert.deepEqual(measure.rankOf(entry(0.3, 0.5)), { rank: 2, isExact: true }); // 0.2 is left
  assert.deepEqual(measure.rankOf(entry(0.3)), { rank: 1, isExact: false });
  assert.deepEqual(measure.rankOf(entry(0.6)), { rank: 1, isExact: true });
  assert.deepEqual(measure.rankOf({ ...entry(0.01, 0.5), rank: 77 }), { rank: 77, isExact: true });
  assert.equal(measure.rankOf({ ...entry(0.5), logprob: null }), null);
});

test("ranked candidates fall, ties share a rank", () => {
  const ranked = measure.rankedCandidates(entry(0.1, 0.3, 0.3, 0.2));
  assert.deepEqual(ranked.map((each) => [each.text, each.rank]), [["1", 1], ["2", 1], ["3", 3], ["0", 4]]);
});

test("totals count each token once", () => {
  const totals = new measure.Totals();
  for (const each of [entry(0.5), entry(0.25), { ...entry(0.1), isLaterShare: true }, { ...entry(0.1), logprob: null }]) totals.add(each);
  assert.equal(totals.numTokens, 3);
  assert.equal(totals.numScored, 2);
  close(totals.meanLogprob, Math.log(0.125) / 2);
  close(totals.perplexity, Math.sqrt(8));
  assert.equal(new measure.Totals().perplexity, null);
});

test("levels go from calm to surprising and cover every figure", () => {
  for (const colouring of Object.keys(measure.COLOURINGS)) {
    const levels = [0.999, 0.8, 0.6, 0.3, 0.15, 0.05, 0.001].map((p) => measure.levelOf(entry(p, (1 - p) / 2, (1 - p) / 2), colouring));
    assert.ok(levels.every((level) => level >= 0 && level < measure.NUM_LEVELS));
    assert.equal(measure.COLOURINGS[colouring].labels.length, measure.NUM_LEVELS);
  }
  const levels = [0.95, 0.8, 0.6, 0.3, 0.15, 0.05, 0.001].map((p) => measure.levelOf(entry(p), "probability"));
  assert.deepEqual(levels, [0, 1, 2, 3, 4, 5, 6]);
  assert.equal(measure.levelOf({ ...entry(0.5), logprob: null, candidates: [] }, "entropy"), null);
});

test("a strip with more tokens than columns keeps every peak", () => {
  const values = Array.from({ length: 1000 }, (_, i) => (i === 777 ? 9 : 1));
  const bars = measure.columns(values, 100);
  assert.equal(bars.length, 100);
  assert.equal(bars[77], 9);
  assert.deepEqual(measure.columns([1, 2], 100), [1, 2]);
});

test("percentages never round to a certainty that is none", () => {
  assert.deepEqual([1, 0.9997, 0.5, 0.004, 0.000001, 0, null].map(measure.percent), ["100 %", "99.97 %", "50.0 %", "0.40 %", "< 0.01 %", "0.0 %".replace("0.0", "0.00"), "–"]);
});

/** A sampled token as chat lists it: `part` of its bytes in this channel. */
const listed = (id, text, logprob, part = text) => ({
  token: part, logprob, bytes: utf8(part), token_id: id,
  top_logprobs: [{ token: text, logprob, bytes: utf8(text), token_id: id }, { token: "x", logprob: -9, bytes: [120], token_id: 999 }],
});

test("channels come in the order of the ids, however the chunks are cut", () => {
  const chunks = [
    { token_ids: [1], logprobs: { markup: [listed(1, "<think>", -0.1)] } },
    { token_ids: [2, 3, 4], logprobs: { reasoning_content: [listed(2, "Hm", -1), listed(3, ".</", -2, ".")], markup: [listed(3, ".</", -2, "</"), listed(4, "think>", -0.1)] } },
    { token_ids: [5, 6], logprobs: { content: [] } },
    { token_ids: [], logprobs: { markup: [listed(5, "\n", -0.2)], content: [listed(6, "Yes", -0.3)] } },
    { token_ids: [7], logprobs: { markup: [listed(7, "<|end|>", -0.4)] } },
  ];
  const expected = ["markup:<think>", "reasoning_content:Hm", "reasoning_content:.", "markup:</", "markup:think>", "markup:\n", "content:Yes", "markup:<|end|>"];
  const whole = {
    token_ids: chunks.flatMap((each) => each.token_ids),
    logprobs: Object.fromEntries(["reasoning_content", "content", "markup"].map((name) => [name, chunks.flatMap((each) => each.logprobs[name] ?? [])])),
  };
  for (const fed of [chunks, [whole]]) {
    const reader = new ChatReader();
    const entries = [...fed.flatMap((each) => reader.feed(each)), ...reader.end()];
    assert.deepEqual(entries.map((each) => `${each.channel}:${each.text}`), expected);
    assert.deepEqual(entries.map((each) => each.index), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert.deepEqual(entries.map((each) => each.isLaterShare), [false, false, false, true, false, false, false, false]);
    assert.ok(entries[0].candidates[0].isSampled && !entries[0].candidates[1].isSampled);
  }
});

/** A random answer: tokens from a small set, so that channels often begin with equal ones. */
function randomAnswer(random) {
  const names = ["reasoning_content", "content", "markup"];
  return Array.from({ length: 12 }, () => {
    const id = Math.floor(random() * 3);
    const first = names[Math.floor(random() * 3)];
    const second = names[(names.indexOf(first) + 1) % 3];
    const isSplit = random() < 0.15;
    return { id, shares: isSplit ? [[first, "a"], [second, "b"]] : [[first, "ab"]] };
  });
}

test("any order of channels is found again, up to equal tokens", () => {
  let seed = 1;
  const random = () => (seed = (seed * 48271) % 2147483647) / 2147483647;
  for (let round = 0; round < 300; round += 1) {
    const answer = randomAnswer(random);
    const lists = { reasoning_content: [], content: [], markup: [] };
    for (const { id, shares } of answer) for (const [name, part] of shares) lists[name].push(listed(id, "ab", -1, part));
    const reader = new ChatReader();
    const entries = reader.feed({ token_ids: answer.map((each) => each.id), logprobs: lists });
    assert.deepEqual(entries.filter((each) => !each.isLaterShare).map((each) => each.id), answer.map((each) => each.id));
    for (const name of Object.keys(lists)) {
      const got = entries.filter((each) => each.channel === name).map((each) => each.text);
      assert.deepEqual(got, lists[name].map((each) => each.token));
    }
    assert.deepEqual(reader.end(), []);
  }
});

test("a call held back for long goes where it was written", () => {
  const newline = listed(198, "\n", -1);
  const reader = new ChatReader();
  const said = reader.feed({
    token_ids: [198, 44, 198, 9],
    logprobs: { tool_calls: [newline, listed(9, "{", -1)], markup: [newline, listed(44, "<call>", -1)] },
  });
  assert.deepEqual(said.map((each) => each.channel), ["markup", "markup", "tool_calls", "tool_calls"]);
});

test("a stop token, and what a stop string cut, are marked as not in the text", () => {
  const chat = new ChatReader();
  const said = [
    ...chat.feed({ delta: { content: "Hi" }, token_ids: [1, 2], logprobs: { content: [listed(1, "Hi", -1)] } }),
    ...chat.feed({ delta: { content: "" }, token_ids: [3], logprobs: { content: [listed(2, "!!", -1), listed(3, "<|end|>", -1)] } }),
  ];
  assert.deepEqual(said.map((each) => each.isInText), [true, false, false]);
  const completion = new CompletionReader();
  const logprobs = { tokens: [" a", "", "é", "</s>"], token_logprobs: [-1, -1, -1, -1], top_logprobs: [{ " a": -1 }, { "bytes:\\xc3": -1 }, { "bytes:\\xa9": -1 }, { "</s>": -1 }] };
  assert.deepEqual(completion.feed({ text: " aé", logprobs }).map((each) => each.isInText), [true, true, true, false]);
});

test("a stream that ends early shows what has come", () => {
  const reader = new ChatReader();
  const early = reader.feed({ token_ids: [1, 2], logprobs: { content: [listed(2, "b", -1)] } });
  assert.deepEqual(early, []);
  assert.deepEqual(reader.end().map((each) => each.text), ["b"]);
});

test("chat without a response template and chunks without logprobs are read", () => {
  const reader = new ChatReader();
  assert.deepEqual(reader.feed({ delta: { role: "assistant" }, logprobs: null }), []);
  const [one] = reader.feed({ token_ids: [5], logprobs: { content: [listed(5, " 42", -0.5)] } });
  assert.deepEqual([one.id, one.text, one.logprob, one.channel], [5, " 42", -0.5, "content"]);
});

test("completions: digits as keys, pieces of characters, and equal texts", () => {
  const reader = new CompletionReader();
  const [digit, piece, completing, twin] = reader.feed({
    token_ids: [10, 11, 12, 13],
    logprobs: {
      tokens: ["7", "", " 😀", "a"],
      token_logprobs: [-2, -0.5, -0.25, -3],
      top_logprobs: [
        { 1: -0.1, 7: -2, " seven": -5 },
        { "bytes: \\xf0\\x9f": -0.5, x: -1 },
        { "bytes:\\x98\\x80": -0.25, " 😀": -4 },
        { a: -1, "bytes:a": -3 },
      ],
    },
  });
  assert.deepEqual([digit.id, digit.bytes, digit.candidates.map((each) => each.text)], [10, [0x37], ["7", "1", " seven"]]);
  assert.deepEqual(shown(piece), { hex: "20 F0 9F", text: "" });
  assert.deepEqual(shown(completing), { hex: "98 80", text: " 😀" });
  assert.deepEqual(completing.candidates.map((each) => each.isSampled), [true, false]);
  assert.deepEqual([twin.bytes, twin.logprob, twin.candidates[0].logprob], [[0x61], -3, -3]);
});

test("an echoed prompt has ranks, and its first token's bytes where they can be known", () => {
  const entries = scoredEntries({
    prompt_token_ids: [1, 2],
    prompt_logprobs: [null, { 2: { logprob: -6, rank: 41, decoded_token: "" }, 3: { logprob: -1, rank: 1, decoded_token: "" } }],
    logprobs: { tokens: ["", "😀"], token_logprobs: [null, -6], top_logprobs: [null, { "bytes:\\x98\\x80": -6, "bytes:\\x98": -1 }] },
  });
  assert.deepEqual(entries.map((each) => each.bytes), [[0xf0, 0x9f], [0x98, 0x80]]);
  assert.deepEqual(entries.map(measure.rankOf), [null, { rank: 41, isExact: true }]);
});

test("empty controls are left out of the request, filled ones are numbers", () => {
  const settings = { max_tokens: "5", temperature: "0", top_p: " ", stop: "a\n\nb c", logprobs: "3", logprobs_mode: "raw" };
  assert.deepEqual(buildRequest("completion", "Hi", settings, "m"), {
    model: "m", return_token_ids: true, max_tokens: 5, temperature: 0, stop: ["a", "b c"],
    stream: true, stream_options: { include_usage: true }, prompt: "Hi", logprobs: 3,
  });
  const chat = buildRequest("chat", [{ role: "user", content: "Hi" }], { tools: '[{"type": "function"}]' }, null);
  assert.deepEqual([chat.top_logprobs, chat.logprobs, chat.tools, "model" in chat], [10, true, [{ type: "function" }], false]);
  const score = buildRequest("score", "Hi", settings, "m");
  assert.deepEqual([score.echo, score.max_tokens, score.prompt_logprobs, "temperature" in score], [true, 0, 3, false]);
});

test("what cannot be read is said with its name", () => {
  assert.throws(() => buildRequest("chat", [], { tools: "[" }, "m"), /^Error: tools: not valid JSON/);
  assert.throws(() => buildRequest("chat", [], { seed: "x" }, "m"), /^Error: seed: “x” is not a number/);
});

/** RFC 4180, read back by a reader of its own. */
function csvRows(text) {
  const fields = [...text.matchAll(/("(?:[^"]|"")*"|[^",\r\n]*)(,|\r\n)/g)];
  const rows = [[]];
  for (const [, field, end] of fields) {
    rows.at(-1).push(field.startsWith('"') ? field.slice(1, -1).replaceAll('""', '"') : field);
    if (end !== ",") rows.push([]);
  }
  return rows.slice(0, -1);
}

test("CSV reads back, with quotes, commas, line breaks and leading spaces in tokens", () => {
  const texts = ['"', ",", "\n", " a", "é,\r\n\"", ""];
  const entries = texts.map((text, index) => ({ ...entry(0.5, 0.25), index, text, bytes: utf8(text) }));
  const [header, ...rows] = csvRows(toCsv(entries));
  const column = (name) => rows.map((row) => row[header.indexOf(name)]);
  assert.deepEqual(column("token"), texts);
  assert.deepEqual(column("bytes"), texts.map((text) => hex(utf8(text))));
  assert.ok(column("logprob").every((text) => Number(text) === Math.log(0.5)));
  assert.deepEqual(JSON.parse(column("candidates")[0])[1], ["1", "31", Math.log(0.25)]);
});

test("JSON holds the request, the sums and every entry", () => {
  const totals = new measure.Totals();
  const entries = [entry(0.5, 0.25), { ...entry(0.5, 0.25), index: 1 }];
  for (const each of entries) totals.add(each);
  const run = JSON.parse(toJson({ request: { a: 1 }, reply: { id: "r" }, totals, entries }));
  assert.deepEqual([run.request, run.reply, run.summary.num_tokens, run.tokens.length], [{ a: 1 }, { id: "r" }, 2, 2]);
  assert.deepEqual(run.tokens[1].candidates[1], { token_id: 1, token: "1", bytes: [0x31], logprob: Math.log(0.25) });
});
