/** SentencePiece models in JavaScript, unigram and BPE: the same pieces and texts as the C++ library. */

import { TranslationError } from './errors.mjs';

const UNIGRAM = 1, BPE = 2; // types of models
const NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6; // types of pieces
const UNKNOWN_PENALTY = 10;
const OWN_SCORE = 0.1; // of a user-defined piece, per byte after the first

/** What stands for a space in pieces. */
export const MARK = '\u2581';

const encoder = new TextEncoder();
const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
const strict = new TextDecoder('utf-8', { ignoreBOM: true, fatal: true });

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

/** Return the text of bytes. Each byte that is not part of a character becomes U+FFFD. */
function textOf(bytes) {
    let text = '';
    for (let at = 0; at < bytes.length;) {
        const length = lengthOf(bytes[at]);
        try {
            if (at + length > bytes.length) throw new TypeError();
            text += strict.decode(Uint8Array.from(bytes.slice(at, at + length)));
            at += length;
        } catch {
            text += '\uFFFD';
            at += 1;
        }
    }
    return text;
}

/** Items in the order of `isBefore`, as a binary heap. */
class Heap {
    constructor(isBefore) {
        this.isBefore = isBefore;
        this.items = [];
    }

    push(item) {
        const { items } = this;
        let at = items.push(item) - 1;
        for (let above; at > 0 && this.isBefore(item, items[above = (at - 1) >> 1]); at = above) items[at] = items[above];
        items[at] = item;
    }

    /** Return the first item, and remove it; undefined if there is none. */
    pop() {
        const { items } = this;
        const first = items[0], last = items.pop();
        if (!items.length) return first;
        let at = 0;
        for (let below; (below = 2 * at + 1) < items.length; at = below) {
            if (below + 1 < items.length && this.isBefore(items[below + 1], items[below])) below += 1;
            if (!this.isBefore(items[below], last)) break;
            items[at] = items[below];
        }
        items[at] = last;
        return first;
    }
}

export class SentencePiece {
    constructor(model) {
        this.pieces = [];
        this.scores = [];
        this.types = [];
        this.byteIds = [];
        this.next = new Map(); // node of the trie of pieces and a byte, as node * 256 + byte, to the next node
        this.ends = [-1]; // the piece that ends at each node, or -1
        const parts = { 2: {}, 3: {} }; // the trainer's and the normalizer's settings
        for (const [number, value] of fieldsOf(new Uint8Array(model)))
            if (number === 1) this.addPiece(Object.fromEntries(fieldsOf(value)));
            else parts[number] = Object.fromEntries(fieldsOf(value));
        const { 3: type = UNIGRAM, 35: fallsBack = 0, 44: surface } = parts[2];
        const { 2: charsMap = new Uint8Array(4), 3: addsPrefix = 1, 4: trims = 1, 5: escapes = 1 } = parts[3];
        const isKnown = type === UNIGRAM || type === BPE;
        if (!isKnown) throw new TranslationError('tokenizer', 'a SentencePiece model must be of the type unigram or bpe');
        const map = charsMap.length ? charsMap : new Uint8Array(4);
        const trieEnd = 4 + new DataView(map.buffer, map.byteOffset).getUint32(0, true);
        this.units = new Uint32Array(map.slice(4, trieEnd).buffer);
        this.replacements = map.subarray(trieEnd);
        const normal = this.scores.filter((_, id) => this.types[id] === NORMAL);
        this.unknownScore = Math.fround(normal.reduce((a, b) => Math.min(a, b), Infinity) - UNKNOWN_PENALTY);
        this.ids = new Map(this.pieces.map((piece, id) => [piece, id]));
        this.segment = type === BPE ? this.merge : this.mostProbable;
        this.hasOwn = this.types.includes(USER_DEFINED);
        this.fallsBack = fallsBack;
        this.addsPrefix = addsPrefix;
        this.trims = trims;
        this.space = escapes ? encoder.encode(MARK) : [32];
        this.unknownText = surface ? decoder.decode(surface) : ' \u2047 ';
    }

