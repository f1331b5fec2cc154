/** SentencePiece unigram models in JavaScript: the same ids and texts as the C++ library. */

import { TranslationError } from './errors.mjs';

const NORMAL = 1, UNKNOWN = 2, USER_DEFINED = 4, BYTE = 6; // types of pieces
const MARK = '\u2581', STAND_IN = '\u{10FFFF}'; // what stands for a space, and for a mark in a text
const UNKNOWN_PENALTY = 10;
const encoder = new TextEncoder();
const decoder = new TextDecoder();

/** Yield the fields of a protocol buffer: number, and value (a number, or bytes). */
function* fieldsOf(bytes) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    let at = 0;
    const varint = () => {
        for (let value = 0, scale = 1; ; scale *= 128) {
            value += (bytes[at] & 127) * scale;
            if (bytes[at++] < 128) return value;
        }
    };
    while (at < bytes.length) {
        const tag = varint();
        const number = Math.floor(tag / 8);
        switch (tag & 7) {
            case 0:
                yield [number, varint()];
                break;
            case 5:
                yield [number, view.getFloat32(at, true)];
                at += 4;
                break;
            default: {
                const size = (tag & 7) === 1 ? 8 : varint();
                yield [number, bytes.subarray(at, at + size)];
                at += size;
            }
        }
    }
}

const lengthOf = byte => byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4; // bytes of a character
const offsetOf = unit => (unit >>> 10) << ((unit & 1 << 9) >>> 6); // of a unit of a Darts trie

export class SentencePiece {
    constructor(model) {
        this.pieces = [];
        this.scores = [];
        this.types = [];
        this.byteIds = [];
        this.trie = [new Map()]; // per node, the next node by byte, and the piece under -1
        const parts = { 2: {}, 3: {} }; // the trainer's and the normalizer's settings
        for (const [number, value] of fieldsOf(new Uint8Array(model)))
            if (number === 1) this.addPiece(Object.fromEntries(fieldsOf(value)));
            else parts[number] = Object.fromEntries(fieldsOf(value));
        const { 3: type = 1, 35: fallsBack = 0 } = parts[2];
        const { 2: charsMap = new Uint8Array(4), 3: addsPrefix = 1, 4: trims = 1, 5: escapes = 1 } = parts[3];
        if (type !== 1) throw new TranslationError('tokenizer', 'a SentencePiece model must be of the type unigram');
        const map = charsMap.length ? charsMap : new Uint8Array(4);
        const trieEnd = 4 + new DataView(map.buffer, map.byteOffset).getUint32(0, true);
        this.units = new Uint32Array(map.slice(4, trieEnd).buffer);
        this.replacements = map.subarray(trieEnd);
        const normal = this.scores.filter((_, id) => this.types[id] === NORMAL);
        this.unknownScore = Math.fround(normal.reduce((a, b) => Math.min(a, b), Infinity) - UNKNOWN_PENALTY);
        this.fallsBack = fallsBack;
        this.addsPrefix = addsPrefix;
        this.trims = trims;
        this.space = escapes ? encoder.encode(MARK) : [32];
        this.maxScore = normal.reduce((a, b) => Math.max(a, b), -Infinity);
    }

    addPiece({ 1: piece, 2: score = 0, 3: type = NORMAL }) {
        const id = this.pieces.push(decoder.decode(piece)) - 1;
        this.scores.push(score);
        this.types.push(type);
        if (type === UNKNOWN) this.unknown = id;
        if (type === BYTE) this.byteIds[parseInt(this.pieces[id].slice(3, 5), 16)] = id;
        if (type !== NORMAL && type !== USER_DEFINED) return;
        let node = 0;
        for (const byte of piece) {
            if (!this.trie[node].has(byte)) this.trie[node].set(byte, this.trie.push(new Map()) - 1);
            node = this.trie[node].get(byte);
        }
        this.trie[node].set(-1, id);
    }

