// The official ollama client: complete replies and streams, two turns.

import { Ollama } from 'ollama';
import { check } from './task.mjs';

/** Return the message and its done reason. */
async function turn(client, way, request) {
  if (way === 'whole') {
    const { message, done, done_reason } = await client.chat({ ...request, stream: false });
    check(done === true, message);
    return [message, done_reason];
  }
  const message = { role: 'assistant', content: '', tool_calls: [] };
  let reason = null;
  let ended = false;
  for await (const part of await client.chat({ ...request, stream: true })) {
    check(!ended, part);
    message.content += part.message.content;
    message.tool_calls.push(...(part.message.tool_calls ?? []));
    reason = part.done_reason ?? reason;
    ended = part.done;
  }
  check(ended, message);
  return [message, reason];
}

export async function chat(url, way, task) {
  const client = new Ollama({ host: url });
  const tools = task.offers.map((offer) => ({ type: 'function', function: { ...offer } }));
  const asked = [
    { role: 'system', content: task.system },
    { role: 'user', content: task.question },
  ];
  const request = { model: task.model, tools };
  const [first, reason] = await turn(client, way, { ...request, messages: asked });
  const calls = first.tool_calls.map(({ id, function: { name, arguments: given } }) => [id, name, given]);
  const results = calls.map(([, name, given]) => ({ role: 'tool', tool_name: name, content: task.result(name, given) }));
  const [second, end] = await turn(client, way, { ...request, messages: [...asked, first, ...results] });
  check(!second.tool_calls?.length, second);
  return { calls, texts: [first.content, second.content], reasons: [reason, end] };
}
