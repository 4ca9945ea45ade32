// The official openai client: Chat Completions (chunks, complete replies, `.stream()`, `runTools`) and Responses.

import OpenAI from 'openai';
import { check } from './task.mjs';

const clientOf = (url) => new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });

// --- Chat Completions ------------------------------------------------------------------------------------------------

const chatTools = (task) => task.offers.map((offer) => ({ type: 'function', function: { ...offer } }));

const asked = (task) => [
  { role: 'system', content: task.system },
  { role: 'user', content: task.question },
];

/** Return the message, the finish reason, and the number of argument deltas (2 if the reply was not streamed). */
async function chatTurn(client, way, request) {
  if (way === 'whole') {
    const { message, finish_reason } = (await client.chat.completions.create(request)).choices[0];
    return [message, finish_reason, 2];
  }
  if (way === 'helper') {
    let pieces = 0;
    const stream = client.chat.completions.stream(request);
    stream.on('tool_calls.function.arguments.delta', () => (pieces += 1));
    const { message, finish_reason } = (await stream.finalChatCompletion()).choices[0];
    return [message, finish_reason, pieces];
  }
  const message = { role: 'assistant', content: '' };
  let reason = null;
  let pieces = 0;
  for await (const { choices } of await client.chat.completions.create({ ...request, stream: true })) {
    check(choices.length === 1, choices);
    const [{ delta, finish_reason }] = choices;
    message.content += delta.content ?? '';
    reason = finish_reason ?? reason;
    for (const part of delta.tool_calls ?? []) {
      message.tool_calls ??= [];
      if (part.index === message.tool_calls.length) {
        const { id, type, function: { name } } = part;
        message.tool_calls.push({ id, type, function: { name, arguments: '' } });
      }
      message.tool_calls[part.index].function.arguments += part.function.arguments;
      pieces += 1;
    }
  }
  return [message, reason, pieces];
}

export async function chat(url, way, task) {
  const client = clientOf(url);
  const request = { model: task.model, tools: chatTools(task) };
  const [first, reason, pieces] = await chatTurn(client, way, { ...request, messages: asked(task) });
  const calls = first.tool_calls.map((call) => [call.id, call.function.name, JSON.parse(call.function.arguments)]);
  const results = calls.map(([id, name, given]) => ({
    role: 'tool', tool_call_id: id, content: task.result(name, given),
  }));
  const [second, end] = await chatTurn(client, way, { ...request, messages: [...asked(task), first, ...results] });
  check(!second.tool_calls?.length, second);
  return { calls, texts: [first.content, second.content], reasons: [reason, end], pieces };
}

/** Run the client's own loop. */
export async function runner(url, way, task) {
  const tools = task.offers.map((offer) => ({
    type: 'function',
    function: { ...offer, parse: JSON.parse, function: (given) => task.result(offer.name, given) },
  }));
  const stream = way === 'streamed';
  const request = { model: task.model, messages: asked(task), tools, stream };
  const runner = clientOf(url).chat.completions.runTools(request, { maxChatCompletions: 5 });
  await runner.done();
  const replies = runner.allChatCompletions().map((completion) => completion.choices[0]);
  return {
    calls: replies.flatMap((reply) => reply.message.tool_calls ?? [])
      .map((call) => [call.id, call.function.name, JSON.parse(call.function.arguments)]),
    texts: replies.map((reply) => reply.message.content),
    reasons: replies.map((reply) => reply.finish_reason),
    pieces: 2,
  };
}

// --- Responses -------------------------------------------------------------------------------------------------------

/** Return the response, and the number of argument deltas (2 if the reply was not streamed). */
async function responseOf(client, way, request) {
  if (way === 'whole') return [await client.responses.create(request), 2];
  let pieces = 0;
  if (way === 'helper') {
    const stream = client.responses.stream(request);
    stream.on('response.function_call_arguments.delta', () => (pieces += 1));
    return [await stream.finalResponse(), pieces];
  }
  let last;
  for await (const event of await client.responses.create({ ...request, stream: true })) {
    pieces += event.type === 'response.function_call_arguments.delta' ? 1 : 0;
    last = event;
  }
  check(last.type === 'response.completed', last);
  return [last.response, pieces];
}

const textOf = (response) =>
  response.output.flatMap((item) => (item.type === 'message' ? item.content : [])).map((part) => part.text).join('');

/** Run the loop; if `chained`, the second request names the first response instead of repeating it. */
async function converse(url, way, task, chained) {
  const client = clientOf(url);
  const tools = task.offers.map((offer) => ({ type: 'function', strict: false, ...offer }));
  const request = { model: task.model, instructions: task.system, tools };
  const input = [{ role: 'user', content: task.question }];
  const [first, pieces] = await responseOf(client, way, { ...request, input });
  const found = first.output.filter((item) => item.type === 'function_call');
  const calls = found.map((item) => [item.call_id, item.name, JSON.parse(item.arguments)]);
  const results = calls.map(([id, name, given]) => ({
    type: 'function_call_output', call_id: id, output: task.result(name, given),
  }));
  const next = chained
    ? { ...request, input: results, previous_response_id: first.id }
    : { ...request, input: [...input, ...first.output, ...results] };
  const [second] = await responseOf(client, way, next);
  check(second.output.every((item) => item.type === 'message'), second.output);
  return { calls, texts: [textOf(first), textOf(second)], reasons: [first.status, second.status], pieces };
}

export const responses = (url, way, task) => converse(url, way, task, false);
export const chained = (url, way, task) => converse(url, way, task, true);
