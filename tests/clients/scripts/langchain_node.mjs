// ChatOpenAI and ChatAnthropic: invoked, streamed, in a batch, an agent with a tool and a typed answer, over the responses API.
import { ChatAnthropic } from "@langchain/anthropic";
import { ChatOpenAI } from "@langchain/openai";
import assert from "node:assert";
import { createAgent, providerStrategy, tool } from "langchain";
import { z } from "zod";

const common = { model: process.env.MODEL, maxTokens: 900, maxRetries: 0 };
const City = z.object({ name: z.enum(["Paris", "Berlin"]) });
const weather = tool(async ({ city }) => `sunny in ${city}`, {
  name: "weather",
  description: "The weather in a city.",
  schema: z.object({ city: z.enum(["Paris", "Berlin"]) }),
});
const chats = [
  new ChatOpenAI(common),
  new ChatOpenAI({ ...common, useResponsesApi: true }),
  new ChatAnthropic({ ...common, anthropicApiUrl: process.env.BASE }),
];
for (const chat of chats) {
  assert((await chat.invoke("hello")).usage_metadata.output_tokens <= 900);
  let pieces = 0;
  for await (const _ of await chat.stream("hello")) pieces += 1;
  assert(pieces > 0);
  assert.equal((await chat.batch(["one", "two", "three"])).length, 3);
  assert(["Paris", "Berlin"].includes((await chat.withStructuredOutput(City).invoke("Where?")).name));
}
for (const model of chats.slice(0, 2)) {
  const agent = createAgent({ model, tools: [weather], responseFormat: providerStrategy(City) });
  const { structuredResponse } = await agent.invoke({ messages: [{ role: "user", content: "Where?" }] });
  assert(["Paris", "Berlin"].includes(structuredResponse.name));
}
