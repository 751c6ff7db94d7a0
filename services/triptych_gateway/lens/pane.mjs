// One prompt and its answer. The page has two for a comparison.

import { ApiError, fetchJson, streamChunks } from "./api.mjs";
import { ChatReader, CompletionReader, scoredEntries } from "./entries.mjs";
import { toCsv, toJson } from "./export.mjs";
import { Totals, fixed } from "./measure.mjs";
import { MessagesEditor } from "./messages.mjs";
import { Slices, throttled } from "./pacing.mjs";
import { PATHS, buildRequest } from "./request.mjs";
import { Strip } from "./strip.mjs";
import { TokenView } from "./tokens.mjs";

/** Milliseconds between two looks of the figures of a growing answer, and between two scrolls. */
const FIGURES_MS = 150;
const FOLLOW_MS = 200;

const EXAMPLES = {
  chat: [{ role: "user", content: "Describe the sea in three sentences, and end with an emoji." }],
  completion: "The capital of France is",
  score: "The capital of France is Paris. The capital of France is cheese. 🧀",
};

export class Pane {
  #mode = "chat";
  #texts = { completion: EXAMPLES.completion, score: EXAMPLES.score };
  #abort = null;
  #run = null;
  #follows = true;

  constructor(root, { name, card, say }) {
    this.root = root;
    this.say = say;
    const find = (selector) => root.querySelector(selector);
    this.parts = {
      chat: find(".chat-prompt"),
      text: find(".text-prompt"),
      textarea: find(".text-prompt textarea"),
      textLabel: find(".text-prompt span"),
      answer: find(".answer"),
      stats: find(".stats"),
      error: find(".error"),
      state: find(".state"),
      goOn: find(".go-on"),
      end: find(".end"),
    };
    root.setAttribute("aria-label", `Prompt ${name}`);
    find(".pane-name").textContent = name;
    this.editor = new MessagesEditor(this.parts.chat);
    this.editor.messages = EXAMPLES.chat;
    this.strip = new Strip(find(".strip"), (index) => this.view.focus(index));
    this.view = new TokenView(find(".tokens"), {
      onShow: (entry, span, how) => card.show(entry, span, how),
      onHide: (how) => card.hide(how),
      onDrawn: throttled(() => this.#drawFigures(), FIGURES_MS),
    });
    this.parts.goOn.addEventListener("click", () => this.editor.goOn(this.#run.content));
    find(".as-json").addEventListener("click", () => this.#export("json"));
    find(".as-csv").addEventListener("click", () => this.#export("csv"));
    this.#followTheEnd();
  }

  get prompt() {
    return this.#mode === "chat" ? this.editor.messages : this.parts.textarea.value;
  }

  set prompt(prompt) {
    if (this.#mode === "chat") this.editor.messages = prompt;
    else this.parts.textarea.value = prompt;
  }

  set mode(mode) {
    if (this.#mode !== "chat") this.#texts[this.#mode] = this.parts.textarea.value;
    this.#mode = mode;
    this.parts.chat.hidden = mode !== "chat";
    this.parts.text.hidden = mode === "chat";
    if (mode === "chat") return;
    this.parts.textLabel.textContent = mode === "score" ? "Text to score" : "Prompt";
    this.parts.textarea.value = this.#texts[mode];
  }

  /** Ask for an answer and show it. Never throws: a failure is shown. */
  async run(settings, { model, key }) {
    this.#abort = new AbortController();
    this.#start();
    try {
      const body = buildRequest(this.#run.mode, this.prompt, settings, model);
      this.#run.request = body;
      await this.#receive({ key, body, signal: this.#abort.signal });
      this.#end(this.#run.mode === "score" ? "scored" : `ended: ${this.#run.reply.finish_reason}`);
    } catch (error) {
      if (this.#abort.signal.aborted) this.#end("stopped");
      else this.#fail(error);
    }
  }

  stop() {
    this.#abort?.abort();
  }

  colourBy(colouring) {
    this.view.colourBy(colouring);
  }

  redraw() {
    this.strip.draw();
  }

  #start() {
    this.#run = { mode: this.#mode, reply: {}, content: "", totals: new Totals(), startMs: performance.now() };
    this.#follows = true;
    this.view.reset();
    this.strip.show([]);
    this.parts.answer.hidden = false;
    this.parts.error.hidden = true;
    this.parts.goOn.hidden = true;
    this.parts.answer.setAttribute("aria-busy", "true");
    this.parts.answer.classList.remove("empty");
    this.#showState("waiting …");
    this.#drawFigures();
  }

  async #receive(call) {
    if (this.#run.mode === "score") return this.#receiveScores(call);
    const reader = this.#run.mode === "chat" ? new ChatReader() : new CompletionReader();
    const slices = new Slices();
    try {
      for await (const chunk of streamChunks(PATHS[this.#run.mode], call)) {
        await slices.pause();
        this.#note(chunk);
        for (const choice of chunk.choices) this.#read(choice, reader);
      }
    } finally {
      this.#take(reader.end());
    }
  }

  #read(choice, reader) {
    const { reply } = this.#run;
    this.#run.content += choice.delta?.content ?? choice.text ?? "";
    if (choice.finish_reason) reply.finish_reason = choice.finish_reason;
    if (choice.stop_reason !== undefined) reply.stop_reason = choice.stop_reason;
    this.#take(reader.feed(choice));
  }

  async #receiveScores(call) {
    const reply = await fetchJson(PATHS.score, call);
    this.#note(reply);
    this.#take(scoredEntries(reply.choices[0]));
  }

  #note({ id, model, created, usage }) {
    Object.assign(this.#run.reply, { id, model, created }, usage ? { usage } : {});
  }

  #take(entries) {
    if (entries.length === 0) return;
    const now = performance.now();
    if (this.#run.firstMs === undefined && this.#run.mode !== "score") this.#showState("answering …");
    this.#run.firstMs ??= now - this.#run.startMs;
    this.#run.lastMs = now - this.#run.startMs;
    for (const entry of entries) this.#run.totals.add(entry);
    this.view.push(entries);
  }

  #end(state) {
    const { totals, content } = this.#run;
    this.parts.answer.setAttribute("aria-busy", "false");
    this.parts.answer.classList.toggle("empty", totals.numTokens === 0);
    this.parts.goOn.hidden = this.#run.mode !== "chat" || content === "";
    this.#showState(state);
    this.#drawFigures();
    this.say(`${state}. ${totals.numTokens} tokens, mean logprob ${fixed(totals.meanLogprob)}.`);
  }

  #fail(error) {
    const facts = error instanceof ApiError ? error.facts : "";
    const [message, line] = this.parts.error.children;
    message.textContent = error.message;
    line.textContent = facts;
    this.parts.error.hidden = false;
    this.#end("failed");
  }

  #showState(state) {
    this.parts.state.textContent = state;
  }

  #drawFigures() {
    const { totals, firstMs, lastMs } = this.#run;
    const seconds = (lastMs - firstMs) / 1000;
    const isStream = this.#run.mode !== "score";
    const speed = isStream && totals.numTokens > 1 && seconds > 0 ? (totals.numTokens - 1) / seconds : null;
    const figures = {
      tokens: String(totals.numTokens),
      "mean-logprob": fixed(totals.meanLogprob, 3),
      perplexity: fixed(totals.perplexity),
      entropy: totals.meanEntropyAtLeast === null ? "–" : `≥ ${fixed(totals.meanEntropyAtLeast)}`,
      speed: speed === null ? "–" : `${speed.toFixed(speed < 10 ? 1 : 0)} / s`,
      first: firstMs === undefined ? "–" : `${Math.round(firstMs)} ms`,
    };
    for (const [name, text] of Object.entries(figures)) {
      this.parts.stats.querySelector(`[data-figure="${name}"]`).textContent = text;
    }
    this.strip.show(this.view.entries);
  }

  #export(kind) {
    const { request, reply, totals } = this.#run;
    const { entries } = this.view;
    const text = kind === "csv" ? toCsv(entries) : toJson({ request, reply, totals, entries });
    const type = kind === "csv" ? "text/csv" : "application/json";
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = `${reply.id ?? "answer"}.${kind}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  }

  /** While the end of a growing answer is in view it stays there, unless the reader scrolls away. */
  #followTheEnd() {
    new IntersectionObserver(([{ isIntersecting }]) => {
      if (isIntersecting) this.#follows = true;
    }).observe(this.parts.end);
    const follow = throttled(() => {
      if (this.#follows) this.parts.end.scrollIntoView({ block: "end" });
    }, FOLLOW_MS);
    new ResizeObserver(follow).observe(this.parts.answer);
    for (const type of ["wheel", "touchmove", "keydown", "pointerdown"]) {
      addEventListener(type, () => (this.#follows = false), { passive: true });
    }
  }
}
