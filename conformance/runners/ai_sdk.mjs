// The parsers of @ai-sdk-tool/parser for `ai_sdk.py`: reads lines of JSON and writes a line of JSON for each.
//
//     {"open": "hermes", "tools": [{"name", "inputSchema"}]}   begin a reply and forget the previous one
//     {"feed": "text"}                                         feed a delta
//     {"close": true}                                          end the reply
//     {}                                                       request only the seconds
//
// The answer contains the new `parts`, and `seconds`: the CPU time of the parser so far.

import * as parsers from '@ai-sdk-tool/parser';
import { createInterface } from 'node:readline';

const ID = '1';
let reply;
let parts = [];
let micros = 0;

function open(name, tools) {
  const parser = parsers[`${name}Protocol`]().createStreamParser({
    tools: tools.map((tool) => ({ type: 'function', ...tool })),
  });
  parser.readable.pipeTo(new WritableStream({ write: (part) => void parts.push(part) })).catch(() => {});
  reply = parser.writable.getWriter();
}

async function write(part) {
  const before = process.cpuUsage();
  await reply.write(part);
  const spent = process.cpuUsage(before);
  micros += spent.user + spent.system;
}

async function answer(asked) {
  if ('open' in asked) {
    open(asked.open, asked.tools);
    await write({ type: 'text-start', id: ID });
  } else if ('feed' in asked) {
    await write({ type: 'text-delta', id: ID, delta: asked.feed });
  } else if ('close' in asked) {
    await write({ type: 'text-end', id: ID });
    await write({ type: 'finish', finishReason: { unified: 'stop' }, usage: {} });
    await reply.close();
  }
  await new Promise(setImmediate); // what has been put out arrives
}

for await (const line of createInterface({ input: process.stdin })) {
  let error;
  parts = [];
  try {
    await answer(JSON.parse(line));
  } catch (raised) {
    error = String(raised?.stack ?? raised);
  }
  process.stdout.write(`${JSON.stringify({ parts, error, seconds: micros / 1e6 })}\n`);
}
