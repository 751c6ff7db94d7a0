// Bytes of tokens: what can be shown as text, and what only as bytes.

const UTF8 = new TextEncoder();
const STRICT = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

export function utf8(text) {
  return [...UTF8.encode(text)];
}

/** The text of `bytes`, or null if they are not valid UTF-8 on their own. */
export function textOf(bytes) {
  try {
    return STRICT.decode(Uint8Array.from(bytes));
  } catch {
    return null;
  }
}

export function hex(bytes) {
  return bytes.map((byte) => byte.toString(16).padStart(2, "0").toUpperCase()).join(" ");
}

/**
 * How a token is shown: `{hex, text}`.
 *
 * `hex` is null for a token that is text on its own. A piece of a character shows its bytes; the
 * piece that completes the character also has the text that it completed.
 */
export function shown({ text, bytes }) {
  if (bytes === null) return { hex: null, text };
  const own = textOf(bytes);
  return own === null ? { hex: hex(bytes), text } : { hex: null, text: own };
}

const SIGNS = { "\n": "⏎", "\r": "␍", "\t": "⇥", " ": "␣" };

/** `text` with white space and control characters as visible signs. */
export function visible(text) {
  return text.replace(/[\s\p{Cc}\p{Cf}]/gu, (char) => {
    if (char === "\u200d") return char; // joins emoji
    return SIGNS[char] ?? `⟨U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

/**
 * Bytes of a key of completions' `top_logprobs`: text, or `bytes:` with `\xNN` escapes.
 * `token_id:N`, the last resort of that format, has none: null.
 */
export function bytesOfKey(key) {
  if (/^token_id:\d+$/.test(key)) return null;
  if (!/^bytes:./s.test(key)) return utf8(key);
  const escapes = key.slice("bytes:".length).match(/\\x[0-9a-f]{2}|./gs);
  return escapes.flatMap((each) =>
    each.length === 4 ? [Number.parseInt(each.slice(2), 16)] : utf8(each),
  );
}
