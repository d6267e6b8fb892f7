/*
 * Looking through the records of a topic: the newest, from an offset or a time, by key; a page at a time, back and
 * forth; or as they come.
 */

import { element, number, problem, say } from "./page_elements.js";
import { ask, PATHS } from "./console_requests.js";
import { follow } from "./follow_stream.js";
import { RecordTable } from "./record_table.js";

const PAGE = 50;
const PAGE_BYTES = 2 ** 20;
const FOLLOWED = 200;
const PARTITIONS_MAX = 1_024;

const HINTS = {
  newest: "",
  offset: "an offset",
  time: "",
  key: "a key, exactly",
};

/** The records of one topic. */
export class RecordBrowser {
  constructor(topic, signal) {
    this.topic = topic;
    this.signal = signal;
    this.pages = [];
    this.following = null;
    this.asking = 0;
    this.records = new RecordTable(topic);
    this.words = element("p", { class: "dim", role: "status" });
    this.trouble = element("div");
    this.older = element("button", { type: "button", onclick: () => this.turn("older") }, "← Older");
    this.newer = element("button", { type: "button", onclick: () => this.turn("newer") }, "Newer →");
    this.live = element("button", { type: "button", "aria-pressed": "false", onclick: () => this.toggle() }, "Follow live");
    const pager = element("div", { class: "pager" }, this.older, this.newer, this.live, this.words);
    this.made = element("div", {}, this.form(), pager, this.trouble, this.records.made);
  }

  form() {
    const option = (value, text) => element("option", { value }, text);
    this.mode = element(
      "select", { id: "mode", onchange: () => this.modeChanged() },
      option("newest", "newest"), option("offset", "from offset"), option("time", "from time"), option("key", "by key"),
    );
    const parts = Array.from({ length: Math.min(this.topic.partitions, PARTITIONS_MAX) }, (_, at) => option(at, String(at)));
    this.partition = element("select", { id: "partition", onchange: () => this.begin() }, option("", "all"), parts);
    this.value = element("input", { id: "value", autocomplete: "off", spellcheck: "false", hidden: true, "aria-label": "value" });
    const submit = (event) => {
      event.preventDefault();
      this.begin();
    };
    return element(
      "form", { class: "controls", onsubmit: submit },
      element("label", { for: "mode" }, "Show "), this.mode, this.value,
      element("label", { for: "partition" }, "partition "), this.partition,
      element("button", { type: "submit" }, "Show"),
    );
  }

  modeChanged() {
    const mode = this.mode.value;
    this.value.hidden = mode === "newest";
    this.value.value = "";
    this.value.type = mode === "time" ? "datetime-local" : "text";
    this.value.step = "1";
    this.value.inputMode = mode === "offset" ? "numeric" : "";
    this.value.placeholder = HINTS[mode];
    if (mode === "newest") this.begin();
    else this.value.focus();
  }

  /** The first page of what is chosen. */
  begin() {
    this.stop();
    try {
      this.pages = [this.chosen()];
    } catch (error) {
      this.trouble.replaceChildren(problem({ title: "That cannot be shown", message: error.message }));
      return;
    }
    this.load();
  }

  /** What the form asks for: query, headers, direction. */
  chosen() {
    const mode = this.mode.value;
    const value = this.value.value;
    const common = { limit: PAGE, bytes_max: PAGE_BYTES, partition: this.partition.value };
    if (mode === "offset") {
      if (!/^\d{1,19}$/.test(value.trim())) throw new Error("An offset is a whole number, 0 or more.");
      return { query: { ...common, start: value.trim() }, headers: {}, isForward: true, edge: value.trim() };
    }
    if (mode === "time") {
      const at = new Date(value);
      if (!value || Number.isNaN(at.getTime())) throw new Error("Choose a day and a time.");
      return { query: { ...common, since: at.toISOString() }, headers: {}, isForward: true };
    }
    const headers = mode === "key" ? { "holdfast-key": encodeURIComponent(value) } : {}; // no proxy logs a header
    return { query: { ...common, reverse: "true" }, headers, isForward: false };
  }

