/*
 * Elements of the page, made of text. Whatever comes from the log goes through `element` or `say`, which make text
 * nodes: nothing here, or anywhere in the console, reads markup.
 */

/** An element with properties and children; children are elements, or values that are shown as text. */
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "class") made.className = value;
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  made.append(...children.flat().filter((one) => one !== null && one !== undefined).map(node));
  return made;
}

function node(value) {
  return value instanceof Node ? value : document.createTextNode(String(value));
}

/** Set an element's text, and touch it only where it changes. */
export function say(target, text) {
  const wanted = String(text);
  if (target.textContent !== wanted) target.textContent = wanted;
}

/** A table: a caption for those who cannot see it, heads, and an empty body to fill. */
export function table(caption, heads, kind = "") {
  const body = element("tbody");
  const cells = heads.map((head) => element("th", { scope: "col", class: head.class }, head.text ?? head));
  const made = element(
    "table", { class: kind },
    element("caption", {}, caption), element("thead", {}, element("tr", {}, cells)), body,
  );
  return { made: element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, made), body };
}

/** A cell that says its column's name where columns do not fit beside each other. */
export function cell(label, properties, ...children) {
  return element("td", { "data-label": label, ...properties }, ...children);
}

/** Terms and what they are. */
export function facts(pairs) {
  const rows = pairs.map(([term, ...what]) => element("div", {}, element("dt", {}, term), element("dd", {}, ...what)));
  return element("dl", { class: "facts" }, rows);
}

/** A problem, with what to do about it. */
export function problem(error) {
  const box = element("div", { class: "problem", role: "alert" }, element("strong", {}, error.title ?? "It failed"));
  box.append(element("p", {}, cut(error.message ?? String(error), 2000)));
  if (error.remedy) box.append(element("p", {}, error.remedy));
  if (error.command) box.append(element("pre", {}, error.command));
  if (error.request) box.append(element("p", { class: "dim" }, `Request ${error.request}`));
  return box;
}

/** The beginning of a long text. */
export function cut(text, most) {
  if (text.length <= most) return text;
  const end = /[\uD800-\uDBFF]/.test(text[most - 1]) ? most - 1 : most; // not in the middle of a character
  return `${text.slice(0, end)}…`;
}

const WHOLE = new Intl.NumberFormat("en");

/** A whole number, in groups of three. */
export function number(value) {
  return typeof value === "number" ? WHOLE.format(value) : String(value);
}

/** So many of something. */
export function count(value, noun) {
  return `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** A rate per second. */
export function rate(value) {
  if (value === null) return "–";
  return value >= 100 || value === 0 ? WHOLE.format(Math.round(value)) : value.toFixed(1);
}

/** Bytes, in the largest fitting unit. */
export function bytes(value) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  let left = value;
  while (left >= 1024 && unit < units.length - 1) {
    left /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? WHOLE.format(left) : left.toFixed(1)} ${units[unit]}`;
}

/** Seconds, in the largest fitting unit. */
export function span(seconds) {
  if (seconds < 1) return seconds === 0 ? "0 s" : `${Math.max(1, Math.round(seconds * 1000))} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} days`;
}

const pad = (value, width = 2) => String(value).padStart(width, "0");

/** Microseconds since 1970 as this machine's local time, to the millisecond. */
export function localTime(us) {
  const at = new Date(Number(us) / 1000);
  if (Number.isNaN(at.getTime())) return String(us);
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  return `${day} ${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}.${pad(at.getMilliseconds(), 3)}`;
}

/** A time in the page, exact when it is pointed at. */
export function moment(us, exact = null) {
  if (!us) return element("span", { class: "dim" }, "–");
  return element("time", { title: exact ?? `${us} µs since 1970` }, localTime(us));
}
