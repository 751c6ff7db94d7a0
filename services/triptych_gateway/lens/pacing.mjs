// When work is done, so that the page can always answer a click.

/** Milliseconds of work without a pause. */
const SLICE_MS = 8;

/** `await slices.pause()` between pieces of work: it waits for other tasks once a slice is over. */
export class Slices {
  #start = performance.now();

  async pause() {
    if (performance.now() - this.#start < SLICE_MS) return;
    await nextTask();
    this.#start = performance.now();
  }
}

/** Unlike a timer, a message is not held back in a tab that nobody looks at. */
function nextTask() {
  return new Promise((done) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      done();
    };
    port2.postMessage(null);
  });
}

/** `work`, run at most once in `intervalMs`, and always once more after the last call. */
export function throttled(work, intervalMs) {
  let timer = null;
  let isAskedAgain = false;
  const run = () => {
    work();
    isAskedAgain = false;
    timer = setTimeout(() => {
      timer = null;
      if (isAskedAgain) run();
    }, intervalMs);
  };
  return () => {
    if (timer === null) run();
    else isAskedAgain = true;
  };
}