  async load() {
    const asked = (this.asking += 1);
    const page = this.pages.at(-1);
    say(this.words, "Loading …");
    try {
      const { data } = await ask(PATHS.records, {
        names: { topic: this.topic.name }, query: page.query, headers: page.headers, signal: this.signal,
      });
      if (asked !== this.asking) return; // somebody wanted something else meanwhile
      page.position = data.position;
      page.isLast = data.exhausted;
      this.trouble.replaceChildren();
      this.records.show(page.isForward ? [...data.records].reverse() : data.records);
      this.tell(data.records.length);
    } catch (error) {
      if (this.signal.aborted || asked !== this.asking) return;
      this.records.show([]);
      say(this.words, "");
      this.trouble.replaceChildren(problem(error));
    }
    this.enable();
  }

  tell(count) {
    const page = this.pages.at(-1);
    if (!count) say(this.words, "No records here.");
    else say(this.words, `${number(count)} records, the newest on top${page.isLast ? `; these are the ${page.isForward ? "newest" : "oldest"}` : ""}`);
  }

  enable() {
    if (this.following) {
      this.older.disabled = this.newer.disabled = true;
      return;
    }
    const page = this.pages.at(-1);
    const onward = page !== undefined && page.isLast === false;
    const back = this.pages.length > 1;
    this.older.disabled = !(page?.isForward ? back || page.edge !== undefined : onward);
    this.newer.disabled = !(page?.isForward ? onward : back);
  }

  /** A page further, or back. */
  turn(wanted) {
    this.stop();
    const page = this.pages.at(-1);
    const isOnward = page.isForward === (wanted === "newer");
    if (isOnward) {
      const place = page.isForward ? { start: page.position } : { end: page.position };
      this.pages.push({ ...page, query: { ...page.query, ...place }, edge: undefined, position: undefined });
    } else if (this.pages.length > 1) {
      this.pages.pop();
    } else if (page.edge !== undefined) {
      const { start, ...query } = page.query;
      this.pages = [{ query: { ...query, reverse: "true", end: start }, headers: {}, isForward: false }];
    }
    this.load();
  }

  toggle() {
    if (this.following) {
      this.stop();
      this.begin();
      return;
    }
    const following = new AbortController();
    this.following = following;
    this.asking += 1;
    this.signal.addEventListener("abort", () => following.abort());
    this.live.setAttribute("aria-pressed", "true");
    say(this.live, "Stop following");
    this.trouble.replaceChildren();
    this.run(following);
  }

  /** How far the topic is now, as a position. */
  async end(signal) {
    const { marks } = (await ask(PATHS.topic, { names: { topic: this.topic.name }, signal })).data;
    const chosen = this.partition.value;
    const wanted = marks.map((one, at) => [at, one.durable]).filter(([at]) => chosen === "" || at === Number(chosen));
    return JSON.stringify(Object.fromEntries(wanted));
  }

  /** The newest page, and what comes behind it: nothing is left out between them. */
  async run(following) {
    let count = 0;
    let words = "";
    const state = (text) => {
      words = text;
      say(this.words, count ? `${words} ${number(count)} so far.` : words);
    };
    const show = (records, leftOut) => {
      count += records.length + leftOut;
      this.records.add(records, FOLLOWED);
      say(this.words, `${words} ${number(count)} so far${leftOut ? `; they come faster than they can be shown, ${number(leftOut)} were left out` : ""}.`);
    };
    try {
      const start = await this.end(following.signal);
      this.mode.value = "newest";
      this.value.hidden = true;
      this.pages = [this.chosen()];
      this.pages[0].query.end = start;
      await this.load();
      if (following.signal.aborted) return;
      const place = { topic: this.topic.name, partition: this.partition.value, start };
      await follow(place, following.signal, { show, state });
    } catch (error) {
      if (following.signal.aborted) return;
      this.stop();
      this.trouble.replaceChildren(problem(error));
    }
  }

  stop() {
    this.following?.abort();
    this.following = null;
    this.live.setAttribute("aria-pressed", "false");
    say(this.live, "Follow live");
  }
}
