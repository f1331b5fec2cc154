// Translates when typing stops, underlines words by confidence, and shows the attention of each layer.
"use strict";

const PAUSE = 350; // milliseconds without a keystroke before the text is translated
const ALTERNATIVES = 3; // number of other translations to request
const byId = (id) => document.getElementById(id);
const state = { languages: [], limit: 0, requests: 0, timer: 0, attention: null };

function element(name, text, properties = {}) {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text; // a translation is never parsed as HTML
  return Object.assign(node, properties);
}

async function request(path, body) {
  const key = byId("key").value;
  const options = body && {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(key ? { ...body, api_key: key } : body),
  };
  const response = await fetch(path, options || {});
  const content = await response.json();
  if (!response.ok) throw new Error(content.error || `the server returned status ${response.status}`);
  return content;
}

function fill(select, entries, chosen) {
  select.replaceChildren(...entries.map(([value, text]) => element("option", text, { value })));
  if (entries.some(([value]) => String(value) === String(chosen))) select.value = chosen;
}

function fillTargets(chosen) {
  const source = byId("source").value;
  const from = state.languages.filter(({ code }) => source === "auto" || code === source);
  const codes = new Set(from.flatMap(({ targets }) => targets));
  const name = (code) => (state.names[code] || code);
  fill(byId("target"), [...codes].map((code) => [code, name(code)]), chosen || byId("target").value);
}

function showStatus(text, isError = false) {
  byId("status").textContent = text;
  byId("status").className = isError ? "error" : "";
}

function showTranslation(words) {
  const output = byId("translation");
  output.replaceChildren();
  for (const { text, confidence } of words) {
    if (confidence === null) {
      output.append(text);
      continue;
    }
    const word = element("span", text, { className: "word", title: `${Math.round(100 * confidence)} %` });
    word.style.textDecorationColor = `rgba(var(--doubt), ${(1 - confidence).toFixed(2)})`;
    output.append(word);
  }
  byId("copy").disabled = words.length === 0;
  byId("legend").hidden = words.length === 0;
}

function showCount() {
  const length = [...byId("text").value].length;
  byId("count").textContent = state.limit ? `${length} of ${state.limit} characters` : "";
}

async function translate() {
  const q = byId("text").value;
  const number = ++state.requests;
  state.attention = null;
  if (!q.trim()) {
    showTranslation([]);
    byId("alternatives").hidden = true;
    showStatus("");
    showAttention();
    return;
  }
  showStatus("…");
  const parameters = { q, source: byId("source").value, target: byId("target").value };
  try {
    const result = await request("words", { ...parameters, alternatives: ALTERNATIVES });
    if (number !== state.requests) return; // a newer request was sent
    showTranslation(result.words);
    byId("others").replaceChildren(...result.alternatives.map((text) => element("li", text)));
    byId("alternatives").hidden = result.alternatives.length === 0;
    const language = result.detectedLanguage;
    showStatus(language ? `from ${state.names[language.language] || language.language}` : "");
    if (byId("attention").open) await inspect(number);
  } catch (error) {
    if (number === state.requests) showStatus(error.message, true);
  }
}

async function inspect(number = state.requests) {
  const q = byId("text").value;
  const parameters = { q, source: byId("source").value, target: byId("target").value };
  parameters.part = byId("part").value;
  parameters.layer = Number(byId("layer").value || 1);
  if (!q.trim()) return showAttention();
  try {
    const result = await request("attention", parameters);
    if (number !== state.requests) return;
    state.attention = result;
    byId("attention-note").textContent = "";
    fill(byId("layer"), Array.from({ length: result.layers }, (_, i) => [i + 1, i + 1]), parameters.layer);
    fill(byId("head"), Array.from({ length: result.heads }, (_, i) => [i + 1, i + 1]), byId("head").value || 1);
  } catch (error) {
    state.attention = null;
    byId("attention-note").textContent = error.message;
  }
  showAttention();
}

