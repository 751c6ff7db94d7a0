// The editor of a chat: a row per message, with its role and its text.

const ROLES = ["system", "user", "assistant"];

export class MessagesEditor {
  constructor(root) {
    this.list = root.querySelector(".messages");
    root.querySelector(".add-message").addEventListener("click", () => this.#addNext());
  }

  get messages() {
    return [...this.list.children].map((row) => ({
      role: row.querySelector("select").value,
      content: row.querySelector("textarea").value,
    }));
  }

  set messages(messages) {
    this.list.replaceChildren(...messages.map((each) => this.#row(each)));
  }

  /** Add the answer and an empty message for the reply to it, which gets the focus. */
  goOn(answer) {
    const next = this.#row({ role: "user", content: "" });
    this.list.append(this.#row({ role: "assistant", content: answer }), next);
    next.querySelector("textarea").focus();
  }

  #addNext() {
    const isUser = this.messages.at(-1)?.role === "user";
    const row = this.#row({ role: isUser ? "assistant" : "user", content: "" });
    this.list.append(row);
    row.querySelector("textarea").focus();
  }

  #row({ role, content }) {
    const row = document.createElement("li");
    const select = document.createElement("select");
    select.setAttribute("aria-label", "Role");
    select.append(...ROLES.map((name) => new Option(name, name, false, name === role)));
    const text = document.createElement("textarea");
    Object.assign(text, { value: content, rows: 2, ariaLabel: "Message" });
    const remove = document.createElement("button");
    Object.assign(remove, { type: "button", className: "quiet icon", textContent: "×", ariaLabel: "Remove this message" });
    remove.addEventListener("click", () => row.remove());
    row.append(select, text, remove);
    return row;
  }
}
