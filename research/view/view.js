// Shows the attention of a model: all heads as pictures, and one head word by word, with the two parts of its scores.
const ROW = 30; // height of a word in the linked view in pixels, as in the style sheet
// sentences: {line, translation, parts}. data: the chosen part of one. query, key: chosen words.
const state = { ...JSON.parse(document.getElementById("data").textContent), data: null, layer: 0, head: null, sentence: 0, query: 0, key: null };

const byId = (id) => document.getElementById(id);

// Return an element. Its text is never parsed as HTML.
function element(name, text, properties = {}, attributes = {}) {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return Object.assign(node, properties);
}

const isCausal = () => byId("part").value === "decoder";
const isVisible = (i, j) => !isCausal() || j <= i; // piece j for piece i
const layerData = () => state.data.layers[state.layer];

// The words of a side as shown: {text, begin, end, special}, with the range of their pieces. One word alone is shown in
// pieces, since it may be a sentence in a language without spaces.
function wordsOf({ pieces, words }) {
  const single = ({ begin, end, special }) => pieces.slice(begin, end).map((text, i) => ({ text, begin: begin + i, end: begin + i + 1, special }));
  const isJoined = byId("merge").checked && words.filter(({ special }) => !special).length > 1;
  const shown = isJoined ? words : words.flatMap(single);
  return byId("marks").checked ? shown : shown.filter(({ special }) => !special);
}

function pairsOf(query, key) {
  const pairs = [];
  for (let i = query.begin; i < query.end; i++) for (let j = key.begin; j < key.end; j++) if (isVisible(i, j)) pairs.push([i, j]);
  return pairs;
}

// Attention between words: summed over the pieces that are looked at, and averaged over those that look.
function share(matrix, query, key) {
  return pairsOf(query, key).reduce((sum, [i, j]) => sum + matrix[i][j], 0) / (query.end - query.begin);
}

// A part of the score between words: the mean over their pairs of pieces. So the parts still add up to the score.
function mean(matrix, query, key) {
  const pairs = pairsOf(query, key);
  return pairs.length ? pairs.reduce((sum, [i, j]) => sum + matrix[i][j], 0) / pairs.length : null;
}

const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);
const percent = (value) => (value > 0 && value < 0.005 ? "<1\u00a0%" : `${Math.round(100 * value)}\u00a0%`);

