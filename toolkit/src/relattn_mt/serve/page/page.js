// Translates text when typing stops, and files when they are dropped. Words of the translation offer alternatives.
import { byId, copy, element, fill, latest, pause, request, requestPatiently } from "./common.js";

const PAUSE = 350; // milliseconds without a keystroke before the text is translated
const ALTERNATIVES = 3; // number of other translations to request
const CERTAIN = 0.55; // confidence from which a word is not underlined (docs/serving.md)
const GAP = 8, SMALLEST = 96; // pixels: between the other words, their word and the window; their height
const EXAMPLES = 3; // number of examples shown
const LONGEST_PAUSE = 30, AWAY_PAUSE = 5; // seconds between two attempts to load the languages, and to translate a text
const WARNINGS = {
  empty: "a sentence has no translation",
  repetition: "a part is repeated",
  names: "a name is missing or different",
  language: "the language may be another one",
  numbers: "the numbers differ from those of the text",
  tags: "the addresses or placeholders differ from those of the text",
  length: "the length is unlikely",
};
// starts: places of the sentences in the text.
const state = {
  languages: [], names: {}, examples: {}, limit: 0, timer: 0, isTargetChosen: false, hasChoices: false,
  detected: "", words: [], sentences: [], starts: [],
};
const translations = latest(), choices = latest();

const languageName = (code) => state.names[code] || code;
const sourceLanguage = () => (byId("source").value === "auto" ? state.detected : byId("source").value);
const translatedText = () => state.words.map(({ text }) => text).join("");

function fillTargets(chosen) {
  const source = byId("source").value;
  const from = state.languages.filter(({ code }) => source === "auto" || code === source);
  const codes = [...new Set(from.flatMap(({ code, targets }) => targets.filter((each) => source === "auto" || each !== code)))];
  fill(byId("target"), codes.map((code) => [code, languageName(code)]), chosen);
}

function remember() {
  try {
    localStorage.setItem("relattn-source", byId("source").value);
    if (state.isTargetChosen) localStorage.setItem("relattn-target", byId("target").value);
  } catch { /* the browser may refuse to store anything */ }
}

function remembered(id) {
  try { return localStorage.getItem(`relattn-${id}`); } catch { return null; }
}

function showExamples() {
  const source = byId("source").value;
  const texts = Object.entries(state.examples).flatMap(([code, each]) => (["auto", code].includes(source) ? each : []));
  const buttons = [...new Set(texts)].slice(0, EXAMPLES).map((text) => element("button", text, { type: "button", onclick: () => setText(text) }));
  byId("examples").replaceChildren("Try:", ...buttons);
  byId("examples").hidden = !buttons.length;
}

function showStatus(text, look = "") {
  byId("status").textContent = text;
  byId("status").className = `note ${look}`;
}

// Words of the translation as buttons. One of them is in the tab order; the arrow keys move between them.
function showWords() {
  const output = byId("translation");
  output.lang = byId("target").value;
  output.replaceChildren(...state.words.map((word, index) => {
    if (word.confidence === null) return document.createTextNode(word.text);
    const origin = rangesOf(word).map(([begin, end]) => `“${byId("text").value.slice(begin, end)}” → `).join("");
    const node = element("span", word.text, { className: "word", title: `${origin}certain to ${Math.round(100 * word.confidence)} %` });
    for (const event of ["pointerenter", "focus"]) node.addEventListener(event, () => markSources(node, word));
    for (const event of ["pointerleave", "blur"]) node.addEventListener(event, () => markSources());
    if (word.confidence < CERTAIN) {
      node.classList.add("doubtful");
      node.style.textDecorationColor = `rgb(var(--doubt) / ${(1 - word.confidence * 0.8).toFixed(2)})`;
    }
    if (state.hasChoices) {
      Object.assign(node, { tabIndex: -1, onclick: () => offerChoices(node, index) });
      node.setAttribute("role", "button");
    }
    return node;
  }));
  const buttons = [...output.querySelectorAll("[role=button]")];
  if (buttons.length) buttons[0].tabIndex = 0;
  for (const id of ["copy", "share"]) byId(id).disabled = !state.words.length;
  byId("legend").hidden = !output.querySelector(".word");
  byId("choices-legend").hidden = !buttons.length;
  markSources();
  output.removeAttribute("aria-busy");
}

