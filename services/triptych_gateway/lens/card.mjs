// The card about one token: its figures, and the best candidates with bars and ranks.

import { hex, shown, visible } from "./bytes.mjs";
import {
  entropyAtLeast,
  fixed,
  percent,
  probability,
  rankOf,
  rankText,
  rankedCandidates,
  restOf,
} from "./measure.mjs";

const GAP = 8;
const NARROW = matchMedia("(max-width: 44rem)");
const NUM_SPOKEN = 5;
const NAMES = { reasoning_content: "reasoning", content: "content", tool_calls: "tool call", markup: "markup" };

/** One card for the whole page. A pinned one stays until Escape, or a click elsewhere. */
export class TokenCard {
  #how = null;
  #anchor = null;

  constructor(root, summary) {
    this.root = root;
    this.summary = summary;
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.hide("escape"));
    document.addEventListener("pointerdown", (event) => {
      if (!event.target.closest(".card, [data-i]")) this.hide("escape");
    });
    addEventListener("resize", () => this.hide("escape"));
  }

  /** A hover does not replace a pinned card. */
  show(entry, anchor, how) {
    if (how === "hover" && this.#how === "pin") return;
    if (how === "focus" && this.#how === "pin" && anchor === this.#anchor) return;
    this.#anchor?.classList.remove("shown");
    this.#how = how;
    this.#anchor = anchor;
    anchor.classList.add("shown");
    this.root.replaceChildren(...contents(entry));
    this.root.classList.toggle("pinned", how === "pin");
    this.root.hidden = false;
    this.summary.textContent = spoken(entry);
    this.#place(anchor);
  }

  /** Hide what `how` had shown; "escape" hides any. */
  hide(how) {
    if (this.#how === null || (how !== "escape" && how !== this.#how)) return;
    this.#anchor.classList.remove("shown");
    this.#how = this.#anchor = null;
    this.root.hidden = true;
  }

  /** Below the token, or above where there is no room. */
  #place(anchor) {
    if (NARROW.matches) return this.#keepInView(anchor);
    const box = anchor.getClientRects()[0] ?? anchor.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.root;
    const left = Math.max(GAP, Math.min(box.left - GAP, innerWidth - width - GAP));
    const fitsBelow = box.bottom + GAP + height < innerHeight;
    const top = fitsBelow ? box.bottom + GAP : Math.max(GAP, box.top - GAP - height);
    this.root.style.left = `${left}px`;
    this.root.style.top = `${top}px`;
  }

  /** A narrow page has the card at its foot (CSS): a token below its edge is scrolled above it. */
  #keepInView(anchor) {
    const hidden = anchor.getBoundingClientRect().bottom + GAP - this.root.getBoundingClientRect().top;
    if (hidden > 0) scrollBy(0, hidden);
  }
}

function contents(entry) {
  const parts = [head(entry), facts(entry)];
  if (entry.candidates.length > 0) parts.push(bars(entry), note(entry));
  return parts;
}

function head(entry) {
  const p = probability(entry.logprob);
  return made("div", "card-head", [tokenText(entry), made("span", "card-p", p === null ? "not scored" : percent(p))]);
}

function facts(entry) {
  const pairs = [
    ["logprob", fixed(entry.logprob, 3)],
    ["rank", rankText(rankOf(entry))],
    ["channel", channelText(entry)],
    ["token id", entry.id ?? "–"],
    ["bytes", entry.bytes === null ? "–" : shortHex(entry.bytes)],
  ];
  const cells = pairs.map(([name, value]) => made("div", "", [made("dt", "", name), made("dd", "", String(value))]));
  return made("dl", "card-facts", cells);
}

function channelText({ channel, isLaterShare, isInText }) {
  if (isLaterShare) return `${NAMES[channel]} (and an earlier one)`;
  return isInText ? NAMES[channel] : `${NAMES[channel]}, not in the text`;
}

function bars(entry) {
  const rows = rankedCandidates(entry).map((each) => {
    const p = probability(each.logprob);
    const bar = made("span", "bar", "");
    bar.style.width = `${Math.max(0.5, p * 100)}%`;
    return made("li", each.isSampled ? "sampled" : "", [
      made("span", "bar-rank", rankText(each)),
      tokenText(each),
      made("span", "bar-track", [bar]),
      made("span", "bar-p", percent(p)),
    ]);
  });
  return made("ol", "card-bars", rows);
}

/** What the entropy counts is said beside it: a reply lists only the best candidates. */
function note(entry) {
  const { candidates } = entry;
  const entropy = `entropy ≥ ${fixed(entropyAtLeast(candidates))} nats`;
  const rest = `${candidates.length} listed, all others (${percent(restOf(candidates))}) counted as one`;
  return made("p", "card-note", [made("b", "", entropy), ` · ${rest}`]);
}

function tokenText(token) {
  const { hex: pieces, text } = shown(token);
  const parts = pieces === null ? [] : [made("b", "bytes", pieces)];
  return made("span", "card-token", [...parts, visible(text)]);
}

function shortHex(bytes) {
  return bytes.length > 24 ? `${hex(bytes.slice(0, 24))} … (${bytes.length})` : hex(bytes);
}

function spoken(entry) {
  const best = rankedCandidates(entry).slice(0, NUM_SPOKEN);
  const texts = best.map((each) => {
    const { hex: pieces, text } = shown(each);
    return `${pieces === null ? "" : `bytes ${pieces} `}${visible(text)} ${percent(probability(each.logprob))}`;
  });
  return texts.length === 0 ? "No candidates." : `Best: ${texts.join(", ")}.`;
}

function made(tag, className, content) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...(Array.isArray(content) ? content : [content]));
  return node;
}
