// Translates text when typing stops, and files when they are dropped. Words of the translation offer alternatives.
import { byId, copy, element, fill, latest, pause, request, requestPatiently } from "./common.js";
import { TEXTS } from "./texts.js";

const PAUSE = 350; // milliseconds without a keystroke before the text is translated
const ALTERNATIVES = 3; // number of other translations to request
const CERTAIN = 0.55; // confidence from which a word is not underlined (docs/serving.md)
const GAP = 8, SMALLEST = 96; // pixels: between the other words, their word and the window; their height
const EXAMPLES = 3; // number of examples shown
const LONGEST_PAUSE = 30, AWAY_PAUSE = 5; // seconds between two attempts to load the languages, and to translate a text
// What belongs to a translation. starts: places of the sentences in the text; others: other translations of a sentence.
const NOTHING = { detected: "", words: [], sentences: [], warnings: [], starts: [], hasChoices: false, others: { sentence: 0, texts: [] } };
const state = { languages: [], names: {}, examples: {}, limit: 0, timer: 0, isTargetChosen: false, undo: [], redo: [], ...NOTHING };
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
    for (const id of ["source", "glossary"]) localStorage.setItem(`relattn-${id}`, byId(id).value);
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
  byId("examples").replaceChildren(TEXTS.try, ...buttons);
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
    const node = element("span", word.text, { className: "word", title: origin + TEXTS.certain(Math.round(100 * word.confidence)) });
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

// Show the state: the translation, and what belongs to it.
function show(changes) {
  Object.assign(state, changes);
  showWords();
  showOthers();
  byId("text").lang = sourceLanguage();
  byId("source").options[0].textContent = state.detected ? TEXTS.detected(languageName(state.detected)) : TEXTS.auto;
  document.title = TEXTS.pair(languageName(sourceLanguage()) || TEXTS.auto, languageName(byId("target").value));
}

function snapshot() {
  const belongs = Object.fromEntries(Object.keys(NOTHING).map((name) => [name, state[name]]));
  return { belongs, ...Object.fromEntries(["text", "source", "target"].map((id) => [id, byId(id).value])), isBusy: byId("translation").matches("[aria-busy]") };
}

// Remember the text and its translation before they are replaced, so that this can be undone.
function keep() {
  if (byId("text").value) state.undo.push(snapshot());
  state.redo = [];
  showHistory();
}

function showHistory() {
  for (const name of ["undo", "redo"]) byId(name).disabled = !state[name].length;
}

