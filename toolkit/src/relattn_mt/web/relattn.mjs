/** Translation with a model that `relattn-mt export web` wrote, in browsers and in Node.js. */

import { alignWords } from './alignment.mjs';
import { Engine, Shortlist, bestEngine } from './engine.mjs';
import { TranslationError } from './errors.mjs';
import { ImportedTokenizer, Tokenizer } from './tokenizer.mjs';

export { TranslationError };

const FORMAT = 1;
const BLANK = // no visible character, as in `relattn_mt/text/patterns.py`
    /^[\s\x1c-\x1f\x85\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]*$/u;
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
        const { tokenizer: files, shortlist } = manifest;
        const entries = [manifest.engines[name], manifest.model, files.source, files.target, files.vocabulary, shortlist];
        const total = entries.reduce((sum, entry) => sum + (entry?.bytes ?? 0), 0);
        let loaded = 0;
        const [wasm, model, source, target, vocabulary, list] = await Promise.all(entries.map(async entry => {
            if (!entry) return undefined;
            const { file, bytes } = entry;
            const content = await read(new URL(file, folder), count => onProgress({ loaded: loaded += count, total }));
            if (content.length !== bytes) throw new TranslationError('damaged', `${file} must have ${bytes} bytes, got ${content.length}`);
            return content;
        }));
        const core = await Engine.create(wasm, model);
        const tokenizer = vocabulary
            ? new ImportedTokenizer(source, target, JSON.parse(new TextDecoder().decode(vocabulary)))
            : new Tokenizer(source);
        return new Translator(name, manifest, core, tokenizer, list && new Shortlist(list, shortlist));
    }

    #core;
    #manifest;
    #tokenizer;
    #shortlist;

    constructor(engine, manifest, core, tokenizer, shortlist) {
        this.engine = engine;
        this.#manifest = manifest;
        this.#core = core;
        this.#tokenizer = tokenizer;
        this.#shortlist = shortlist;
    }

    /** The pairs of languages, each { from, to }; the first one is the default. */
    get pairs() { return this.#manifest.pairs.map(({ from, to }) => ({ from, to })); }

    /** Bytes of memory of the engine and the model; 0 after `free`. */
    get memoryBytes() { return this.#core?.memoryBytes ?? 0; }

    /** Give the memory back. The translator cannot translate any more. */
    free() { this.#core = undefined; }

    /** Return the translations of sentences, in order. */
    translate(texts, options = {}) {
        const results = [];
        for (const [index, result] of this.#batches(texts, options)) results[index] = result;
        return results;
    }

    /** Yield each translation as soon as its batch is ready: { index, ...translation }. Between batches, which are short ones here,
        other events are served, and an aborted `signal` ends it. */
    async *stream(texts, { signal, ...options } = {}) {
        for (const [index, result] of this.#batches(texts, options, 1)) {
            yield { index, ...result };
            await new Promise(resolve => setTimeout(resolve));
            if (signal?.aborted) throw new TranslationError('aborted', 'the translation was aborted', { cause: signal.reason });
        }
    }

    /** Yield the index and the translation of each text, in batches of at most so many sentences. */
    *#batches(texts, { beam = this.#core?.beam, nBest = 1, from, to, align = false }, most = Infinity) {
        require(Array.isArray(texts) && texts.every(text => typeof text === 'string'), 'texts must be an array of strings');
        if (!this.#core) throw new TranslationError('freed', 'the translator must not be freed before it translates');
        require(Number.isInteger(beam) && beam >= 1 && beam <= 1000, `beam must be from 1 to 1000, got ${beam}`);
        require(Number.isInteger(nBest) && nBest >= 1 && nBest <= beam, `nBest must be from 1 to the beam ${beam}, got ${nBest}`);
        const pair = this.#manifest.pairs.find(each => (from ?? each.from) === each.from && (to ?? each.to) === each.to);
        require(pair, `the model must translate from ${from ?? 'any language'} to ${to ?? 'any language'}`);

        const sentences = texts.map((text, i) => this.#prepare(text, i, pair));
        for (const { index, pieces } of sentences)
            if (!pieces.length) yield [index, { text: '', score: 0, ids: [], confidence: 1, ...align ? { alignment: [] } : {}, alternatives: [] }];
        const waiting = sentences.filter(({ pieces }) => pieces.length);
        if (most > 1) waiting.sort((one, other) => other.pieces.length - one.pieces.length);
        while (waiting.length) {
            const core = this.#core;
            if (!core) throw new TranslationError('freed', 'the translator must not be freed before it translates');
            const fitting = Math.floor(BATCH_TOKENS / (beam * waiting[0].limit)); // the longest one has the largest limit
            const batch = waiting.splice(0, Math.max(1, Math.min(most, fitting)));
            const needed = [core.eos, ...pair.tgt_begin];
            const shortlists = this.#shortlist && batch.map(({ tokens }) => this.#shortlist.tokens(tokens, needed));
            const found = core.translate(
                batch.map(each => each.tokens), batch.map(each => each.limit), beam, nBest, pair.tgt_begin, shortlists);
            for (const [i, sentence] of batch.entries()) {
                const [first, ...alternatives] = found[i].map(each => this.#complete(sentence, pair, align, each));
                yield [sentence.index, { ...first, alternatives }];
            }
        }
    }

    /** Return a text as tokens, with its limit of target tokens. It has no pieces if it is blank. */
    #prepare(text, index, pair) {
        const { max_length_ratio, max_length_extra } = this.#manifest;
        const most = this.#core.capacity;
        require(!text.includes('\0'), `text ${index + 1} must not have the character NUL`);
        const line = this.#tokenizer.normalize(text);
        const pieces = BLANK.test(line) ? [] : this.#tokenizer.encode(line);
        const tokens = [...pair.src_begin, ...pieces, ...pair.src_end];
        if (tokens.length > most)
            throw new TranslationError('too-long', `text ${index + 1} must have at most ${most} pieces, got ${tokens.length}; divide it`);
        const given = pair.tgt_begin.length;
        const limit = Math.max(1, Math.floor(max_length_ratio * pieces.length) + max_length_extra);
        return { index, tokens, pieces, limit: Math.min(limit, most - given) + given };
    }

    /** Return a translation of what the search found. */
    #complete({ tokens, pieces }, pair, align, { ids: found, score }) {
        const given = pair.tgt_begin.length;
        const ids = found.slice(given);
        const mean = score * this.#core.penalty(found.length + 1) / (ids.length + 1);
        const result = { text: this.#tokenizer.decode(ids), score, ids, confidence: Math.exp(Math.min(mean, 0)) };
        if (align) {
            const { sourcePieces, targetPieces } = this.#tokenizer;
            const weights = this.#core.align(tokens, found).slice(given);
            const sides = [pieces.map(id => sourcePieces[id]), ids.map(id => targetPieces[id])];
            result.alignment = alignWords(weights, ...sides, pair.src_begin.length);
        }
        return result;
    }
}
