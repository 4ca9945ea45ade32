// Run the scenarios given as JSON on standard input, and print a line of JSON for each: its id, and its outcome or error.
//
//     {"url": "http://127.0.0.1:8000", "scenarios": [{"id", "client": "openai.chat", "way": "streamed", "task"}]}
//
// Each client has a separate module, loaded when a scenario needs it. Scenarios run sequentially, each with a timeout, so
// that one that hangs does not hide the others.

import { text } from 'node:stream/consumers';
import { Task } from './task.mjs';

const LIMIT = 5000;

async function run({ client, way, task }, url) {
  const [module, name] = client.split('.');
  const drivers = await import(`./${module}.mjs`);
  let timer;
  const late = new Promise((_, fail) => (timer = setTimeout(() => fail(new Error(`not done in ${LIMIT} ms`)), LIMIT)));
  try {
    return await Promise.race([drivers[name](url, way, new Task(task)), late]);
  } finally {
    clearTimeout(timer);
  }
}

const { url, scenarios } = JSON.parse(await text(process.stdin));
for (const scenario of scenarios) {
  let line;
  try {
    line = { id: scenario.id, outcome: await run(scenario, url) };
  } catch (error) {
    line = { id: scenario.id, error: `${error?.stack ?? error}\n${error?.responseBody ?? ''}` };
  }
  process.stdout.write(`${JSON.stringify(line)}\n`);
}
process.exit(0); // pooled connections would keep the process alive