    /** Return the replacement of the text at an offset, and the number of bytes that it replaces. */
    normalizePrefix(text, at) {
        const { units } = this;
        let value = -1;
        let length = lengthOf(text[at]);
        for (let i = at, node = units.length ? offsetOf(units[0]) : 0; i < text.length && units.length; i++) {
            node ^= text[i];
            const unit = units[node];
            if ((unit & 0x800000FF) >>> 0 !== text[i]) break;
            node ^= offsetOf(unit);
            if (unit >>> 8 & 1) {
                value = units[node] & 0x7FFFFFFF;
                length = i + 1 - at;
            }
        }
        if (value < 0) return [text.subarray(at, at + length), length];
        return [this.replacements.subarray(value, this.replacements.indexOf(0, value)), length];
    }

    /** Return the normalized text in UTF-8, with U+2581 for spaces. */
    normalize(text) {
        const bytes = encoder.encode(text);
        const out = [];
        for (let at = 0, afterSpace = this.trims; at < bytes.length;) {
            let [part, length] = this.normalizePrefix(bytes, at);
            at += length;
            while (afterSpace && part[0] === 32) part = part.subarray(1);
            if (!part.length) continue;
            if (!out.length && this.addsPrefix) out.push(...this.space);
            for (const byte of part) byte === 32 ? out.push(...this.space) : out.push(byte);
            afterSpace = this.trims && part[part.length - 1] === 32;
        }
        const endsWithSpace = () => out.length && this.space.every((byte, i) => out.at(i - this.space.length) === byte);
        while (this.trims && endsWithSpace()) out.length -= this.space.length;
        return Uint8Array.from(out);
    }

    /** Return the ids of a text. A mark in it is spelled in bytes, as it is not a space. */
    encode(text) {
        if (!text.includes(MARK)) return this.#mostProbable(text);
        const spelled = character => String.fromCharCode(...Array.from(encoder.encode(character), byte => this.byteIds[byte]));
        const ids = this.#mostProbable(text.replaceAll(MARK, STAND_IN));
        const replaced = ids.map(id => String.fromCharCode(id)).join('').replaceAll(spelled(STAND_IN), spelled(MARK));
        return Array.from({ length: replaced.length }, (_, i) => replaced.charCodeAt(i));
    }

    /** Return the ids of the most probable pieces. Sums are rounded to 32 bits, as in C++, so that ties are equal. */
    #mostProbable(text) {
        const bytes = this.normalize(text);
        const size = bytes.length;
        const best = new Float32Array(size + 1);
        const starts = new Int32Array(size + 1).fill(-1);
        const ids = new Int32Array(size + 1);
        const extend = (from, to, score, id) => {
            const sum = score + best[from];
            if (starts[to] >= 0 && !(sum > best[to])) return;
            best[to] = sum;
            starts[to] = from;
            ids[to] = id;
        };
        for (let from = 0, next; from < size; from = next) {
            next = Math.min(from + lengthOf(bytes[from]), size);
            let isKnown = false;
            for (let to = from, node = 0; to < size && (node = this.trie[node].get(bytes[to++])) !== undefined;) {
                const id = this.trie[node].get(-1);
                if (id === undefined) continue;
                extend(from, to, this.types[id] === NORMAL ? this.scores[id] : (to - from) * this.maxScore - 0.1, id);
                isKnown ||= to === next;
            }
            if (!isKnown) extend(from, next, this.unknownScore, this.unknown);
        }
        const result = [];
        for (let to = size, wasUnknown = false; to > 0; to = starts[to]) {
            const isUnknown = ids[to] === this.unknown;
            if (isUnknown && this.fallsBack) for (let i = to; i > starts[to];) result.push(this.byteIds[bytes[--i]]);
            else if (!(isUnknown && wasUnknown)) result.push(ids[to]);
            wasUnknown = isUnknown;
        }
        return result.reverse();
    }

    /** Return the text of ids. Pieces that are not text are left out. */
    decode(ids) {
        const bytes = ids.flatMap(id => {
            if (this.types[id] === BYTE) return [parseInt(this.pieces[id].slice(3, 5), 16)];
            const isText = this.types[id] === NORMAL || this.types[id] === USER_DEFINED;
            return isText ? Array.from(encoder.encode(this.pieces[id].replaceAll(MARK, ' '))) : [];
        });
        const text = decoder.decode(Uint8Array.from(bytes));
        return (this.addsPrefix && text.startsWith(' ') ? text.slice(1) : text).replaceAll('\n', ' ');
    }
}
