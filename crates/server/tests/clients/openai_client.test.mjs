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

// What other engines have too, and the official client does not.
const post = async (path, body) => {
  const answer = await fetch(base + path, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: "Bearer sk-suite" },
    body: JSON.stringify(body),
  });
  assert.equal(answer.status, 200);
  return answer;
};
const ask = async (path, body) => (await post(path, body)).json();

const all = async (stream) => {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return parts;
};

// What the chunks of a stream say of a choice: its text, its log-probabilities and its reason.
const said = (chunks, index = 0) => {
  const choices = chunks.flatMap((chunk) => chunk.choices).filter((one) => one.index === index);
  return {
    text: choices.map((one) => one.delta.content ?? "").join(""),
    entries: choices.flatMap((one) => one.logprobs?.content ?? []),
    reasons: choices.map((one) => one.finish_reason).filter(Boolean),
  };
};

// Whatever changes how tokens are drawn, and one value of it that changes something.
const shapes = {
  presence_penalty: 0.5,
  frequency_penalty: 0.25,
  repetition_penalty: 1.1,
  logit_bias: { 260: -2, 28: 1.5 },
  min_tokens: 20,
  temperature: 0.9,
  top_p: 0.95,
  top_k: 40,
  min_p: 0.01,
  stop: ["never", "ever"],
  stop_token_ids: [5],
  ignore_eos: true,
};

const tool = (name, properties) => {
  const required = Object.keys(properties);
  const parameters = { type: "object", properties, required, additionalProperties: false };
  return { type: "function", function: { name, parameters } };
};
const unit = { unit: { enum: ["C", "F"] } };

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

test("a stream of choices has their log-probabilities", async () => {
  const asked = { n: 2, temperature: 1, logprobs: true, top_logprobs: 2 };
  const whole = await chat(asked);
  const stream_options = { include_usage: true, include_obfuscation: false };
  const chunks = await all(await chat({ ...asked, stream: true, stream_options }));
  for (const choice of whole.choices) {
    const { text, entries, reasons } = said(chunks, choice.index);
    assert.deepEqual([text, reasons], [choice.message.content, [choice.finish_reason]]);
    assert.deepEqual(entries, choice.logprobs.content);
    assert.ok(entries.every((entry) => entry.top_logprobs.length === 2 && entry.logprob <= 0));
  }
  const tokens = whole.choices.map((choice) => choice.logprobs.content.length);
  assert.equal(tokens[0] + tokens[1], whole.usage.completion_tokens);
  assert.equal(chunks.at(-1).usage.completion_tokens, whole.usage.completion_tokens);
});

test("answers stop where they are told to", async () => {
  const text = (await chat({ temperature: 0, max_tokens: 60 })).choices[0].message.content;
  const stop = text.split(/\s+/)[2];
  const cut = await chat({ temperature: 0, max_completion_tokens: 60, stop: [stop, "never"] });
  assert.equal(cut.choices[0].message.content, text.slice(0, text.indexOf(stop)));
  assert.equal(cut.choices[0].finish_reason, "stop");
  const short = await chat({ temperature: 0, max_tokens: 3 });
  assert.equal(short.choices[0].finish_reason, "length");
  assert.equal(short.usage.completion_tokens, 3);
  for (const name of ["min_tokens", "min_new_tokens"]) {
    const long = await chat({ temperature: 0, stop, [name]: 20 });
    assert.ok(long.usage.completion_tokens >= 20);
  }
});

test("every way of drawing has its effect, and drafting none", async () => {
  const whole = (await chat(shapes)).choices[0].message.content;
  assert.notEqual(whole, (await chat({ temperature: 0.9 })).choices[0].message.content);
  assert.equal(said(await all(await chat({ ...shapes, stream: true }))).text, whole);
  const plain = await chat({ ...shapes, speculation: { enabled: false } });
  assert.equal(plain.choices[0].message.content, whole);
  const [blue] = (await ask("/tokenize", { prompt: " blue" })).tokens;
  const forced = await chat({ logit_bias: { [blue]: 100 }, max_tokens: 4, temperature: 0 });
  assert.equal(forced.choices[0].message.content, " blue".repeat(4));
});

