// The exact bytes of every id of a byte-level tokenizer, and its encoder.

import { Tokenizer } from "@huggingface/tokenizers";

export interface Candidate {
  tokenId: number;
  logprob: number;
}

const NO_BYTES = Buffer.alloc(0);
const STRICT = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

export class Pieces {
  readonly #tokenizer: Tokenizer;
  readonly #added: ReturnType<Tokenizer["get_added_tokens_decoder"]>;
  readonly #alphabet = byteAlphabet();

  /** `json`: the text of tokenizer.json. */
  constructor(json: string) {
    this.#tokenizer = new Tokenizer(JSON.parse(json), {});
    this.#added = this.#tokenizer.get_added_tokens_decoder();
  }

  encode(text: string): number[] {
    return this.#tokenizer.encode(text).ids;
  }

  /** None for special tokens. */
  bytesOf(tokenId: number): Buffer {
    const added = this.#added.get(tokenId);
    if (added) return added.special ? NO_BYTES : Buffer.from(added.content);
    const piece = this.#tokenizer.id_to_token(tokenId) ?? "";
    return Buffer.from(Array.from(piece, (letter) => this.#alphabet.get(letter)!));
  }

  /** A token with its probability; in hex where it holds a part of a character. */
  shown({ tokenId, logprob }: Candidate): string {
    return `${quoted(this.bytesOf(tokenId))} ${Math.exp(logprob).toFixed(4)}`;
  }
}

function quoted(bytes: Buffer): string {
  try {
    return JSON.stringify(STRICT.decode(bytes));
  } catch {
    return `<${bytes.toString("hex").replace(/..(?=.)/g, "$& ")}>`;
  }
}

/** The byte that each letter of a byte-level vocabulary stands for. */
function byteAlphabet(): Map<string, number> {
  const isPrintable = (byte: number) =>
    (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  let unprintable = 0;
  return new Map(
    Array.from({ length: 256 }, (_, byte) => [
      String.fromCodePoint(isPrintable(byte) ? byte : 256 + unprintable++),
      byte,
    ]),
  );
}
