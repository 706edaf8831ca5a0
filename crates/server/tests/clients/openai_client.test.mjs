// The official `openai` client for Node against a running server; run.sh starts both.

import assert from "node:assert/strict";
import test from "node:test";
import OpenAI, { APIError, AuthenticationError, BadRequestError, NotFoundError } from "openai";

const base = process.env.SLIPSTREAM_URL;
const model = "smollm2";
const options = { baseURL: `${base}/v1`, maxRetries: 0, timeout: 120_000 };
const client = new OpenAI({ ...options, apiKey: "sk-suite" });
const messages = [{ role: "user", content: "Name three colours of the rainbow." }];

const chat = (more) =>
  client.chat.completions.create({ model, messages, max_tokens: 24, seed: 7, ...more });
const completion = (more) =>
  client.completions.create({ model, prompt: "The sea is", max_tokens: 16, seed: 7, ...more });

test("a chat is answered, with usage", async () => {
  const answer = await chat({ temperature: 0 });
  assert.equal(answer.object, "chat.completion");
  assert.equal(answer.choices[0].message.role, "assistant");
  assert.ok(answer.choices[0].message.content.length > 0);
  const { prompt_tokens, completion_tokens, total_tokens } = answer.usage;
  assert.equal(total_tokens, prompt_tokens + completion_tokens);
  assert.equal(answer.slipstream.seed, 7);
});

test("a stream adds up to the whole answer", async () => {
  for (const temperature of [0, 1]) {
    const whole = await chat({ temperature });
    const stream = await chat({
      temperature,
      stream: true,
      stream_options: { include_usage: true },
    });
    let text = "";
    let last;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? "";
      last = chunk;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.deepEqual(last.choices, []);
    assert.equal(last.usage.completion_tokens, whole.usage.completion_tokens);
  }
});

test("the stream helper puts the answer together", async () => {
  const stream = client.chat.completions.stream({
    model,
    messages,
    max_tokens: 24,
    seed: 7,
    temperature: 0,
  });
  const text = await stream.finalContent();
  assert.equal(text, (await chat({ temperature: 0 })).choices[0].message.content);
});

test("choices are numbered and have seeds of their own", async () => {
  const answer = await chat({ n: 2, temperature: 1.2 });
  const second = await chat({ seed: 8, temperature: 1.2 });
  assert.deepEqual(answer.choices.map((choice) => choice.index), [0, 1]);
  assert.equal(answer.choices[1].message.content, second.choices[0].message.content);
});

test("a drawn seed comes back whole and gives the same again", async () => {
  const first = await chat({ seed: undefined, temperature: 2 });
  assert.ok(Number.isSafeInteger(first.slipstream.seed));
  const again = await chat({ seed: first.slipstream.seed, temperature: 2 });
  assert.equal(again.choices[0].message.content, first.choices[0].message.content);
});

test("drafting changes no byte", async () => {
  const plain = await chat({ temperature: 1, speculation: { enabled: false } });
  const drafted = await chat({ temperature: 1, speculation: { max_width: 8, report: true } });
  assert.equal(plain.choices[0].message.content, drafted.choices[0].message.content);
  assert.ok(drafted.speculation.tau >= 1);
});

const respond = (more) =>
  client.responses.create({
    model,
    input: messages[0].content,
    max_output_tokens: 24,
    seed: 7,
    ...more,
  });

test("an answer keeps to its schema, drafted or not", async () => {
  const schema = {
    type: "object",
    properties: { colour: { enum: ["red", "green"] }, warm: { type: "boolean" } },
    required: ["colour", "warm"],
    additionalProperties: false,
  };
  const response_format = { type: "json_schema", json_schema: { name: "c", strict: true, schema } };
  for (const temperature of [0, 1]) {
    const asked = { response_format, temperature, max_tokens: 64 };
    const drafted = await chat(asked);
    assert.deepEqual(Object.keys(JSON.parse(drafted.choices[0].message.content)).sort(), [
      "colour",
      "warm",
    ]);
    const plain = await chat({ ...asked, speculation: { enabled: false } });
    assert.equal(plain.choices[0].message.content, drafted.choices[0].message.content);
  }
  const response = await client.responses.create({
    model,
    input: "Name a colour.",
    max_output_tokens: 64,
    text: { format: { type: "json_schema", name: "c", strict: true, schema } },
  });
  assert.equal(response.status, "completed");
  assert.ok(["red", "green"].includes(JSON.parse(response.output_text).colour));
});

