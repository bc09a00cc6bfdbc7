// Renders conversations by a model's own chat_template and encodes the text, as Hugging Face does. Run in a folder that has
// node_modules.
//
//   node chat_reference.mjs FOLDER CONVERSATIONS IDS     records, see tokenize.cc; each conversation is {"messages": [...]}

import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

const require = createRequire(path.join(process.cwd(), "node_modules", "x"));
const { Template } = require("@huggingface/jinja");
const { Tokenizer } = require("@anush008/tokenizers");

const [folder, input, output] = process.argv.slice(2);
const config = JSON.parse(fs.readFileSync(path.join(folder, "tokenizer_config.json"), "utf8"));
const template = new Template(config.chat_template);
const tokenizer = Tokenizer.fromFile(path.join(folder, "tokenizer.json"));

function* records(file) {
  const bytes = fs.readFileSync(file);
  for (let at = 0; at < bytes.length;) {
    const count = bytes.readUInt32LE(at);
    yield bytes.subarray(at + 4, at + 4 + count);
    at += 4 + count;
  }
}

const out = [];
for (const bytes of records(input)) {
  const { messages } = JSON.parse(bytes.toString("utf8"));
  const text = template.render({
    messages,
    bos_token: config.bos_token,
    eos_token: config.eos_token,
    add_generation_prompt: false,
  });
  const ids = Int32Array.from((await tokenizer.encode(text, null, { addSpecialTokens: false })).getIds());
  const head = Buffer.alloc(4);
  head.writeUInt32LE(ids.length);
  out.push(head, Buffer.from(ids.buffer));
}
fs.writeFileSync(output, Buffer.concat(out));
