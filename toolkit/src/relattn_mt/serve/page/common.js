// Shared by the parts of the page: elements, requests, and the rule that the latest choice wins.

import { TEXTS } from "./texts.js";

const TRIES = 3; // requests to a server that is busy
const LONGEST_WAIT = 10; // seconds

export const byId = (id) => document.getElementById(id);

// Return an element. Its text is never parsed as HTML.
export function element(name, text, properties = {}, attributes = {}) {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return Object.assign(node, properties);
}

export function fill(select, entries, chosen) {
  const before = chosen === undefined ? select.value : String(chosen);
  select.replaceChildren(...entries.map(([value, text]) => element("option", text, { value })));
  if (entries.some(([value]) => String(value) === before)) select.value = before;
}

// Return a function that starts a task: it aborts the previous one, and returns the signal of the new one.
// Whoever awaits something must look at `signal.aborted` before showing the result.
export function latest() {
  let controller = new AbortController();
  return () => {
    controller.abort();
    controller = new AbortController();
    return controller.signal;
  };
}

export const pause = (seconds, signal) => new Promise((resolve, reject) => {
  setTimeout(resolve, 1000 * seconds);
  signal?.addEventListener("abort", () => reject(signal.reason));
});

// Send a JSON object or a FormData, or get a path, and return the answer. Errors have a message for the user.
// If the answer is several lines, `report` is called with the progress that each one but the last has.
export async function request(path, body, signal, report = () => {}) {
  const key = byId("key").value;
  const options = { signal };
  if (body instanceof FormData) {
    if (key) body.set("api_key", key);
    Object.assign(options, { method: "POST", body });
  } else if (body) {
    const content = JSON.stringify(key ? { ...body, api_key: key } : body);
    Object.assign(options, { method: "POST", headers: { "Content-Type": "application/json" }, body: content });
  }
  let response, text;
  try {
    response = await fetch(path, options);
    const isLines = response.headers.get("Content-Type") === "application/x-ndjson";
    text = isLines ? await lastLine(response, report) : await response.text();
  } catch (error) {
    if (signal && signal.aborted) throw error;
    throw Object.assign(new Error(TEXTS.unreachable), { isAway: true });
  }
  let content = null;
  try { content = JSON.parse(text); } catch { /* a proxy may answer with a page of its own */ }
  if (response.ok && content !== null && !content.error) return content;
  const wait = response.headers.get("Retry-After");
  const again = wait ? TEXTS.again(wait) : "";
  const other = response.ok ? TEXTS.unreadable : TEXTS.status(response.status);
  const reason = content && content.error;
  const message = (reason ? sentence(reason) : TEXTS.errors[response.status] || other) + again;
  throw Object.assign(new Error(message), { isBusy: response.status === 429, isAway: [502, 503, 504].includes(response.status), wait });
}

// Do what `request` does, and again while the server is busy. `onWait` is called with a message for the user.
export async function requestPatiently(path, body, signal, onWait = () => {}) {
  for (let tries = 1; ; tries++) {
    try {
      return await request(path, body, signal);
    } catch (error) {
      if (!error.isBusy || tries === TRIES) throw error;
      const seconds = Math.min(LONGEST_WAIT, Number(error.wait) || 2);
      onWait(TEXTS.busy(seconds));
      await pause(seconds, signal);
    }
  }
}

async function lastLine(response, report) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const lines = (rest + part.value).split("\n");
    rest = lines.pop();
    if (lines.length) report(JSON.parse(lines.pop()).progress);
  }
  return rest;
}

export const sentence = (text) => text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // the clipboard API requires https
    const focused = document.activeElement;
    const area = element("textarea", text, { className: "off-screen" });
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    focused?.focus();
    if (!copied) throw new Error(TEXTS.noCopy);
  }
}
