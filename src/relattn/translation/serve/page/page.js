// Translates text when typing stops, and files when they are dropped. Words of the translation offer alternatives.
import { byId, copy, element, fill, latest, request } from "./common.js";
import { clearAttention, setUpAttention, showAttentionOf } from "./attention.js";

const PAUSE = 350; // milliseconds without a keystroke before the text is translated
const ALTERNATIVES = 3; // number of other translations to request
const CERTAIN = 0.85; // confidence from which a word is not underlined
const EXAMPLES = {
  en: ["one hundred and fourteen; 74,156.8; in 33 seconds; 91%", "Good morning! The train leaves on May 3, 2027."],
  de: ["Guten Morgen! Der Zug fährt am 3. Mai 2027 um halb zehn."],
  es: ["¡Buenos días! El tren sale a las nueve y media."],
  fr: ["Bonjour ! Le train part à neuf heures et demie."],
};
const WARNINGS = {
  empty: "a sentence has no translation",
  repetition: "a part is repeated",
  numbers: "the numbers differ from those of the text",
  tags: "the addresses or placeholders differ from those of the text",
  length: "the length is unlikely",
};
const state = { languages: [], names: {}, limit: 0, timer: 0, isTargetChosen: false, detected: "", words: [], sentences: [], chosen: {} };
const translations = latest(), choices = latest(), files = latest();

const languageName = (code) => state.names[code] || code;
const sourceLanguage = () => (byId("source").value === "auto" ? state.detected : byId("source").value);
const translatedText = () => state.words.map(({ text }) => text).join("");

function fillTargets(chosen) {
  const source = byId("source").value;
  const from = state.languages.filter(({ code }) => source === "auto" || code === source);
  const codes = [...new Set(from.flatMap(({ code, targets }) => targets.filter((each) => source === "auto" || each !== code)))];
  fill(byId("target"), codes.map((code) => [code, languageName(code)]), chosen);
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
    const node = element("span", word.text, { className: "word", title: `certain to ${Math.round(100 * word.confidence)} %` });
    if (word.confidence < CERTAIN) {
      node.classList.add("doubtful");
      node.style.textDecorationColor = `rgb(var(--doubt) / ${(1 - word.confidence * 0.8).toFixed(2)})`;
    }
    if (word.sentence !== null) {
      Object.assign(node, { tabIndex: -1, onclick: () => offerChoices(node, index) });
      node.setAttribute("role", "button");
    }
    return node;
  }));
  const buttons = [...output.querySelectorAll("[role=button]")];
  if (buttons.length) buttons[0].tabIndex = 0;
  for (const id of ["copy", "share"]) byId(id).disabled = !state.words.length;
  byId("legend").hidden = !buttons.length;
  output.removeAttribute("aria-busy");
}

function moveInTranslation(event) {
  const buttons = [...byId("translation").querySelectorAll("[role=button]")];
  const at = buttons.indexOf(event.target);
  if (at < 0) return;
  if (event.key === "Enter" || event.key === " ") {
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
  Object.assign(state, { words: [], sentences: [], chosen: {}, detected: "" });
  showWords();
  byId("alternatives").hidden = true;
  clearAttention(false);
}

function closeChoices() {
  if (byId("choices").matches(":popover-open")) byId("choices").hidePopover();
}

function expectTranslation() {
  choices();
  closeChoices();
  for (const id of ["copy", "share"]) byId(id).disabled = true;
  byId("translation").setAttribute("aria-busy", "true");
  clearAttention(true);
  return translations();
}

async function translate() {
  clearTimeout(state.timer);
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
    const result = await request("words", { q, source: byId("source").value, target, alternatives: ALTERNATIVES }, signal);
    if (signal.aborted) return;
    const detected = result.detectedLanguage?.language || "";
    const other = state.languages.find(({ code }) => code === detected)?.targets.find((code) => code !== detected);
    if (detected === target && other && !state.isTargetChosen) { // the default target is the language of the text
      byId("target").value = other;
      return translate();
    }
    Object.assign(state, { words: result.words, sentences: result.sentences, chosen: {}, detected });
    showWords();
    byId("text").lang = sourceLanguage();
    byId("others").lang = target;
    byId("others").replaceChildren(...result.alternatives.map((text) => element("li", text)));
    byId("alternatives").hidden = result.alternatives.length === 0;
    const warning = result.warnings.map((name) => WARNINGS[name]).join(", ");
    const language = !detected ? "" : detected === target ? `The text seems to be ${languageName(target)} already.` : `Detected: ${languageName(detected)}`;
    showStatus(warning ? `Check the translation: ${warning}.` : language, warning ? "error" : "");
    showAttention();
  } catch (error) {
    if (signal.aborted) return;
    showNothing();
    showStatus(error.message, "error");
  }
}

