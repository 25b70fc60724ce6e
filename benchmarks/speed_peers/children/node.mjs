// node-llama-cpp: plain, input look-up and draft model, over lines of JSON.
//
//     node node.mjs path/to/node-llama-cpp/dist/index.js
//
// A context for each predictor, made when it is first asked for. A reply is timed from its first
// token, which the prefill brings, to its last.

import fs from "node:fs";
import path from "node:path";
import readline from "node:readline";

const library = await import(process.argv[2]);
const say = (value) => fs.writeSync(1, JSON.stringify(value) + "\n");
const lines = readline.createInterface({input: process.stdin})[Symbol.asyncIterator]();
const setup = JSON.parse((await lines.next()).value);
const ends = new Set(setup.end_tokens);
const sequences = new Map();
let llama, model, draft;

function versions() {
    const folder = path.resolve(process.argv[2], "../..");
    const read = (name) => JSON.parse(fs.readFileSync(path.join(folder, name), "utf8"));
    return {
        "node-llama-cpp": read("package.json").version,
        "llama.cpp": `${read("llama/binariesGithubRelease.json").release}, its own build`,
        "node": process.version
    };
}

async function open() {
    llama = await library.getLlama({gpu: false, build: "never", logLevel: "error", ...(setup.n_threads ? {maxThreads: setup.n_threads} : {})});
    model = await llama.loadModel({modelPath: setup.model, ignoreMemorySafetyChecks: true});
    if (setup.draft != null)
        draft = await llama.loadModel({modelPath: setup.draft, ignoreMemorySafetyChecks: true});
}

function createContext(ofModel) {
    return ofModel.createContext({
        contextSize: setup.n_ctx,
        ...(setup.n_threads ? {threads: {ideal: setup.n_threads, min: setup.n_threads}} : {}),
        ignoreMemorySafetyChecks: true
    });
}

async function sequenceOf(settings) {
    const key = JSON.stringify(settings);
    if (!sequences.has(key)) {
        let tokenPredictor;
        if (settings.predictor === "lookup")
            tokenPredictor = new library.InputLookupTokenPredictor({
                patternLength: {min: settings.pattern_min},
                predictionLength: {max: settings.prediction_max}
            });
        else if (settings.predictor === "draft")
            tokenPredictor = new library.DraftSequenceTokenPredictor((await createContext(draft)).getSequence());
        sequences.set(key, (await createContext(model)).getSequence({tokenPredictor}));
    }
    return sequences.get(key);
}

async function answer(question) {
    const sequence = await sequenceOf(question.settings);
    await sequence.clearHistory();
    if (sequence.tokenPredictor?.updateInputTokens != null)
        sequence.tokenPredictor.updateInputTokens(question.tokens);
    const before = {...sequence.tokenPredictions};
    const options = {temperature: question.temperature, topK: 0, topP: 1, seed: question.seed, yieldEogToken: true};
    const tokens = [];
    let first, last;
    for await (const token of sequence.evaluate(question.tokens, options)) {
        last = performance.now();
        first ??= last;
        tokens.push(token);
        const over = question.max_s != null && last - first >= question.max_s * 1000;
        if (ends.has(token) || tokens.length === question.max_tokens || over)
            break;
    }
    const after = sequence.tokenPredictions;
    const validated = after.validated - before.validated;
    const steps = Math.max(0, tokens.length - 1);
    return {
        tokens: ends.has(tokens.at(-1)) ? tokens.slice(0, -1) : tokens,
        n_steps: steps,
        elapsed_s: (last - first) / 1000,
        n_drafted: validated + after.refuted - before.refuted,
        n_accepted: validated,
        n_rounds: null
    };
}

const messageOf = (error) => ({error: String(error?.message ?? error).slice(0, 300)});

try {
    await open();
    say({versions: versions()});
} catch (error) {
    say(messageOf(error));
    process.exit(1);
}
for await (const line of lines)
    say(await answer(JSON.parse(line)).catch(messageOf));
process.exit(0);
