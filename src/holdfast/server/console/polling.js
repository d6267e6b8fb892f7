/*
 * Looking again and again, without hammering: the next look begins some time after the last one has ended, none while
 * the tab is hidden or the console is paused, and fewer while they fail or the server says when to come back.
 */

const SLOWEST_MS = 30_000;

let isPaused = false;
const sleeping = new Set();

/** Stop looking, or go on. */
export function pause(wanted) {
  isPaused = wanted;
  wake();
}

function wake() {
  for (const one of [...sleeping]) one();
}

function isQuiet() {
  return isPaused || document.hidden;
}

document.addEventListener("visibilitychange", wake);

/** Whether asking again would give the same answer. */
export function isFinal(error) {
  return error.status >= 400 && error.status < 500 && error.status !== 408 && error.status !== 429;
}

/**
 * Call `look` now, and again every so often, until the signal is aborted. `failed` gets what it throws, and null once it
 * works again; what would fail again for good is not asked again.
 */
export async function lookAgain(look, everyMs, signal, failed) {
  let wait = everyMs;
  while (!signal.aborted) {
    try {
      await look();
      if (wait !== everyMs && !signal.aborted) failed(null);
      wait = everyMs;
    } catch (error) {
      if (signal.aborted) return;
      failed(error);
      if (isFinal(error)) return;
      wait = Math.min(SLOWEST_MS, Math.max(wait * 2, (error.wait ?? 0) * 1000));
    }
    await rest(wait, signal);
  }
}

/** Wait so long, and for as long as nobody is looking. */
export async function rest(ms, signal) {
  const until = performance.now() + ms;
  while (!signal.aborted) {
    const left = until - performance.now();
    if (left <= 0 && !isQuiet()) return;
    await new Promise((resolve) => {
      const done = () => {
        clearTimeout(timer);
        sleeping.delete(done);
        signal.removeEventListener("abort", done);
        resolve();
      };
      const timer = setTimeout(done, isQuiet() ? 3_600_000 : left);
      sleeping.add(done);
      signal.addEventListener("abort", done);
    });
  }
}
