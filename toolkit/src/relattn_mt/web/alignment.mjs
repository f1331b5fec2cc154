/** Word alignment from attention weights, as in `relattn_mt/text/alignment.py`. */

import { MARK } from './sentencepiece.mjs';

const BYTE = /^<0x[0-9A-F]{2}>$/;
const LETTER = /[\p{L}\p{N}\p{M}]/u;
const SPACES = ['<0x0A>', '<0x20>'];

/** Return the word of each piece, counted from 0: -1 for a piece that is only spaces, and undefined for one that does not count,
    punctuation in a word that has letters or digits. */
function wordsOf(pieces) {
    let word = -1, isInside = false;
    const words = pieces.map(piece => {
        const isSpace = SPACES.includes(piece);
        let own = -1;
        for (const character of isSpace ? MARK : BYTE.test(piece) ? 'x' : piece) {
            if (character === MARK) {
                isInside = false;
                continue;
            }
            word += isInside ? 0 : 1;
            isInside = true;
            own = word;
        }
        return own;
    });
    const hasLetter = pieces.map(piece => BYTE.test(piece) || LETTER.test(piece));
    const withLetters = new Set(words.filter((_, i) => hasLetter[i]));
    return words.map((each, i) => each < 0 || hasLetter[i] || !withLetters.has(each) ? each : undefined);
}

/** Return the pairs [source word, target word] of a sentence and its translation, in the order of target words.

    `weights` has an array per target piece, with the weights of `before` special tokens, of the source pieces, and of special
    tokens after them. */
export function alignWords(weights, sourcePieces, targetPieces, before) {
    const source = wordsOf(sourcePieces), target = wordsOf(targetPieces);
    const last = words => words.reduce((largest, word) => Math.max(largest, word ?? -1), -1);
    const count = last(source) + 1; // the column after those of the words is that of spaces and special tokens
    const totals = Array.from({ length: last(target) + 1 }, () => new Float64Array(count + 1));
    target.forEach((word, row) => {
        if (word === undefined || word < 0) return;
        weights[row].forEach((weight, column) => {
            const isInner = column >= before && column < before + source.length;
            const to = isInner ? source[column - before] : -1;
            if (to !== undefined) totals[word][to < 0 ? count : to] += weight;
        });
    });
    return totals.flatMap((row, word) => {
        const best = row.indexOf(Math.max(...row));
        return best < count ? [[best, word]] : [];
    });
}
