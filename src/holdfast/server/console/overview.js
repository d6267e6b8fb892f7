/*
 * The overview: how the log is, what is wrong, and how far every topic has got.
 */

import { MARKS, markCells, Rate, summed } from "./mark_bars.js";
import { bytes, cell, count, cut, element, number, problem, rate, say, span, table } from "./page_elements.js";
import { ask, PATHS } from "./console_requests.js";
import { lookAgain } from "./polling.js";

const EVERY_MS = 2_000;
const TOPICS_MAX = 200;
const PARTITIONS_MAX = 8;
const SAMPLES = 60;

/** Show the overview in `main` until the signal is aborted. */
export function showOverview(main, { root, signal, failed }) {
  const tiles = new Tiles(root);
  const alarms = element("div", { class: "alarms" });
  const topics = new Topics();
  const own = element("input", { type: "checkbox", id: "own", onchange: () => topics.showOwn(own.checked) });
  const bar = element(
    "div", { class: "heading" }, element("h2", {}, "Topics"),
    element("label", { class: "check", for: "own" }, own, " also holdfast’s own (_…)"),
  );
  main.append(element("h1", { tabindex: "-1", class: "unseen" }, "Overview"), tiles.made, alarms, bar, topics.made);
  let mayAskStats = true;
  const look = async () => {
    const at = performance.now();
    const listed = await ask(PATHS.topics, { query: { marks: "true" }, signal });
    topics.update(listed.data.topics, at);
    tiles.updateTopics(listed.data.topics, at);
    if (!mayAskStats) return;
    try {
      const stats = (await ask(PATHS.stats, { signal })).data;
      tiles.updateStats(stats);
      alarms.replaceChildren(...alarmsOf(stats).map(([what, text]) => alarm(what, text)));
    } catch (error) {
      if (error.status !== 403) throw error;
      mayAskStats = false;
      tiles.noStats();
      alarms.replaceChildren(problem({ ...plain(error), title: "Store, disk and alarms are not shown" }));
    }
  };
  lookAgain(look, EVERY_MS, signal, failed);
}

function plain(error) {
  const { message, remedy, request } = error;
  return { message, remedy, request, command: "holdfast token create DIR console --scope read --topic '*'" };
}

function alarm(what, text) {
  return element("div", { class: "problem", role: "alert" }, element("strong", {}, what), element("p", {}, cut(text, 2000)));
}

/** What is wrong with a log, as its counters say. */
function alarmsOf({ journal, segments, shipping, tables }) {
  const found = [];
  const add = (what, value) => {
    if (value) found.push([what, typeof value === "object" ? JSON.stringify(value) : String(value)]);
  };
  add("The log takes no more records", journal.poisoned);
  add("Sealing fails", segments.last_error);
  const findings = Object.entries(segments.reconcile_findings ?? {}).filter(([, many]) => many);
  if (findings.length) add("Reconciling has found", findings.map(([kind, many]) => `${kind}: ${many}`).join(", "));
  if (shipping) {
    if (shipping.alarm) add("Shipping is behind", words(shipping.alarm));
    if (shipping.fenced) add("Another process has taken this log over", "Nothing more is shipped from here.");
    add("Shipping has ended", shipping.ended);
    add("The store has lost data", shipping.forgotten);
    if (shipping.stranded_records) add("Stranded", `${count(shipping.stranded_records, "record")} here and nowhere else.`);
    if (shipping.alarm || shipping.lag_records) add("The store’s last error", shipping.last_error);
  }
  const broken = Object.entries(tables?.problems ?? {});
  if (broken.length) add("Tables that are not kept up", broken.map(([name, why]) => `${name}: ${why}`).join("; "));
  return found;
}

function words(state) {
  if (typeof state !== "object") return String(state);
  return Object.entries(state).map(([name, value]) => `${name.replaceAll("_", " ")}: ${value}`).join(", ");
}

/** The few numbers at the top. */
class Tiles {
  constructor(root) {
    this.rate = new Rate();
    this.samples = [];
    this.values = {};
    this.notes = {};
    this.line = document.getElementById("line").content.firstElementChild.cloneNode(true);
    this.path = this.line.firstElementChild;
    this.made = element(
      "div", { class: "tiles" },
      this.tile("appends", "Appends per second", this.line), this.tile("records", "Records"),
      this.tile("store", "Store"), this.tile("segments", "Segments"), this.tile("disk", "Free disk"),
      this.tile("log", "Log"),
    );
    say(this.values.log, root.log.slice(0, 8));
    this.values.log.title = root.log;
    say(this.notes.log, `holdfast ${root.holdfast}${root.read_only ? ", read-only" : ""}`);
  }

  tile(name, title, ...more) {
    this.values[name] = element("div", { class: "big" }, "…");
    this.notes[name] = element("div", { class: "dim" });
    return element("section", { class: `tile ${name}` }, element("h3", {}, title), this.values[name], this.notes[name], ...more);
  }

