/*
 * The marks of a partition as cells: how far it is appended, durable, sealed, shipped and settled, each with a bar and
 * how many records it is behind. Cells are made once and updated, so that nothing flickers or loses its place.
 */

import { cell, element, number, say } from "./page_elements.js";

/** The marks, in the order in which a record passes them. */
export const MARKS = ["appended", "durable", "sealed", "shipped", "settled"];

/** The cells of one row, and how to update them. */
export function markCells() {
  const cells = MARKS.map((name) => {
    const value = element("span", { class: "value" });
    const lag = element("span", { class: "lag" });
    const fill = element("span");
    const bar = element("span", { class: "bar", "aria-hidden": "true" }, fill);
    const made = cell(name, { class: "mark" }, element("span", { class: "line" }, value, lag), bar);
    return { name, made, value, lag, bar, fill };
  });
  return { made: cells.map((one) => one.made), update: (marks, first = 0) => cells.forEach((one) => show(one, marks, first)) };
}

function show({ name, value, lag, bar, fill, made }, marks, first) {
  const mark = marks[name];
  const isAbsent = mark === null || mark === undefined;
  say(value, isAbsent ? "–" : number(mark));
  made.title = isAbsent ? "There is no store." : "";
  bar.hidden = isAbsent || name === "appended";
  const behind = isAbsent ? 0 : Math.max(0, marks.appended - mark);
  say(lag, behind ? `${number(behind)} behind` : "");
  const all = marks.appended - first;
  const share = all > 0 ? Math.min(1, Math.max(0, (mark - first) / all)) : 1;
  fill.style.width = `${behind ? Math.min(96, share * 100) : 100}%`; // what is behind can be seen, be it ever so little
}

/** The marks of all partitions together. */
export function summed(marks) {
  const all = Object.fromEntries(MARKS.map((name) => [name, 0]));
  for (const one of marks) {
    for (const name of MARKS) all[name] = one[name] === null || all[name] === null ? null : all[name] + Number(one[name]);
  }
  return all;
}

/** How many records per second came between two looks at a number that only grows. */
export class Rate {
  constructor() {
    this.before = null;
    this.value = null;
  }

  look(count, at) {
    if (this.before !== null && at > this.before.at) {
      this.value = Math.max(0, ((count - this.before.count) * 1000) / (at - this.before.at));
    }
    this.before = { count, at };
    return this.value;
  }
}
