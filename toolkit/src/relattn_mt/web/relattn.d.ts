/** Why an operation failed:
    no-simd: the browser has no SIMD in WebAssembly; compile: WebAssembly is forbidden; file: the page was opened from a file;
    not-found, network: a file is not there, or the server is not; damaged: a file is cut or another one;
    version: files of different versions; memory: it does not fit; too-long: a text has too many pieces;
    option: an argument is wrong; tokenizer: its kind is not supported; not-finite: scores are NaN; freed: after `free`;
    aborted: by its signal; worker: a worker does not start. */
export type ErrorCode =
    | 'no-simd' | 'compile' | 'file' | 'not-found' | 'network' | 'damaged' | 'version' | 'memory' | 'too-long' | 'option'
    | 'tokenizer' | 'not-finite' | 'freed' | 'aborted' | 'worker';

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
    /** Align the words of source and translation. */
    align?: boolean;
}

export interface AbortOptions {
    /** Ends the translation after the sentence that is being translated, with an error `aborted`. */
    signal?: AbortSignal;
}

export interface Hypothesis {
    text: string;
    /** Log-probability divided by the length penalty. */
    score: number;
    /** Pieces of the target vocabulary. */
    ids: number[];
    /** Geometric mean of the probabilities of the pieces and the end, from 0 to 1. */
    confidence: number;
    /** Pairs of a source word and a target word, counted from 0, with `align`. Words are separated by spaces. */
    alignment?: [number, number][];
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

    /** Yield each translation when it is ready, and serve other events in between. */
    stream(texts: string[], options?: TranslateOptions & AbortOptions): AsyncGenerator<Translation & { index: number }>;

    /** Give the memory back. */
    free(): void;
}

/** A translator in a worker, in `client.mjs`. */
export class WorkerTranslator {
    private constructor();

    /** Start a worker that loads the model of a directory, by default that of this module. */
    static load(url?: string | URL, options?: LoadOptions): Promise<WorkerTranslator>;

    readonly pairs: { from: string; to: string }[];

    /** Translate sentences. `onTranslation` gets each translation when it is ready. */
    translate(texts: string[], options?: TranslateOptions & AbortOptions & {
        onTranslation?: (translation: Translation & { index: number }) => void;
    }): Promise<Translation[]>;

    /** End the worker, which gives the memory back. */
    free(): void;
}
