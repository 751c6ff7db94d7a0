// Figures of tokens: probability, rank, entropy, perplexity, and the level of colour they get.
// Logprobs are natural logarithms, so entropy is in nats.

/** Rounding of float32 logprobs, in the sum of up to some hundred probabilities. */
const ROUNDING = 1e-5;

export const NUM_LEVELS = 7;

/** The probability, null for a token without a score. -9999 stands for minus infinity: 0. */
export function probability(logprob) {
  return logprob === null ? null : Math.exp(logprob);
}

/** The probability that the listed candidates leave to all others. */
export function restOf(candidates) {
  const listed = candidates.reduce((sum, each) => sum + Math.exp(each.logprob), 0);
  return Math.min(1, Math.max(0, 1 - listed));
}

/**
 * A lower bound of the entropy: the listed candidates, and all others as if they were one.
 * Null without candidates.
 */
export function entropyAtLeast(candidates) {
  if (candidates.length === 0) return null;
  const listed = candidates.map((each) => Math.exp(each.logprob));
  return [...listed, restOf(candidates)].reduce((sum, p) => sum + (p > 0 ? -p * Math.log(p) : 0), 0);
}

/**
 * `{rank, isExact}` of the sampled token; null without a score. Not exact: at least that rank.
 *
 * A reply lists the sampled token and the best others. Once one of them is no better, or less
 * probability is left than the token has, all better ones are listed.
 */
export function rankOf(entry) {
  if (entry.logprob === null) return null;
  if (entry.rank !== null) return { rank: entry.rank, isExact: true };
  const others = entry.candidates.filter((each) => !each.isSampled);
  const better = others.filter((each) => each.logprob > entry.logprob).length;
  const isLast = better === others.length;
  const isExact = !isLast || restOf(entry.candidates) + ROUNDING < Math.exp(entry.logprob);
  return { rank: better + 1, isExact };
}

/** The candidates by falling probability, each with its rank; the sampled one's may be a bound. */
export function rankedCandidates(entry) {
  const sorted = [...entry.candidates].sort((a, b) => b.logprob - a.logprob);
  return sorted.map((each) => ({
    ...each,
    ...(each.isSampled
      ? rankOf(entry)
      : { rank: 1 + sorted.filter((one) => one.logprob > each.logprob).length, isExact: true }),
  }));
}

/** Sums over tokens that grow with them. Each token counts once, also if it spans channels. */
export class Totals {
  numTokens = 0;
  numScored = 0;
  #logprobs = 0;
  #entropies = 0;

  add(entry) {
    if (entry.isLaterShare) return;
    this.numTokens += 1;
    if (entry.logprob === null) return;
    this.numScored += 1;
    this.#logprobs += entry.logprob;
    this.#entropies += entropyAtLeast(entry.candidates) ?? 0;
  }

  get meanLogprob() {
    return this.numScored ? this.#logprobs / this.numScored : null;
  }

  get sumLogprob() {
    return this.#logprobs;
  }

  get perplexity() {
    return this.numScored ? Math.exp(-this.meanLogprob) : null;
  }

  get meanEntropyAtLeast() {
    return this.numScored ? this.#entropies / this.numScored : null;
  }
}

/** Per way of colouring: a figure of an entry, and the bounds between the levels 0 (calm) to 6. */
export const COLOURINGS = {
  probability: {
    value: (entry) => probability(entry.logprob),
    bounds: [0.9, 0.7, 0.5, 0.25, 0.1, 0.01],
    labels: ["90 %+", "70 %", "50 %", "25 %", "10 %", "1 %", "less"],
    isBetter: (value, bound) => value >= bound,
  },
  rank: {
    value: (entry) => rankOf(entry)?.rank ?? null,
    bounds: [1, 2, 3, 5, 10, 20],
    labels: ["1st", "2nd", "3rd", "≤ 5", "≤ 10", "≤ 20", "more"],
    isBetter: (value, bound) => value <= bound,
  },
  entropy: {
    value: (entry) => entropyAtLeast(entry.candidates),
    bounds: [0.1, 0.4, 0.8, 1.4, 2, 3],
    labels: ["≤ 0.1", "0.4", "0.8", "1.4", "2", "3", "more"],
    isBetter: (value, bound) => value <= bound,
  },
};

/** The level of `entry`, 0 to 6; null where the figure is not known. */
export function levelOf(entry, colouring) {
  const { value, bounds, isBetter } = COLOURINGS[colouring];
  const figure = value(entry);
  if (figure === null) return null;
  const level = bounds.findIndex((bound) => isBetter(figure, bound));
  return level < 0 ? bounds.length : level;
}

/** `values` in `count` columns: the greatest of each, 0 where there is none. */
export function columns(values, count) {
  if (values.length <= count) return values;
  const tallest = new Array(count).fill(0);
  values.forEach((value, index) => {
    const column = Math.floor((index * count) / values.length);
    tallest[column] = Math.max(tallest[column], value);
  });
  return tallest;
}

export function percent(p) {
  if (p === null) return "–";
  if (p > 0 && p < 0.0001) return "< 0.01 %";
  if (p >= 0.9995) return p > 0.99995 ? "100 %" : `${(p * 100).toFixed(2)} %`;
  return `${(p * 100).toFixed(p < 0.01 ? 2 : 1)} %`;
}

export function fixed(value, digits = 2) {
  return value === null ? "–" : value.toFixed(digits).replace("-", "−");
}

export function rankText(rank) {
  return rank === null ? "–" : `${rank.isExact ? "" : "≥ "}${rank.rank}`;
}