// Places of the source words of a word of the translation, in the text.
function rangesOf({ sentence, sources }) {
  const start = state.starts[sentence] ?? -1;
  if (start < 0) return [];
  const units = (end) => [...state.sentences[sentence]].slice(0, end).join("").length; // the server counts characters
  return sources.map(([begin, end]) => [start + units(begin), start + units(end)]);
}

// Mark a word of the translation, and its source words behind the text; without a word, none.
function markSources(node, word) {
  const text = byId("text").value, parts = [];
  let at = 0;
  const isCurrent = word && !byId("translation").matches("[aria-busy]"); // and not of a text that was changed
  for (const [begin, end] of isCurrent ? rangesOf(word) : []) {
    parts.push(text.slice(at, begin), element("mark", text.slice(begin, end)));
    at = end;
  }
  byId("mirror").replaceChildren(...parts, text.slice(at) + "\n");
  for (const each of byId("translation").querySelectorAll(".marked")) each.classList.remove("marked");
  if (isCurrent) node.classList.add("marked");
}

function moveByKeys(event) {
  const buttons = [...event.currentTarget.querySelectorAll("button, [role=button]")];
  const at = buttons.indexOf(event.target);
  if (at < 0) return;
  if (event.target.matches("[role=button]") && (event.key === "Enter" || event.key === " ")) {
    event.preventDefault();
    event.target.click();
  }
  const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
  if (buttons[to] === undefined) return;
  event.preventDefault();
  buttons[at].tabIndex = -1;
  buttons[to].tabIndex = 0;
  buttons[to].focus();
}

// Forget everything that belongs to a text that is not in the box any more.
function showNothing() {
  Object.assign(state, { words: [], sentences: [], starts: [], detected: "" });
  showWords();
  byId("alternatives").hidden = true;
}

function closeChoices() {
  if (byId("choices").matches(":popover-open")) byId("choices").hidePopover();
}

function expectTranslation() {
  choices();
  closeChoices();
  for (const id of ["copy", "share"]) byId(id).disabled = true;
  byId("translation").setAttribute("aria-busy", "true");
  return translations();
}

// Translate the text, or show another of its translations.
async function translate(choice = "") {
  clearTimeout(state.timer);
  if (!state.languages.length) return; // `start` tries again
  const signal = expectTranslation();
  const q = byId("text").value;
  byId("clear").hidden = !q;
  if (!q.trim()) {
    showNothing();
    showStatus("");
    return;
  }
  showStatus("Translating…", "busy");
  const target = byId("target").value;
  try {
    const parameters = { q, source: byId("source").value, target, alternatives: ALTERNATIVES, choice };
    const result = await requestPatiently("words", parameters, signal, (reason) => showStatus(reason, "busy"));
    if (signal.aborted) return;
    const { language: detected = "", confidence } = result.detectedLanguage || {};
    const other = state.languages.find(({ code }) => code === detected)?.targets.find((code) => code !== detected);
    if (detected === target && other && !state.isTargetChosen) { // the default target is the language of the text
      byId("target").value = other;
      return translate();
    }
    let end = 0;
    const starts = result.sentences.map((sentence) => {
      const start = q.indexOf(sentence, end);
      end = start < 0 ? end : start + sentence.length;
      return start;
    });
    Object.assign(state, { words: result.words, sentences: result.sentences, starts, detected, hasChoices: result.hasChoices });
    showWords();
    byId("text").lang = sourceLanguage();
    showOthers(result.alternatives, target);
    const warning = result.warnings.map((name) => WARNINGS[name]).join(", ");
    const language = !detected ? "" : detected === target ? `The text seems to be ${languageName(target)} already.` : `Detected: ${languageName(detected)}`;
    if (detected && !confidence) showStatus(`The language is not recognized. The text was read as ${languageName(detected)}.`, "error");
    else showStatus(warning ? `Check the translation: ${warning}.` : language, warning ? "error" : "");
  } catch (error) {
    if (signal.aborted) return;
    if (!error.isAway) showNothing();
    showStatus(`${error.message} `, "error");
    if (!error.isAway) return;
    byId("status").append(element("button", "Try again", { type: "button", onclick: () => translate(choice) }));
    state.timer = setTimeout(translate, 1000 * AWAY_PAUSE, choice);
  }
}

