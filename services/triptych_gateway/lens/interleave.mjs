// The order of tokens whose logprobs come in a list per channel.

/**
 * The longest way to take the entries of `lists` (by channel) in the order of `ids`.
 *
 * A step takes the entries of one token: one, or one in each channel that it spans. Two channels may
 * begin with equal tokens, so a step can have a choice that only later ids decide: each is tried, the
 * channel of the step before first. Gives the steps: {taken: [{channel, entry}], isSure}; `isSure`
 * where there was no choice. Fewer steps than ids: entries are yet to come.
 */
export function interleave(ids, lists, lastChannel) {
  const channels = Object.keys(lists);
  const start = { depth: 0, at: Object.fromEntries(channels.map((name) => [name, 0])), channel: lastChannel };
  const seen = new Set();
  const open = [start];
  let best = start;
  while (open.length > 0) {
    const state = open.pop();
    const name = channels.map((each) => state.at[each]).join();
    if (seen.has(name)) continue;
    seen.add(name);
    if (state.depth > best.depth) best = state;
    if (best.depth === ids.length) break;
    const options = optionsAt(state, ids[state.depth], lists);
    for (const taken of options.reverse()) open.push(after(state, taken, options.length === 1));
  }
  return stepsTo(best);
}

/** Ways to take the token `id` next, the most likely first. */
function optionsAt({ at, channel }, id, lists) {
  const order = [channel, ...Object.keys(lists).filter((name) => name !== channel)];
  const heads = order
    .map((name) => ({ channel: name, entry: lists[name][at[name]] }))
    .filter(({ entry }) => entry?.token_id === id);
  const whole = heads.filter((head) => isWhole([head]));
  const parts = heads.filter((head) => !whole.includes(head));
  return [...whole.map((head) => [head]), ...subsets(parts).filter(isWhole)];
}

function subsets(heads) {
  return heads.reduce((all, head) => [...all, ...all.map((one) => [...one, head])], [[]]);
}

function isWhole(heads) {
  const joined = heads.reduce((sum, { entry }) => sum + entry.bytes.length, 0);
  return heads.length > 0 && joined === wholeLength(heads[0].entry);
}

/** The first candidate is the sampled token, with all of its bytes. */
function wholeLength(entry) {
  return entry.top_logprobs[0]?.bytes.length ?? entry.bytes.length;
}

function after(state, taken, isSure) {
  const at = { ...state.at };
  for (const { channel } of taken) at[channel] += 1;
  return { depth: state.depth + 1, at, channel: taken.at(-1).channel, step: { taken, isSure }, before: state };
}

function stepsTo(state) {
  const steps = [];
  for (let one = state; one.step; one = one.before) steps.push(one.step);
  return steps.reverse();
}
