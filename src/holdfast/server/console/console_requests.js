/*
 * What the console asks of the server: GET alone, over the public routes, with the token of the reader. The token
 * lives in this module and in the tab's sessionStorage, goes out as a header and nowhere else.
 */

/** All routes that the console asks for; a test compares them with the server's. */
export const PATHS = {
  root: "/v1",
  ready: "/readyz",
  stats: "/v1/stats",
  topics: "/v1/topics",
  topic: "/v1/topics/{topic}",
  records: "/v1/topics/{topic}/records",
  follow: "/v1/topics/{topic}/follow",
  watermark: "/v1/topics/{topic}/watermark/{partition}",
  consumers: "/v1/consumers",
  executions: "/v1/executions",
  execution: "/v1/executions/{id}",
};

const STORED = "holdfast.token";
const TIMEOUT_MS = 20_000;
const TOKEN = /^[\x21-\x7e]{1,200}$/;

let token = stored();

function stored() {
  try {
    return sessionStorage.getItem(STORED);
  } catch {
    return null; // a browser that keeps nothing: in memory, then
  }
}

/** Whether there is a token to send. */
export function hasToken() {
  return token !== null;
}

/** Keep a token for as long as the tab lives; null forgets it. False where it cannot be a token. */
export function useToken(text) {
  if (text !== null && !TOKEN.test(text)) return false;
  token = text;
  try {
    if (text === null) sessionStorage.removeItem(STORED);
    else sessionStorage.setItem(STORED, text);
  } catch {
    // in memory alone, then
  }
  return true;
}

/** What went wrong, and what to do about it. */
export class Problem extends Error {
  constructor(message, { title = "It failed", status = 0, kind = "", hint = "", request = "", wait = 0 } = {}) {
    super(message);
    Object.assign(this, { title, status, kind, hint, request, wait });
    this.remedy = hint ? `What helps: ${hint}` : "";
    this.command = "";
  }
}

/** Numbers that JavaScript would round, kept as they were written. */
class Exact {
  constructor(source) {
    this.source = source;
  }

  toString() {
    return this.source;
  }

  toJSON() {
    return JSON.rawJSON ? JSON.rawJSON(this.source) : this.source;
  }
}

/** JSON, without rounding large whole numbers where the browser can tell what was written. */
export function parse(text) {
  return JSON.parse(text, (_, value, context) => {
    if (typeof value !== "number" || Number.isSafeInteger(value) || !Number.isInteger(value)) return value;
    return context?.source ? new Exact(context.source) : value;
  });
}

function address(path, names, query) {
  const filled = path.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(names[name]));
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") asked.append(name, value);
  }
  const text = asked.toString();
  return text ? `${filled}?${text}` : filled;
}

/** Send a request; the raw response, or a Problem. */
export async function open(path, { names = {}, query = {}, headers = {}, signal } = {}) {
  const sent = { accept: "application/json", ...headers };
  if (token !== null) sent.authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(address(path, names, query), {
      headers: sent, signal, credentials: "omit", cache: "no-store", redirect: "error", referrerPolicy: "no-referrer",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem("The server does not answer.", { title: "No answer", kind: "NoAnswer" });
  }
  if (!response.ok) throw await refused(response);
  return response;
}

/** Ask for JSON. */
export async function ask(path, options = {}) {
  const limit = new AbortController();
  const timer = setTimeout(() => limit.abort(), TIMEOUT_MS);
  const stop = () => limit.abort();
  options.signal?.addEventListener("abort", stop);
  try {
    const response = await open(path, { ...options, signal: limit.signal });
    return { data: parse(await response.text()), headers: response.headers };
  } catch (error) {
    if (error instanceof Problem || options.signal?.aborted) throw error;
    throw new Problem(`There was no whole answer within ${TIMEOUT_MS / 1000} s.`, { title: "No answer", kind: "NoAnswer" });
  } finally {
    clearTimeout(timer);
    options.signal?.removeEventListener("abort", stop);
  }
}

async function refused(response) {
  let body = {};
  try {
    body = JSON.parse((await response.text()).slice(0, 100_000)) ?? {};
  } catch {
    // not ours: a proxy's, say
  }
  const wait = Number(response.headers.get("retry-after")) || 0;
  return problemOf(body, response.status, wait);
}

/** An error body of the server as a Problem. */
export function problemOf(body, status = 0, wait = 0) {
  const kind = String(body.kind ?? "");
  const problem = new Problem(String(body.message ?? `The server answered with status ${status}.`), {
    title: TITLES[status] ?? (kind || "It failed"), status, kind, hint: String(body.hint ?? ""),
    request: String(body.request ?? ""), wait,
  });
  if (status === 401) {
    if (token !== null) problem.title = "This token is not accepted";
    problem.remedy = "Give one that is known, whole, and has not expired.";
  } else if (status === 403) {
    problem.remedy = "Use a token that allows it. The operator of the log makes one with";
    problem.command = "holdfast token create DIR console --scope read --topic '*' --topic _executions";
  }
  return problem;
}

const TITLES = {
  401: "A token is needed",
  403: "This token does not allow it",
  404: "There is no such thing",
  410: "Expired",
  429: "Too many requests",
  503: "Not now",
};