const wordsOf = (text) => text.split(/\s+/).filter(Boolean);

// Show other translations, with the words marked that the one shown does not have.
function showOthers(texts, lang) {
  const words = wordsOf(translatedText());
  byId("others").lang = lang;
  byId("others").replaceChildren(...texts.map((text) => {
    const button = element("button", undefined, { type: "button", onclick: async () => {
      await translate(text);
      byId("others").querySelector("button")?.focus();
    } });
    button.append(...differences(words, text));
    const item = element("li");
    item.append(button);
    return item;
  }));
  byId("alternatives").hidden = !texts.length;
}

// The parts of a text, with those words marked that are not among others. Where the text leaves some out, the next word is
// marked, or the last one.
function differences(others, text) {
  const words = wordsOf(text), parts = text.split(/(\s+)/);
  const columns = words.length + 1;
  const longest = new Uint16Array((others.length + 1) * columns); // number of equal words, from others[i] and words[j] on
  for (let i = others.length - 1; i >= 0; i--) {
    for (let j = words.length - 1; j >= 0; j--) {
      longest[i * columns + j] = others[i] === words[j]
        ? 1 + longest[(i + 1) * columns + j + 1]
        : Math.max(longest[(i + 1) * columns + j], longest[i * columns + j + 1]);
    }
  }
  let i = 0;
  const isMarked = words.map((word, j) => {
    const first = i;
    while (i < others.length && others[i] !== word && longest[(i + 1) * columns + j] >= longest[i * columns + j + 1]) i++;
    if (others[i] !== word) return true;
    return i++ > first;
  });
  if (i < others.length && words.length) isMarked[words.length - 1] = true;
  let j = 0;
  return parts.map((part) => (part.trim() && isMarked[j++] ? element("mark", part) : part));
}

// Show other words for one of the translation, each with how the sentence would go on.
async function offerChoices(node, index) {
  const signal = choices();
  const word = state.words[index], box = byId("choices"), q = state.sentences[word.sentence];
  const before = state.words.slice(0, index).filter(({ sentence }) => sentence === word.sentence);
  const prefix = before.map(({ text }) => text).join("");
  const parameters = { q, source: sourceLanguage(), target: byId("target").value };
  box.replaceChildren(element("p", "Looking for other words…", { className: "note busy" }));
  if (!box.matches(":popover-open")) box.showPopover();
  state.origin = node;
  placeChoices();
  try {
    const wait = (reason) => box.replaceChildren(element("p", reason, { className: "note busy" }));
    const result = await requestPatiently("words", { ...parameters, prefix, alternatives: 9 }, signal, wait);
    if (signal.aborted) return;
    const texts = [result.words.map(({ text }) => text).join(""), ...result.alternatives];
    const offers = new Map();
    for (const rest of texts.filter((text) => text.startsWith(prefix)).map((text) => text.slice(prefix.length))) {
      const [, first, more] = /^\s*(\S*)([^]*)$/.exec(rest);
      if (first && first !== word.text && !offers.has(first)) offers.set(first, more);
    }
    const use = async (first, more) => {
      const [space] = /^\s*/.exec(more); // without it, the word may be the beginning of another one
      const answer = await requestPatiently("words", { ...parameters, prefix: prefix + first + space }, signal);
      if (signal.aborted) return;
      const at = state.words.findIndex(({ sentence }) => sentence === word.sentence);
      const length = state.words.filter(({ sentence }) => sentence === word.sentence).length;
      const words = answer.words.map((each) => ({ ...each, sentence: word.sentence }));
      const show = (words, hidesOthers, status) => {
        state.words = words;
        closeChoices();
        byId("alternatives").hidden = hidesOthers; // they belong to the first translation
        showWords();
        byId("translation").childNodes[index]?.focus?.();
        showStatus(status);
      };
      const undo = show.bind(null, state.words, byId("alternatives").hidden, "");
      show(state.words.toSpliced(at, length, ...words), true, "Word replaced. ");
      byId("status").append(element("button", "Undo", { type: "button", onclick: undo }));
    };
    box.replaceChildren(...[...offers].map(([first, more]) => {
      const button = element("button", undefined, { type: "button", onclick: () => use(first, more).catch(fail) }, { lang: parameters.target, dir: "auto" });
      button.append(element("b", first), element("span", more));
      return button;
    }));
    if (!offers.size) box.append(element("p", "The model has no other word to offer here.", { className: "note" }));
    placeChoices();
    box.querySelector("button")?.focus();
  } catch (error) {
    fail(error);
  }
  function fail(error) {
    if (signal.aborted) return;
    box.replaceChildren(element("p", error.message, { className: "note error" }));
    placeChoices();
  }
}