test("messages of every kind are taken", async () => {
  const parts = [{ type: "text", text: "Name a " }, { type: "text", text: "fruit." }];
  const now = { name: "now", arguments: "{}" };
  const answer = await chat({
    messages: [
      { role: "developer", content: "Be brief." },
      { role: "user", content: parts },
      { role: "assistant", content: null, tool_calls: [{ id: "call_a", type: "function", function: now }] },
      { role: "tool", tool_call_id: "call_a", content: "noon" },
      { role: "user", content: "And now?" },
    ],
    tools: [tool("now", {})],
    tool_choice: "auto",
    parallel_tool_calls: false,
    user: "somebody",
    metadata: { a: "b" },
    store: false,
  });
  assert.ok(answer.usage.completion_tokens > 0);
  const begun = [...messages, { role: "assistant", content: "Red, green and" }];
  const more = { separate_reasoning: false, chat_template_kwargs: { a: 1 } };
  const on = await chat({ messages: begun, temperature: 0, continue_final_message: true, ...more });
  const anew = await chat({ messages: begun, temperature: 0 });
  assert.notEqual(on.choices[0].message.content, anew.choices[0].message.content);
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

test("answers have the forms that other engines ask for", async () => {
  const choice = ["left", "right"];
  const { parameters } = tool("f", { a: { type: "boolean" } }).function;
  const chosen = (text) => choice.includes(text);
  const digits = (text) => /^[0-9]{3}$/.test(text);
  const keeps = (text) => typeof JSON.parse(text).a === "boolean";
  for (const [form, fits] of [
    [{ guided_choice: choice }, chosen],
    [{ structured_outputs: { choice } }, chosen],
    [{ guided_regex: "[0-9]{3}" }, digits],
    [{ regex: "[0-9]{3}" }, digits],
    [{ guided_grammar: 'start: "yes" | "no"' }, (text) => ["yes", "no"].includes(text)],
    [{ guided_json: parameters }, keeps],
    [{ json_schema: JSON.stringify(parameters) }, keeps],
  ]) {
    const [{ message, finish_reason }] = (await chat({ ...form, max_tokens: 40 })).choices;
    assert.ok(fits(message.content), `${JSON.stringify(form)}: ${message.content}`);
    assert.equal(finish_reason, "stop");
  }
  const object = { response_format: { type: "json_object" }, max_tokens: 200, temperature: 0 };
  const [{ message, finish_reason }] = (await chat(object)).choices;
  assert.match(message.content, /^\{/);
  if (finish_reason === "stop") assert.equal(typeof JSON.parse(message.content), "object");
  const text = await chat({ response_format: { type: "text" }, temperature: 0 });
  assert.equal(text.choices[0].message.content, (await chat({ temperature: 0 })).choices[0].message.content);
});

test("a call that must be made is made", async () => {
  const weather = tool("weather", unit);
  const named = { type: "function", function: { name: "weather" } };
  for (const tool_choice of ["required", named]) {
    const asked = { tools: [weather], tool_choice, parallel_tool_calls: false, max_tokens: 96 };
    const { message, finish_reason } = (await chat(asked)).choices[0];
    assert.equal(message.tool_calls.length, 1);
    assert.equal(finish_reason, tool_choice === named ? "stop" : "tool_calls");
    const written = message.tool_calls[0].function.arguments;
    assert.ok(["C", "F"].includes(JSON.parse(written).unit));
    const chunks = await all(await chat({ ...asked, stream: true }));
    const deltas = chunks.flatMap((chunk) => chunk.choices[0].delta.tool_calls ?? []);
    assert.equal(deltas[0].function.name, "weather");
    assert.equal(deltas.map((delta) => delta.function.arguments).join(""), written);
    assert.deepEqual(said(chunks).reasons, [finish_reason]);
  }
});

test("a response is the chat in other words", async () => {
  const asked = { metadata: { a: "b" }, user: "me", store: false, text: { verbosity: "low" } };
  const answer = await respond({ temperature: 0, reasoning: { effort: "low" }, ...asked });
  assert.deepEqual([answer.user, answer.store, answer.slipstream.seed], ["me", false, 7]);
  const brief = await respond({ temperature: 0, instructions: "Be brief." });
  const system = [{ role: "system", content: "Be brief." }, ...messages];
  const same = await chat({ temperature: 0, messages: system });
  assert.equal(brief.output_text, same.choices[0].message.content);
  const drawn = await respond(shapes);
  assert.equal(drawn.output_text, (await chat(shapes)).choices[0].message.content);
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

test("a response has its log-probabilities, streamed or not", async () => {
  const include = ["message.output_text.logprobs"];
  const asked = { temperature: 0, include, top_logprobs: 3 };
  const whole = await respond(asked);
  const entries = whole.output[0].content[0].logprobs;
  assert.equal(entries.length, whole.usage.output_tokens);
  assert.ok(entries.every((entry) => entry.top_logprobs.length === 3));
  const events = await all(await respond({ ...asked, stream: true }));
  const deltas = events.filter((event) => event.type === "response.output_text.delta");
  assert.deepEqual(deltas.flatMap((event) => event.logprobs), entries);
});

test("a response calls, streamed or not", async () => {
  const weather = { type: "function", strict: true, ...tool("weather", unit).function };
  for (const tool_choice of ["required", { type: "function", name: "weather" }]) {
    const tools = { tools: [weather], tool_choice, parallel_tool_calls: false };
    const asked = { ...tools, max_output_tokens: 96 };
    const whole = await respond(asked);
    const [call] = whole.output;
    assert.deepEqual([call.type, call.name, whole.status], ["function_call", "weather", "completed"]);
    assert.ok(["C", "F"].includes(JSON.parse(call.arguments).unit));
    const events = await all(await respond({ ...asked, stream: true }));
    const ofKind = (kind) => events.filter((e) => e.type === `response.function_call_arguments.${kind}`);
    assert.equal(ofKind("delta").map((event) => event.delta).join(""), call.arguments);
    assert.equal(ofKind("done")[0].arguments, call.arguments);
    assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, at) => at));
  }
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
  const stream_options = { include_usage: true };
  const chunks = await all(await completion({ temperature: 1, logprobs: 2, stream: true, stream_options }));
  const choices = chunks.flatMap((chunk) => chunk.choices);
  assert.equal(choices.map((choice) => choice.text).join(""), whole.choices[0].text);
  const tokens = choices.flatMap((choice) => choice.logprobs?.tokens ?? []);
  assert.deepEqual(tokens, whole.choices[0].logprobs.tokens);
  assert.equal(chunks.at(-1).usage.completion_tokens, whole.usage.completion_tokens);
  const { tokens: ids } = await ask("/tokenize", { prompt: "The sea is" });
  const lists = await completion({ prompt: [ids, ids], temperature: 0 });
  assert.equal(lists.choices[1].text, one.choices[0].text);
  assert.equal(lists.usage.prompt_tokens, 2 * ids.length);
});

test("completions are drawn and formed as chats are", async () => {
  const both = await completion({ prompt: ["The sea is", "A ship"], n: 2, best_of: 2, temperature: 1 });
  assert.deepEqual(both.choices.map((choice) => choice.index), [0, 1, 2, 3]);
  assert.equal(both.choices[1].text, (await completion({ seed: 8, temperature: 1 })).choices[0].text);
  const drawn = await completion({ max_tokens: 24, ...shapes });
  const chunks = await all(await completion({ max_tokens: 24, stream: true, ...shapes }));
  assert.equal(chunks.map((chunk) => chunk.choices[0].text).join(""), drawn.choices[0].text);
  const regex = { structured_outputs: { regex: "[a-c]{5}" } };
  const formed = await completion({ ...regex, speculation: { report: true } });
  assert.match(formed.choices[0].text, /^[a-c]{5}$/);
  assert.ok(formed.speculation.tau >= 1);
});

test("an echo has the log-probabilities of the prompt", async () => {
  const asked = { temperature: 0, logprobs: 2, echo: true };
  const plain = (await completion({ temperature: 0, logprobs: 2 })).choices[0];
  const [{ text, logprobs }] = (await completion(asked)).choices;
  const { count } = await ask("/tokenize", { prompt: "The sea is" });
  assert.equal(text, `The sea is${plain.text}`);
  assert.deepEqual([logprobs.token_logprobs[0], logprobs.top_logprobs[0]], [null, null]);
  assert.equal(logprobs.tokens.slice(0, count).join(""), "The sea is");
  assert.equal(logprobs.text_offset[count], "The sea is".length);
  assert.deepEqual(logprobs.token_logprobs.slice(count), plain.logprobs.token_logprobs);
  const chunks = await all(await completion({ ...asked, stream: true }));
  const streamed = chunks.flatMap((chunk) => chunk.choices[0].logprobs?.token_logprobs ?? []);
  assert.deepEqual(streamed, logprobs.token_logprobs);
  const alone = await completion({ ...asked, max_tokens: 0 });
  assert.deepEqual([alone.choices[0].text, alone.usage.completion_tokens], ["The sea is", 0]);
  assert.deepEqual(alone.choices[0].logprobs.token_logprobs, logprobs.token_logprobs.slice(0, count));
});

test("the engine's own endpoints speak in ids", async () => {
  const { tokens, count } = await ask("/tokenize", { prompt: "The sea is" });
  assert.equal((await ask("/detokenize", { tokens })).prompt, "The sea is");
  assert.equal(tokens.length, count);
  const sampling_params = { max_new_tokens: 8, temperature: 0 };
  const logprobs = { return_logprob: true, top_logprobs_num: 1, logprob_start_len: 0 };
  const body = { input_ids: tokens, sampling_params, ...logprobs };
  const whole = await ask("/generate", body);
  assert.equal(whole.text, (await completion({ temperature: 0, max_tokens: 8 })).choices[0].text);
  const told = whole.meta_info.input_token_logprobs;
  assert.deepEqual(told.map((entry) => entry[1]), tokens);
  assert.equal(told[0][0], null);
  const lines = (await (await post("/generate", { ...body, stream: true })).text()).split("\n");
  const events = lines.filter((line) => line.startsWith("data: {")).map((line) => JSON.parse(line.slice(6)));
  assert.equal(events.map((event) => event.text).join(""), whole.text);
  assert.deepEqual(events.flatMap((event) => event.output_ids), whole.output_ids);
  assert.deepEqual(events.flatMap((event) => event.meta_info.input_token_logprobs ?? []), told);
  const two = await ask("/generate", { ...body, sampling_params: { ...sampling_params, n: 2 } });
  assert.equal(two.length, 2);
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
  for (const more of [{ store: true }, { previous_response_id: "resp_1" }, { background: true }, { truncation: "auto" }]) {
    await assert.rejects(respond(more), { param: Object.keys(more)[0], status: 400 });
  }
  await assert.rejects(completion({ suffix: "end" }), BadRequestError);
  const long = [{ role: "user", content: "word ".repeat(20_000) }];
  await assert.rejects(chat({ messages: long }), { code: "context_length_exceeded" });
  const schema = { response_format: { type: "json_schema", json_schema: { name: "n", schema: { not: {} } } } };
  await assert.rejects(chat(schema), { param: "response_format.json_schema.schema" });
  const bad = { type: "function", function: { name: "f", parameters: { not: {} } } };
  const tools = { tools: [tool("time", {}), bad], tool_choice: "required" };
  await assert.rejects(chat(tools), { param: "tools[1].function.parameters" });
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
