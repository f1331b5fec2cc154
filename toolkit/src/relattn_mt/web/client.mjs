/** Translation in a worker, `worker.mjs`, so that a page stays responsive. */

import { TranslationError } from './errors.mjs';

export class WorkerTranslator {
    /** Start a worker that loads the model of a directory, by default its own one. Options are those of `Translator.load`. */
    static async load(url = new URL('.', import.meta.url), { onProgress = () => {}, engine } = {}) {
        const translator = new WorkerTranslator();
        const worker = translator.#worker = new Worker(new URL('worker.mjs', import.meta.url), { type: 'module' });
        worker.onmessage = ({ data: { id, kind, value } }) => {
            if (kind === 'progress') onProgress(value);
            else translator.#requests.get(id)?.[kind](value);
        };
        worker.onerror = () => translator.#fail(new TranslationError(
            'worker', 'the worker must start; use a newer browser, and a server that gives .mjs the type text/javascript'));
        translator.pairs = await translator.#ask({ load: [String(new URL(url, globalThis.location?.href)), { engine }] });
        return translator;
    }

    #worker;
    #requests = new Map();
    #newest = 0;

    /** Send a request, and return its answer. */
    #ask(request, onTranslation) {
        const id = this.#newest += 1;
        return new Promise((resolve, reject) => {
            const failure = ({ code, message }) => reject(new TranslationError(code, message));
            this.#requests.set(id, { done: resolve, failure, translation: onTranslation, reject });
            this.#worker.postMessage({ id, ...request });
        }).finally(() => this.#requests.delete(id));
    }

    #fail(error) { for (const { reject } of this.#requests.values()) reject(error); }

    /** Return the translations of sentences. `onTranslation` gets each one when it is ready, with its `index`. */
    async translate(texts, { signal, onTranslation = () => {}, ...options } = {}) {
        if (!this.#worker) throw new TranslationError('freed', 'the translator must not be freed before it translates');
        if (signal?.aborted) throw new TranslationError('aborted', 'the translation was aborted');
        const results = [];
        const add = ({ index, ...result }) => {
            results[index] = result;
            onTranslation({ index, ...result });
        };
        const id = this.#newest + 1;
        const abort = () => this.#worker?.postMessage({ id, abort: true });
        signal?.addEventListener('abort', abort);
        try {
            await this.#ask({ texts, options }, add);
        } finally {
            signal?.removeEventListener('abort', abort);
        }
        return results;
    }

    /** End the worker, which gives the memory back. Translations that are not ready are rejected. */
    free() {
        this.#worker?.terminate();
        this.#worker = undefined;
        this.#fail(new TranslationError('freed', 'the translator was freed'));
    }
}
