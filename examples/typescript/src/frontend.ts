// A custom frontend: text to ids, a stream of ids from generate, text with every token's bytes.
//
//     node dist/frontend.js --tokenizer MODEL_DIR/tokenizer.json "The capital of France is"

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import * as grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { Pieces, type Candidate } from "./pieces.js";
import type { ProtoGrpcType } from "./generated/generate.js";
import type { GenerateDelta__Output } from "./generated/triptych/v1/GenerateDelta.js";
import type { GenerateRequest } from "./generated/triptych/v1/GenerateRequest.js";
import type { GenerateServiceClient } from "./generated/triptych/v1/GenerateService.js";
import type { Logprobs__Output } from "./generated/triptych/v1/Logprobs.js";

const PROTO = fileURLToPath(new URL("../../../proto/", import.meta.url));

async function main(): Promise<number> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      tokenizer: { type: "string" },
      generate: { type: "string", default: "127.0.0.1:9002" },
      "max-tokens": { type: "string", default: "16" },
      stop: { type: "string", default: "" },
    },
  });
  const prompt = positionals[0];
  if (prompt === undefined || values.tokenizer === undefined) {
    console.error("usage: node dist/frontend.js --tokenizer PATH [--stop TEXT] PROMPT");
    return 2;
  }
  const pieces = new Pieces(readFileSync(values.tokenizer, "utf8"));
  const request: GenerateRequest = {
    token_ids: pieces.encode(prompt),
    sampling_params: { temperature: 0, max_tokens: Number(values["max-tokens"]), logprobs: 3 },
  };
  const client = connect(values.generate);
  try {
    await answer(client, request, pieces, Buffer.from(values.stop));
    return 0;
  } catch (error) {
    const { code, details } = error as grpc.ServiceError;
    console.error(`generate: ${grpc.status[code]}: ${details}`);
    return 1;
  } finally {
    client.close();
  }
}

function connect(address: string): GenerateServiceClient {
  const options = { keepCase: true, enums: String, longs: String, defaults: true, oneofs: true };
  const definition = loadSync("triptych/v1/generate.proto", { ...options, includeDirs: [PROTO] });
  const loaded = grpc.loadPackageDefinition(definition) as unknown as ProtoGrpcType;
  const credentials = grpc.credentials.createInsecure();
  return new loaded.triptych.v1.GenerateService(address, credentials);
}

/** Prints each token as it comes, then the text, up to `stop` where it is not empty. */
async function answer(
  client: GenerateServiceClient,
  request: GenerateRequest,
  pieces: Pieces,
  stop: Buffer,
): Promise<void> {
  const stream = client.Generate(request, { deadline: Date.now() + 60_000 });
  let text = Buffer.alloc(0);
  let finish = "";
  for await (const delta of stream as AsyncIterable<GenerateDelta__Output>) {
    for (const choice of delta.choices) {
      const candidates = choice.logprobs ? rows(choice.logprobs) : [];
      for (const [position, tokenId] of choice.token_ids.entries()) {
        text = Buffer.concat([text, pieces.bytesOf(tokenId)]);
        const shown = candidates[position]?.map((candidate) => pieces.shown(candidate)) ?? [];
        console.log([String(tokenId).padStart(6), ...shown].join(" "));
      }
      if (choice.finish_reason !== "FINISH_REASON_UNSPECIFIED") finish = choice.finish_reason;
    }
    const end = stop.length > 0 ? text.indexOf(stop) : -1;
    if (end >= 0) {
      // generate knows no text, so a stop string is ours to find
      [text, finish] = [text.subarray(0, end), "stop string"];
      stream.cancel(); // frees what the request held
      break;
    }
  }
  console.log(`text: ${JSON.stringify(text.toString())}`);
  console.log(`finish: ${finish}`);
}

/** Per position its candidates, the position's own token first. */
function rows(columns: Logprobs__Output): Candidate[][] {
  let end = 0;
  return columns.counts.map((count) => {
    const start = end;
    end += count;
    return columns.token_ids.slice(start, end).map((tokenId, offset) => ({
      tokenId,
      logprob: columns.logprobs[start + offset]!,
    }));
  });
}

process.exitCode = await main();
