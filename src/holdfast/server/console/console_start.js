/*
 * The console: which view is shown, who looks (a token, where the server wants one), and how the server is.
 * It only ever reads.
 */

import { showExecution, showExecutions } from "./execution_view.js";
import { showOverview } from "./overview.js";
import { element, problem, say } from "./page_elements.js";
import { ask, hasToken, PATHS, useToken } from "./console_requests.js";
import { isFinal, lookAgain, pause } from "./polling.js";
import { showTopic } from "./topic_view.js";

const READY_MS = 5_000;

const main = document.getElementById("main");
const notice = document.getElementById("notice");
const health = document.getElementById("health");
const pauseButton = document.getElementById("pause");
const forgetButton = document.getElementById("forget");

let view = new AbortController();
let root = null;

/** Tell of a look that failed, or that all is well again. */
function failed(error) {
  notice.hidden = error === null;
  if (error === null) return;
  if (error.status === 401) {
    askForToken(error);
    return;
  }
  const note = isFinal(error) ? null : element("p", { class: "dim" }, "What is shown may be old. The console tries again by itself.");
  notice.replaceChildren(problem(error), ...(note ? [note] : []));
}

async function enter() {
  const { signal } = restart();
  forgetButton.hidden = !hasToken();
  lookAtHealth().catch(() => {}); // it tells by itself
  try {
    root = (await ask(PATHS.root, { signal })).data;
  } catch (error) {
    if (signal.aborted) return;
    if (error.status === 401) {
      askForToken(error);
      return;
    }
    failed(error);
    main.replaceChildren(element("p", {}, element("button", { type: "button", onclick: enter }, "Try again")));
    return;
  }
  const who = hasToken() ? `, token ${root.token.id} (${root.token.scopes.join(", ")})` : "";
  say(document.getElementById("about"), `holdfast ${root.holdfast}, log ${root.log}${who}. Times are those of this machine.`);
  pauseButton.hidden = false;
  await show(signal);
}

function restart() {
  view.abort();
  view = new AbortController();
  notice.hidden = true;
  main.replaceChildren();
  return view;
}

async function show(signal) {
  const [kind, name] = place();
  const context = { root, signal, failed };
  mark(kind);
  try {
    if (kind === "topics" && name) await showTopic(main, name, context);
    else if (kind === "executions" && name) await showExecution(main, name, context);
    else if (kind === "executions") showExecutions(main, context);
    else showOverview(main, context);
  } catch (error) {
    if (signal.aborted) return;
    if (error.status === 401) askForToken(error);
    else main.append(problem(error));
  }
}

/** Where the address points: what stands behind its #, which no server sees. */
function place() {
  return location.hash.replace(/^#\/?/, "").split("/").slice(0, 2).map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
}

function mark(kind) {
  for (const link of document.querySelectorAll("nav a")) {
    const isCurrent = link.dataset.view === (kind === "executions" ? "executions" : "overview");
    if (isCurrent) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const [, name] = place();
  document.title = `${name ? `${name} · ` : ""}holdfast console`;
}

function askForToken(error) {
  const wasGiven = hasToken();
  restart();
  useToken(null);
  forgetButton.hidden = pauseButton.hidden = true;
  say(document.getElementById("about"), "");
  const field = element("input", {
    id: "token", type: "password", autocomplete: "off", autocapitalize: "none", spellcheck: "false", required: true,
    placeholder: "hft1_…", "aria-describedby": "token-note",
  });
  const trouble = element("div", {}, wasGiven ? problem(error) : null);
  const submit = (event) => {
    event.preventDefault();
    if (useToken(field.value.trim())) enter();
    else trouble.replaceChildren(problem({ title: "This is no token", message: "A token is one line of letters and digits that begins with hft1_." }));
  };
  const note = "It stays in this tab, goes to this server alone, and is forgotten when the tab is closed. To look, the scope read is enough:";
  main.replaceChildren(
    element("form", { class: "token", onsubmit: submit },
      element("h1", { tabindex: "-1" }, "A token, please"), trouble,
      element("label", { for: "token" }, "Token"), field, element("button", { type: "submit", class: "primary" }, "Look"),
      element("p", { id: "token-note", class: "dim" }, note),
      element("pre", {}, "holdfast token create DIR console --scope read --topic '*' --topic _executions")),
  );
  field.focus();
}

/** Whether the log takes records; no token is needed for that. */
async function lookAtHealth() {
  try {
    await ask(PATHS.ready);
    tellHealth("ready", "Ready", "The log takes records.");
  } catch (error) {
    const isGone = error.kind === "NoAnswer";
    tellHealth("bad", isGone ? "No answer" : "Not ready", `${error.message} ${error.remedy}`);
    throw error;
  }
}

function tellHealth(kind, text, title) {
  health.className = `health ${kind}`;
  health.title = title;
  say(health.querySelector(".says"), text);
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // what stands behind # is the view
  main.focus();
});
pauseButton.addEventListener("click", () => {
  const isPaused = pauseButton.getAttribute("aria-pressed") !== "true";
  pauseButton.setAttribute("aria-pressed", String(isPaused));
  say(pauseButton, isPaused ? "Go on" : "Pause");
  pause(isPaused);
});
forgetButton.addEventListener("click", () => {
  useToken(null);
  enter();
});
window.addEventListener("hashchange", () => {
  if (root === null) {
    enter();
    return;
  }
  const { signal } = restart();
  show(signal).then(() => main.querySelector("h1")?.focus({ preventScroll: true }));
  window.scrollTo(0, 0);
});

lookAgain(lookAtHealth, READY_MS, new AbortController().signal, () => {});
enter();