  updateTopics(topics, at) {
    const all = topics.map((topic) => summed(topic.marks));
    const appended = all.reduce((sum, one) => sum + one.appended, 0);
    const value = this.rate.look(appended, at);
    say(this.values.appends, rate(value));
    say(this.values.records, number(appended));
    say(this.notes.records, count(topics.length, "topic"));
    if (value === null) return;
    this.samples = [...this.samples, value].slice(-SAMPLES);
    const most = Math.max(...this.samples);
    const top = Math.max(1, most);
    const from = SAMPLES - this.samples.length;
    this.path.setAttribute("points", this.samples.map((one, at) => `${from + at},${19 - (one / top) * 18}`).join(" "));
    say(this.notes.appends, most > 0 && this.samples.length > 5 ? `up to ${rate(most)}` : "");
  }

  updateStats({ journal, segments, shipping }) {
    say(this.values.segments, number(segments.segments));
    say(this.notes.segments, `${count(segments.tail_records, "record")} not sealed`);
    say(this.values.disk, segments.free_bytes ? bytes(segments.free_bytes) : "–");
    say(this.notes.disk, journal.queue_records ? `${count(journal.queue_records, "record")} queued` : "");
    if (!shipping) {
      say(this.values.store, "none");
      say(this.notes.store, "records are on this machine alone");
      return;
    }
    const behind = shipping.lag_records;
    say(this.values.store, behind ? `${number(behind)} behind` : "up to date");
    say(this.notes.store, `${shipping.lag_seconds ? `${span(shipping.lag_seconds)}, ` : ""}${cut(shipping.store, 80)}`);
    this.notes.store.title = shipping.store;
  }

  noStats() {
    for (const name of ["store", "segments", "disk"]) {
      say(this.values[name], "–");
      say(this.notes[name], "not for this token");
    }
  }
}

/** All topics, one row each, and one for each partition of those that have several. */
class Topics {
  constructor() {
    const heads = ["topic", "kind", { text: "per second", class: "right" }, ...MARKS];
    const { made, body } = table("Topics and how far they have got", heads, "topics cards");
    this.body = body;
    this.note = element("p", { class: "dim" });
    this.made = element("div", {}, made, this.note);
    this.rows = new Map();
    this.shape = "";
    this.own = false;
    this.last = null;
  }

  showOwn(wanted) {
    this.own = wanted;
    if (this.last) this.update(...this.last);
  }

  update(topics, at) {
    this.last = [topics, at];
    const wanted = topics.filter((topic) => this.own || !topic.name.startsWith("_"));
    const shown = wanted.slice(0, TOPICS_MAX);
    const shape = JSON.stringify(shown.map(({ name, partitions, typed }) => [name, partitions, typed]));
    if (shape !== this.shape) this.rebuild(shown, shape);
    for (const topic of shown) this.rows.get(topic.name).update(topic, at);
    if (!wanted.length) say(this.note, "There are no topics yet, or none that this token may see.");
    else say(this.note, wanted.length > shown.length ? `${count(wanted.length - shown.length, "more topic")} not shown.` : "");
  }

  rebuild(topics, shape) {
    const known = this.rows;
    this.shape = shape;
    this.rows = new Map(topics.map((topic) => [topic.name, new TopicRows(topic, known.get(topic.name)?.rate)]));
    this.body.replaceChildren(...[...this.rows.values()].flatMap((one) => one.made));
  }
}

class TopicRows {
  constructor(topic, known) {
    this.rate = known ?? new Rate();
    this.speed = cell("per second", { class: "right" });
    this.marks = markCells();
    const link = element("a", { href: `#/topics/${encodeURIComponent(topic.name)}` }, topic.name);
    const kind = `${topic.typed ? "typed" : topic.codec ?? "raw"}${topic.partitions > 1 ? `, ${topic.partitions} partitions` : ""}`;
    this.made = [element("tr", {}, cell("topic", { class: "name" }, link), cell("kind", {}, kind), this.speed, this.marks.made)];
    this.parts = topic.partitions > 1 ? topic.marks.slice(0, PARTITIONS_MAX).map(() => markCells()) : [];
    this.parts.forEach((cells, at) => this.made.push(element(
      "tr", { class: "part" }, cell("partition", { class: "name" }, `partition ${at}`), cell("", {}), cell("", {}), cells.made,
    )));
    const left = topic.partitions - this.parts.length;
    if (this.parts.length && left > 0) {
      this.made.push(element("tr", { class: "part" }, element("td", { colspan: "8", class: "dim" }, `and ${count(left, "more partition")}`)));
    }
  }

  update(topic, at) {
    const all = summed(topic.marks);
    say(this.speed, rate(this.rate.look(all.appended, at)));
    this.marks.update(all);
    this.parts.forEach((cells, part) => cells.update(topic.marks[part]));
  }
}