// Place the other words below their word, or above it where there is more room, within the window.
function placeChoices() {
  const box = byId("choices");
  if (!box.matches(":popover-open")) return;
  const { left, top, bottom } = state.origin.getBoundingClientRect();
  const room = { width: document.documentElement.clientWidth, height: innerHeight };
  const below = room.height - bottom - GAP, above = top - GAP;
  const isBelow = box.scrollHeight <= below || below >= above;
  box.style.maxHeight = `${Math.max(SMALLEST, (isBelow ? below : above) - GAP)}px`;
  const y = isBelow ? bottom + GAP : top - GAP - box.offsetHeight;
  box.style.top = `${Math.max(GAP, Math.min(y, room.height - box.offsetHeight - GAP))}px`;
  box.style.left = `${Math.max(GAP, Math.min(left, room.width - box.offsetWidth - GAP))}px`;
}

async function translateFile(file) {
  if (!file) return;
  const controller = new AbortController(), { signal } = controller, target = byId("target").value;
  const status = element("span"), bar = element("progress", undefined, { value: 0 }, { "aria-label": "Progress" });
  const show = (look, ...content) => { status.className = `note ${look}`; status.replaceChildren(...content); };
  const cancel = () => { controller.abort(); show("", `${file.name}: cancelled`); };
  show("busy", `Translating ${file.name}… `, bar, " ", element("button", "Cancel", { type: "button", onclick: cancel }));
  byId("file-status").replaceChildren(...byId("file-status").querySelectorAll(".busy"), status); // others go on
  const form = new FormData();
  for (const [name, value] of Object.entries({ source: byId("source").value, target, progress: true, file })) form.append(name, value);
  try {
    const answer = await request("translate_file", form, signal, (share) => { bar.value = share; });
    const { detectedLanguage } = answer;
    if (signal.aborted) return;
    if (detectedLanguage?.language === target) return show("error", `${file.name} seems to be ${languageName(target)} already, and was not changed.`);
    // Behind a proxy, the server may not know its public address, so only the end of the URL is used.
    const dot = file.name.lastIndexOf(".");
    const stem = `${file.name.slice(0, dot)}_${target}`;
    const link = (text, url, name) => element("a", text, { href: `download_file/${url.split("/").pop()}`, download: name });
    const name = `${stem}${file.name.slice(dot)}`;
    const { sentences, sentencesWithWarnings: flagged } = answer;
    const count = `. ${flagged} of ${sentences} sentence${sentences === 1 ? "" : "s"} ${flagged === 1 ? "has" : "have"} warnings: `;
    const report = flagged ? [count, link("Report", answer.reportUrl, `${stem}.tsv`)] : [];
    show("", `${file.name} is translated: `, link(`Download ${name}`, answer.translatedFileUrl, name), ...report);
  } catch (error) {
    if (signal.aborted) return;
    show("error", `${file.name}: ${error.message}`);
  }
}

function acceptDrops() {
  const hasFile = (event) => [...event.dataTransfer.types].includes("Files");
  const mark = (on) => byId("drop").classList.toggle("dropping", on);
  addEventListener("dragover", (event) => {
    if (!hasFile(event)) return;
    event.preventDefault();
    mark(true);
  });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) mark(false); });
  addEventListener("drop", (event) => {
    mark(false);
    if (!hasFile(event)) return;
    event.preventDefault();
    translateFile(event.dataTransfer.files[0]);
  });
}

function edited() {
  const length = [...byId("text").value].length;
  byId("count").textContent = state.limit ? `${length.toLocaleString("en")} of ${state.limit.toLocaleString("en")} characters, at most ${state.sentenceLimit} sentences` : "";
  byId("clear").hidden = !length;
  markSources();
  expectTranslation(); // an answer for the old text must not be shown
  clearTimeout(state.timer);
  state.timer = setTimeout(translate, PAUSE);
}

