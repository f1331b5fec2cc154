/** The worker of `client.mjs`. It answers requests { id, … } with { id, kind, value }. */

import { Translator } from './relattn.mjs';

const running = new Map(); // id of a request -> what aborts it
let translator;

async function answer({ id, load, texts, options }) {
    const send = (kind, value) => postMessage({ id, kind, value });
    const controller = new AbortController();
    running.set(id, controller);
    try {
        if (load) {
            const [url, { engine }] = load;
            translator = await Translator.load(url, { engine, onProgress: progress => send('progress', progress) });
            return send('done', translator.pairs);
        }
        for await (const each of translator.stream(texts, { ...options, signal: controller.signal })) send('translation', each);
        send('done');
    } catch ({ code, message }) {
        send('failure', { code, message });
    } finally {
        running.delete(id);
    }
}

onmessage = ({ data }) => data.abort ? running.get(data.id)?.abort() : answer(data);
