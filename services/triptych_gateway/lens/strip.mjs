// The whole answer as a strip of bars: how surprising each token was. A click goes to the token.

import { columns } from "./measure.mjs";

/** Nats at which a bar is full, and the widest and narrowest bar in CSS pixels. */
const FULL = 8;
const WIDEST = 6;
const NARROWEST = 2;

export class Strip {
  #values = [];
  #usedWidth = 1;
  #width = 0;
  #height = 0;

  constructor(canvas, onPick) {
    this.canvas = canvas;
    canvas.addEventListener("click", (event) => {
      const place = (event.clientX - canvas.getBoundingClientRect().left) / this.#usedWidth;
      if (place < 1) onPick(Math.floor(place * this.#values.length));
    });
    new ResizeObserver(([{ contentRect }]) => {
      this.#width = contentRect.width;
      this.#height = contentRect.height;
      this.draw();
    }).observe(canvas);
  }

  /** Show `entries`: a bar's height is minus the logprob. */
  show(entries) {
    this.#values = entries.map((entry) => Math.min(FULL, -(entry.logprob ?? 0)));
    this.draw();
  }

  /** Draw without asking for a layout, which a long answer makes dear. */
  draw() {
    const { canvas } = this;
    const [width, height] = [this.#width, this.#height];
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
