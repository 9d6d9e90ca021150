// Chat (streamed, a forced tool run by runTools), responses (a chain), an abort, 20 at once.
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ maxRetries: 0 });
const model = process.env.MODEL;
const messages = [{ role: "user", content: "hello" }];
const reply = await client.chat.completions.create({ model, messages, max_tokens: 8, n: 2 });
assert.equal(reply.choices.length, 2);
const stream = client.chat.completions.stream({ model, messages, max_tokens: 8 });
assert.ok((await stream.finalChatCompletion()).choices[0].finish_reason);
const parameters = { type: "object", properties: { city: { enum: ["Paris"] } }, required: ["city"], additionalProperties: false };
let called = 0;
const weather = { name: "weather", parameters, parse: JSON.parse, function: ({ city }) => ((called += 1), `sunny in ${city}`) };
const tools = [{ type: "function", function: weather }];
const runner = client.chat.completions.runTools({ model, messages, tools, tool_choice: { type: "function", function: { name: "weather" } }, max_tokens: 900 });
await runner.done();
assert.equal(called, 1);
const first = await client.responses.create({ model, input: "A question that is long enough", max_output_tokens: 8 });
const again = await client.responses.create({ model, input: "And", previous_response_id: first.id, max_output_tokens: 8 });
assert.ok(again.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 1);
const long = await client.chat.completions.create({ model, messages, max_tokens: 2000, stream: true });
for await (const _ of long) break; // leaving the loop aborts the request
await Promise.all(Array.from({ length: 20 }, (_, n) => client.completions.create({ model, prompt: `${n}`, max_tokens: 4 })));
