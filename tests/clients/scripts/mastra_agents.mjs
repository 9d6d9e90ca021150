// An agent over chat completions and responses: generated, streamed, a forced tool in two steps, a typed answer, a second turn.
import assert from "node:assert/strict";
import { Agent } from "@mastra/core/agent";
import { createTool } from "@mastra/core/tools";
import { z } from "zod";

const { MODEL, OPENAI_BASE_URL } = process.env;
const city = z.object({ city: z.enum(["Paris", "Berlin"]) });
const outputSchema = z.object({ sky: z.string() });
const execute = async () => ({ sky: "sunny" });
const weather = createTool({ id: "weather", description: "The weather", inputSchema: city, outputSchema, execute });
const options = { modelSettings: { maxOutputTokens: 900, maxRetries: 0 }, maxSteps: 2 };
const models = { chat: { id: `own/${MODEL}`, url: OPENAI_BASE_URL, apiKey: "any" }, responses: `openai/${MODEL}` };
for (const [name, model] of Object.entries(models)) {
  const agent = new Agent({ id: "guide", name: "guide", instructions: "Be brief", model, tools: { weather } });
  const first = await agent.generate("hello", options);
  assert.ok(first.usage.outputTokens > 0, name);
  const turns = [{ role: "user", content: "hello" }, ...first.response.messages, { role: "user", content: "and now?" }];
  assert.ok((await agent.generate(turns, options)).usage.outputTokens > 0, name);
  const streamed = await agent.stream("hello", options);
  for await (const _ of streamed.textStream);
  assert.ok(["stop", "length"].includes(await streamed.finishReason), name);
  assert.equal((await agent.generate("hello", { ...options, toolChoice: "required" })).steps.length, 2, name);
  const typed = await agent.generate("hello", { ...options, toolChoice: "none", structuredOutput: { schema: city } });
  assert.ok(["Paris", "Berlin"].includes(typed.object.city), name);
}
