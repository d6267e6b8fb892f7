/*
 * Records as rows of a table, each of which opens to show all of it.
 */

import { cell, cut, element, moment, table } from "./page_elements.js";
import { Given } from "./payload_text.js";

const COLUMNS_MAX = 24;
const CELL_MAX = 120;
const HEADERS_MAX = 100;

/** A table of records of a topic, raw or typed. */
export class RecordTable {
  constructor(topic) {
    this.columns = topic.typed ? (topic.columns ?? []).slice(0, COLUMNS_MAX) : null;
    const own = this.columns ? this.columns.map((column) => column.name) : ["key", "kind", "payload"];
    const heads = ["place", "time", ...own];
    const { made, body } = table("Records", heads, `records cards ${topic.typed ? "typed" : "raw"}`);
    this.width = heads.length;
    this.made = made;
    this.body = body;
  }

  /** Show these, in this order. */
  show(records) {
    this.body.replaceChildren(...records.flatMap((record) => this.rows(record)));
  }

  /** Put newer ones on top, and let the oldest go. */
  add(records, most) {
    this.body.prepend(...[...records].reverse().flatMap((record) => this.rows(record)));
    while (this.body.childElementCount > 2 * most) this.body.lastElementChild.remove();
  }

  /** A record's row, and the one beneath that opens. */
  rows(record) {
    const more = element("tr", { class: "more", hidden: true });
    const button = element("button", {
      type: "button", class: "open", "aria-expanded": "false",
      "aria-label": `Record ${record.offset} of partition ${record.partition}`,
      onclick: () => {
        more.hidden = !more.hidden;
        button.setAttribute("aria-expanded", String(!more.hidden));
        if (!more.childElementCount) more.append(element("td", { colspan: this.width }, ...detail(record)));
      },
    }, `${record.partition}:${record.offset}`);
    const first = [cell("place", { class: "place" }, button), cell("time", { class: "time" }, moment(record.time_us, record.time))];
    return [element("tr", {}, first, this.columns ? this.rowCells(record.row) : rawCells(record)), more];
  }

  rowCells(row) {
    return this.columns.map(({ name }) => {
      const value = Object.hasOwn(row, name) ? row[name] : undefined;
      const isNumber = typeof value === "number";
      if (value === null || value === undefined) return cell(name, { class: "dim" }, "null");
      return cell(name, { class: isNumber ? "right" : "" }, cut(shown(value), CELL_MAX));
    });
  }
}

/** The payload; its value, where the topic has a codec and the payload is no text. */
function payloadOf(record) {
  const { payload, payload_encoding: encoding, value } = record;
  return encoding && value !== undefined ? new Given(JSON.stringify(value)) : new Given(payload, encoding);
}

function rawCells(record) {
  const payload = payloadOf(record);
  const key = record.key === null ? null : new Given(record.key, record.key_encoding);
  return [
    cell("key", { class: "key" }, key === null ? element("span", { class: "dim" }, "–") : cut(key.preview, 48)),
    cell("kind", { class: "kind" }, record.kind === null ? element("span", { class: "dim" }, "–") : cut(record.kind, 48)),
    cell("payload", { class: `payload${payload.isBytes ? " bytes" : ""}` }, payload.preview || element("span", { class: "dim" }, "empty")),
  ];
}

function shown(value) {
  if (typeof value === "string") return value;
  return value !== null && typeof value === "object" && !("source" in value) ? JSON.stringify(value) : String(value);
}

function detail(record) {
  const parts = [];
  const add = (title, given) => parts.push(
    element("h4", {}, title, " ", element("span", { class: "dim" }, given.about)), element("pre", {}, given.body || " "),
  );
  if (record.row !== undefined) add("Row", new Given(JSON.stringify(record.row)));
  else add("Payload", payloadOf(record));
  if (record.key !== null && record.key !== undefined) add("Key", new Given(record.key, record.key_encoding));
  const headers = Object.entries(record.headers ?? {});
  if (headers.length) {
    const { made, body } = table("Headers", ["header", "value"], "plain");
    body.append(...headers.slice(0, HEADERS_MAX).map(([name, value]) => element(
      "tr", {}, element("td", {}, cut(name, 200)),
      element("td", {}, new Given(value, record.headers_encoding).preview),
    )));
    parts.push(element("h4", {}, "Headers"), made);
  }
  return parts;
}
