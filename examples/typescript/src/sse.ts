// generate's JSON door: the same ids and scores as server-sent events, with nothing but fetch.
//
//     node dist/sse.js 504 3575 282 4649 314

interface Candidate {
  token_id: number;
  logprob: number;
  rank: number;
}

interface Entry extends Candidate {
  top_logprobs: Candidate[];
}

interface Choice {
  index: number;
  token_ids: number[];
  finish_reason: string | null;
  logprobs: { content: Entry[] } | null;
}

interface Chunk {
  choices: Choice[];
  usage: { completion_tokens: number } | null;
}

const SERVER = process.env.GENERATE ?? "http://127.0.0.1:8002";

async function main(prompt: number[]): Promise<number> {
  const response = await fetch(`${SERVER}/inference/v1/generate`, {
    method: "POST",
    signal: AbortSignal.timeout(60_000), // aborting closes the connection, which ends the request
    body: JSON.stringify({
      token_ids: prompt,
      sampling_params: { temperature: 0, max_tokens: 8, logprobs: 2 },
      stream: true,
      stream_options: { include_usage: true },
    }),
  });
  if (!response.ok) {
    console.error(`${response.status}: ${(await response.json()).error.message}`);
    return 1;
  }
  for await (const { event, data } of events(response.body!)) {
    if (data === "[DONE]") break;
    if (event === "error") {
      console.error(JSON.parse(data).error.message);
      return 1;
    }
    const chunk = JSON.parse(data) as Chunk;
    for (const entry of chunk.choices.flatMap((choice) => choice.logprobs?.content ?? [])) {
      const best = entry.top_logprobs.map((each) => `${each.token_id}:${each.logprob}`);
      console.log(entry.token_id, `rank ${entry.rank}`, best.join(" "));
    }
    if (chunk.usage) console.log(`${chunk.usage.completion_tokens} tokens`);
  }
  return 0;
}

interface ServerEvent {
  event: string;
  data: string;
}

/** The events of a stream, without its comments. */
async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  const decoder = new TextDecoder();
  let held = "";
  for await (const bytes of body) {
    const blocks = (held + decoder.decode(bytes, { stream: true })).split("\n\n");
    held = blocks.pop()!;
    for (const block of blocks) {
      const field = (name: string) => block.match(new RegExp(`^${name}: (.*)$`, "m"))?.[1];
      const data = field("data");
      if (data !== undefined) yield { event: field("event") ?? "message", data };
    }
  }
}

process.exitCode = await main(process.argv.slice(2).map(Number));
