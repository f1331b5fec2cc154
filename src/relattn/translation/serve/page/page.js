// The page: translates when typing stops, shades words by confidence, and shows attention layer by layer.
"use strict";

const PAUSE = 350; // milliseconds without a key before a text is translated
const OTHERS = 3; // other translations that are asked for
const at = (id) => document.getElementById(id);
const state = { languages: [], limit: 0, asked: 0, timer: 0, words: [], attention: null };

function element(name, text, properties = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text; // as text: whatever a translation says is never markup
  return Object.assign(made, properties);
}

async function ask(path, body) {
  const key = at("key").value;
  const options = body && {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(key ? { ...body, api_key: key } : body),
  };
  const answer = await fetch(path, options || {});
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error || `the server answered ${answer.status}`);
  return content;
}

function fill(select, entries, chosen) {
  select.replaceChildren(...entries.map(([value, text]) => element("option", text, { value })));
  if (entries.some(([value]) => String(value) === String(chosen))) select.value = chosen;
}

function fillTargets(chosen) {
  const source = at("source").value;
  const from = state.languages.filter((one) => source === "auto" || one.code === source);
  const codes = new Set(from.flatMap((one) => one.targets));
  const name = (code) => (state.names[code] || code);
  fill(at("target"), [...codes].map((code) => [code, name(code)]), chosen || at("target").value);
}

function say(text, isError = false) {
  at("status").textContent = text;
  at("status").className = isError ? "error" : "";
}

function showTranslation(words) {
  const output = at("translation");
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
  at("copy").disabled = words.length === 0;
  at("legend").hidden = words.length === 0;
}

function count() {
  const length = [...at("text").value].length;
  at("count").textContent = state.limit ? `${length} of ${state.limit} characters` : "";
}

async function translate() {
  const q = at("text").value;
  const number = ++state.asked;
  state.attention = null;
  if (!q.trim()) {
    showTranslation([]);
    at("alternatives").hidden = true;
    say("");
    showInside();
    return;
  }
  say("…");
  const what = { q, source: at("source").value, target: at("target").value };
  try {
    const found = await ask("words", { ...what, alternatives: OTHERS });
    if (number !== state.asked) return; // a newer text was asked for
    showTranslation(found.words);
    at("others").replaceChildren(...found.alternatives.map((one) => element("li", one)));
    at("alternatives").hidden = found.alternatives.length === 0;
    const language = found.detectedLanguage;
    say(language ? `from ${state.names[language.language] || language.language}` : "");
    if (at("inside").open) await inspect(number);
  } catch (error) {
    if (number === state.asked) say(error.message, true);
  }
}

async function inspect(number = state.asked) {
  const q = at("text").value;
  const what = { q, source: at("source").value, target: at("target").value };
  what.part = at("part").value;
  what.layer = Number(at("layer").value || 1);
  if (!q.trim()) return showInside();
  try {
    const found = await ask("attention", what);
    if (number !== state.asked) return;
    state.attention = found;
    at("inside-note").textContent = "";
    fill(at("layer"), Array.from({ length: found.layers }, (_, i) => [i + 1, i + 1]), what.layer);
    fill(at("head"), Array.from({ length: found.heads }, (_, i) => [i + 1, i + 1]), at("head").value || 1);
  } catch (error) {
    state.attention = null;
    at("inside-note").textContent = error.message;
  }
  showInside();
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
  at("bars").replaceChildren(...values.map((value, i) => {
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
  at("bars").setAttribute("aria-label", `the distance that adds most is ${distances[strongest]}`);
}

function showInside() {
  const found = state.attention;
  at("inside-controls").hidden = !found;
  at("matrices").replaceChildren();
  at("distances").hidden = at("sum").hidden = true;
  if (!found) return;
  const head = Number(at("head").value || 1) - 1;
  if (found.part === "cross") {
    at("matrices").append(matrix("weights", found.weights[head], found.across, found.down, false));
    return;
  }
  at("matrices").append(matrix("content", found.content[head], found.across, found.down, true));
  if (found.relative) at("matrices").append(matrix("relative", found.relative[head], found.across, found.down, true));
  at("matrices").append(matrix("weights, after the softmax", found.weights[head], found.across, found.down, false));
  at("sum").hidden = !found.relative;
  at("distances").hidden = !found.by_distance;
  if (found.by_distance) showDistances(found.distances, found.by_distance[head]);
}

function later() {
  count();
  clearTimeout(state.timer);
  state.timer = setTimeout(translate, PAUSE);
}

async function begin() {
  try {
    const [languages, settings] = await Promise.all([ask("languages"), ask("frontend/settings")]);
    state.languages = languages.filter((one) => one.targets.length);
    state.names = Object.fromEntries(languages.map((one) => [one.code, one.name]));
    state.limit = settings.charLimit;
    for (const one of document.querySelectorAll(".key")) one.hidden = !settings.keyRequired;
    fill(at("source"), [...state.languages.map((one) => [one.code, one.name]), ["auto", "any of these"]], settings.language.source.code);
    fillTargets(settings.language.target.code);
    count();
  } catch (error) {
    say(error.message, true);
  }
  at("text").addEventListener("input", later);
  at("key").addEventListener("change", translate);
  at("form").addEventListener("submit", (event) => { event.preventDefault(); translate(); });
  at("source").addEventListener("change", () => { fillTargets(); translate(); });
  at("target").addEventListener("change", translate);
  at("swap").addEventListener("click", () => {
    const source = at("source").value;
    const back = state.languages.find((one) => one.code === at("target").value);
    if (!back || source === "auto" || !back.targets.includes(source)) return say("nothing here translates back", true);
    at("source").value = back.code;
    fillTargets(source);
    at("text").value = at("translation").textContent;
    later();
  });
  at("copy").addEventListener("click", async () => {
    await navigator.clipboard.writeText(at("translation").textContent);
    say("copied");
  });
  at("inside").addEventListener("toggle", () => { if (at("inside").open) inspect(); });
  for (const id of ["part", "layer"]) at(id).addEventListener("change", () => inspect());
  at("head").addEventListener("change", showInside);
  if (at("text").value) later();
}

begin();
