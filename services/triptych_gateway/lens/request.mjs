// Request bodies from what was typed. An empty control is left out: the server's default holds.

const NUMBERS = [
  "temperature",
  "top_p",
  "top_k",
  "min_p",
  "seed",
  "presence_penalty",
  "frequency_penalty",
  "repetition_penalty",
];

export const PATHS = {
  chat: "v1/chat/completions",
  completion: "v1/completions",
  score: "v1/completions",
};

/**
 * The body for `mode` (chat, completion or score).
 *
 * `prompt` is a list of {role, content} for chat, otherwise a text. `settings` maps names of controls
 * to strings. Throws an Error that says which control cannot be read.
 */
export function buildRequest(mode, prompt, settings, model) {
  const common = { ...(model ? { model } : {}), return_token_ids: true };
  const num = number(settings, "logprobs") ?? 10;
  if (mode === "score") {
    const scores = { logprobs: num, prompt_logprobs: num };
    return { ...common, prompt, echo: true, max_tokens: 0, ...scores };
  }
  const streamed = { ...common, ...sampling(settings), stream: true };
  streamed.stream_options = { include_usage: true };
  if (mode === "completion") return { ...streamed, prompt, logprobs: num };
  const tools = parsedTools(settings.tools ?? "");
  return { ...streamed, messages: prompt, logprobs: true, top_logprobs: num, ...tools };
}

function sampling(settings) {
  const fields = {};
  for (const name of ["max_tokens", ...NUMBERS]) {
    const value = number(settings, name);
    if (value !== null) fields[name] = value;
  }
  const stops = (settings.stop ?? "").split("\n").filter((line) => line !== "");
  if (stops.length > 0) fields.stop = stops;
  if (settings.logprobs_mode === "processed") fields.logprobs_mode = "processed";
  return fields;
}

function number(settings, name) {
  const text = (settings[name] ?? "").trim();
  if (text === "") return null;
  const value = Number(text);
  if (Number.isNaN(value)) throw new Error(`${name}: “${text}” is not a number`);
  return value;
}

function parsedTools(text) {
  if (text.trim() === "") return {};
  try {
    return { tools: JSON.parse(text) };
  } catch (error) {
    throw new Error(`tools: not valid JSON (${error.message})`);
  }
}
