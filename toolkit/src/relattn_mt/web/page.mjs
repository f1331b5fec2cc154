/** The page of a site that `relattn-mt export web` wrote. Sentences are translated one after another in a worker. */

import { WorkerTranslator } from './client.mjs';

const [text, translation, source, target, swap, copy, status, alternatives, others] =
    ['text', 'translation', 'source', 'target', 'swap', 'copy', 'status', 'alternatives', 'others'].map(id => document.getElementById(id));
const NOT_KEPT = 'Ready, but only with a network: the storage of this browser is full or forbidden';
const PAUSE = 300; // milliseconds without typing after which a text is translated
const names = new Intl.DisplayNames(['en'], { type: 'language', fallback: 'code' });
let translator, ready, timer, controller = new AbortController();

function show(message, isError = false) {
    status.textContent = message;
    status.classList.toggle('error', isError);
}

/** Divide a text into sentences, each with the white space around it. */
function sentencesOf(content, language) {
    const segments = Intl.Segmenter
        ? Array.from(new Intl.Segmenter(language, { granularity: 'sentence' }).segment(content), each => each.segment)
        : content.split(/(?<=\n)/);
    return segments.map(segment => {
        const sentence = segment.trim(), start = segment.indexOf(sentence);
        return { before: segment.slice(0, start), sentence, after: segment.slice(start + sentence.length) };
    });
}

/** Translate the text. The translation of an earlier text is dropped. */
async function translate() {
    controller.abort();
    controller = new AbortController();
    const { signal } = controller;
    const parts = sentencesOf(text.value, source.value);
    const shown = parts.filter(each => each.sentence);
    translation.replaceChildren();
    alternatives.hidden = true;
    copy.disabled = true;
    for (const part of parts) {
        part.span = document.createElement('span');
        translation.append(part.before, ...part.sentence ? [part.span] : [], part.after);
    }
    if (!shown.length) return show(ready);
    translation.setAttribute('aria-busy', 'true');
    translation.lang = target.value;
    show(`Translating ${shown.length} ${shown.length === 1 ? 'sentence' : 'sentences'}`);
    const options = { from: source.value, to: target.value, nBest: 4, beam: 4, signal };
    let failure;
    for (const { sentence, span } of shown) {
        try {
            const [result] = await translator.translate([sentence], options);
            if (signal.aborted) return;
            put(span, result);
        } catch (error) {
            if (signal.aborted) return;
            span.textContent = sentence;
            failure = error.message;
        }
    }
    translation.removeAttribute('aria-busy');
    copy.disabled = false;
    show(failure ?? ready, failure !== undefined);
}

/** Show the other translations of a sentence, which replace it when they are chosen. */
function offer(span, result) {
    const entries = result.alternatives.filter(each => each.text !== span.textContent).map(({ text: other }) => {
        const button = document.createElement('button'), entry = document.createElement('li');
        button.textContent = other;
        button.onclick = () => {
            span.textContent = other;
            span.focus();
            alternatives.hidden = true;
        };
        entry.append(button);
        return entry;
    });
    others.lang = target.value;
    others.replaceChildren(...entries);
    alternatives.hidden = !entries.length;
}

function put(span, result) {
    span.textContent = result.text;
    span.className = 'word';
    span.role = 'button';
    span.tabIndex = 0;
    span.onclick = () => offer(span, { alternatives: [result, ...result.alternatives] });
    span.onkeydown = event => {
        if (event.key !== 'Enter' && event.key !== ' ') return;
        event.preventDefault();
        span.onclick();
        others.querySelector('button')?.focus();
    };
}

function chooseTargets() {
    const targets = translator.pairs.filter(each => each.from === source.value).map(each => each.to);
    const chosen = target.value;
    target.replaceChildren(...targets.map(code => new Option(names.of(code), code)));
    if (targets.includes(chosen)) target.value = chosen;
    swap.disabled = !translator.pairs.some(each => each.from === target.value && each.to === source.value);
}

text.oninput = () => {
    clearTimeout(timer);
    if (translator) timer = setTimeout(translate, PAUSE);
};
source.onchange = () => {
    chooseTargets();
    translate();
};
target.onchange = source.onchange;
swap.onclick = () => {
    const [from, to, content] = [target.value, source.value, translation.textContent];
    source.value = from;
    chooseTargets();
    target.value = to;
    chooseTargets();
    text.value = content;
    translate();
};
copy.onclick = async () => {
    await navigator.clipboard.writeText(translation.textContent);
    show('Copied');
};

/** Wait until the service worker answers requests, so that what they load is kept; not for long, and not if it is forbidden. */
async function keepFiles() {
    const container = navigator.serviceWorker;
    if (!container) return;
    container.onmessage = () => {
        if (status.textContent === ready) show(NOT_KEPT);
        ready = NOT_KEPT;
    };
    const hadOne = container.controller !== null;
    const changed = new Promise(resolve => container.addEventListener('controllerchange', resolve, { once: true }));
    if (hadOne) changed.then(() => text.value || location.reload()); // a new version of the site
    await container.register('service.js').catch(() => {});
    if (!hadOne) await Promise.race([changed, new Promise(resolve => setTimeout(resolve, 3000))]);
}

await keepFiles();
try {
    translator = await WorkerTranslator.load(undefined, {
        onProgress: ({ loaded, total }) => show(`Loading the model: ${Math.round(100 * loaded / total)} % of ${(total / 1e6).toFixed(1)} MB`),
    });
    const sources = [...new Set(translator.pairs.map(each => each.from))];
    source.replaceChildren(...sources.map(code => new Option(names.of(code), code)));
    chooseTargets();
    if (navigator.serviceWorker) ready ??= navigator.serviceWorker.controller ? 'Ready, also without a network' : NOT_KEPT;
    else ready = 'Ready';
    show(ready);
    if (text.value) translate();
} catch (error) {
    show(error.message, true);
}
