// Calls of the gateway that serves this page.

import { EventParser } from "./sse.mjs";

/** A refusal or a failure, with what the server said of it. */
export class ApiError extends Error {
  constructor(message, { status = null, type = null, param = null, code = null, requestId = null } = {}) {
    super(message);
    Object.assign(this, { status, type, param, code, requestId });
  }

  /** One line of facts under the message. */
  get facts() {
    const named = [
      this.status && `HTTP ${this.status}`,
      this.type,
      this.param && `param ${this.param}`,
      this.code && `code ${this.code}`,
      this.requestId && `request ${this.requestId}`,
    ];
    return named.filter(Boolean).join(" · ");
  }
}

export async function fetchJson(path, { key, body, signal }) {
  const response = await send(path, { key, body, signal });
  return response.json();
}

/** The chunks of a streamed reply. Throws ApiError where the stream fails or ends too early. */
export async function* streamChunks(path, { key, body, signal }) {
  const response = await send(path, { key, body, signal });
  const requestId = response.headers.get("x-request-id");
  const parser = new EventParser();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await readOrFail(reader, signal, requestId);
    if (done) throw new ApiError("The stream ended before the answer did.", { requestId });
    for (const event of parser.feed(value)) {
      if (event.name === "error") throw errorOf(JSON.parse(event.data), { requestId });
      if (event.data === "[DONE]") return;
      yield JSON.parse(event.data);
    }
  }
}

async function readOrFail(reader, signal, requestId) {
  try {
    return await reader.read();
  } catch (error) {
    if (signal.aborted) throw error;
    throw new ApiError("The connection to the gateway broke during the answer.", { requestId });
  }
}

async function send(path, { key, body, signal }) {
  const headers = { "content-type": "application/json" };
  if (key) headers.authorization = `Bearer ${key}`;
  const method = body === undefined ? "GET" : "POST";
  const options = { method, headers, body: JSON.stringify(body), signal, cache: "no-store" };
  let response;
  try {
    response = await fetch(new URL(`../${path}`, document.baseURI), options);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError("The gateway cannot be reached.");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const facts = { status: response.status, requestId: response.headers.get("x-request-id") };
  const text = await response.text();
  try {
    return errorOf(JSON.parse(text), facts);
  } catch {
    return new ApiError(text.slice(0, 500) || response.statusText || "no reason given", facts);
  }
}

function errorOf(body, facts) {
  const { message, type, param, code } = body.error;
  return new ApiError(message, { ...facts, type, param, code });
}
