/*
 * Following a topic: lines of JSON as they come, with the token in a header (which EventSource cannot send). Only so
 * many records wait to be shown; what comes faster is counted, not kept. After a break it goes on where it was.
 */

import { open, parse, PATHS, Problem, problemOf } from "./console_requests.js";
import { rest } from "./polling.js";

const WAITING_MAX = 200;
const LINE_MAX = 32 * 2 ** 20;
const SHOW_MS = 250;
const BREAKS_MS = [1_000, 2_000, 5_000, 15_000];

/** Follow from a position until the signal is aborted. `show` gets records and how many were left out; `state` words. */
export async function follow({ topic, partition, start }, signal, { show, state }) {
  let position = start;
  let breaks = 0;
  const waiting = new Waiting(show);
  const timer = setInterval(() => waiting.flush(), SHOW_MS);
  try {
    while (!signal.aborted) {
      try {
        const response = await open(PATHS.follow, {
          names: { topic }, query: { partition, start: position }, headers: { accept: "application/x-ndjson" }, signal,
        });
        state("Following: new records appear on top.");
        for await (const line of lines(response.body)) {
          breaks = 0;
          position = taken(line, waiting) ?? position;
        }
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof Problem && error.status && error.status !== 429 && error.status < 500) throw error;
      }
      if (signal.aborted) return;
      const pause = BREAKS_MS[Math.min(breaks, BREAKS_MS.length - 1)];
      breaks += 1;
      state(`The connection has ended. Trying again in ${pause / 1000} s …`);
      await rest(pause, signal);
    }
  } finally {
    clearInterval(timer);
    waiting.flush();
  }
}

/** Take a line; the position behind it, or null where it is none of a record. */
function taken(line, waiting) {
  if (!line) return null;
  const found = parse(line);
  if (found.error) throw problemOf(found.error, found.error.kind === "Denied" ? 403 : 400);
  if (found.end) {
    if (found.end.reason === "revoked") throw problemOf({ message: "This token is no longer known." }, 401);
    return null;
  }
  waiting.add(found.record);
  return found.position;
}

/** Records that have come and are not shown yet. */
class Waiting {
  constructor(show) {
    this.show = show;
    this.records = [];
    this.leftOut = 0;
  }

  add(record) {
    this.records.push(record);
    if (this.records.length <= WAITING_MAX) return;
    this.records.shift();
    this.leftOut += 1;
  }

  flush() {
    if (!this.records.length) return;
    this.show(this.records, this.leftOut);
    this.records = [];
    this.leftOut = 0;
  }
}

async function* lines(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = parts.pop();
      if (rest.length > LINE_MAX) throw new Problem("A record is too large to be shown.", { status: 400 });
      yield* parts;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
