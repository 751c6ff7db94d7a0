// Runs as JSON and CSV.

import { hex } from "./bytes.mjs";
import { entropyAtLeast, probability, rankOf, restOf } from "./measure.mjs";

const COLUMNS = [
  "index",
  "channel",
  "is_in_text",
  "token_id",
  "token",
  "bytes",
  "logprob",
  "probability",
  "rank",
  "rank_is_exact",
  "entropy_at_least_nats",
  "rest_probability",
  "candidates",
];

/** One row per entry, RFC 4180. `candidates` is JSON: [token, bytes in hex, logprob] each. */
export function toCsv(entries) {
  const rows = entries.map((entry) => {
    const rank = rankOf(entry);
    const isScored = entry.candidates.length > 0;
    const candidates = entry.candidates.map((each) => [
      each.text,
      each.bytes === null ? null : hex(each.bytes),
      each.logprob,
    ]);
    return [
      entry.index,
      entry.channel,
      entry.isInText,
      entry.id,
      entry.text,
      entry.bytes === null ? null : hex(entry.bytes),
      entry.logprob,
      probability(entry.logprob),
      rank?.rank,
      rank?.isExact,
      entropyAtLeast(entry.candidates),
      isScored ? restOf(entry.candidates) : null,
      JSON.stringify(candidates),
    ];
  });
  return [COLUMNS, ...rows].map((row) => row.map(field).join(",") + "\r\n").join("");
}

function field(value) {
  const text = value === null || value === undefined ? "" : String(value);
  return /[",\r\n]/.test(text) || text !== text.trim() ? `"${text.replaceAll('"', '""')}"` : text;
}

/** The request, what the server said about the reply, the sums, and every entry. */
export function toJson({ request, reply, totals, entries }) {
  const summary = {
    num_tokens: totals.numTokens,
    num_scored: totals.numScored,
    sum_logprob: totals.sumLogprob,
    mean_logprob: totals.meanLogprob,
    perplexity: totals.perplexity,
    mean_entropy_at_least_nats: totals.meanEntropyAtLeast,
  };
  const tokens = entries.map((entry) => ({
    index: entry.index,
    channel: entry.channel,
    is_in_text: entry.isInText,
    token_id: entry.id,
    token: entry.text,
    bytes: entry.bytes,
    logprob: entry.logprob,
    rank: rankOf(entry)?.rank ?? null,
    rank_is_exact: rankOf(entry)?.isExact ?? null,
    entropy_at_least_nats: entropyAtLeast(entry.candidates),
    spans_channels: entry.isLaterShare || undefined,
    candidates: entry.candidates.map((each) => ({
      token_id: each.id,
      token: each.text,
      bytes: each.bytes,
      logprob: each.logprob,
    })),
  }));
  return JSON.stringify({ request, reply, summary, tokens }, null, 1);
}
