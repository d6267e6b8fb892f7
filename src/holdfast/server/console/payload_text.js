/*
 * Payloads for people: JSON indented, text as it is, bytes in hexadecimal; large ones cut, with their size. Pure.
 */

import { bytes, cut } from "./page_elements.js";

const PREVIEW = 160;
const TEXT_MAX = 16_384;
const HEX_MAX = 1_024;
const JSON_MAX = 262_144;

/** A value of a record: text, or bytes in base64. */
export class Given {
  constructor(text, encoding) {
    this.text = text;
    this.isBytes = encoding === "base64";
  }

  /** How many bytes it is. */
  get size() {
    if (!this.isBytes) return new TextEncoder().encode(this.text).length;
    const padding = this.text.endsWith("==") ? 2 : Number(this.text.endsWith("="));
    return (this.text.length / 4) * 3 - padding;
  }

  /** One line of it. */
  get preview() {
    if (!this.isBytes) return cut(this.text.slice(0, PREVIEW + 1).replace(/\s+/g, " "), PREVIEW);
    const first = start(this.text, 32);
    return first.map(hex).join(" ") + (this.size > first.length ? " …" : "");
  }

  /** What it is, and how much of it `body` has. */
  get about() {
    const size = this.size;
    const shown = this.isBytes ? Math.min(size, HEX_MAX) : null;
    if (this.isBytes) return `bytes, ${bytes(size)}${shown < size ? `; the first ${bytes(shown)} are shown` : ""}`;
    const kind = this.json === null ? "text" : "JSON";
    return `${kind}, ${bytes(size)}${this.body.length < this.full.length ? "; only the beginning is shown" : ""}`;
  }

  get json() {
    if (this.isBytes || this.text.length > JSON_MAX || !/^\s*[[{]/.test(this.text)) return null;
    try {
      JSON.parse(this.text);
      return indented(this.text);
    } catch {
      return null;
    }
  }

  get full() {
    return this.json ?? this.text;
  }

  /** All of it that is shown. */
  get body() {
    return this.isBytes ? dump(start(this.text, HEX_MAX)) : this.full.slice(0, TEXT_MAX);
  }
}

const hex = (byte) => byte.toString(16).padStart(2, "0");

function start(text, most) {
  const whole = atob(text.slice(0, Math.ceil(most / 3) * 4));
  return Array.from(whole.slice(0, most), (letter) => letter.charCodeAt(0));
}

function dump(values) {
  const lines = [];
  for (let at = 0; at < values.length; at += 16) {
    const row = values.slice(at, at + 16);
    const letters = row.map((one) => (one >= 32 && one < 127 ? String.fromCharCode(one) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${row.map(hex).join(" ").padEnd(47)}  ${letters}`);
  }
  return lines.join("\n");
}

/** JSON with line ends and spaces, but otherwise as it was written: numbers, doubled names and all. */
export function indented(text) {
  const parts = text.match(/"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s[\]{},:"]+/g) ?? [];
  const lines = [""];
  let depth = 0;
  const newLine = () => lines.push("  ".repeat(depth));
  parts.forEach((part, at) => {
    if (part === "{" || part === "[") {
      lines[lines.length - 1] += part;
      depth += 1;
      if (!"]}".includes(parts[at + 1])) newLine();
    } else if (part === "}" || part === "]") {
      depth -= 1;
      if (!"[{".includes(parts[at - 1])) newLine();
      lines[lines.length - 1] += part;
    } else {
      lines[lines.length - 1] += part === ":" ? ": " : part;
      if (part === ",") newLine();
    }
  });
  return lines.join("\n");
}
