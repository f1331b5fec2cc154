/** The engine in WebAssembly: the functions of `kernels/engine/web.c`, and batches of sentences as tokens. */

import { TranslationError } from './errors.mjs';

/** A module of one vector of SIMD128. */
const SIMD = Uint8Array.of(
    0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11);

/** A module that returns lane 0 of i32x4.relaxed_dot_i8x16_i7x16_add_s of codes -127, weights 127 and 0. */
const RELAXED = Uint8Array.of(
    0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 127, 3, 2, 1, 0, 7, 5, 1, 1, 102, 0, 0, 10, 24, 1, 22, 0,
    65, 129, 127, 253, 15, 65, 255, 0, 253, 15, 65, 0, 253, 17, 253, 147, 2, 253, 27, 0, 11);

/** Return the name of the fastest engine that is right here. The baseline compiler of V8 11.3 (Node.js 20) computes the
    relaxed product wrongly. */
export async function bestEngine() {
    if (!WebAssembly.validate(SIMD)) throw new TranslationError('no-simd', 'WebAssembly must have SIMD; use a newer browser');
    if (!WebAssembly.validate(RELAXED)) return 'simd';
    const { instance } = await instantiate(RELAXED);
    return instance.exports.f() === 4 * 127 * -127 ? 'relaxed' : 'simd';
}

async function instantiate(bytes) {
    if (!WebAssembly.validate(bytes)) throw new TranslationError('damaged', 'the engine must be a module of WebAssembly');
    try {
        return await WebAssembly.instantiate(bytes);
    } catch (error) {
        if (error instanceof RangeError) throw new TranslationError('memory', 'the engine must fit in memory', { cause: error });
        const message = 'WebAssembly must be allowed; a content security policy needs wasm-unsafe-eval';
        throw new TranslationError('compile', message, { cause: error });
    }
}

export class Engine {
    /** Instantiate an engine and copy a model into its memory. */
    static async create(wasm, model) {
        return new Engine((await instantiate(wasm)).instance.exports, new Uint8Array(model));
    }

    constructor(functions, model) {
        functions._initialize();
        this.functions = functions;
        this.model = this.allocate(model.length);
        this.view(Uint8Array, this.model, model.length).set(model);
        const result = functions.open_model(this.model, model.length);
        if (result === 1) throw new TranslationError('damaged', 'the model must be complete, as export web wrote it');
        if (result) throw new TranslationError('version', 'the model and the engine must be of the same version; export both again');
        this.capacity = functions.capacity(this.model);
        this.beam = functions.beam(this.model);
        this.bos = functions.bos(this.model);
        this.eos = functions.eos(this.model);
    }

    /** Bytes of linear memory. */
    get memoryBytes() { return this.functions.memory.buffer.byteLength; }

    view(type, pointer, length) { return new type(this.functions.memory.buffer, pointer, length); }

    allocate(bytes) {
        const pointer = this.functions.allocate(bytes);
        if (!pointer) throw new TranslationError('memory', `the model and its texts must fit in memory, got ${bytes} bytes more`);
        return pointer;
    }

    /** Return what `use` returns, which gets a function that allocates integers of 64 bits. They are given back at the end. */
    using(use) {
        const pointers = [];
        const allocate = bytes => {
            pointers.push(this.allocate(bytes));
            return pointers.at(-1);
        };
        const integers = numbers => {
            const pointer = allocate(8 * numbers.length);
            this.view(BigInt64Array, pointer, numbers.length).set(Array.from(numbers, BigInt));
            return pointer;
        };
        try {
            return use(allocate, integers);
        } finally {
            pointers.forEach(this.functions.release);
        }
    }