function showAttention() {
  if (state.sentences.length) showAttentionOf({ sentences: state.sentences, chosen: state.chosen, source: sourceLanguage(), target: byId("target").value });
}

// Show other words for one of the translation, each with how the sentence would go on.
async function offerChoices(node, index) {
  const signal = choices();
  const word = state.words[index], box = byId("choices"), q = state.sentences[word.sentence];
  const before = state.words.slice(0, index).filter(({ sentence }) => sentence === word.sentence);
  const prefix = before.map(({ text }) => text).join("");
  const parameters = { q, source: sourceLanguage(), target: byId("target").value };
  const place = node.getBoundingClientRect();
  box.replaceChildren(element("p", "Looking for other words…", { className: "note busy" }));
  if (!box.matches(":popover-open")) box.showPopover();
  box.style.left = `${Math.max(8, Math.min(place.left, innerWidth - box.offsetWidth - 8))}px`;
  box.style.top = `${place.bottom + 6}px`;
  try {
    const result = await request("words", { ...parameters, prefix, alternatives: 9 }, signal);
    if (signal.aborted) return;
    const texts = [result.words.map(({ text }) => text).join(""), ...result.alternatives];
    const offers = new Map();
    for (const rest of texts.filter((text) => text.startsWith(prefix)).map((text) => text.slice(prefix.length))) {
      const [, first, more] = /^\s*(\S*)([^]*)$/.exec(rest);
      if (first && first !== word.text && !offers.has(first)) offers.set(first, more);
    }
    const use = async (first, more) => {
      const [space] = /^\s*/.exec(more); // without it, the word may be the beginning of another one
      const answer = await request("words", { ...parameters, prefix: prefix + first + space }, signal);
      if (signal.aborted) return;
      const at = state.words.findIndex(({ sentence }) => sentence === word.sentence);
      const length = state.words.filter(({ sentence }) => sentence === word.sentence).length;
      const words = answer.words.map((each) => ({ ...each, sentence: word.sentence }));
      state.words.splice(at, length, ...words);
      state.chosen[word.sentence] = words.map(({ text }) => text).join("");
      closeChoices();
      byId("alternatives").hidden = true; // they belong to the first translation
      showWords();
      byId("translation").childNodes[index]?.focus?.();
      showAttention();
    };
    box.replaceChildren(...[...offers].map(([first, more]) => {
      const button = element("button", undefined, { type: "button", onclick: () => use(first, more).catch(fail) }, { lang: parameters.target, dir: "auto" });
      button.append(element("b", first), element("span", more));
      return button;
    }));
    if (!offers.size) box.append(element("p", "The model has no other word to offer here.", { className: "note" }));
    box.querySelector("button")?.focus();
  } catch (error) {
    fail(error);
  }
  function fail(error) {
    if (!signal.aborted) box.replaceChildren(element("p", error.message, { className: "note error" }));
  }
}

