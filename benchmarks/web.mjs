/* Translate lines in Node.js with one program, and print its figures as JSON: node web.mjs PROGRAM MODEL LINES PACKAGES

   It is started by `web.py`, in a new process each time. Words of the translations are counted: each piece of the models is one. */

import { cpSync, mkdtempSync, readFileSync, readdirSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { Worker } from 'node:worker_threads';

const [program, model, linesFile, packages] = process.argv.slice(2);
const ALONE = 20, TOGETHER = 40; // lines
const lines = readFileSync(linesFile, 'utf8').split('\n').filter(Boolean).slice(0, TOGETHER);
const sizeOf = paths => paths.reduce((sum, path) => sum + statSync(path).size, 0);
const words = texts => texts.reduce((sum, text) => sum + text.split(/\s+/).filter(Boolean).length, 0);
const required = name => createRequire(join(packages, 'x.js'))(name);

/** Return how to translate lines, together if the program can, and the bytes that a browser loads for it. */
const PROGRAMS = {
    async 'relattn-mt'(engine) {
        const { Translator } = await import(pathToFileURL(join(model, 'relattn.mjs')));
        const translator = await Translator.load(pathToFileURL(`${model}/`), { engine });
        const names = readdirSync(model).filter(name => /^(model-|tokenizer|vocabulary)/.test(name) || name.startsWith(`${engine}-`)
            || ['relattn', 'engine', 'errors', 'sentencepiece', 'alignment'].some(each => name === `${each}.mjs`));
        return {
            translate: texts => translator.translate(texts, { beam: 1 }).map(each => each.text),
            together: true,
            files: names.map(name => join(model, name)),
            memory: () => translator.memoryBytes,
        };
    },

    async bergamot() {
        const folder = join(packages, 'node_modules/@browsermt/bergamot-translator/worker');
        const copy = mkdtempSync(join(tmpdir(), 'bergamot-')); // its package says that the script is a module, which it is not
        cpSync(folder, copy, { recursive: true });
        const worker = new Worker(join(copy, 'translator-worker.js'));
        worker.unref();
        const waiting = new Map();
        worker.on('message', ({ id, result, error }) => error ? waiting.get(id)[1](Error(error.message)) : waiting.get(id)[0](result));
        worker.on('error', error => { throw error; });
        const ask = (name, ...args) => new Promise((resolve, reject) => {
            waiting.set(waiting.size + 1, [resolve, reject]);
            worker.postMessage({ id: waiting.size, name, args });
        });
        const [weights, vocabulary] = ['model.bin', 'vocab.spm'].map(name => new Uint8Array(readFileSync(join(model, name))).buffer);
        await ask('initialize', { cacheSize: 0 });
        const config = { 'gemm-precision': 'int8shiftAlphaAll' };
        await ask('loadTranslationModel', { from: 'en', to: 'de' },
            { model: weights, shortlist: new ArrayBuffer(0), vocabs: [vocabulary], config });
        const translate = async texts => (await ask('translate', {
            models: [{ from: 'en', to: 'de' }], texts: texts.map(text => ({ text, html: false, qualityScores: false })),
        })).map(each => each.target.text);
        const files = readdirSync(folder).map(name => join(folder, name));
        return { translate, together: true, files: [...files, join(model, 'model.bin'), join(model, 'vocab.spm')] };
    },

    async fxtranslate() {
        const { Translator } = required(join(packages, 'node_modules/fxtranslate/wasm/fxtranslate_wasm.js'));
        const [weights, vocabulary] = ['model.bin', 'vocab.spm'].map(name => new Uint8Array(readFileSync(join(model, name))));
        const translator = new Translator(weights, vocabulary, vocabulary);
        const folder = join(packages, 'node_modules/fxtranslate/wasm');
        return {
            translate: texts => texts.map(text => translator.translate(text)),
            files: [...['fxtranslate_wasm.js', 'fxtranslate_wasm_bg.wasm'].map(name => join(folder, name)),
                join(model, 'model.bin'), join(model, 'vocab.spm')],
            memory: () => translator.linearMemoryBytes(),
        };
    },

    /** transformers.js with ONNX Runtime's WebAssembly, as in a browser: in Node.js, it takes native code by itself. */
    async 'transformers.js'() {
        const runtime = required('onnxruntime-web');
        const modules = join(packages, 'node_modules'), dist = join(modules, 'onnxruntime-web/dist');
        runtime.env.wasm.numThreads = 1;
        runtime.env.wasm.wasmPaths = `${pathToFileURL(dist)}/`; // by default, an address in the network
        globalThis[Symbol.for('onnxruntime')] = runtime;
        const library = join(modules, '@huggingface/transformers/dist');
        const { AutoModelForSeq2SeqLM, AutoTokenizer, env } = await import(pathToFileURL(join(library, 'transformers.node.min.mjs')));
        env.localModelPath = dirname(model);
        env.allowRemoteModels = false;
        const tokenizer = await AutoTokenizer.from_pretrained(basename(model));
        const options = { device: 'auto', dtype: 'q8', session_options: { executionProviders: ['wasm'] } };
        const loaded = await AutoModelForSeq2SeqLM.from_pretrained(basename(model), options);
        const files = [
            ...['encoder_model_quantized.onnx', 'decoder_model_merged_quantized.onnx'].map(each => join(model, 'onnx', each)),
            ...['ort-wasm-simd-threaded.wasm', 'ort-wasm-simd-threaded.mjs', 'ort.wasm.min.mjs'].map(each => join(dist, each)),
            join(library, 'transformers.web.min.js'), join(model, 'tokenizer.json'),
        ];
        return {
            translate: async texts => {
                const ids = await loaded.generate({ ...tokenizer(texts, { padding: true }), num_beams: 1, do_sample: false });
                return tokenizer.batch_decode(ids, { skip_special_tokens: true });
            },
            together: true,
            files,
        };
    },
};

const [name, engine] = program.split(' ');
const seconds = async work => {
    const start = performance.now();
    const value = await work();
    return [(performance.now() - start) / 1000, value];
};
const first = () => seconds(async () => {
    const loaded = await PROGRAMS[name](engine);
    await loaded.translate(lines.slice(0, 1));
    return loaded;
});
const [cold, loaded] = await first();
const alone = await seconds(async () => {
    const found = [];
    for (const line of lines.slice(0, ALONE)) found.push(...await loaded.translate([line]));
    return words(found);
});
const peak = /VmHWM:\s+(\d+)/.exec(readFileSync('/proc/self/status', 'utf8'))[1] / 1024; // maxRSS has the parent's peak
const memory = loaded.memory?.() / 2 ** 20;
const together = loaded.together ? await seconds(async () => words(await loaded.translate(lines))) : undefined;
const [warm] = name === 'bergamot' ? [undefined] : await first();
const speed = ([time, count]) => count / time;
console.log(JSON.stringify({
    download: sizeOf(loaded.files), cold, warm, peak, memory, alone: speed(alone), together: together && speed(together),
}));
process.exit();