function travel(from, to) {
  const { text, source, target, belongs, isBusy } = state[from].pop();
  state[to].push(snapshot());
  byId("text").value = text;
  byId("source").value = source;
  fillTargets(target);
  edited();
  if (!isBusy) {
    expectTranslation();
    clearTimeout(state.timer);
    show(belongs);
    showStatus("");
  }
  showHistory();
  byId(state[from].length ? from : to).focus();
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
async function translate() {
  clearTimeout(state.timer);
  if (!state.languages.length) return; // `start` tries again
  const signal = expectTranslation();
  const q = byId("text").value;
  if (!q.trim()) {
    show(NOTHING);
    showStatus("");
    return;
  }
  showStatus(TEXTS.translating, "busy");
  const target = byId("target").value;
  try {
    const parameters = { q, source: byId("source").value, target, alternatives: ALTERNATIVES, glossary: glossary() };
    const result = await requestPatiently("words", parameters, signal, (reason) => showStatus(reason, "busy"));
    if (signal.aborted) return;
    const { language: detected = "", confidence } = result.detectedLanguage || {};
    if (chooseTarget(detected)) return translate();
    let end = 0;
    const starts = result.sentences.map((sentence) => {
      const start = q.indexOf(sentence, end);
      end = start < 0 ? end : start + sentence.length;
      return start;
    });
    const { words, sentences, warnings, alternatives, hasChoices } = result;
    show({ words, sentences, warnings, starts, detected, hasChoices, others: { sentence: 0, texts: sentences.length === 1 ? alternatives : [] } });
    const warning = warningsOf(state);
    const language = detected && detected === target ? TEXTS.already(languageName(target)) : "";
    if (detected && !confidence) showStatus(TEXTS.unrecognized(languageName(detected)), "error");
    else showStatus(warning || language, warning ? "error" : "");
  } catch (error) {
    if (signal.aborted) return;
    if (!error.isAway) show(NOTHING);
    showStatus(`${error.message} `, "error");
    if (!error.isAway) return;
    byId("status").append(element("button", TEXTS.tryAgain, { type: "button", onclick: () => translate() }));
    state.timer = setTimeout(translate, 1000 * AWAY_PAUSE);
  }
}

// What to check, with the sentence that it is about if there are several.
function warningsOf({ warnings, sentences }) {
  const named = sentences.length > 1 && sentences.length === warnings.length ? sentences : []; // not after two models
  const texts = warnings.map((names, i) => names.length && TEXTS.check(names.map((name) => TEXTS.warnings[name]).join(", "), named[i]));
  return [...new Set(texts)].filter(Boolean).join(" ");
}

// The glossary as an object. Its lines are a term, "=" and a translation.
function glossary() {
  const lines = byId("glossary").value.split("\n").filter((line) => line.trim());
  return Object.fromEntries(lines.map((line) => {
    const [, term, translation] = /^(.*\S)\s*=\s*(\S.*)$/.exec(line) || [];
    if (!term) throw new Error(TEXTS.glossaryLine(line));
    return [term.trim(), translation];
  }));
}

// Show other translations of a sentence, with the words marked that the one shown does not have.
function showOthers() {
  const { sentence, texts } = state.others;
  const shown = ofSentence(sentence).map(({ text }) => text).filter((text) => text.trim());
  byId("others").lang = byId("target").value;
  byId("others").replaceChildren(...texts.map((text) => {
    const button = element("button", undefined, { type: "button", onclick: () => choose(sentence, { choice: text, alternatives: ALTERNATIVES }) });
    button.append(...differences(shown, text));
    const item = element("li");
    item.append(button);
    return item;
  }));
  byId("alternatives-title").textContent = state.sentences.length > 1 ? TEXTS.othersOf(state.sentences[sentence]) : TEXTS.others;
  byId("alternatives").hidden = !texts.length;
}

// The parts of a text, with those words marked that others do not have, or that follow what it leaves out.
function differences(others, text) {
  const left = [...others];
  const parts = text.split(/(\s+)/).map((part) => {
    const at = part.trim() ? left.indexOf(part) : 0;
    if (part.trim() && at >= 0) left.splice(0, at + 1);
    return at === 0 ? part : element("mark", part);
  });
  if (left.length) parts.push(element("mark", parts.pop().textContent ?? text.split(/\s+/).at(-1)));
  return parts;
}

const ofSentence = (number) => state.words.filter(({ sentence }) => sentence === number);
const parametersOf = (sentence) => ({ q: state.sentences[sentence], source: sourceLanguage(), target: byId("target").value, glossary: glossary() });

// Replace a sentence of the translation by one that begins with other words, or by another one.
async function choose(sentence, parameters) {
  const signal = choices();
  try {
    const answer = await requestPatiently("words", { ...parametersOf(sentence), ...parameters }, signal);
    if (signal.aborted) return;
    keep();
    const words = answer.words.map((word) => ({ ...word, sentence }));
    const at = state.words.findIndex((word) => word.sentence === sentence);
    closeChoices();
    show({
      words: state.words.toSpliced(at, ofSentence(sentence).length, ...words),
      warnings: state.warnings.toSpliced(sentence, 1, ...answer.warnings),
      others: { sentence, texts: parameters.choice ? answer.alternatives : [] },
    });
    showStatus(warningsOf(state), "error");
    (byId("others").querySelector("button") || byId("translation").querySelector("[role=button]"))?.focus();
  } catch (error) {
    if (!signal.aborted) showStatus(error.message, "error");
  }
}

// Show other words for one of the translation, each with how the sentence would go on, and other translations of the sentence.
async function offerChoices(node, index) {
  const signal = choices();
  const word = state.words[index], { sentence } = word, box = byId("choices");
  const prefix = state.words.slice(0, index).filter((each) => each.sentence === sentence).map(({ text }) => text).join("");
  box.replaceChildren(element("p", TEXTS.lookingForWords, { className: "note busy" }));
  if (!box.matches(":popover-open")) box.showPopover();
  state.origin = node;
  placeChoices();
  try {
    const wait = (reason) => box.replaceChildren(element("p", reason, { className: "note busy" }));
    const result = await requestPatiently("words", { ...parametersOf(sentence), prefix, alternatives: 9 }, signal, wait);
    if (signal.aborted) return;
    const texts = [result.words.map(({ text }) => text).join(""), ...result.alternatives];
    const offers = new Map();
    for (const rest of texts.filter((text) => text.startsWith(prefix)).map((text) => text.slice(prefix.length))) {
      const [, first, more] = /^\s*(\S*)([^]*)$/.exec(rest);
      if (first && first !== word.text && !offers.has(first)) offers.set(first, more);
    }
    const source = rangesOf(word).map(([begin, end]) => byId("text").value.slice(begin, end)).join(" ");
    if (source && source !== word.text && !offers.has(source)) offers.set(source, " "); // as a name that stays
    if (!offers.size) {
      closeChoices();
      node.removeAttribute("role");
      showStatus(TEXTS.noWords);
    }
    box.replaceChildren(...[...offers].map(([first, more]) => {
      const [space] = /^\s*/.exec(more); // without it, the word may be the beginning of another one
      const onclick = () => choose(sentence, { prefix: prefix + first + space });
      const button = element("button", undefined, { type: "button", onclick }, { lang: byId("target").value, dir: "auto" });
      button.append(element("b", first), element("span", more));
      return button;
    }));
    placeChoices();
    box.querySelector("button")?.focus();
    if (state.sentences.length === 1) return;
    const whole = await requestPatiently("words", { ...parametersOf(sentence), alternatives: ALTERNATIVES }, signal);
    if (signal.aborted) return;
    const shown = ofSentence(sentence).map(({ text }) => text).join("");
    const all = [whole.words.map(({ text }) => text).join(""), ...whole.alternatives];
    state.others = { sentence, texts: all.filter((text) => text !== shown) };
    showOthers();
  } catch (error) {
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

function chooseTarget(detected) { // returns whether the default target was the language of the text, and is another one now
  const other = state.languages.find(({ code }) => code === detected)?.targets.find((code) => code !== detected);
  if (detected !== byId("target").value || !other || state.isTargetChosen) return false;
  byId("target").value = other;
  return true;
}

async function translateFile(file) {
  if (!file) return;
  const controller = new AbortController(), { signal } = controller, target = byId("target").value;
  const status = element("span"), bar = element("progress", undefined, { value: 0 }, { "aria-label": TEXTS.progress });
  const show = (look, ...content) => { status.className = `note ${look}`; status.replaceChildren(...content); };
  const cancel = () => { controller.abort(); show("", TEXTS.fileCancelled(file.name)); };
  show("busy", TEXTS.fileBusy(file.name), bar, " ", element("button", TEXTS.cancel, { type: "button", onclick: cancel }));
  byId("file-status").replaceChildren(...byId("file-status").querySelectorAll(".busy"), status); // others go on
  const form = new FormData();
  try {
    const parameters = { source: byId("source").value, target, progress: true, glossary: JSON.stringify(glossary()), file };
    for (const [name, value] of Object.entries(parameters)) form.append(name, value);
    const answer = await request("translate_file", form, signal, (share) => { bar.value = share; });
    const { detectedLanguage, sentences, sentencesWithWarnings: flagged } = answer;
    if (signal.aborted) return;
    show(""); // it is not busy
    if (detectedLanguage?.language === target) {
      const isOther = () => !state.isTargetChosen && byId("target").value !== target; // by another file
      if (!byId("text").value && (chooseTarget(target) || isOther())) return translateFile(file);
      return show("error", TEXTS.fileAlready(file.name, languageName(target)));
    }
    // Behind a proxy, the server may not know its public address, so only the end of the URL is used.
    const dot = file.name.lastIndexOf(".");
    const stem = `${file.name.slice(0, dot)}_${target}`;
    const link = (text, url, name) => element("a", text, { href: `download_file/${url.split("/").pop()}`, download: name });
    const name = `${stem}${file.name.slice(dot)}`;
    const report = flagged ? [TEXTS.flagged(flagged, sentences), link(TEXTS.report, answer.reportUrl, `${stem}.tsv`)] : [];
    show("", TEXTS.fileDone(file.name), link(TEXTS.download(name), answer.translatedFileUrl, name), ...report);
  } catch (error) {
    if (!signal.aborted) show("error", `${file.name}: ${error.message}`);
  }
}

function acceptDrops() {
  const hasFile = (event) => [...event.dataTransfer.types].includes("Files");
  const mark = (on) => byId("drop").classList.toggle("dropping", on);
  addEventListener("dragover", (event) => {
    if (hasFile(event)) event.preventDefault();
    mark(hasFile(event));
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
  byId("count").textContent = state.limit ? TEXTS.count(length, state.limit) : "";
  byId("clear").disabled = !length;
  for (const each of byId("file-status").querySelectorAll(".error")) each.remove();
  markSources();
  expectTranslation(); // an answer for the old text must not be shown
  clearTimeout(state.timer);
  state.timer = setTimeout(translate, PAUSE);
}

function setText(text) {
  keep();
  byId("text").value = text;
  edited();
  byId("text").focus();
}

function swap() {
  const target = byId("target").value, others = state.languages.find(({ code }) => code === target)?.targets || [];
  if (!target) return; // the languages are not loaded
  const isOpen = byId("source").value === "auto" && !others.includes(state.detected); // no text, or another language
  const source = isOpen ? others.find((code) => code !== target) : sourceLanguage();
  if (!others.includes(source)) return showStatus(TEXTS.noModel(languageName(target), source && languageName(source)), "error");
  const text = translatedText();
  keep();
  byId("source").value = target;
  fillTargets(source);
  state.isTargetChosen = true;
  remember();
  showExamples();
  byId("text").value = text || byId("text").value;
  edited();
  byId("text").focus();
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
  for (const node of document.querySelectorAll("[data-text]")) node.textContent = TEXTS[node.dataset.text];
  for (const node of document.querySelectorAll("[data-label]")) node.setAttribute(node.id === "text" ? "placeholder" : "aria-label", TEXTS[node.dataset.label]);
  byId("text").addEventListener("input", edited);
  byId("key").addEventListener("change", () => translate());
  byId("form").addEventListener("submit", (event) => { event.preventDefault(); translate(); });
  byId("source").addEventListener("change", () => { fillTargets(); remember(); showExamples(); translate(); });
  byId("target").addEventListener("change", () => { state.isTargetChosen = true; remember(); translate(); });
  for (const id of ["translation", "choices", "others"]) byId(id).addEventListener("keydown", moveByKeys);
  byId("swap").addEventListener("click", swap);
  byId("undo").addEventListener("click", () => travel("undo", "redo"));
  byId("redo").addEventListener("click", () => travel("redo", "undo"));
  byId("glossary").value = remembered("glossary") ?? "";
  byId("glossary").addEventListener("change", () => { remember(); translate(); });
  byId("clear").addEventListener("click", () => setText(""));
  byId("copy").addEventListener("click", copies(() => copy(translatedText()), TEXTS.copied));
  byId("share").addEventListener("click", copies(share, TEXTS.linkCopied));
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
      showStatus(`${error.message} ${TEXTS.trying}`, "error");
    }
    await pause(seconds);
  }
}

function useSettings(languages, settings) {
  state.languages = languages.filter(({ targets }) => targets.length);
  state.names = Object.fromEntries(languages.map(({ code, name }) => [code, name]));
  state.limit = settings.charLimit;
  for (const node of document.querySelectorAll(".key")) node.hidden = !settings.keyRequired;
  byId("file").accept = settings.supportedFilesFormat.join(",");
  byId("file").disabled = byId("choose-file").disabled = !settings.filesTranslation;
  state.examples = settings.examples;
  byId("count").title = TEXTS.limits(settings.sentenceLimit);
  byId("cards").textContent = settings.cards.map((card) => card.replace(/^---\n[^]*?^license: *(.*)$[^]*?^---\n+/m, `${TEXTS.licence}: $1\n\n`).trim()).join("\n\n") || TEXTS.noCard;
  fill(byId("source"), [["auto", TEXTS.auto], ...state.languages.map(({ code, name }) => [code, name])], remembered("source") ?? "auto");
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