async function translateFile(file) {
  if (!file) return;
  const signal = files();
  const status = byId("file-status"), target = byId("target").value;
  status.className = "note busy";
  const bar = element("progress", undefined, { value: 0 }, { "aria-label": "Progress" });
  const cancel = () => {
    files();
    status.className = "note";
    status.textContent = `${file.name}: cancelled`;
  };
  status.replaceChildren(`Translating ${file.name}… `, bar, " ", element("button", "Cancel", { type: "button", onclick: cancel }));
  const form = new FormData();
  for (const [name, value] of Object.entries({ source: byId("source").value, target, progress: true, file })) form.append(name, value);
  try {
    const { translatedFileUrl } = await request("translate_file", form, signal, (share) => { bar.value = share; });
    if (signal.aborted) return;
    // Behind a proxy, the server may not know its public address, so only the end of the URL is used.
    const href = `download_file/${translatedFileUrl.split("/").pop()}`;
    const dot = file.name.lastIndexOf(".");
    const name = `${file.name.slice(0, dot)}_${target}${file.name.slice(dot)}`;
    status.className = "note";
    status.replaceChildren(`${file.name} is translated: `, element("a", `Download ${name}`, { href, download: name }));
  } catch (error) {
    if (signal.aborted) return;
    status.className = "note error";
    status.textContent = `${file.name}: ${error.message}`;
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
  byId("count").textContent = state.limit ? `${length.toLocaleString("en")} of ${state.limit.toLocaleString("en")} characters` : "";
  byId("clear").hidden = !length;
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
  const source = sourceLanguage(), target = byId("target").value;
  const back = state.languages.find(({ code }) => code === target);
  if (!back?.targets.includes(source)) return showStatus("No model translates in this direction.", "error");
  const text = translatedText();
  byId("source").value = target;
  fillTargets(source);
  state.isTargetChosen = true;
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
  byId("key").addEventListener("change", translate);
  byId("form").addEventListener("submit", (event) => { event.preventDefault(); translate(); });
  byId("source").addEventListener("change", () => { fillTargets(); translate(); });
  byId("target").addEventListener("change", () => { state.isTargetChosen = true; translate(); });
  byId("translation").addEventListener("keydown", moveInTranslation);
  byId("swap").addEventListener("click", swap);
  byId("clear").addEventListener("click", () => setText(""));
  byId("copy").addEventListener("click", copies(() => copy(translatedText()), "Copied"));
  byId("share").addEventListener("click", copies(share, "Link copied"));
  byId("choose-file").addEventListener("click", () => byId("file").click());
  byId("file").addEventListener("change", () => { translateFile(byId("file").files[0]); byId("file").value = ""; });
  acceptDrops();
  setUpAttention();
  try {
    const [languages, settings] = await Promise.all([request("languages"), request("frontend/settings")]);
    state.languages = languages.filter(({ targets }) => targets.length);
    state.names = Object.fromEntries(languages.map(({ code, name }) => [code, name]));
    state.limit = settings.charLimit;
    for (const node of document.querySelectorAll(".key")) node.hidden = !settings.keyRequired;
    byId("file").accept = settings.supportedFilesFormat.join(",");
    byId("file").disabled = byId("choose-file").disabled = !settings.filesTranslation;
    const shared = new URLSearchParams(location.hash.slice(1));
    state.isTargetChosen = shared.has("target");
    const entries = [["auto", "Detect language"], ...state.languages.map(({ code, name }) => [code, name])];
    fill(byId("source"), entries, shared.get("source") ?? "auto");
    fillTargets(shared.get("target") ?? settings.language.target.code);
    const examples = state.languages.flatMap(({ code }) => EXAMPLES[code] || []).slice(0, 3);
    byId("examples").append(...examples.map((text) => element("button", text, { type: "button", onclick: () => setText(text) })));
    byId("examples").hidden = !examples.length;
    if (shared.has("q")) byId("text").value = shared.get("q");
    edited();
  } catch (error) {
    showStatus(error.message, "error");
  }
}

start();