    addPiece({ 1: piece, 2: score = 0, 3: type = NORMAL }) {
        const id = this.pieces.push(decoder.decode(piece)) - 1;
        this.scores.push(score);
        this.types.push(type);
        if (type === UNKNOWN) this.unknown = id;
        if (type === BYTE) this.byteIds[parseInt(this.pieces[id].slice(3, 5), 16)] = id;
        if (type !== NORMAL && type !== USER_DEFINED && type !== UNUSED) return;
        let node = 0;
        for (const byte of piece) {
            const key = node * 256 + byte;
            if (!this.next.has(key)) this.next.set(key, this.ends.push(-1) - 1);
            node = this.next.get(key);
        }
        this.ends[node] = id;
    }

    /** Return the piece from one offset of bytes to another, or -1. */
    pieceAt(bytes, from, to) {
        let node = 0;
        for (let at = from; at < to && node !== undefined; at++) node = this.next.get(node * 256 + bytes[at]);
        return node === undefined ? -1 : this.ends[node];
    }

    /** Return the length of the longest user-defined piece at an offset; 0 if there is none. */
    lengthOfOwn(bytes, from) {
        let length = 0;
        for (let at = from, node = 0; this.hasOwn && at < bytes.length; at++) {
            node = this.next.get(node * 256 + bytes[at]);
            if (node === undefined) break;
            if (this.types[this.ends[node]] === USER_DEFINED) length = at + 1 - from;
        }
        return length;
    }

