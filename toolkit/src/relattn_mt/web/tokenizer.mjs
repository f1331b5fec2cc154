/** The tokenizers of bundles: texts and ids as in `relattn_mt/tokens`. */

import { MARK, SentencePiece } from './sentencepiece.mjs';

const STAND_IN = '\u{10FFFF}'; // of a mark in a text, which SentencePiece would read as a space
const encoder = new TextEncoder();
const withoutBreaks = text => text.replaceAll('\n', ' ');

/** One SentencePiece model for both sides, whose first four ids are special tokens. */
export class Tokenizer {
    constructor(model) {
        this.model = new SentencePiece(model);
        this.sourcePieces = this.targetPieces = this.model.pieces;
    }

    normalize(text) { return this.model.normalize(text.replaceAll(MARK, STAND_IN)).replaceAll(STAND_IN, MARK); }

    /** Return the ids of a text. A mark in it is spelled in bytes. */
    encode(text) {
        const ids = this.model.encode(text.replaceAll(MARK, STAND_IN)).map(each => each.id);
        if (!text.includes(MARK)) return ids;
        const spelled = character => String.fromCharCode(...Array.from(encoder.encode(character), byte => this.model.byteIds[byte]));
        const replaced = ids.map(id => String.fromCharCode(id)).join('').replaceAll(spelled(STAND_IN), spelled(MARK));
        return Array.from({ length: replaced.length }, (_, i) => replaced.charCodeAt(i));
    }

    decode(ids) { return withoutBreaks(this.model.decode(ids.filter(id => id > 3).map(id => this.model.pieces[id]))); }
}

/** SentencePiece models of both sides, and their vocabularies, of a model that another toolkit trained. */
export class ImportedTokenizer {
    constructor(source, target, { source_pieces: sourcePieces, target_pieces: targetPieces, unknown, not_text: notText, controls }) {
        this.source = new SentencePiece(source);
        this.target = target ? new SentencePiece(target) : this.source;
        this.sourcePieces = sourcePieces;
        this.targetPieces = targetPieces ?? sourcePieces;
        this.ids = new Map(sourcePieces.map((piece, id) => [piece, id]));
        this.unknown = unknown;
        this.notText = new Set(notText);
        this.controls = new Set(controls);
    }

    normalize(text) { return this.source.normalize(text); }

    /** Return the ids of a text. The name of a special token in it is spelled. */
    encode(text) {
        const pieces = this.source.encode(text).flatMap(({ piece }) => this.controls.has(piece) ? [...piece] : [piece]);
        return pieces.map(piece => this.ids.get(piece) ?? this.unknown);
    }

    decode(ids) {
        const pieces = ids.filter(id => !this.notText.has(id)).map(id => this.targetPieces[id]);
        return withoutBreaks(this.target.decode(pieces));
    }
}
