// Server-sent events, parsed as they come (the event stream format of the HTML standard).

/** Text in, events out; the cutting into pieces makes no difference. */
export class EventParser {
  #rest = "";
  #name = "";
  #data = [];

  /** The events that `text` completes: `{name, data}`, `name` "message" where none was sent. */
  feed(text) {
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop();
    return lines.map((line) => this.#line(line)).filter((event) => event !== null);
  }

  #line(line) {
    if (line === "") return this.#dispatch();
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") this.#name = value;
    if (field === "data") this.#data.push(value);
    return null;
  }

  #dispatch() {
    const event = { name: this.#name || "message", data: this.#data.join("\n") };
    const isEmpty = this.#data.length === 0;
    this.#name = "";
    this.#data = [];
    return isEmpty ? null : event;
  }
}