    /** Return the replacement of the text at an offset, and the number of bytes that it replaces. */
    normalizePrefix(text, at) {
        const { units } = this;
        const own = this.lengthOfOwn(text, at);
        if (own) return [text.subarray(at, at + own), own];
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
    normalizedBytes(text) {
        const bytes = encoder.encode(text);
        const out = [];
        let at = 0;
        while (this.trims && at < bytes.length) {
            const [part, length] = this.normalizePrefix(bytes, at);
            if (part.length !== 1 || part[0] !== 32) break;
            at += length;
        }
        if (at === bytes.length) return new Uint8Array();
        if (this.addsPrefix) out.push(...this.space);
        for (let afterSpace = this.trims; at < bytes.length;) {
            let [part, length] = this.normalizePrefix(bytes, at);
            at += length;
            while (afterSpace && part[0] === 32) part = part.subarray(1);
            if (!part.length) continue;
            for (const byte of part) byte === 32 ? out.push(...this.space) : out.push(byte);
            afterSpace = this.trims && part[part.length - 1] === 32;
        }
        const endsWithSpace = () => out.length && this.space.every((byte, i) => out.at(i - this.space.length) === byte);
        while (this.trims && endsWithSpace()) out.length -= this.space.length;
        return Uint8Array.from(out);
    }

    /** Return a text as the model reads it, without the space that it puts before the first word. */
    normalize(text) {
        const normal = decoder.decode(this.normalizedBytes(text)).replaceAll(MARK, ' ');
        return normal.startsWith(' ') ? normal.slice(1) : normal;
    }

    /** Return the pieces of a text, each { id, piece }: its content, or what is unknown. */
    encode(text) {
        const bytes = this.normalizedBytes(text);
        const result = [];
        let wasUnknown = false;
        for (const [from, to, id] of this.segment(bytes)) {
            const isUnknown = id === this.unknown;
            const known = isUnknown ? decoder.decode(bytes.subarray(from, to)) : this.pieces[id];
            if (isUnknown && this.fallsBack)
                for (const byte of bytes.subarray(from, to)) result.push({ id: this.byteIds[byte], piece: this.pieces[this.byteIds[byte]] });
            else if (isUnknown && wasUnknown) result.at(-1).piece += known;
            else result.push({ id, piece: known });
            wasUnknown = isUnknown;
        }
        return result;
    }

    /** Return the most probable pieces of a unigram model: from, to and id of each. Sums are rounded as in C++, so that ties are
        equal. */
    mostProbable(bytes) {
        const size = bytes.length;
        const best = new Float32Array(size + 1);
        const starts = new Int32Array(size + 1).fill(-1);
        const ids = new Int32Array(size + 1);
        const extend = (from, to, score, id) => {
            const sum = Math.fround(score + best[from]);
            if (starts[to] >= 0 && !(sum > best[to])) return;
            best[to] = sum;
            starts[to] = from;
            ids[to] = id;
        };
        for (let from = 0, next; from < size; from = next) {
            next = Math.min(from + lengthOf(bytes[from]), size);
            let isKnown = false;
            for (let to = from, node = 0; to < size && (node = this.next.get(node * 256 + bytes[to++])) !== undefined;) {
                const id = this.ends[node];
                if (id < 0 || this.types[id] === UNUSED) continue;
                const isOwn = this.types[id] === USER_DEFINED;
                const score = isOwn ? (to - from - 1) * OWN_SCORE : this.scores[id];
                extend(from, to, score, id);
                isKnown ||= to === next;
            }
            if (!isKnown) extend(from, next, this.unknownScore, this.unknown);
        }
        const result = [];
        for (let to = size; to > 0; to = starts[to]) result.push([starts[to], to, ids[to]]);
        return result.reverse();
    }

    /** Return the pieces of a BPE model, as `mostProbable`: characters, joined in the order of the scores of what they make. */
    merge(bytes) {
        const starts = [], isOwn = [];
        for (let at = 0; at < bytes.length;) {
            const own = this.lengthOfOwn(bytes, at);
            starts.push(at);
            isOwn.push(own > 0);
            at += own || lengthOf(bytes[at]);
        }
        const count = starts.length;
        const ends = starts.map((_, i) => i + 1 < count ? starts[i + 1] : bytes.length);
        const next = starts.map((_, i) => i + 1 < count ? i + 1 : -1);
        const before = starts.map((_, i) => i - 1);
        const heap = new Heap((one, other) => one.score > other.score || (one.score === other.score && one.left < other.left));
        const lengths = new Map(); // of the first part of unused pieces, in bytes
        const add = (left, right) => {
            if (left < 0 || right < 0 || isOwn[left] || isOwn[right]) return;
            const id = this.pieceAt(bytes, starts[left], ends[right]);
            if (id < 0) return;
            heap.push({ left, right, from: starts[left], to: ends[right], middle: starts[right], score: this.scores[id] });
            if (this.types[id] === UNUSED) lengths.set(id, starts[right] - starts[left]);
        };
        for (let i = 0; i + 1 < count; i++) add(i, i + 1);
        for (let top; (top = heap.pop()) !== undefined;) {
            const { left, right, to, middle } = top;
            const isCurrent = ends[left] === middle && starts[right] === middle && ends[right] === to;
            if (!isCurrent) continue;
            ends[left] = to;
            next[left] = next[right];
            if (next[right] >= 0) before[next[right]] = left;
            ends[right] = starts[right]; // it is no longer there
            add(before[left], left);
            add(left, next[left]);
        }
        const result = [];
        const divide = (from, to) => {
            const id = this.pieceAt(bytes, from, to);
            const length = lengths.get(id);
            if (length) {
                divide(from, from + length);
                divide(from + length, to);
            } else result.push([from, to, id < 0 ? this.unknown : id]);
        };
        for (let i = 0; i >= 0 && count; i = next[i]) divide(starts[i], ends[i]);
        return result;
    }

    /** Return the text of pieces. */
    decode(pieces) {
        let text = '', bytes = [], atBegin = true, hasBegun = false;
        const flush = () => {
            text += textOf(bytes);
            bytes = [];
        };
        for (let piece of pieces) {
            const id = this.ids.get(piece) ?? this.unknown;
            const type = this.types[id];
            if (type === BYTE) {
                bytes.push(parseInt(piece.slice(3, 5), 16));
                continue;
            }
            flush();
            if (hasBegun || text) atBegin = false;
            hasBegun = false;
            if (type === CONTROL) continue;
            if (type === UNKNOWN) {
                text += this.pieces[id] === piece ? this.unknownText : piece;
                continue;
            }
            if (atBegin && (this.addsPrefix || this.trims) && piece.startsWith(MARK)) {
                piece = piece.slice(1);
                hasBegun = !this.trims;
            }
            text += piece.replaceAll(MARK, ' ');
        }
        flush();
        return text;
    }
}