    /** Translate sentences, arrays of source tokens with the special ones. `limits` has the maximum number of target tokens of
        each, `given` the tokens that translations begin with. `shortlists` has the tokens that may be in each translation, in
        rising order; undefined allows all. Return the hypotheses of each sentence, best first: { ids, score }. */
    translate(sentences, limits, beam, best, given, shortlists) {
        const count = sentences.length;
        const width = Math.max(...sentences.map(tokens => tokens.length));
        const capacity = Math.max(...limits);
        const padded = sentences.flatMap(tokens => [...tokens, ...new Array(width - tokens.length).fill(0)]);
        const begins = [0];
        for (const allowed of shortlists ?? []) begins.push(begins.at(-1) + allowed.length);
        return this.using((allocate, integers) => {
            const src = integers(padded);
            const lengths = integers(sentences.map(each => each.length));
            const most = integers(limits);
            const first = integers(given);
            const allowed = shortlists ? integers(shortlists.flat()) : 0;
            const allowedBegins = integers(begins);
            const tokens = allocate(8 * count * beam * capacity);
            const scores = allocate(4 * count * beam);
            const steps = this.functions.translate(
                this.model, count, width, src, lengths, beam, best, most, capacity, first, given.length, allowed, allowedBegins,
                tokens, scores);
            if (steps < 0) throw new TranslationError('memory', `translating must fit in memory, got ${count} sentences, beam ${beam}`);
            const found = this.view(BigInt64Array, tokens, count * beam * capacity);
            const values = this.view(Float32Array, scores, count * beam);
            return sentences.map((_, i) => {
                if (Number.isNaN(values[i * beam])) throw new TranslationError('not-finite', 'scores must be numbers, got NaN');
                const hypotheses = [];
                for (let row = i * beam; row < i * beam + best && values[row] > -Infinity; row++) {
                    const line = found.subarray(row * capacity, row * capacity + steps);
                    hypotheses.push({ ids: Array.from(line.subarray(0, line.indexOf(BigInt(this.eos))), Number), score: values[row] });
                }
                return hypotheses;
            });
        });
    }

    /** Return the attention weights, an array per target token and one for the end, of a sentence and its translation. */
    align(tokens, ids) {
        const target = [this.bos, ...ids];
        return this.using((allocate, integers) => {
            const src = integers(tokens);
            const read = integers(target);
            const weights = allocate(4 * target.length * tokens.length);
            if (this.functions.align(this.model, tokens.length, src, target.length, read, weights) < 0)
                throw new TranslationError('memory', `aligning must fit in memory, got ${target.length} pieces`);
            return target.map((_, i) => Array.from(this.view(Float32Array, weights + 4 * i * tokens.length, tokens.length)));
        });
    }

    /** Return the number by which the log-probability of a number of tokens is divided. */
    penalty(length) { return this.functions.penalty(this.model, length); }
}

/** A lexical shortlist in Marian's format: the target tokens of each source token, as `relattn_mt/engine/shortlist.py`. */
export class Shortlist {
    constructor(content, { size, shared, banned }) {
        const bytes = Uint8Array.from(content);
        const [, , first, , offsets, ids] = new BigUint64Array(bytes.buffer, 0, 6);
        this.size = size;
        this.shared = shared;
        this.banned = banned;
        this.first = Math.min(Number(first), size);
        this.offsets = Array.from(new BigUint64Array(bytes.buffer, 48, Number(offsets)), Number);
        this.ids = new Uint32Array(bytes.buffer, 48 + 8 * Number(offsets), Number(ids));
    }

    /** Return the tokens that may be generated for source tokens, in rising order, with the needed ones. */
    tokens(source, needed) {
        const chosen = new Set();
        for (let id = 0; id < this.first; id++) chosen.add(id);
        for (const id of source) {
            if (id >= this.offsets.length - 1) continue;
            if (this.shared) chosen.add(id);
            this.ids.subarray(this.offsets[id], this.offsets[id + 1]).forEach(each => chosen.add(each));
        }
        let missing = -chosen.size & 7; // Marian adds tokens up to a multiple of 8
        for (let id = this.first; id < this.size && missing > 0; id++)
            if (!chosen.has(id)) {
                chosen.add(id);
                missing -= 1;
            }
        this.banned.forEach(id => chosen.delete(id));
        needed.forEach(id => chosen.add(id));
        return [...chosen].sort((a, b) => a - b);
    }
}