function setText(text) {
  byId("text").value = text;
  edited();
  byId("text").focus();
}

function swap() {
  const target = byId("target").value, others = state.languages.find(({ code }) => code === target)?.targets || [];
  if (!target) return; // the languages are not loaded
  const isOpen = byId("source").value === "auto" && !others.includes(state.detected); // no text, or another language
  const source = isOpen ? others.find((code) => code !== target) : sourceLanguage();
  if (!others.includes(source)) return showStatus(`No model translates from ${languageName(target)}${source ? ` to ${languageName(source)}` : ""}.`, "error");
  const text = translatedText();
  byId("source").value = target;
  fillTargets(source);
  state.isTargetChosen = true;
  remember();
  showExamples();
  setText(text || byId("text").value);
}

async function share() {
  const parameters = { source: byId("source").value, target: byId("target").value, q: byId("text").value };
  history.replaceState(null, "", `#${new URLSearchParams(parameters)}`); // browsers do not send this part to servers
  await copy(location.href);
}

function copies(action, done) {
  return () => action().then(() => showStatus(done), (error) => showStatus(error.message, "error"));
}

async function start() {
  byId("text").addEventListener("input", edited);
  byId("key").addEventListener("change", () => translate());
  byId("form").addEventListener("submit", (event) => { event.preventDefault(); translate(); });
  byId("source").addEventListener("change", () => { fillTargets(); remember(); showExamples(); translate(); });
  byId("target").addEventListener("change", () => { state.isTargetChosen = true; remember(); translate(); });
  for (const id of ["translation", "choices", "others"]) byId(id).addEventListener("keydown", moveByKeys);
  byId("swap").addEventListener("click", swap);
  byId("clear").addEventListener("click", () => setText(""));
  byId("copy").addEventListener("click", copies(() => copy(translatedText()), "Copied"));
  byId("share").addEventListener("click", copies(share, "Link copied"));
  byId("choose-file").addEventListener("click", () => byId("file").click());
  byId("file").addEventListener("change", () => { translateFile(byId("file").files[0]); byId("file").value = ""; });
  addEventListener("online", () => { if (byId("translation").matches("[aria-busy]")) translate(); });
  for (const event of ["scroll", "resize"]) addEventListener(event, placeChoices, { passive: true });
  acceptDrops();
  edited();
  for (let seconds = 1; ; seconds = Math.min(2 * seconds, LONGEST_PAUSE)) {
    try {
      const answers = await Promise.all([request("languages"), request("frontend/settings")]);
      showStatus("");
      return useSettings(...answers);
    } catch (error) {
      showStatus(`${error.message} Trying again…`, "error");
    }
    await pause(seconds);
  }
}

function useSettings(languages, settings) {
  state.languages = languages.filter(({ targets }) => targets.length);
  state.names = Object.fromEntries(languages.map(({ code, name }) => [code, name]));
  Object.assign(state, { limit: settings.charLimit, sentenceLimit: settings.sentenceLimit });
  for (const node of document.querySelectorAll(".key")) node.hidden = !settings.keyRequired;
  byId("file").accept = settings.supportedFilesFormat.join(",");
  byId("file").disabled = byId("choose-file").disabled = !settings.filesTranslation;
  state.examples = settings.examples;
  fill(byId("source"), [["auto", "Detect language"], ...state.languages.map(({ code, name }) => [code, name])], remembered("source") ?? "auto");
  fillTargets(remembered("target") ?? settings.language.target.code);
  state.isTargetChosen = byId("target").value === remembered("target");
  addEventListener("hashchange", openLink);
  openLink();
}

// Show what the fragment of the address has: languages, a text, and a view of its attention.
function openLink() {
  const shared = new URLSearchParams(location.hash.slice(1));
  const entries = [...byId("source").options].map(({ value }) => value);
  if (entries.includes(shared.get("source"))) byId("source").value = shared.get("source");
  fillTargets(shared.get("target") ?? undefined);
  state.isTargetChosen ||= shared.has("target");
  if (shared.has("q")) byId("text").value = shared.get("q");
  showExamples();
  edited();
}

start();