test("a call that must be made is made", async () => {
  const parameters = {
    type: "object",
    properties: { unit: { enum: ["C", "F"] } },
    required: ["unit"],
    additionalProperties: false,
  };
  const weather = { type: "function", function: { name: "weather", parameters } };
  const named = { type: "function", function: { name: "weather" } };
  for (const tool_choice of ["required", named]) {
    const asked = { tools: [weather], tool_choice, parallel_tool_calls: false, max_tokens: 96 };
    const { message, finish_reason } = (await chat(asked)).choices[0];
    assert.equal(message.tool_calls.length, 1);
    assert.equal(finish_reason, tool_choice === named ? "stop" : "tool_calls");
    assert.ok(["C", "F"].includes(JSON.parse(message.tool_calls[0].function.arguments).unit));
  }
});

test("a response is the chat in other words", async () => {
  const answer = await respond({ temperature: 0, metadata: { a: "b" } });
  assert.equal(answer.object, "response");
  assert.equal(answer.output_text, (await chat({ temperature: 0 })).choices[0].message.content);
  const { input_tokens, output_tokens, total_tokens } = answer.usage;
  assert.equal(total_tokens, input_tokens + output_tokens);
  assert.deepEqual(answer.metadata, { a: "b" });
});

test("a response's stream adds up to the whole answer", async () => {
  const whole = await respond({ temperature: 1 });
  let text = "";
  let last;
  for await (const event of await respond({ temperature: 1, stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
    last = event;
  }
  assert.equal(text, whole.output_text);
  assert.equal(last.type, `response.${whole.status}`);
  assert.deepEqual(last.response.output.map((item) => item.content), whole.output.map((item) => item.content));
});

test("the stream helper puts the response together", async () => {
  const stop = (await respond({ temperature: 0 })).output_text.split(" ")[8];
  const request = { model, input: messages[0].content, max_output_tokens: 24, temperature: 0 };
  const stream = client.responses.stream({ ...request, seed: 7, stop });
  const final = await stream.finalResponse();
  assert.equal(final.status, "completed");
  assert.equal(final.output_text, (await respond({ temperature: 0, stop })).output_text);
});

test("a response's items go back as they came", async () => {
  const tool = { type: "function", name: "weather", parameters: { type: "object" }, strict: false };
  const input = [{ role: "user", content: "What is the weather in Rome?" }];
  const first = await respond({ input, tools: [tool] });
  const call = { type: "function_call", call_id: "call_a", name: "weather", arguments: "{}" };
  const output = { type: "function_call_output", call_id: "call_a", output: "rain" };
  const second = await respond({ input: [...input, ...first.output, call, output], tools: [tool] });
  assert.ok(second.usage.input_tokens > first.usage.input_tokens);
});

test("completions take text, ids and lists", async () => {
  const one = await completion({ temperature: 0 });
  const both = await completion({ prompt: ["The sea is", "A ship"], temperature: 0, echo: true });
  assert.equal(both.choices[0].text, `The sea is${one.choices[0].text}`);
  const whole = await completion({ temperature: 1, logprobs: 2 });
  assert.equal(whole.choices[0].logprobs.tokens.length, whole.usage.completion_tokens);
});

test("models are listed", async () => {
  const ids = [];
  for await (const entry of client.models.list()) ids.push(entry.id);
  assert.deepEqual(ids, [model]);
  assert.equal((await client.models.retrieve(model)).id, model);
});

test("errors have their types", async () => {
  await assert.rejects(chat({ temperature: 3 }), (error) => {
    assert.ok(error instanceof BadRequestError && error instanceof APIError);
    assert.equal(error.param, "temperature");
    return true;
  });
  await assert.rejects(chat({ model: "gpt-4" }), NotFoundError);
  await assert.rejects(respond({ previous_response_id: "resp_1" }), BadRequestError);
  const stranger = new OpenAI({ ...options, apiKey: "wrong" });
  await assert.rejects(stranger.models.list(), AuthenticationError);
});

test("a stream that is given up ends", async () => {
  const stream = await chat({ stream: true, max_tokens: 4000, ignore_eos: true });
  for await (const chunk of stream) {
    assert.ok(chunk.id);
    break;
  }
  assert.equal((await chat({ max_tokens: 2 })).usage.completion_tokens, 2);
});
