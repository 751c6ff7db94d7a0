// The tokens of one answer on the page: a span each, coloured by its level, in blocks by channel.

import { shown, visible } from "./bytes.mjs";
import { levelOf, percent, probability, rankText, rankOf } from "./measure.mjs";

/** Milliseconds of a frame that new tokens may take; the rest wait for the next frame. */
const FRAME_BUDGET_MS = 6;
const PAGE = 20;
/** N jumps to the next token that is at least this surprising. */
const SURPRISE = 0.1;

const CHANNEL_NAMES = { reasoning_content: "reasoning", content: "answer", tool_calls: "tool call" };

/**
 * Writes entries into `root` and tells which one the reader looks at.
 *
 * One token of all is in the tab order (roving focus); only it has a role and a label, so that a
 * screen reader reads the others as the running text that they are.
 */
export class TokenView {
  entries = [];
  #spans = [];
  #queue = [];
  #frame = 0;
  #block = null;
  #line = null;
  #channel = null;
  #current = -1;
  #colouring = "probability";

  /**
   * `onShow(entry, span, how)` and `onHide(how)`, `how` being "hover", "focus" or "pin";
   * `onDrawn()` after each batch.
   */
  constructor(root, { onShow, onHide, onDrawn }) {
    this.root = root;
    this.onShow = onShow;
    this.onHide = onHide;
    this.onDrawn = onDrawn;
    root.addEventListener("pointerover", (event) => this.#hover(event));
    root.addEventListener("pointerleave", () => this.onHide("hover"));
    root.addEventListener("click", (event) => this.#pin(this.#indexOf(event.target)));
    root.addEventListener("keydown", (event) => this.#key(event));
    root.addEventListener("focusout", () => this.onHide("focus"));
  }

  reset() {
    this.onHide("escape");
    cancelAnimationFrame(this.#frame);
    this.entries = [];
    this.#spans = [];
    this.#queue = [];
    this.#frame = 0;
    this.#block = this.#line = this.#channel = null;
    this.#current = -1;
    this.root.replaceChildren();
  }

  /** Take `entries` in now; they are drawn with the next frames. */
  push(entries) {
    this.entries.push(...entries);
    this.#queue.push(...entries);
    if (this.#queue.length > 0) this.#frame ||= requestAnimationFrame(() => this.#draw());
  }

  colourBy(colouring) {
    this.#colouring = colouring;
    this.#spans.forEach((span, index) => {
      span.className = this.#classOf(this.entries[index]);
    });
  }

  /** Move the focus to the token `index`. */
  focus(index) {
    this.#makeCurrent(index);
    this.#spans[this.#current]?.focus();
  }

  #draw() {
    const end = performance.now() + FRAME_BUDGET_MS;
    let count = 0;
    while (count < this.#queue.length && performance.now() < end) {
      this.#append(this.#queue[count]);
      count += 1;
    }
    this.#queue.splice(0, count);
    this.#frame = this.#queue.length > 0 ? requestAnimationFrame(() => this.#draw()) : 0;
    if (this.#current < 0 && this.#spans.length > 0) this.#makeCurrent(0);
    this.onDrawn();
  }

  #append(entry) {
    const isMarkup = isAside(entry);
    if (!this.#block || (!isMarkup && this.#channel !== entry.channel)) {
      this.#openBlock(isMarkup ? null : entry.channel);
    }
    const span = document.createElement("span");
    span.className = this.#classOf(entry);
    span.dataset.i = this.#spans.length;
    fill(span, entry);
    this.#line.append(span);
    this.#spans.push(span);
    if (!isMarkup && entry.text.endsWith("\n")) this.#openLine();
  }

  /** A block of markup alone belongs to no channel: the first text after it opens a new one. */
  #openBlock(channel) {
    this.#channel = channel;
    this.#block = document.createElement("div");
    this.#block.className = `block ${channel ?? "bare"}`;
    if (channel && channel !== "content") {
      const label = document.createElement("span");
      label.className = "block-name";
      label.textContent = CHANNEL_NAMES[channel];
      this.#block.append(label);
    }
    this.root.append(this.#block);
    this.#openLine();
  }

  #openLine() {
    this.#line = document.createElement("div");
    this.#line.className = "line";
    this.#block.append(this.#line);
  }

  #classOf(entry) {
    const level = levelOf(entry, this.#colouring);
    const kind = isAside(entry) ? " mark" : "";
    return `t ${level === null ? "unscored" : `l${level}`}${kind}`;
  }

  #indexOf(element) {
    const span = element.closest?.("[data-i]");
    return span ? Number(span.dataset.i) : -1;
  }

