/** The worker of the page: it sends ["progress", …], ["ready", pairs] or ["failure", message], and answers
    { id, texts, options } with a ["sentence", …] for each text and ["done", id]. A newer request ends an older one. */

import { Translator } from './relattn.mjs';

const send = (kind, value) => postMessage([kind, value]);
const loading = Translator.load(new URL('.', import.meta.url), { onProgress: progress => send('progress', progress) });
let newest = 0;

loading.then(translator => send('ready', translator.pairs), error => send('failure', error.message));

onmessage = async ({ data: { id, texts, options } }) => {
    newest = id;
    const translator = await loading;
    for (const [index, text] of texts.entries()) {
        let result, error;
        try {
            [result] = translator.translate([text], options);
        } catch (failure) {
            error = { message: failure.message, sentence: text };
        }
        send('sentence', { id, index, result, error });
        await new Promise(resolve => setTimeout(resolve)); // a newer request can arrive
        if (id !== newest) return;
    }
    send('done', id);
};
