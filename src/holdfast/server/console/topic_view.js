/*
 * One topic: what it is, how far each partition has got, who consumes it, and its records.
 */

import { MARKS, markCells, Rate, summed } from "./mark_bars.js";
import { bytes, cell, count, cut, element, facts, moment, number, problem, rate, say, span, table } from "./page_elements.js";
import { ask, PATHS } from "./console_requests.js";
import { RecordBrowser } from "./record_browser.js";
import { lookAgain } from "./polling.js";

const EVERY_MS = 2_000;
const PARTITIONS_MAX = 64;
const WATERMARKS_MAX = 16;
const CONSUMERS_MAX = 100;

/** Show a topic in `main` until the signal is aborted. */
export async function showTopic(main, name, { signal, failed }) {
  main.append(element("h1", { tabindex: "-1" }, name));
  const topic = (await ask(PATHS.topic, { names: { topic: name }, signal })).data;
  const about = element("div");
  const marks = new PartitionMarks(topic, signal);
  const consumers = new Consumers();
  const browser = new RecordBrowser(topic, signal);
  main.append(
    about, marks.made, consumers.made,
    element("h2", {}, "Records"), browser.made, columnsOf(topic),
  );
  const speed = new Rate();
  let mayAskConsumers = true;
  let looks = 0;
  const look = async () => {
    const found = (await ask(PATHS.topic, { names: { topic: name }, signal })).data;
    const perSecond = speed.look(summed(found.marks).appended, performance.now());
    about.replaceChildren(aboutTopic(found, perSecond));
    await marks.update(found);
    looks += 1;
    if (!mayAskConsumers || looks % 3 !== 1) return; // every six seconds is often enough
    try {
      consumers.update((await ask(PATHS.consumers, { query: { topic: name }, signal })).data.consumers);
    } catch (error) {
      if (error.status !== 403) throw error;
      mayAskConsumers = false;
      consumers.refuse(error);
    }
  };
  browser.begin();
  lookAgain(look, EVERY_MS, signal, failed);
}

function aboutTopic(topic, perSecond) {
  const all = summed(topic.marks);
  const kept = topic.marks.reduce((sum, one, at) => sum + Number(one.durable) - Number(topic.first[at]), 0);
  return facts([
    ["Kind", topic.typed ? "typed: rows with columns" : `raw: ${topic.codec ?? "bytes"}`],
    ["Key column", topic.key ?? (topic.typed ? "none" : "–")],
    ["Partitions", number(topic.partitions)],
    ["Appended", `${number(all.appended)}, ${rate(perSecond)} per second`],
    ["Kept here", count(Math.max(0, kept), "record")],
    ["Retention", retention(topic.retention)],
  ]);
}

function retention(policy) {
  if (!policy) return "none of its own: as the settings say";
  const limits = [];
  if (policy.bytes_max) limits.push(bytes(policy.bytes_max));
  if (policy.age_max_s) limits.push(span(policy.age_max_s));
  if (policy.records_max) limits.push(count(policy.records_max, "record"));
  return limits.length ? `per partition at most ${limits.join(", ")}` : "everything is kept";
}

function columnsOf(topic) {
  if (!topic.typed) return element("div");
  const { made, body } = table("Columns", ["column", "type", "may be null"], "plain");
  body.append(...topic.columns.map((column) => element(
    "tr", {}, element("td", {}, column.name), element("td", {}, column.type), element("td", {}, column.nullable ? "yes" : "no"),
  )));
  return element("div", {}, element("h2", {}, "Columns"), made);
}

/** The marks of each partition, what is left of it, and the segment that was sealed last. */
class PartitionMarks {
  constructor(topic, signal) {
    this.signal = signal;
    this.mayAskWatermark = true;
    const { made, body } = table("Partitions and how far they have got", ["partition", "first", "watermark", ...MARKS], "topics partitions cards");
    this.rows = topic.marks.slice(0, PARTITIONS_MAX).map((_, at) => {
      const first = cell("first", { title: "the first offset that retention has left" });
      const watermark = cell("watermark", { title: "the newest sealed segment, and the offset behind it" }, "–");
      const cells = markCells();
      body.append(element("tr", {}, cell("partition", { class: "name" }, String(at)), first, watermark, cells.made));
      return { at, first, watermark, cells, sealed: null };
    });
    const left = topic.partitions - this.rows.length;
    const note = left > 0 ? element("p", { class: "dim" }, `${count(left, "more partition")} not shown.`) : null;
    this.made = element("div", {}, made, note);
  }

  async update(topic) {
    for (const row of this.rows) {
      say(row.first, number(topic.first[row.at]));
      row.cells.update(topic.marks[row.at], topic.first[row.at]);
    }
    for (const row of this.rows.slice(0, WATERMARKS_MAX)) {
      if (this.mayAskWatermark && row.sealed !== topic.marks[row.at].sealed) await this.look(row, topic);
    }
  }

  /** Ask for a watermark; only where something was sealed since. */
  async look(row, topic) {
    try {
      const { data } = await ask(PATHS.watermark, { names: { topic: topic.name, partition: row.at }, signal: this.signal });
      row.sealed = topic.marks[row.at].sealed;
      say(row.watermark, data.index === null ? "nothing sealed" : `segment ${number(data.index)}, up to ${number(data.offset)}`);
    } catch (error) {
      if (error.status !== 403) throw error;
      this.mayAskWatermark = false; // a token that appends and does not read
    }
  }
}

/** Who consumes a topic, and how far behind they are. */
class Consumers {
  constructor() {
    this.made = element("div");
  }

  update(consumers) {
    if (!consumers.length) {
      this.made.replaceChildren();
      return;
    }
    const heads = ["consumer", { text: "lag", class: "right" }, "members", "retention waits", "last commit", "by partition"];
    const { made, body } = table("Consumers and their lag", heads, "cards");
    body.append(...consumers.slice(0, CONSUMERS_MAX).map(consumerRow));
    this.made.replaceChildren(element("h2", {}, "Consumers"), made);
  }

  refuse(error) {
    this.made.replaceChildren(problem(error));
  }
}

function consumerRow(one) {
  const last = Math.max(0, ...one.partitions.map((part) => Number(part.committed_us)));
  const parts = one.partitions.map((part) => `${part.partition}: ${number(part.committed)} of ${number(part.durable)}`);
  const expired = one.partitions.reduce((sum, part) => sum + Number(part.expired), 0);
  return element(
    "tr", {}, cell("consumer", { class: "name" }, one.consumer),
    cell("lag", { class: "right" }, number(one.lag), expired ? ` (${number(expired)} expired)` : ""),
    cell("members", {}, one.members === null ? "elsewhere" : number(one.members)),
    cell("retention waits", {}, one.retention_waits ? "yes" : "no"),
    cell("last commit", {}, moment(last)), cell("by partition", { class: "dim" }, cut(parts.join(" · "), 300)),
  );
}