  #hover(event) {
    const index = this.#indexOf(event.target);
    if (event.pointerType === "touch") return;
    if (index < 0) this.onHide("hover");
    else this.onShow(this.entries[index], this.#spans[index], "hover");
  }

  #pin(index) {
    if (index < 0) return;
    this.focus(index);
    this.onShow(this.entries[index], this.#spans[index], "pin");
  }

  #makeCurrent(index) {
    const before = this.#spans[this.#current];
    for (const name of ["tabindex", "role", "aria-label", "aria-describedby"]) before?.removeAttribute(name);
    this.#current = Math.max(0, Math.min(index, this.#spans.length - 1));
    const span = this.#spans[this.#current];
    if (!span) return;
    span.tabIndex = 0;
    span.setAttribute("role", "button");
    span.setAttribute("aria-label", labelOf(this.entries[this.#current]));
    span.setAttribute("aria-describedby", "card-summary");
    span.onfocus ??= () => this.onShow(this.entries[Number(span.dataset.i)], span, "focus");
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const to = this.#target(event.key);
    if (to !== null) this.focus(to);
    else if (event.key === "Enter" || event.key === " ") this.#pin(this.#current);
    else return;
    event.preventDefault();
  }

  #target(key) {
    const moves = { ArrowRight: 1, ArrowLeft: -1, PageDown: PAGE, PageUp: -PAGE };
    if (key in moves) return this.#current + moves[key];
    if (key === "Home") return 0;
    if (key === "End") return this.#spans.length - 1;
    if (key === "ArrowDown" || key === "ArrowUp") return this.#otherLine(key === "ArrowDown" ? 1 : -1);
    if (key === "n" || key === "N") return this.#surprise(key === "n" ? 1 : -1);
    return null;
  }

  /** The token of the next (1) or previous (-1) row of text that lies nearest below or above. */
  #otherLine(step) {
    const from = this.#spans[this.#current].getBoundingClientRect();
    let best = this.#current;
    let row = null;
    for (let i = this.#current + step; this.#spans[i]; i += step) {
      const box = this.#spans[i].getClientRects()[0];
      if (!box || Math.abs(box.top - from.top) < from.height / 2) continue;
      row ??= box.top;
      if (Math.abs(box.top - row) >= from.height / 2) break;
      const bestBox = this.#spans[best].getBoundingClientRect();
      const isNearer = Math.abs(box.left - from.left) < Math.abs(bestBox.left - from.left);
      if (best === this.#current || isNearer) best = i;
    }
    return best;
  }

  #surprise(step) {
    for (let i = this.#current + step; this.entries[i]; i += step) {
      const p = probability(this.entries[i].logprob);
      if (p !== null && p < SURPRISE) return i;
    }
    return this.#current;
  }
}

/** Not part of what the answer says: tags, stop tokens, and what a stop string cut off. */
function isAside(entry) {
  return entry.channel === "markup" || !entry.isInText;
}

/** Text as it is; line breaks with a sign before them; pieces of characters as bytes. */
function fill(span, entry) {
  const { hex, text } = shown(entry);
  if (hex !== null) span.append(element("b", "bytes", hex));
  if (isAside(entry)) span.append(visible(text).replaceAll("␣", " "));
  else if (text.includes("\n")) appendLines(span, text);
  else span.append(text);
  if (hex === null && text === "") span.append(element("b", "bytes", `#${entry.id ?? "?"}`));
}

function appendLines(span, text) {
  text.split(/(?=\n)|(?<=\n)/).forEach((part) => {
    if (part === "\n") span.append(element("i", "newline", ""));
    span.append(part);
  });
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

function labelOf(entry) {
  const { hex, text } = shown(entry);
  const name = hex === null ? visible(text) : `bytes ${hex} ${text}`;
  if (entry.logprob === null) return `${name}, not scored`;
  return `${name}, ${percent(probability(entry.logprob))}, rank ${rankText(rankOf(entry))}`;
}
