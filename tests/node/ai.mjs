// The AI SDK: `generateText` and `streamText` run the loop themselves, with each of its providers that we support.

import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, jsonSchema, stepCountIs, streamText, tool } from 'ai';
import { check } from './task.mjs';

globalThis.AI_SDK_LOG_WARNINGS = false;

async function loop(model, way, task, providerOptions) {
  const tools = Object.fromEntries(task.offers.map(({ name, description, parameters }) => [
    name,
    tool({ description, inputSchema: jsonSchema(parameters), execute: async (given) => task.result(name, given) }),
  ]));
  const request = {
    model, tools, system: task.system, prompt: task.question, stopWhen: stepCountIs(5), maxRetries: 0, providerOptions,
  };
  let steps;
  let pieces = 2;
  if (way === 'whole') {
    steps = (await generateText(request)).steps;
  } else {
    let failed = null;
    const result = streamText({ ...request, onError: ({ error }) => { failed ??= error; } });
    pieces = 0;
    for await (const part of result.fullStream) pieces += part.type === 'tool-input-delta' ? 1 : 0;
    if (failed) throw failed;
    steps = await result.steps;
  }
  const calls = steps.flatMap((step) => step.toolCalls);
  check(calls.every((call) => !call.invalid), calls);
  return {
    calls: calls.map((call) => [call.toolCallId, call.toolName, call.input]),
    texts: steps.map((step) => step.text),
    reasons: steps.map((step) => step.finishReason),
    pieces,
  };
}

const openai = (url) => createOpenAI({ baseURL: `${url}/v1`, apiKey: 'none' });

export const chat = (url, way, task) => loop(openai(url).chat(task.model), way, task);
export const compatible = (url, way, task) =>
  loop(createOpenAICompatible({ name: 'ours', baseURL: `${url}/v1`, apiKey: 'none' })(task.model), way, task);
/** Use the provider's default: past messages are sent as references to items stored by the server. */
export const responses = (url, way, task) => loop(openai(url)(task.model), way, task);
export const unstored = (url, way, task) => loop(openai(url)(task.model), way, task, { openai: { store: false } });
export const messages = (url, way, task) =>
  loop(createAnthropic({ baseURL: `${url}/v1`, apiKey: 'none' })(task.model), way, task);
