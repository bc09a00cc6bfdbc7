// Encodes documents by an implementation from npm, or measures it. Run in a folder that has node_modules.
//
//   node reference.mjs IMPLEMENTATION TOKENIZER.json encode|decode IN OUT    records, see tokenize.cc
//   node reference.mjs IMPLEMENTATION TOKENIZER.json serve IN     for each line of its input: all of them, their seconds
//
// IMPLEMENTATION: native (Hugging Face's own, in Rust) or js (Hugging Face's other one, in JavaScript).

import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { performance } from "node:perf_hooks";
import readline from "node:readline";

const require = createRequire(path.join(process.cwd(), "node_modules", "x"));

// Both take text: bytes that are not UTF-8 are U+FFFD before either sees them.
const utf8 = new TextDecoder("utf-8", { ignoreBOM: true });

async function native(file) {
  const tokenizer = require("@anush008/tokenizers").Tokenizer.fromFile(file);
  return {
    encode: async (text) => (await tokenizer.encode(text, null, { addSpecialTokens: false })).getIds(),
    decode: async (ids) => await tokenizer.decode(ids, false),
  };
}

async function js(file) {
  const { Tokenizer } = require("@huggingface/tokenizers");
  const tokenizer = new Tokenizer(JSON.parse(fs.readFileSync(file, "utf8")), {});
  return {
    encode: async (text) => tokenizer.encode(text, { add_special_tokens: false }).ids,
    decode: async (ids) =>
      ids.length ? tokenizer.decode(ids, { skip_special_tokens: false, clean_up_tokenization_spaces: false }) : "",
  };
}

function* records(file, width) {
  const bytes = fs.readFileSync(file);
  for (let at = 0; at < bytes.length;) {
    const count = bytes.readUInt32LE(at);
    at += 4;
    yield bytes.subarray(at, at + count * width);
    at += count * width;
  }
}

function idsOf(bytes) {
  return Array.from({ length: bytes.length / 4 }, (_, i) => bytes.readInt32LE(i * 4));
}

function recordOf(count, bytes) {
  const head = Buffer.alloc(4);
  head.writeUInt32LE(count);
  return [head, bytes];
}

async function encode(tokenizer, input, output) {
  const out = [];
  for (const bytes of records(input, 1)) {
    const ids = Int32Array.from(await tokenizer.encode(utf8.decode(bytes)));
    out.push(...recordOf(ids.length, Buffer.from(ids.buffer)));
  }
  fs.writeFileSync(output, Buffer.concat(out));
}

async function decode(tokenizer, input, output) {
  const out = [];
  for (const bytes of records(input, 4)) {
    const text = Buffer.from(await tokenizer.decode(idsOf(bytes)), "utf8");
    out.push(...recordOf(text.length, text));
  }
  fs.writeFileSync(output, Buffer.concat(out));
}

// Each line of standard input asks for one round.
async function serve(tokenizer, input) {
  const texts = [...records(input, 1)].map((bytes) => utf8.decode(bytes));
  for await (const _ of readline.createInterface({ input: process.stdin })) {
    const start = performance.now();
    let ids = 0;
    for (const text of texts) ids += (await tokenizer.encode(text)).length;
    console.log(JSON.stringify({ seconds: (performance.now() - start) / 1000, ids }));
  }
}

const [implementation, file, mode, input, output] = process.argv.slice(2);
const tokenizer = await { native, js }[implementation](file);
await { encode, decode, serve }[mode](tokenizer, input, output);
