// The official Anthropic client: Messages (events, complete replies, `.stream()`, its tool runner).

import Anthropic from '@anthropic-ai/sdk';
import { betaTool } from '@anthropic-ai/sdk/helpers/beta/json-schema';
import { check } from './task.mjs';

const clientOf = (url) => new Anthropic({ baseURL: url, apiKey: 'none', maxRetries: 0 });

/** Return the content, the stop reason, and the number of argument deltas (2 if the reply was not streamed). */
async function turn(client, way, request) {
  if (way === 'whole') {
    const message = await client.messages.create(request);
    return [message.content, message.stop_reason, 2];
  }
  let pieces = 0;
  if (way === 'helper') {
    const stream = client.messages.stream(request);
    stream.on('inputJson', () => (pieces += 1));
    const message = await stream.finalMessage();
    return [message.content, message.stop_reason, pieces];
  }
  const content = [];
  const given = [];
  let reason = null;
  let last = null;
  for await (const event of await client.messages.create({ ...request, stream: true })) {
    last = event.type;
    if (event.type === 'content_block_start') {
      check(event.index === content.length, event);
      content.push(event.content_block);
      given.push('');
    } else if (event.type === 'content_block_delta' && event.delta.type === 'text_delta') {
      content[event.index].text += event.delta.text;
    } else if (event.type === 'content_block_delta') {
      check(event.delta.type === 'input_json_delta', event);
      given[event.index] += event.delta.partial_json;
      pieces += 1;
    } else if (event.type === 'message_delta') {
      reason = event.delta.stop_reason;
    }
  }
  check(last === 'message_stop', last);
  content.forEach((block, i) => block.type === 'tool_use' && (block.input = JSON.parse(given[i])));
  return [content, reason, pieces];
}

const textOf = (content) => content.filter((block) => block.type === 'text').map((block) => block.text).join('');

const callsOf = (content) =>
  content.filter((block) => block.type === 'tool_use').map((block) => [block.id, block.name, block.input]);

export async function messages(url, way, task) {
  const client = clientOf(url);
  const tools = task.offers.map(({ name, description, parameters }) => ({
    name, description, input_schema: parameters,
  }));
  const request = { model: task.model, max_tokens: 1000, system: task.system, tools };
  const asked = [{ role: 'user', content: task.question }];
  const [first, reason, pieces] = await turn(client, way, { ...request, messages: asked });
  const calls = callsOf(first);
  const results = calls.map(([id, name, given]) => ({
    type: 'tool_result', tool_use_id: id, content: task.result(name, given),
  }));
  const history = [...asked, { role: 'assistant', content: first }, { role: 'user', content: results }];
  const [second, end] = await turn(client, way, { ...request, messages: history });
  check(second.every((block) => block.type === 'text'), second);
  return { calls, texts: [textOf(first), textOf(second)], reasons: [reason, end], pieces };
}

/** Run the client's own loop. With its default `options`, it asks the server to store the conversation. */
async function runTools(url, way, task, options) {
  const tools = task.offers.map(({ name, description, parameters }) =>
    betaTool({ name, description, inputSchema: parameters, run: (given) => task.result(name, given) }));
  const stream = way === 'streamed';
  const runner = clientOf(url).beta.messages.toolRunner({
    model: task.model, max_tokens: 1000, system: task.system, tools, stream, max_iterations: 5,
    messages: [{ role: 'user', content: task.question }], ...options,
  });
  const replies = [];
  for await (const item of runner) replies.push(stream ? await item.finalMessage() : item);
  return {
    calls: replies.flatMap((reply) => callsOf(reply.content)),
    texts: replies.map((reply) => textOf(reply.content)),
    reasons: replies.map((reply) => reply.stop_reason),
    pieces: 2,
  };
}

export const runner = (url, way, task) => runTools(url, way, task, { thread: false });
export const threadRunner = (url, way, task) => runTools(url, way, task, {});
