/** Translation with a model that `relattn-mt export web` wrote, in browsers and in Node.js. */

import { Engine, bestEngine } from './engine.mjs';
import { TranslationError } from './errors.mjs';
import { SentencePiece } from './sentencepiece.mjs';

export { TranslationError };

const FORMAT = 1;
const BATCH_TOKENS = 6144; // of hypotheses that are searched together, which bounds the memory

/** Read a file by its URL, and report each part that has arrived. */
async function read(url, onPart) {
    if (url.protocol === 'file:') {
        if (typeof process === 'undefined') throw new TranslationError('file', 'a page must come from a server, not from a file');
        const { readFile } = await import('node:fs/promises');
        const content = await readFile(url).catch(error => {
            throw new TranslationError('not-found', `${url}: ${error.code}`, { cause: error });
        });
        onPart(content.length);
        return content;
    }
    let response;
    try {
        response = await fetch(url);
    } catch (error) {
        throw new TranslationError('network', `${url} must be reachable: ${error.message}`, { cause: error });
    }
    if (!response.ok) throw new TranslationError('not-found', `${url}: status ${response.status}`);
    const parts = [];
    for (let reader = response.body.getReader(), part; !(part = await reader.read()).done;) {
        parts.push(part.value);
        onPart(part.value.length);
    }
    return new Uint8Array(await new Blob(parts).arrayBuffer());
}

function require(condition, message) {
    if (!condition) throw new TranslationError('option', message);
}

export class Translator {
    /** Load the model of a directory by its URL, and the fastest engine that is right here. */
    static async load(url, { onProgress = () => {}, engine } = {}) {
        const folder = new URL(url, globalThis.location?.href);
        if (!folder.pathname.endsWith('/')) folder.pathname += '/';
        const text = new TextDecoder().decode(await read(new URL('model.json', folder), () => {}));
        let manifest;
        try {
            manifest = JSON.parse(text);
        } catch (error) {
            throw new TranslationError('damaged', 'model.json must be as export web wrote it', { cause: error });
        }
        if (manifest.format !== FORMAT) throw new TranslationError('version', `the format must be ${FORMAT}, got ${manifest.format}`);
        const name = engine ?? await bestEngine();
        require(manifest.engines[name], `engine must be ${Object.keys(manifest.engines).join(' or ')}, got ${name}`);
        const entries = [manifest.engines[name], manifest.model, manifest.tokenizer];
        const total = entries.reduce((sum, entry) => sum + entry.bytes, 0);
        let loaded = 0;
        const [wasm, model, tokenizer] = await Promise.all(entries.map(async ({ file, bytes }) => {
            const content = await read(new URL(file, folder), count => onProgress({ loaded: loaded += count, total }));
            if (content.length !== bytes) throw new TranslationError('damaged', `${file} must have ${bytes} bytes, got ${content.length}`);
            return content;
        }));
        return new Translator(name, manifest, await Engine.create(wasm, model), new SentencePiece(tokenizer));
    }

    #core;
    #manifest;
    #tokenizer;

    constructor(engine, manifest, core, tokenizer) {
        this.engine = engine;
        this.#manifest = manifest;
        this.#core = core;
        this.#tokenizer = tokenizer;
    }

    /** The pairs of languages, each { from, to }; the first one is the default. */
    get pairs() { return this.#manifest.pairs.map(({ from, to }) => ({ from, to })); }

    /** Bytes of memory of the engine and the model; 0 after `free`. */
    get memoryBytes() { return this.#core?.memoryBytes ?? 0; }

    /** Give the memory back. The translator cannot translate any more. */
    free() { this.#core = undefined; }

    /** Return the translations of sentences, in order. */
    translate(texts, { beam, nBest = 1, from, to } = {}) {
        const core = this.#core;
        if (!core) throw new TranslationError('freed', 'the translator must not be freed before it translates');
        require(Array.isArray(texts) && texts.every(text => typeof text === 'string'), 'texts must be an array of strings');
        beam ??= core.beam;
        require(Number.isInteger(beam) && beam >= 1 && beam <= 1000, `beam must be from 1 to 1000, got ${beam}`);
        require(Number.isInteger(nBest) && nBest >= 1 && nBest <= beam, `nBest must be from 1 to the beam ${beam}, got ${nBest}`);
        const pair = this.#manifest.pairs.find(each => (from ?? each.from) === each.from && (to ?? each.to) === each.to);
        require(pair, `the model must translate from ${from ?? 'any language'} to ${to ?? 'any language'}`);

        const results = texts.map(text => ({ text: '', score: 0, ids: [], alternatives: [] }));
        const sentences = texts.map((text, i) => this.#prepare(text, i, pair)).filter(sentence => sentence.length);
        sentences.sort((one, other) => other.length - one.length);
        while (sentences.length) {
            const perSentence = beam * sentences[0].limit; // the longest one has the largest limit
            const batch = sentences.splice(0, Math.max(1, Math.floor(BATCH_TOKENS / perSentence)));
            const found = core.translate(batch.map(each => each.tokens), batch.map(each => each.limit), beam, nBest);
            batch.forEach(({ index }, i) => {
                const [first, ...others] = found[i].map(each => ({ text: this.#tokenizer.decode(each.ids), ...each }));
                results[index] = { ...first, alternatives: others };
            });
        }
        return results;
    }

    /** Return a text as tokens, with its limit of target tokens. `length` is 0 if the text is blank. */
    #prepare(text, index, pair) {
        const { src_end, max_length_ratio, max_length_extra } = this.#manifest;
        const most = this.#core.capacity;
        const pieces = this.#tokenizer.encode(text);
        const tokens = [...pair.src_begin, ...pieces, ...src_end];
        if (tokens.length > most)
            throw new TranslationError('too-long', `text ${index + 1} must have at most ${most} pieces, got ${tokens.length}; divide it`);
        const limit = Math.max(1, Math.floor(max_length_ratio * pieces.length) + max_length_extra);
        return { index, tokens, limit: Math.min(limit, most), length: pieces.length };
    }
}
