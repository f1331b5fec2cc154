/** An error with a code, one of `ErrorCode` in relattn.d.ts, and one sentence. */
export class TranslationError extends Error {
    constructor(code, message, options) {
        super(message, options);
        this.name = 'TranslationError';
        this.code = code;
    }
}
