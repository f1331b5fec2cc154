/* An extension that translates the paragraphs of a page in place, without a server. It needs a model:

       relattn-mt export web everyday-en-de --out examples/extension/model

   Then "Load unpacked" on chrome://extensions, with this folder. A click on its button translates, another one undoes it. */

import { Translator } from './model/relattn.mjs';

let loading; // a browser may end this worker at any time, which gives the memory back

/** Return the translation of a paragraph. A sentence that is too long stays as it is. */
async function translate(text, from, to) {
    loading ??= Translator.load(chrome.runtime.getURL('model/'));
    const translator = await loading;
    const pair = translator.pairs.find(each => each.from === from) ?? translator.pairs[0];
    const sentences = [...new Intl.Segmenter(pair.from, { granularity: 'sentence' }).segment(text)].map(each => each.segment.trim());
    const found = [];
    for (const sentence of sentences) {
        try {
            for await (const each of translator.stream([sentence], { from: pair.from, to: to ?? pair.to })) found.push(each.text);
        } catch (error) {
            if (error.code !== 'too-long') throw error;
            found.push(sentence);
        }
    }
    return { text: found.join(' '), language: to ?? pair.to };
}

chrome.runtime.onMessage.addListener(({ text, from, to }, sender, answer) => {
    translate(text, from, to).then(answer, error => {
        loading = undefined;
        answer({ error: error.message });
    });
    return true; // the answer comes later
});

/** Translate what is on the screen first. This function runs in the page. */
async function toggle() {
    const shown = globalThis.relattnParagraphs;
    if (shown) { // undo
        globalThis.relattnParagraphs = undefined;
        for (const [paragraph, { nodes, language }] of shown) {
            paragraph.replaceChildren(...nodes);
            language === null ? paragraph.removeAttribute('lang') : paragraph.setAttribute('lang', language);
        }
        return;
    }
    const originals = globalThis.relattnParagraphs = new Map();
    const from = document.documentElement.lang.split('-')[0];
    const isWanted = each => each.innerText.trim() && !each.closest('[translate=no], .notranslate, pre, [contenteditable]')
        && !each.querySelector('p, li, dd, table, ul, ol, pre, input, textarea, select, button, video, iframe');
    const distance = each => Math.abs(each.getBoundingClientRect().top);
    const paragraphs = [...document.querySelectorAll('h1, h2, h3, h4, h5, h6, p, li, dd, dt, blockquote, figcaption, caption, th, td')]
        .filter(isWanted).sort((one, other) => distance(one) - distance(other));
    for (const paragraph of paragraphs) {
        const { text, language, error } = await chrome.runtime.sendMessage({ text: paragraph.innerText, from });
        if (globalThis.relattnParagraphs !== originals) return; // undone meanwhile
        if (error) return console.error(`The page was not translated: ${error}`);
        originals.set(paragraph, { nodes: [...paragraph.childNodes], language: paragraph.getAttribute('lang') });
        const links = [...paragraph.querySelectorAll('a[href]')]; // marks within a text are lost; links are kept at its end
        paragraph.replaceChildren(text, ...links.flatMap((link, i) => [` `, Object.assign(link.cloneNode(), { textContent: `[${i + 1}]` })]));
        paragraph.lang = language;
    }
}

chrome.action.onClicked.addListener(({ id }) => chrome.scripting.executeScript({ target: { tabId: id }, func: toggle }));
