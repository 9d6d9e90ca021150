// generateText, streamText and structured output over chat completions, responses and messages; a second turn; a forced tool in two steps.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const { BASE, MODEL } = process.env;
const baseURL = `${BASE}/v1`;
const apiKey = "any";
const openai = createOpenAI({ baseURL, apiKey });
const models = {
  compatible: createOpenAICompatible({ name: "radixkv", baseURL, apiKey, supportsStructuredOutputs: true })(MODEL),
  chat: openai.chat(MODEL),
  responses: openai.responses(MODEL),
  messages: createAnthropic({ baseURL, apiKey })(MODEL),
};
const asked = { prompt: "hello", maxOutputTokens: 900, maxRetries: 0 };
const city = z.object({ city: z.enum(["Paris", "Berlin"]) });
for (const [name, model] of Object.entries(models)) {
  assert.ok((await generateText({ ...asked, model })).usage.outputTokens <= 900, name);
  const streamed = streamText({ ...asked, model });
  for await (const _ of streamed.textStream);
  assert.ok(await streamed.finishReason, name);
  const messages = [{ role: "user", content: "hello" }];
  messages.push(...(await generateText({ ...asked, prompt: undefined, model, messages })).response.messages);
  messages.push({ role: "user", content: "and now?" });
  await generateText({ ...asked, prompt: undefined, model, messages });
  let called = 0;
  const weather = tool({ inputSchema: city, execute: async () => ((called += 1), "sunny") });
  await generateText({ ...asked, model, tools: { weather }, toolChoice: "required", stopWhen: stepCountIs(2) });
  assert.equal(called, 2, name);
  if (name === "messages") continue; // this SDK asks for a typed output by a tool of its own there
  const typed = await generateText({ ...asked, model, output: Output.object({ schema: city }) });
  assert.ok(["Paris", "Berlin"].includes(typed.output.city), name);
}
