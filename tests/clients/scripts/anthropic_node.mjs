// Messages: created, streamed, a forced tool, two turns of the tool runner, tokens counted, an abort, 20 at once.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ maxRetries: 0 });
const asked = { model: process.env.MODEL, messages: [{ role: "user", content: "hello" }], max_tokens: 8 };
const reply = await client.messages.create(asked);
assert.ok(reply.usage.output_tokens <= 8);
const { input_tokens } = await client.messages.countTokens({ model: asked.model, messages: asked.messages });
assert.equal(input_tokens, reply.usage.input_tokens + reply.usage.cache_read_input_tokens);
assert.ok((await client.messages.stream(asked).finalMessage()).stop_reason);
const input_schema = { type: "object", properties: { city: { enum: ["Paris"] } }, required: ["city"], additionalProperties: false };
const tools = [{ name: "weather", input_schema }];
const called = await client.messages.create({ ...asked, tools, tool_choice: { type: "any" }, max_tokens: 900 });
assert.deepEqual(called.content.find((block) => block.type === "tool_use").input, { city: "Paris" });
const runnable = [{ ...tools[0], run: () => "heavy rain" }];
const forced = { ...asked, tools: runnable, tool_choice: { type: "any" }, max_tokens: 900, max_iterations: 2 };
const prompts = [];
for await (const { usage } of client.beta.messages.toolRunner(forced)) prompts.push(usage.input_tokens + usage.cache_read_input_tokens);
assert.equal(prompts.length, 2);
assert.ok(prompts[1] > prompts[0]);
const long = client.messages.stream({ ...asked, max_tokens: 2000 });
long.on("streamEvent", () => long.abort());
await assert.rejects(long.done());
await Promise.all(Array.from({ length: 20 }, () => client.messages.create(asked)));
