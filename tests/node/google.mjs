// The official @google/genai client: complete replies, streams, and chats, which keep the history themselves.

import { GoogleGenAI } from '@google/genai';
import { check } from './task.mjs';

const clientOf = (url) => new GoogleGenAI({ apiKey: 'none', vertexai: false, httpOptions: { baseUrl: url } });

const configOf = (task) => ({
  systemInstruction: task.system,
  tools: [{
    functionDeclarations: task.offers.map(({ name, description, parameters }) => (
      { name, description, parametersJsonSchema: parameters }
    )),
  }],
});

/** Return the parts and the finish reason of a reply received in these chunks. */
async function read(chunks) {
  const parts = [];
  let reason;
  for await (const { candidates: [candidate] } of chunks) {
    check(reason === undefined, candidate);
    parts.push(...candidate.content.parts);
    reason = candidate.finishReason;
  }
  const calls = parts.filter((part) => part.functionCall).map(({ functionCall: { id, name, args } }) => [id, name, args]);
  return { parts, calls, text: parts.map((part) => part.text ?? '').join(''), reason };
}

/** Run the two turns; `say` sends user parts and returns the chunks of the reply. */
async function play(task, say) {
  const first = await read(await say([{ text: task.question }]));
  const results = first.calls.map(([id, name, given]) => (
    { functionResponse: { id, name, response: { output: task.result(name, given) } } }
  ));
  const second = await read(await say(results));
  check(second.calls.length === 0, second);
  return { calls: first.calls, texts: [first.text, second.text], reasons: [first.reason, second.reason] };
}

export async function generate(url, way, task) {
  const { models } = clientOf(url);
  const contents = [];
  return play(task, async (parts) => {
    contents.push({ role: 'user', parts });
    const request = { model: task.model, contents, config: configOf(task) };
    const chunks = [];
    if (way === 'whole') chunks.push(await models.generateContent(request));
    else for await (const chunk of await models.generateContentStream(request)) chunks.push(chunk);
    contents.push({ role: 'model', parts: (await read(chunks)).parts });
    return chunks;
  });
}

export async function chat(url, way, task) {
  const session = clientOf(url).chats.create({ model: task.model, config: configOf(task) });
  return play(task, async (message) => (
    way === 'whole' ? [await session.sendMessage({ message })] : session.sendMessageStream({ message })
  ));
}
