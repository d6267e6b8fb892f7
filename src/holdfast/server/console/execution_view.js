/*
 * Executions: which there are, and the steps of one. What programs were called with is never asked for.
 */

import { bytes, cell, count, cut, element, facts, moment, number, say, span, table } from "./page_elements.js";
import { ask, PATHS } from "./console_requests.js";
import { lookAgain } from "./polling.js";

const EVERY_MS = 3_000;
const LIMIT = 100;
const STEPS_MAX = 500;
const STATUSES = ["queued", "running", "completed", "failed", "aborted", "canceled"];

/** Show executions in `main` until the signal is aborted. */
export function showExecutions(main, { signal, failed }) {
  const option = (value) => element("option", { value }, value || "all");
  const status = element("select", { id: "status", onchange: () => again() }, option(""), STATUSES.map(option));
  const kind = element("input", { id: "kind", autocomplete: "off", spellcheck: "false", placeholder: "any" });
  const submit = (event) => {
    event.preventDefault();
    again();
  };
  const heads = ["execution", "kind", "status", "created", "took", "attempts", "entries", "note"];
  const { made, body } = table("Executions, the newest first", heads, "cards");
  const words = element("p", { class: "dim", role: "status" });
  main.append(
    element("h1", { tabindex: "-1" }, "Executions"),
    element(
      "form", { class: "controls", onsubmit: submit },
      element("label", { for: "status" }, "Status "), status, element("label", { for: "kind" }, "kind "), kind,
      element("button", { type: "submit" }, "Show"),
    ),
    words, made,
  );
  let drawn = "";
  const look = async () => {
    const query = { limit: LIMIT, status: status.value, kind: kind.value.trim() };
    const { executions } = (await ask(PATHS.executions, { query, signal })).data;
    const text = JSON.stringify(executions);
    if (text === drawn) return;
    drawn = text;
    body.replaceChildren(...executions.map(row));
    say(words, executions.length === LIMIT ? `The newest ${LIMIT}.` : executions.length ? `${count(executions.length, "execution")}.` : "No executions.");
  };
  const again = () => look().catch((error) => signal.aborted || failed(error));
  lookAgain(look, EVERY_MS, signal, failed);
}

function badge(state) {
  return element("span", { class: `badge ${/^[a-z_]+$/.test(state) ? state : ""}` }, state);
}

function row(one) {
  return element(
    "tr", {},
    cell("execution", { class: "name id" }, element("a", { href: `#/executions/${encodeURIComponent(one.id)}`, title: one.id }, one.id)),
    cell("kind", {}, cut(one.kind, 100)), cell("status", {}, badge(one.status)), cell("created", { class: "time" }, moment(one.created_us)),
    cell("took", {}, took(one.created_us, one.ended_us)), cell("attempts", {}, number(one.attempts)),
    cell("entries", {}, number(one.entries)), cell("note", {}, one.note ? cut(one.note, 200) : element("span", { class: "dim" }, "–")),
  );
}

function took(from, to) {
  return to ? span(Math.max(0, (Number(to) - Number(from)) / 1e6)) : "–";
}

/** Show one execution. */
export async function showExecution(main, id, { signal, failed }) {
  main.append(element("h1", { tabindex: "-1", class: "id" }, id));
  const about = element("div");
  const steps = element("div");
  const events = element("div");
  main.append(about, steps, events);
  let drawn = "";
  const look = async () => {
    const { data } = await ask(PATHS.execution, { names: { id }, signal });
    const text = JSON.stringify(data);
    if (text === drawn) return;
    drawn = text;
    about.replaceChildren(summary(data.summary));
    steps.replaceChildren(element("h2", {}, "Steps"), ...stepTable(data.steps));
    events.replaceChildren(element("h2", {}, "Events"), eventTable(data.events));
  };
  await look();
  lookAgain(look, EVERY_MS, signal, failed);
}

function summary(one) {
  const pairs = [
    ["Kind", cut(one.kind, 200)], ["Status", badge(one.status)], ["Created", moment(one.created_us)],
    ["Ended", moment(one.ended_us)], ["Took", took(one.created_us, one.ended_us)], ["Attempts", number(one.attempts)],
    ["Queue", one.queue || "none"], ["Journal", `${one.entries === 1 ? "1 entry" : `${number(one.entries)} entries`}, ${bytes(Number(one.size))}`],
  ];
  if (one.due_us) pairs.push(["Due", moment(one.due_us)]);
  if (one.note) pairs.push(["Note", cut(one.note, 1000)]);
  if (one.parent) pairs.push(["Parent", element("a", { href: `#/executions/${encodeURIComponent(one.parent)}` }, one.parent)]);
  return facts(pairs);
}

function stepTable(steps) {
  const { made, body } = table("Steps", ["step", "what", "state", "started", "took", "attempts", "effect"], "cards");
  body.append(...steps.slice(0, STEPS_MAX).map((step) => element(
    "tr", {}, cell("step", { class: "name" }, cut(step.path, 200)), cell("what", {}, step.what),
    cell("state", {}, badge(step.state), step.ambiguous.length ? ` ${number(step.ambiguous.length)} of unknown outcome` : ""),
    cell("started", { class: "time" }, moment(step.started_us)), cell("took", {}, took(step.started_us, step.ended_us)),
    cell("attempts", {}, number(step.attempts)), cell("effect", {}, step.effect.replaceAll("_", " ") || "–"),
  )));
  const left = steps.length - STEPS_MAX;
  return [made, element("p", { class: "dim" }, steps.length ? (left > 0 ? `${count(left, "more step")} not shown.` : "") : "No steps yet.")];
}

function eventTable(events) {
  const { made, body } = table("Events", ["time", "what", "detail"], "plain");
  body.append(...events.slice(-STEPS_MAX).map((event) => element(
    "tr", {}, element("td", { class: "time" }, moment(event.at_us)), element("td", {}, event.what),
    element("td", {}, event.detail ? cut(event.detail, 500) : element("span", { class: "dim" }, "–")),
  )));
  return made;
}
