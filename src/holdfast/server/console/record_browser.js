/*
 * Looking through the records of a topic: the newest, from an offset or a time, by key; a page at a time, back and
 * forth; or as they come.
 */

import { count, element, number, problem, say } from "./page_elements.js";
import { ask, PATHS } from "./console_requests.js";
import { follow } from "./follow_stream.js";
import { MERGED_MAX, PAGE, PAGE_BYTES, readPage } from "./merged_page.js";
import { RecordTable } from "./record_table.js";

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

  /** What the form asks for: a query for each partition or one for all, headers, direction. */
  chosen() {
    const mode = this.mode.value;
    const value = this.value.value;
    const { partitions } = this.topic;
    const isMerged = this.partition.value === "" && partitions <= MERGED_MAX;
    const wanted = isMerged ? Array.from({ length: partitions }, (_, at) => at) : [this.partition.value];
    const bytes = Math.floor(PAGE_BYTES / wanted.length);
    const parts = (query) => wanted.map((partition) => ({ limit: PAGE, bytes_max: bytes, partition, ...query }));
    if (mode === "offset") {
      if (!/^\d{1,19}$/.test(value.trim())) throw new Error("An offset is a whole number, 0 or more.");
      return { parts: parts({ start: value.trim() }), headers: {}, isForward: true, edge: value.trim() };
    }
    if (mode === "time") {
      const at = new Date(value);
      if (!value || Number.isNaN(at.getTime())) throw new Error("Choose a day and a time.");
      return { parts: parts({ since: at.toISOString() }), headers: {}, isForward: true };
    }
    const headers = mode === "key" ? { "holdfast-key": encodeURIComponent(value) } : {}; // no proxy logs a header
    return { parts: parts({ reverse: "true" }), headers, isForward: false };
  }

  async load() {
    const asked = (this.asking += 1);
    const page = this.pages.at(-1);
    this.older.disabled = this.newer.disabled = true;
    say(this.words, "Loading …");
    try {
      const found = await readPage(this.topic.name, page, this.signal);
      if (asked !== this.asking) return; // somebody wanted something else meanwhile
      page.next = found.parts;
      page.isLast = found.isLast;
      this.trouble.replaceChildren();
      this.records.show(page.isForward ? found.records.reverse() : found.records);
      this.tell(found.records.length);
    } catch (error) {
      if (this.signal.aborted || asked !== this.asking) return;
      this.records.show([]);
      say(this.words, "");
      this.trouble.replaceChildren(problem(error));
    }
    this.enable();
  }

  tell(many) {
    const page = this.pages.at(-1);
    const order = page.parts[0].partition === "" ? "the largest offsets on top; choose a partition to see its newest" : "the newest on top";
    const end = page.isLast ? `; there are no ${page.isForward ? "newer" : "older"} ones` : "";
    say(this.words, many ? `${count(many, "record")}, ${order}${end}` : "No records here.");
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
      this.pages.push({ parts: page.next, headers: page.headers, isForward: page.isForward });
    } else if (this.pages.length > 1) {
      this.pages.pop();
    } else if (page.edge !== undefined) {
      const parts = page.parts.map(({ start, ...query }) => ({ ...query, reverse: "true", end: start }));
      this.pages = [{ parts, headers: {}, isForward: false }];
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

  /** How far the topic is now, as a position of these partitions. */
  async end(partition, signal) {
    const { marks } = (await ask(PATHS.topic, { names: { topic: this.topic.name }, signal })).data;
    const wanted = marks.map((one, at) => [at, one.durable]).filter(([at]) => partition === "" || at === Number(partition));
    return Object.fromEntries(wanted);
  }

  /** The newest page, and what comes behind it: nothing is left out between them. */
  async run(following) {
    let came = 0;
    let words = "";
    const state = (text) => {
      words = text;
      say(this.words, came ? `${words} ${number(came)} so far.` : words);
    };
    const show = (records, leftOut) => {
      came += records.length + leftOut;
      this.records.add(records, FOLLOWED);
      say(this.words, `${words} ${number(came)} so far${leftOut ? `; they come faster than they can be shown, ${number(leftOut)} were left out` : ""}.`);
    };
    try {
      const partition = this.partition.value;
      const end = await this.end(partition, following.signal);
      this.mode.value = "newest";
      this.value.hidden = true;
      this.pages = [this.chosen()];
      for (const part of this.pages[0].parts) part.end = part.partition === "" ? JSON.stringify(end) : end[part.partition];
      await this.load();
      if (following.signal.aborted) return;
      const place = { topic: this.topic.name, partition, start: JSON.stringify(end) };
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
