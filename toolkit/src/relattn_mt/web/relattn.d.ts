/** Why an operation failed:
    no-simd: the browser has no SIMD in WebAssembly; compile: WebAssembly is forbidden; file: the page was opened from a file;
    not-found, network: a file is not there, or the server is not; damaged: a file is cut or another one;
    version: files of different versions; memory: it does not fit; too-long: a text has too many pieces;
    option: an argument is wrong; tokenizer: its kind is not supported; not-finite: scores are NaN; freed: after `free`. */
export type ErrorCode =
    | 'no-simd' | 'compile' | 'file' | 'not-found' | 'network' | 'damaged' | 'version' | 'memory' | 'too-long' | 'option'
    | 'tokenizer' | 'not-finite' | 'freed';

export class TranslationError extends Error {
    readonly code: ErrorCode;
}

export interface Progress {
    /** Bytes that have arrived, of `total`. */
    loaded: number;
    total: number;
}

export interface LoadOptions {
    onProgress?: (progress: Progress) => void;
    /** The engine; by default the fastest one that is right here. */
    engine?: 'simd' | 'relaxed';
}

export interface TranslateOptions {
    /** Number of hypotheses that are kept, from 1 to 1000; by default that of the model. */
    beam?: number;
    /** Number of translations per text, at most `beam`; 1 by default. */
    nBest?: number;
    /** Languages of a model with several pairs; by default those of the first pair that fits. */
    from?: string;
    to?: string;
}

export interface Hypothesis {
    text: string;
    /** Log-probability divided by the length penalty. */
    score: number;
    /** Pieces of the target vocabulary. */
    ids: number[];
}

export interface Translation extends Hypothesis {
    /** The next best hypotheses; with `nBest` of 1, none. */
    alternatives: Hypothesis[];
}

export class Translator {
    private constructor();

    /** Load the model of a directory that `relattn-mt export web` wrote. */
    static load(url: string | URL, options?: LoadOptions): Promise<Translator>;

    readonly engine: 'simd' | 'relaxed';
    readonly pairs: { from: string; to: string }[];
    /** Bytes of linear memory; 0 after `free`. */
    readonly memoryBytes: number;

    /** Translate sentences. A blank text has an empty translation. */
    translate(texts: string[], options?: TranslateOptions): Translation[];

    /** Give the memory back. */
    free(): void;
}
