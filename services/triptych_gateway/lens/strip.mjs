// The whole answer as a strip of bars: how surprising each token was. A click goes to the token.

import { columns } from "./measure.mjs";

/** Nats at which a bar is full, and the widest and narrowest bar in CSS pixels. */
const FULL = 8;
const WIDEST = 6;
const NARROWEST = 2;

export class Strip {
  #values = [];
  #usedWidth = 1;

  constructor(canvas, onPick) {
    this.canvas = canvas;
    canvas.addEventListener("click", (event) => {
      const place = (event.clientX - canvas.getBoundingClientRect().left) / this.#usedWidth;
      if (place < 1) onPick(Math.floor(place * this.#values.length));
    });
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  /** Show `entries`: a bar's height is minus the logprob. */
  show(entries) {
    this.#values = entries.map((entry) => Math.min(FULL, -(entry.logprob ?? 0)));
    this.draw();
  }

  draw() {
    const { canvas } = this;
    const { clientWidth: width, clientHeight: height } = canvas;
    canvas.width = Math.round(width * devicePixelRatio);
    canvas.height = Math.round(height * devicePixelRatio);
    if (width === 0 || this.#values.length === 0) return;
    const bars = columns(this.#values, Math.max(1, Math.floor(width / NARROWEST)));
    const step = Math.min(width / bars.length, WIDEST);
    this.#usedWidth = step * bars.length;
    const context = canvas.getContext("2d");
    context.scale(devicePixelRatio, devicePixelRatio);
    context.fillStyle = getComputedStyle(canvas).color;
    bars.forEach((value, index) => {
      const bar = Math.max(1, (value / FULL) * height);
      context.fillRect(index * step, height - bar, Math.max(1, step - 1), bar);
    });
  }
}