function setUp() {
  byId("part").addEventListener("change", () => { Object.assign(state, { layer: 0, head: null, query: 0, key: null }); show(); });
  byId("sentence").addEventListener("change", () => { Object.assign(state, { sentence: Number(byId("sentence").value), query: 0, key: null }); show(); });
  for (const id of ["merge", "marks"]) byId(id).addEventListener("change", () => { Object.assign(state, { query: 0, key: null }); show(); });
  followList("queries", (index) => choose(index, null));
  followList("keys", (index) => choose(state.query, index));
  addEventListener("resize", () => { if (state.data) drawLines(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (state.data) showHeads(); });
  byId("ask").hidden = !state.asks;
  byId("ask").addEventListener("submit", ask);
  showSentences();
}

// Ask the server for the attention of the sentence that was typed.
async function ask(event) {
  event.preventDefault();
  note("Translating…");
  try {
    const answer = await (await fetch(`sentence?${new URLSearchParams({ line: byId("text").value })}`)).json();
    if (answer.error) throw new Error(answer.error);
    Object.assign(state, { sentences: [answer, ...state.sentences], sentence: 0, query: 0, key: null });
    note("");
    showSentences();
  } catch (error) {
    note(error.message, "error");
  }
}

const note = (text, look = "") => Object.assign(byId("note"), { textContent: text, className: `note ${look}` });

function showSentences() {
  const title = (line) => (line.length > 40 ? line.slice(0, 40) + "…" : line);
  byId("sentence").replaceChildren(...state.sentences.map(({ line }, i) => element("option", `${i + 1}: ${title(line)}`, { value: i })));
  byId("sentence").value = state.sentence;
  byId("sentence-choice").hidden = state.sentences.length < 2;
  byId("view").hidden = !state.sentences.length;
  if (state.sentences.length) show();
}

function show() {
  const { line, translation, parts } = state.sentences[state.sentence];
  state.data = parts[byId("part").value];
  byId("line").textContent = line;
  byId("translation").textContent = translation;
  const { weights, by_distance: heads } = layerData();
  state.head ??= heads ? widest(heads) : 0;
  state.head = Math.min(state.head, weights.length - 1);
  state.queries = wordsOf(state.data.down);
  state.keys = wordsOf(state.data.across);
  showHeads();
  showHead();
}

// The head whose terms differ most by distance.
function widest(heads) {
  const ranges = heads.map((terms) => Math.max(...terms) - Math.min(...terms));
  return ranges.indexOf(Math.max(...ranges));
}

function showHeads() {
  const colour = getComputedStyle(byId("heads")).color.match(/\d+/g).map(Number);
  byId("heads").replaceChildren(...state.data.layers.map(({ weights }, layer) => {
    const row = element("section", undefined, {}, { "aria-label": `Layer ${layer + 1}` });
    const pictures = element("div", undefined, { className: "layer" });
    row.append(element("p", `Layer ${layer + 1}`, { className: "note" }), pictures);
    pictures.append(...weights.map((matrix, head) => {
      const isChosen = layer === state.layer && head === state.head;
      const button = element("button", undefined, { type: "button" }, { "aria-pressed": isChosen });
      button.append(picture(matrix, colour), element("b", `Head ${head + 1}`));
      button.addEventListener("click", () => chooseHead(layer, head));
      return button;
    }));
    return row;
  }));
}

function chooseHead(layer, head) {
  Object.assign(state, { layer, head, key: null });
  [...byId("heads").children].forEach((row, i) => [...row.querySelectorAll("button")].forEach((button, j) => button.setAttribute("aria-pressed", i === layer && j === head)));
  showHead();
}

function picture(matrix, [red, green, blue]) {
  const { queries, keys } = state;
  const canvas = element("canvas", undefined, { width: keys.length, height: queries.length }, { "aria-hidden": "true" });
  const context = canvas.getContext("2d"), image = context.createImageData(keys.length || 1, queries.length || 1);
  queries.forEach((query, i) => keys.forEach((key, j) => {
    image.data.set([red, green, blue, 255 * Math.min(1, share(matrix, query, key))], 4 * (i * keys.length + j));
  }));
  context.putImageData(image, 0, 0);
  return canvas;
}

function showHead() {
  const { layer, head, queries, keys, source, target } = state, data = layerData(), part = byId("part").value;
  byId("head-title").textContent = `Layer ${layer + 1}, head ${head + 1}`;
  const option = (id, language) => ({ text }, i) => {
    const row = element("li", undefined, { id: `${id}-${i}` }, { role: "option" });
    row.append(element("bdi", text, { lang: language }));
    return row;
  };
  byId("queries").replaceChildren(...queries.map(option("query", part === "encoder" ? source : target)));
  byId("keys").replaceChildren(...keys.map(option("key", part === "decoder" ? target : source)));
  for (const id of ["axis", "parts-legend"]) byId(id).hidden = !data.content;
  if (data.content) {
    const parts = [data.content[head], data.relative && data.relative[head]].filter(Boolean);
    const values = parts.flatMap((matrix) => queries.flatMap((query) => keys.map((key) => Math.abs(mean(matrix, query, key) ?? 0))));
    state.scale = Math.max(0.1, Math.ceil(10 * Math.max(...values)) / 10);
    const ticks = element("div");
    ticks.append(...[-state.scale, 0, state.scale].map((value) => element("span", value ? signed(value).slice(0, -1) : "0")));
    byId("axis").replaceChildren(ticks);
  }
  byId("keys").classList.toggle("plain", !data.content);
  showDistances();
  choose(Math.min(state.query, queries.length - 1), state.key === null ? null : Math.min(state.key, keys.length - 1));
}

function termsOf(query, key) {
  const { head } = state, data = layerData();
  return {
    weight: share(data.weights[head], query, key),
    content: data.content ? mean(data.content[head], query, key) : null,
    distance: data.relative ? mean(data.relative[head], query, key) : null,
  };
}

// Choose the word that looks, and one that it looks at (null: the one with most attention).
function choose(queryIndex, keyIndex) {
  const { queries, keys } = state;
  if (!queries.length || !keys.length) return;
  const query = queries[queryIndex];
  const terms = keys.map((key) => termsOf(query, key));
  keyIndex ??= terms.reduce((best, { weight }, i) => (weight > terms[best].weight ? i : best), 0);
  Object.assign(state, { query: queryIndex, key: keyIndex });
  for (const [list, chosen] of [[byId("queries"), queryIndex], [byId("keys"), keyIndex]]) {
    [...list.children].forEach((row, i) => row.setAttribute("aria-selected", i === chosen));
    list.setAttribute("aria-activedescendant", list.children[chosen].id);
  }
  terms.forEach((term, i) => showTerm(byId("keys").children[i], term));
  state.weights = terms.map(({ weight }) => weight);
  drawLines();
  showFormula(query, keys[keyIndex], terms[keyIndex]);
  const near = new Set(pairsOf(query, keys[keyIndex]).map(([i, j]) => clipped(j - i)));
  for (const bar of byId("bars").children) bar.classList.toggle("near", near.has(Number(bar.dataset.distance)));
}

function clipped(distance) {
  const { distances } = layerData();
  return distances?.length ? Math.max(distances[0], Math.min(distances.at(-1), distance)) : distance;
}

function showTerm(row, { weight, content, distance }) {
  const isHidden = content === null && layerData().content;
  row.classList.toggle("later", Boolean(isHidden));
  row.style.setProperty("--weight", weight.toFixed(3));
  row.replaceChildren(row.querySelector("bdi"));
  if (layerData().content) {
    const bars = element("span", undefined, { className: "bars" });
    for (const [name, value] of [["content", content], ["distance", distance]]) {
      if (value === null) continue;
      const bar = element("i", undefined, { className: name });
      const width = 50 * Math.abs(value) / state.scale;
      Object.assign(bar.style, { width: `${width}%`, left: `${value < 0 ? 50 - width : 50}%` });
      bars.append(bar);
    }
    row.append(bars);
  }
  const parts = [["content", content], ["distance", distance]].filter(([, value]) => value !== null).map(([name, value]) => `, ${name} ${signed(value)}`);
  row.append(element("span", ": ", { className: "spoken" }), element("span", isHidden ? "later" : percent(weight), { className: "percent" }), element("span", parts.join(""), { className: "spoken" }));
}

function drawLines() {
  const svg = byId("lines"), width = svg.clientWidth;
  const middle = (index) => ROW * (index + 0.5);
  svg.style.height = `${ROW * Math.max(state.queries.length, state.keys.length)}px`;
  svg.replaceChildren(...(state.weights || []).map((weight, i) => {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    const [from, to] = [middle(state.query), middle(i)];
    path.setAttribute("d", `M0 ${from} C${width / 2} ${from} ${width / 2} ${to} ${width} ${to}`);
    path.setAttribute("stroke-width", 1 + 7 * weight);
    path.setAttribute("stroke-opacity", weight < 0.01 ? 0 : Math.min(1, 0.15 + weight));
    if (i === state.key) path.setAttribute("class", "chosen");
    return path;
  }));
}

function showFormula(query, key, { weight, content, distance }) {
  const box = byId("formula"), pairs = pairsOf(query, key).length;
  const part = (name, value) => element("b", `${name} ${signed(value)}`, { className: `${name}-ink` });
  box.replaceChildren(element("bdi", `“${query.text}”`), " → ", element("bdi", `“${key.text}”`), ": ");
  if (!pairs) return box.append("comes later, so it cannot be looked at.");
  if (content !== null) {
    box.append(part("content", content));
    const rounded = Number(content.toFixed(2)) + Number((distance ?? 0).toFixed(2)); // so that the figures shown add up
    if (distance !== null) box.append(" + ", part("distance", distance), ` = score ${signed(rounded)}`);
    else box.append(" is the score (this model has no distance part)");
    box.append(" ⇒ ");
  }
  box.append(element("b", percent(weight)), " of its attention");
  if (pairs > 1 && content !== null) box.append(element("span", ` (scores are means over ${pairs} pairs of pieces)`, { className: "note" }));
}

// The mean distance part as a bar per distance, with labelled axes.
function showDistances() {
  const { distances = [], by_distance: heads } = layerData(), { down } = state.data;
  byId("distances").hidden = !heads;
  if (!heads) return byId("bars").replaceChildren();
  const shown = distances.map((distance, i) => [distance, heads[state.head][i]]).filter(([distance]) => !isCausal() || distance <= 0);
  const values = shown.map(([, value]) => value);
  const high = Math.max(0.1, ...values), low = Math.min(0, ...values), zero = 100 * high / (high - low); // % from the top
  const ends = [distances[0], distances.at(-1)], step = Math.max(1, Math.ceil(shown.length / 17)) * (shown.length > 9 ? 2 : 1);
  const isClipped = ends[1] < down.pieces.length - 1 || -ends[0] < down.pieces.length - 1;
  byId("bars").style.setProperty("--zero", `${zero}%`);
  byId("bars").replaceChildren(...shown.map(([distance, value]) => {
    const column = element("div", undefined, { title: `distance ${distance}: ${signed(value)}` });
    column.dataset.distance = distance;
    const bar = element("i");
    const height = 100 * Math.abs(value) / (high - low);
    Object.assign(bar.style, { height: `${height}%`, top: `${value < 0 ? zero : zero - height}%` });
    column.append(bar);
    const isEnd = ends.includes(distance) && distance;
    if (isEnd || distance % step === 0) column.append(element("b", `${Math.abs(distance)}${isEnd && isClipped ? "+" : ""}`));
    return column;
  }));
  byId("y-high").textContent = signed(high);
  byId("y-low").textContent = low < 0 ? signed(low) : "0";
  byId("ahead").hidden = isCausal();
  const [best] = shown.reduce((a, b) => (b[1] > a[1] ? b : a));
  byId("bars").setAttribute("aria-label", `Distance part by distance, from ${signed(low)} to ${signed(high)}; largest ${best === 0 ? "at the piece itself" : `${Math.abs(best)} ${best < 0 ? "back" : "ahead"}`}`);
}

// A list box whose choice follows the pointer, taps and the arrow keys.
function followList(id, onChoice) {
  const list = byId(id);
  const indexOf = (node) => [...list.children].indexOf(node.closest("li"));
  const chosen = () => (id === "queries" ? state.query : state.key);
  const follow = ({ target }) => { if (target.closest("li") && indexOf(target) !== chosen()) onChoice(indexOf(target)); };
  // Not pointerover: scrolling with the keys moves words under a pointer that rests.
  list.addEventListener("pointermove", (event) => { if (event.movementX || event.movementY) follow(event); });
  list.addEventListener("click", follow);
  list.addEventListener("keydown", (event) => {
    const at = chosen(), last = list.children.length - 1;
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    onChoice(Math.max(0, Math.min(last, to)));
    list.querySelector("[aria-selected=true]").scrollIntoView({ block: "nearest" });
  });
}

setUp();