function matrix(title, rows, across, down, signed) {
  const figure = element("figure");
  figure.append(element("figcaption", title));
  const table = element("table");
  const head = element("tr");
  head.append(element("td"), ...across.map((piece) => {
    const cell = element("th", undefined, { scope: "col" });
    cell.append(element("span", piece));
    return cell;
  }));
  const top = element("thead");
  top.append(head);
  const body = element("tbody");
  const largest = signed ? Math.max(1e-6, ...rows.flat().map(Math.abs)) : 1;
  rows.forEach((row, i) => {
    const line = element("tr");
    line.append(element("th", down[i], { scope: "row" }));
    row.forEach((value, j) => {
      const colour = signed ? (value < 0 ? "minus" : "plus") : "weight";
      const cell = element("td", undefined, { title: `${down[i]} → ${across[j]}: ${value.toFixed(3)}` });
      cell.style.backgroundColor = `rgba(var(--${colour}), ${(Math.abs(value) / largest).toFixed(3)})`;
      line.append(cell);
    });
    body.append(line);
  });
  table.append(top, body);
  table.setAttribute("aria-label", title);
  const scroll = element("div", undefined, { className: "scroll", tabIndex: 0 });
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", title);
  scroll.append(table);
  figure.append(scroll);
  return figure;
}

function showDistances(distances, values) {
  const largest = Math.max(1e-6, ...values.map(Math.abs));
  byId("bars").replaceChildren(...values.map((value, i) => {
    const bar = element("div", undefined, { title: `${distances[i]}: ${value.toFixed(3)}` });
    const part = element("i");
    const height = 45 * Math.abs(value) / largest;
    part.style.height = `${height}%`;
    part.style[value < 0 ? "top" : "bottom"] = "50%";
    bar.append(part);
    if (distances[i] % 4 === 0) bar.append(element("b", distances[i]));
    return bar;
  }));
  const strongest = values.indexOf(Math.max(...values));
  byId("bars").setAttribute("aria-label", `the distance with the largest mean term is ${distances[strongest]}`);
}

function showAttention() {
  const attention = state.attention;
  byId("attention-controls").hidden = !attention;
  byId("matrices").replaceChildren();
  byId("distances").hidden = byId("sum").hidden = true;
  if (!attention) return;
  const head = Number(byId("head").value || 1) - 1;
  if (attention.part === "cross") {
    byId("matrices").append(matrix("weights", attention.weights[head], attention.across, attention.down, false));
    return;
  }
  byId("matrices").append(matrix("content", attention.content[head], attention.across, attention.down, true));
  if (attention.relative) byId("matrices").append(matrix("relative", attention.relative[head], attention.across, attention.down, true));
  byId("matrices").append(matrix("weights (after softmax)", attention.weights[head], attention.across, attention.down, false));
  byId("sum").hidden = !attention.relative;
  byId("distances").hidden = !attention.by_distance;
  if (attention.by_distance) showDistances(attention.distances, attention.by_distance[head]);
}

function translateLater() {
  showCount();
  clearTimeout(state.timer);
  state.timer = setTimeout(translate, PAUSE);
}

async function start() {
  try {
    const [languages, settings] = await Promise.all([request("languages"), request("frontend/settings")]);
    state.languages = languages.filter(({ targets }) => targets.length);
    state.names = Object.fromEntries(languages.map(({ code, name }) => [code, name]));
    state.limit = settings.charLimit;
    for (const node of document.querySelectorAll(".key")) node.hidden = !settings.keyRequired;
    fill(byId("source"), [...state.languages.map(({ code, name }) => [code, name]), ["auto", "detect language"]], settings.language.source.code);
    fillTargets(settings.language.target.code);
    showCount();
  } catch (error) {
    showStatus(error.message, true);
  }
  byId("text").addEventListener("input", translateLater);
  byId("key").addEventListener("change", translate);
  byId("form").addEventListener("submit", (event) => { event.preventDefault(); translate(); });
  byId("source").addEventListener("change", () => { fillTargets(); translate(); });
  byId("target").addEventListener("change", translate);
  byId("swap").addEventListener("click", () => {
    const source = byId("source").value;
    const back = state.languages.find(({ code }) => code === byId("target").value);
    if (!back || source === "auto" || !back.targets.includes(source)) return showStatus("no model translates in this direction", true);
    byId("source").value = back.code;
    fillTargets(source);
    byId("text").value = byId("translation").textContent;
    translateLater();
  });
  byId("copy").addEventListener("click", async () => {
    await navigator.clipboard.writeText(byId("translation").textContent);
    showStatus("copied");
  });
  byId("attention").addEventListener("toggle", () => { if (byId("attention").open) inspect(); });
  for (const id of ["part", "layer"]) byId(id).addEventListener("change", () => inspect());
  byId("head").addEventListener("change", showAttention);
  if (byId("text").value) translateLater();
}

start();
