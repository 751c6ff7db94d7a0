// Replies of the gateway as one list of entries, in the order in which the tokens were sampled.
//
// An entry: {index, channel, id, text, bytes, logprob, rank, candidates, isLaterShare, isInText}.
// `bytes`, `logprob` and `rank` are null where the reply does not say them. A candidate: {id, text,
// bytes, logprob, isSampled}. `isLaterShare`: the token has an entry in an earlier channel too.
// `isInText`: false for a token that the text leaves out: a stop token, or what a stop string cut.
// Source: docs/logprobs.md and docs/channels.md.

import { bytesOfKey, textOf, utf8 } from "./bytes.mjs";
import { interleave } from "./interleave.mjs";

export const CHANNELS = ["reasoning_content", "content", "tool_calls", "markup"];

/** Chat chunks in, entries out. Each channel has a list of its own; the ids say the order. */
export class ChatReader {
  #merge = new ChannelMerge();
  #content = new RunningText();
  #num = 0;

  /** The entries that `choice` of a chunk completes. */
  feed(choice) {
    this.#content.add(choice.delta?.content ?? "");
    this.#merge.push(choice.token_ids ?? [], choice.logprobs ?? {});
    return this.#numbered(this.#merge.drain(false));
  }

  /** What is left when the stream has ended. */
  end() {
    return this.#numbered(this.#merge.drain(true));
  }

  #numbered(shares) {
    return shares.map((share) => {
      const isInText = share.channel !== "content" || this.#content.pass(share.entry.token);
      return { index: this.#num++, ...chatEntry(share), isInText };
    });
  }
}

/** A text that grows, and how far its tokens have come in it. */
class RunningText {
  #text = "";
  #position = 0;

  add(text) {
    this.#text += text;
  }

  /** Whether `token` is what comes next; then it is passed. */
  pass(token) {
    if (!this.#text.startsWith(token, this.#position)) return false;
    this.#position += token.length;
    return true;
  }
}

/** The channels' lists in one order. */
class ChannelMerge {
  #ids = [];
  #lists = Object.fromEntries(CHANNELS.map((name) => [name, []]));
  #channel = "content";

  push(ids, logprobs) {
    this.#ids.push(...ids);
    for (const name of CHANNELS) this.#lists[name].push(...(logprobs[name] ?? []));
  }

  /** What is certain: all that the ids decide, and at the end whatever there is. */
  drain(isEnd) {
    const steps = interleave(this.#ids, this.#lists, this.#channel);
    const isWhole = steps.length === this.#ids.length;
    const unsure = steps.findIndex((step) => !step.isSure);
    const taken = isWhole || isEnd || unsure < 0 ? steps : steps.slice(0, unsure);
    const shares = taken.flatMap((step) => this.#take(step.taken));
    return isEnd ? [...shares, ...this.#leftOver()] : shares;
  }

  #take(shares) {
    this.#ids.shift();
    for (const { channel } of shares) this.#lists[channel].shift();
    this.#channel = shares.at(-1).channel;
    return shares.map((share, position) => ({ ...share, isLaterShare: position > 0 }));
  }

  #leftOver() {
    return CHANNELS.flatMap((channel) =>
      this.#lists[channel].splice(0).map((entry) => ({ channel, entry, isLaterShare: false })),
    );
  }
}

function chatEntry({ channel, entry, isLaterShare }) {
  return {
    channel,
    id: entry.token_id ?? null,
    text: entry.token,
    bytes: entry.bytes,
    logprob: entry.logprob,
    rank: null,
    candidates: entry.top_logprobs.map((each, position) => ({
      id: each.token_id ?? null,
      text: each.token,
      bytes: each.bytes,
      logprob: each.logprob,
      isSampled: position === 0,
    })),
    isLaterShare,
  };
}

/** Completions chunks in, entries out. */
export class CompletionReader {
  #text = new RunningText();
  #num = 0;

  feed(choice) {
    this.#text.add(choice.text ?? "");
    const logprobs = choice.logprobs ?? { tokens: [] };
    return logprobs.tokens.map((token, position) => ({
      index: this.#num++,
      ...completionEntry(logprobs, position, choice.token_ids?.[position] ?? null),
      isInText: this.#text.pass(token),
    }));
  }

  end() {
    return [];
  }
}

/** The entries of an echoed prompt; `choice` has `prompt_logprobs`, which know the ranks. */
export function scoredEntries(choice) {
  const ids = choice.prompt_token_ids ?? [];
  const ranks = choice.prompt_logprobs ?? [];
  const entries = choice.logprobs.tokens.map((_, index) => ({
    index,
    ...completionEntry(choice.logprobs, index, ids[index] ?? null),
    rank: ranks[index]?.[ids[index]]?.rank ?? null,
  }));
  return withFirstBytes(entries);
}

function completionEntry(logprobs, position, id) {
  const text = logprobs.tokens[position];
  const logprob = logprobs.token_logprobs[position];
  const top = logprobs.top_logprobs[position] ?? {};
  const own = ownKey(top, text, logprob);
  const candidates = Object.entries(top).map(([key, value]) => candidateOfKey(key, value, key === own));
  candidates.sort((a, b) => b.isSampled - a.isSampled || b.logprob - a.logprob);
  const sampled = candidates.find((each) => each.isSampled);
  if (sampled) Object.assign(sampled, { id, text });
  return {
    channel: "content",
    id,
    text,
    bytes: sampled?.bytes ?? (text === "" ? null : utf8(text)),
    logprob,
    rank: null,
    candidates,
    isLaterShare: false,
    isInText: true,
  };
}

/** The sampled token's key: its text, unless that is empty, not the token's own, or taken. */
function ownKey(top, text, logprob) {
  if (top[text] === logprob && text !== "") return text;
  const keys = Object.keys(top).filter((key) => top[key] === logprob);
  return keys.find((key) => key.startsWith("bytes:")) ?? keys[0] ?? null;
}

function candidateOfKey(key, logprob, isSampled) {
  const bytes = bytesOfKey(key);
  const text = bytes === null ? key : (textOf(bytes) ?? "");
  return { id: null, text, bytes, logprob, isSampled };
}

/**
 * The first token of a prompt has no candidates, so its bytes are not said. If it begins a character,
 * they are what the pieces after it leave of that character.
 */
function withFirstBytes(entries) {
  if (entries[0]?.bytes !== null) return entries;
  const last = entries.findIndex((entry) => entry.text !== "");
  if (last < 0) return entries;
  const later = entries.slice(1, last + 1).reduce((sum, entry) => sum + entry.bytes.length, 0);
  const whole = utf8(entries[last].text);
  return [{ ...entries[0], bytes: whole.slice(0, whole.length - later) }, ...entries.slice(1)];
}
