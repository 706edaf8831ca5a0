"""The official `openai` Python client against a running server; run.sh starts both."""

import json
import os
import typing
import unittest
import urllib.request

import openai
import pydantic

BASE = os.environ["SLIPSTREAM_URL"]
MODEL = "smollm2"
PROMPT = [{"role": "user", "content": "Name three colours of the rainbow."}]


def client(**more):
    return openai.OpenAI(base_url=f"{BASE}/v1", api_key="sk-suite", max_retries=0, timeout=120, **more)


def chat(**more):
    options = {"model": MODEL, "messages": PROMPT, "max_tokens": 24, "seed": 7, **more}
    return client().chat.completions.create(**options)


def completion(**more):
    options = {"model": MODEL, "prompt": "The sea is", "max_tokens": 16, "seed": 7, **more}
    return client().completions.create(**options)


def said(chunks, index=0):
    """What the chunks of a stream say of a choice: its text, its log-probabilities and its reason."""
    text, entries, reasons = "", [], []
    for choice in (choice for chunk in chunks for choice in chunk.choices if choice.index == index):
        text += choice.delta.content or ""
        entries += choice.logprobs.content if choice.logprobs else []
        reasons += [choice.finish_reason] if choice.finish_reason else []
    return text, entries, reasons


# Whatever changes how tokens are drawn, and one value of it that changes something.
SHAPES = {
    "presence_penalty": 0.5,
    "frequency_penalty": 0.25,
    "logit_bias": {"260": -2, "28": 1.5},
    "temperature": 0.9,
    "top_p": 0.95,
    "stop": ["never", "ever"],
    "extra_body": {
        "repetition_penalty": 1.1,
        "min_tokens": 20,
        "top_k": 40,
        "min_p": 0.01,
        "stop_token_ids": [5],
        "ignore_eos": True,
    },
}


class Chat(unittest.TestCase):
    def test_whole(self):
        answer = chat(temperature=0)
        self.assertEqual(answer.object, "chat.completion")
        self.assertEqual(answer.model, MODEL)
        choice = answer.choices[0]
        self.assertEqual(choice.message.role, "assistant")
        self.assertTrue(choice.message.content)
        self.assertIn(choice.finish_reason, ("stop", "length"))
        usage = answer.usage
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
        self.assertGreaterEqual(usage.completion_tokens_details.accepted_prediction_tokens, 0)
        self.assertGreaterEqual(usage.prompt_tokens_details.cached_tokens, 0)
        self.assertEqual(answer.slipstream["seed"], 7)

    def test_stream_equals_whole(self):
        for more in ({"temperature": 0}, {"temperature": 1}, {"temperature": 0.8, "top_p": 0.9}):
            whole = chat(**more)
            chunks = list(chat(stream=True, stream_options={"include_usage": True}, **more))
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            self.assertEqual(text, whole.choices[0].message.content)
            self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
            self.assertEqual(chunks[-1].choices, [])
            self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
            self.assertTrue(all(c.usage is None for c in chunks[:-1]))
            reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
            self.assertEqual([r for r in reasons if r], [whole.choices[0].finish_reason])

    def test_stream_helper(self):
        # The helper takes an answer that ends by its length for a failure.
        stop = chat(temperature=0).choices[0].message.content.split()[8]
        options = {"max_tokens": 24, "seed": 7, "temperature": 0, "stop": stop}
        with client().chat.completions.stream(model=MODEL, messages=PROMPT, **options) as stream:
            text = "".join(e.delta for e in stream if e.type == "content.delta")
            final = stream.get_final_completion()
        self.assertEqual(final.choices[0].message.content, text)
        self.assertEqual(text, chat(**options).choices[0].message.content)

    def test_json_schema(self):
        schema = {
            "type": "object",
            "properties": {"colour": {"enum": ["red", "green"]}, "warm": {"type": "boolean"}},
            "required": ["colour", "warm"],
            "additionalProperties": False,
        }
        form = {"type": "json_schema", "json_schema": {"name": "c", "strict": True, "schema": schema}}
        for temperature in (0, 1):
            answer = chat(response_format=form, temperature=temperature, max_tokens=64)
            self.assertEqual(answer.choices[0].finish_reason, "stop")
            said = json.loads(answer.choices[0].message.content)
            self.assertEqual(sorted(said), ["colour", "warm"])
            plain = chat(
                response_format=form,
                temperature=temperature,
                max_tokens=64,
                extra_body={"speculation": {"enabled": False}},
            )
            self.assertEqual(plain.choices[0].message.content, answer.choices[0].message.content)

    def test_parse_helper(self):
        class Answer(pydantic.BaseModel):
            size: typing.Literal["small", "large"]
            sure: bool

        answer = client().chat.completions.parse(
            model=MODEL, messages=PROMPT, response_format=Answer, max_tokens=64, seed=7
        )
        self.assertIsInstance(answer.choices[0].message.parsed, Answer)

    def test_required_tool(self):
        parameters = {
            "type": "object",
            "properties": {"unit": {"enum": ["C", "F"]}},
            "required": ["unit"],
            "additionalProperties": False,
        }
        tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
        answer = chat(
            tools=[tool], tool_choice="required", parallel_tool_calls=False, max_tokens=96
        )
        (call,) = answer.choices[0].message.tool_calls
        self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
        self.assertIn(json.loads(call.function.arguments)["unit"], ("C", "F"))

    def test_bad_schema(self):
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"not": {}}}}
        with self.assertRaises(openai.BadRequestError) as caught:
            chat(response_format=form)
        self.assertEqual(caught.exception.param, "response_format.json_schema.schema")

    def test_every_way_of_drawing(self):
        whole = chat(**SHAPES)
        self.assertGreaterEqual(whole.usage.completion_tokens, 20)
        self.assertNotEqual(whole.choices[0].message.content, chat(temperature=0.9).choices[0].message.content)
        text, _, reasons = said(chat(stream=True, **SHAPES))
        self.assertEqual((text, reasons), (whole.choices[0].message.content, [whole.choices[0].finish_reason]))
        plain = {**SHAPES["extra_body"], "speculation": {"enabled": False}}
        self.assertEqual(chat(**{**SHAPES, "extra_body": plain}).choices[0].message.content, text)

    def test_logit_bias(self):
        (blue,) = post("/tokenize", {"prompt": " blue"})["tokens"]
        answer = chat(logit_bias={str(blue): 100}, max_tokens=4, temperature=0)
        self.assertEqual(answer.choices[0].message.content, " blue" * 4)

    def test_least_length(self):
        stop = chat(temperature=0).choices[0].message.content.split()[1]
        short = chat(temperature=0, stop=stop)
        self.assertEqual(short.choices[0].finish_reason, "stop")
        for name in ("min_tokens", "min_new_tokens"):
            long = chat(temperature=0, stop=stop, extra_body={name: 20})
            self.assertGreaterEqual(long.usage.completion_tokens, 20)

    def test_forms_of_other_engines(self):
        schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
        choice, regex, grammar = ["left", "right"], "[0-9]{3}", 'start: "yes" | "no"'
        for form, fits in (
            ({"guided_choice": choice}, choice.__contains__),
            ({"structured_outputs": {"choice": choice}}, choice.__contains__),
            ({"guided_regex": regex}, lambda text: len(text) == 3 and text.isdigit()),
            ({"regex": regex}, lambda text: len(text) == 3 and text.isdigit()),
            ({"guided_grammar": grammar}, ("yes", "no").__contains__),
            ({"guided_json": schema}, lambda text: list(json.loads(text)) == ["a"]),
            ({"json_schema": json.dumps(schema)}, lambda text: list(json.loads(text)) == ["a"]),
        ):
            answer = chat(extra_body=form, max_tokens=40).choices[0]
            self.assertTrue(fits(answer.message.content), (form, answer.message.content))
            self.assertEqual(answer.finish_reason, "stop")
        with self.assertRaises(openai.BadRequestError) as both:
            chat(extra_body={"guided_regex": regex, "guided_choice": choice})
        self.assertEqual(both.exception.param, "guided_choice")

    def test_json_object(self):
        answer = chat(response_format={"type": "json_object"}, max_tokens=200, temperature=0).choices[0]
        self.assertTrue(answer.message.content.startswith("{"))
        if answer.finish_reason == "stop":
            self.assertIsInstance(json.loads(answer.message.content), dict)
        text = chat(response_format={"type": "text"}, temperature=0)
        self.assertEqual(text.choices[0].message.content, chat(temperature=0).choices[0].message.content)

    def test_named_tool_streamed_or_not(self):
        asked = {
            "tools": [function("time"), function("weather", unit={"enum": ["C", "F"]})],
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
            "max_tokens": 96,
        }
        whole = chat(**asked).choices[0]
        (call,) = whole.message.tool_calls
        # The function was not the model's choice.
        self.assertEqual((call.function.name, whole.finish_reason), ("weather", "stop"))
        self.assertIn(json.loads(call.function.arguments)["unit"], ("C", "F"))
        chunks = list(chat(stream=True, **asked))
        deltas = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or []]
        self.assertEqual((deltas[0].function.name, deltas[0].type), ("weather", "function"))
        self.assertEqual("".join(d.function.arguments for d in deltas), call.function.arguments)
        self.assertEqual(said(chunks)[2], ["stop"])

    def test_bad_tool(self):
        tools = [function("time"), {"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}]
        with self.assertRaises(openai.BadRequestError) as caught:
            chat(tools=tools, tool_choice="required")
        self.assertEqual(caught.exception.param, "tools[1].function.parameters")

    def test_the_last_message_goes_on(self):
        messages = [*PROMPT, {"role": "assistant", "content": "Red, green and"}]
        more = {"continue_final_message": True, "separate_reasoning": False, "chat_template_kwargs": {"a": 1}}
        on = chat(messages=messages, temperature=0, extra_body=more)
        self.assertNotEqual(on.choices[0].message.content, chat(messages=messages, temperature=0).choices[0].message.content)

    def test_streams_of_choices_with_log_probabilities(self):
        asked = {"n": 2, "temperature": 1, "logprobs": True, "top_logprobs": 2}
        whole = chat(**asked)
        options = {"include_usage": True, "include_obfuscation": False}
        chunks = list(chat(stream=True, stream_options=options, **asked))
        for choice in whole.choices:
            text, entries, reasons = said(chunks, choice.index)
            self.assertEqual((text, reasons), (choice.message.content, [choice.finish_reason]))
            self.assertEqual(entries, choice.logprobs.content)
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)

    def test_choices(self):
        answer = chat(n=3, temperature=1.2)
        self.assertEqual([c.index for c in answer.choices], [0, 1, 2])
        for index, choice in enumerate(answer.choices):
            alone = chat(seed=7 + index, temperature=1.2)
            self.assertEqual(alone.choices[0].message.content, choice.message.content)

    def test_log_probabilities(self):
        answer = chat(temperature=0, logprobs=True, top_logprobs=3)
        entries = answer.choices[0].logprobs.content
        self.assertEqual(len(entries), answer.usage.completion_tokens)
        for entry in entries:
            self.assertEqual(len(entry.top_logprobs), 3)
            self.assertEqual(entry.top_logprobs[0].token, entry.token)
            self.assertLessEqual(entry.logprob, 0)

    def test_stop_and_length(self):
        text = chat(temperature=0, max_tokens=60).choices[0].message.content
        stop = text.split()[2]
        answer = chat(temperature=0, max_completion_tokens=60, stop=[stop, "never"])
        self.assertEqual(answer.choices[0].message.content, text[: text.index(stop)])
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        short = chat(temperature=0, max_tokens=3)
        self.assertEqual(short.choices[0].finish_reason, "length")
        self.assertEqual(short.usage.completion_tokens, 3)

    def test_drafting_changes_no_byte(self):
        for temperature in (0, 1):
            texts = set()
            for speculation in ({"enabled": False}, {"max_width": 3}, {"max_width": 8, "report": True}):
                answer = chat(temperature=temperature, extra_body={"speculation": speculation})
                texts.add(answer.choices[0].message.content)
            self.assertEqual(len(texts), 1)
            self.assertGreaterEqual(answer.speculation["tau"], 1)

    def test_messages_of_every_kind(self):
        parts = [{"type": "text", "text": "Name a "}, {"type": "text", "text": "fruit."}]
        call = {"id": "call_a", "type": "function", "function": {"name": "now", "arguments": "{}"}}
        tools = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}]
        answer = chat(
            messages=[
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": parts},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_a", "content": "noon"},
                {"role": "user", "content": "And now?"},
            ],
            tools=tools,
            tool_choice="auto",
            parallel_tool_calls=False,
            user="somebody",
            metadata={"a": "b"},
            store=False,
            extra_body={"ignore_eos": True, "top_k": 20, "min_p": 0.02, "stop_token_ids": [5]},
        )
        self.assertGreater(answer.usage.completion_tokens, 0)


def function(name, **properties):
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


def respond(**more):
    extra = {"seed": 7, **more.pop("extra_body", {})}
    options = {"model": MODEL, "input": PROMPT[0]["content"], "max_output_tokens": 24, **more}
    return client().responses.create(extra_body=extra, **options)


class Responses(unittest.TestCase):
    def test_whole(self):
        answer = respond(temperature=0, instructions="Be brief.", metadata={"a": "b"}, user="me", store=False)
        self.assertEqual((answer.object, answer.model, answer.store), ("response", MODEL, False))
        self.assertIn(answer.status, ("completed", "incomplete"))
        messages = [{"role": "system", "content": "Be brief."}, *PROMPT]
        self.assertEqual(answer.output_text, chat(messages=messages, temperature=0).choices[0].message.content)
        usage = answer.usage
        self.assertEqual(usage.total_tokens, usage.input_tokens + usage.output_tokens)
        self.assertGreaterEqual(usage.input_tokens_details.cached_tokens, 0)
        self.assertEqual(usage.output_tokens_details.reasoning_tokens, 0)
        self.assertEqual((answer.metadata, answer.user, answer.instructions), ({"a": "b"}, "me", "Be brief."))
        self.assertEqual(answer.slipstream["seed"], 7)

    def test_stream_equals_whole(self):
        for temperature in (0, 1):
            whole = respond(temperature=temperature)
            events = list(respond(temperature=temperature, stream=True))
            self.assertEqual([e.sequence_number for e in events], list(range(len(events))))
            kinds = [e.type for e in events]
            self.assertEqual(
                kinds[:4],
                ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"],
            )
            self.assertEqual(
                kinds[-4:],
                [
                    "response.output_text.done",
                    "response.content_part.done",
                    "response.output_item.done",
                    f"response.{whole.status}",
                ],
            )
            text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
            self.assertEqual((text, events[-1].response.output_text), (whole.output_text, whole.output_text))
            self.assertEqual(events[-1].response.usage.output_tokens, whole.usage.output_tokens)

    def test_stream_helper(self):
        # The helper takes an answer that ends by its length for a failure.
        stop = respond(temperature=0).output_text.split()[8]
        options = {"model": MODEL, "input": PROMPT[0]["content"], "max_output_tokens": 24, "temperature": 0}
        with client().responses.stream(extra_body={"seed": 7, "stop": stop}, **options) as stream:
            text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
            final = stream.get_final_response()
        self.assertEqual((final.output_text, final.status), (text, "completed"))
        self.assertEqual(text, respond(temperature=0, extra_body={"stop": stop}).output_text)

    def test_a_conversation_with_tools(self):
        items = [{"role": "user", "content": "What is the weather in Rome?"}]
        first = respond(input=items, tools=[WEATHER], tool_choice="auto", parallel_tool_calls=False)
        items += [item.model_dump(exclude_none=True) for item in first.output]
        call = {"type": "function_call", "call_id": "call_a", "name": "weather", "arguments": '{"city": "Rome"}'}
        items += [call, {"type": "function_call_output", "call_id": "call_a", "output": "rain"}]
        second = respond(input=items, tools=[WEATHER], reasoning={"effort": "low"}, text={"verbosity": "low"})
        self.assertGreater(second.usage.input_tokens, first.usage.input_tokens)
        self.assertTrue(second.output)

    def test_parse_helper(self):
        class Answer(pydantic.BaseModel):
            size: typing.Literal["small", "large"]
            sure: bool

        response = client().responses.parse(
            model=MODEL, input="Is a whale large?", text_format=Answer, max_output_tokens=64
        )
        self.assertIsInstance(response.output_parsed, Answer)

    def test_a_call_streamed_or_not(self):
        tool = {"type": "function", "strict": True, **function("weather", unit={"enum": ["C", "F"]})["function"]}
        for choice in ("required", {"type": "function", "name": "weather"}):
            asked = {"tools": [tool], "tool_choice": choice, "parallel_tool_calls": False, "max_output_tokens": 96}
            whole = respond(**asked)
            (call,) = whole.output
            self.assertEqual((call.type, call.name, whole.status), ("function_call", "weather", "completed"))
            self.assertIn(json.loads(call.arguments)["unit"], ("C", "F"))
            events = list(respond(stream=True, **asked))
            deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
            (done,) = [e for e in events if e.type == "response.function_call_arguments.done"]
            self.assertEqual(("".join(deltas), done.arguments), (call.arguments, call.arguments))

    def test_forms_and_ways_of_drawing(self):
        schema = function("a", warm={"type": "boolean"})["function"]["parameters"]
        form = {"type": "json_schema", "name": "a", "strict": True, "schema": schema}
        answer = respond(text={"format": form}, max_output_tokens=40)
        self.assertEqual(list(json.loads(answer.output_text)), ["warm"])
        named = ("temperature", "top_p")
        extra = {name: value for name, value in SHAPES.items() if name not in (*named, "extra_body")}
        extra.update(SHAPES["extra_body"])
        drawn = respond(**{name: SHAPES[name] for name in named}, extra_body=extra)
        self.assertEqual(drawn.output_text, chat(**SHAPES).choices[0].message.content)

    def test_log_probabilities(self):
        answer = respond(temperature=0, include=["message.output_text.logprobs"], top_logprobs=3)
        entries = answer.output[0].content[0].logprobs
        self.assertEqual(len(entries), answer.usage.output_tokens)
        self.assertTrue(all(len(entry.top_logprobs) == 3 for entry in entries))
        asked = {"temperature": 0, "include": ["message.output_text.logprobs"], "top_logprobs": 3, "stream": True}
        events = [e for e in respond(**asked) if e.type == "response.output_text.delta"]
        streamed = [entry.logprob for event in events for entry in event.logprobs]
        self.assertEqual(streamed, [entry.logprob for entry in entries])

    def test_what_is_not_here_is_refused(self):
        for more in ({"store": True}, {"previous_response_id": "resp_1"}, {"background": True}, {"truncation": "auto"}):
            with self.assertRaises(openai.BadRequestError) as bad:
                respond(**more)
            self.assertEqual(bad.exception.param, next(iter(more)))


class Completions(unittest.TestCase):
    def test_text_ids_and_lists(self):
        one = completion(temperature=0)
        tokens = post("/tokenize", {"prompt": "The sea is"})["tokens"]
        self.assertEqual(completion(prompt=tokens, temperature=0).choices[0].text, one.choices[0].text)
        two = completion(prompt=["The sea is", "A ship"], temperature=0, echo=True)
        self.assertEqual(two.choices[0].text, "The sea is" + one.choices[0].text)
        self.assertEqual([c.index for c in two.choices], [0, 1])
        self.assertEqual(completion(prompt=[tokens, tokens], temperature=0).usage.prompt_tokens, 2 * len(tokens))

    def test_stream_equals_whole(self):
        whole = completion(temperature=1, logprobs=2)
        text, tokens = "", []
        for chunk in completion(temperature=1, logprobs=2, stream=True):
            text += chunk.choices[0].text
            if chunk.choices[0].logprobs:
                tokens += chunk.choices[0].logprobs.tokens
        self.assertEqual(text, whole.choices[0].text)
        self.assertEqual(tokens, whole.choices[0].logprobs.tokens)


    def test_an_echo_with_its_log_probabilities(self):
        plain = completion(temperature=0, logprobs=2).choices[0]
        prompt = len(post("/tokenize", {"prompt": "The sea is"})["tokens"])
        whole = completion(temperature=0, logprobs=2, echo=True)
        choice, lists = whole.choices[0], whole.choices[0].logprobs
        self.assertEqual(choice.text, "The sea is" + plain.text)
        self.assertIsNone(lists.token_logprobs[0])
        self.assertIsNone(lists.top_logprobs[0])
        self.assertEqual("".join(lists.tokens[:prompt]), "The sea is")
        self.assertEqual(lists.text_offset[prompt], len("The sea is"))
        self.assertEqual(lists.token_logprobs[prompt:], plain.logprobs.token_logprobs)
        self.assertTrue(all(len(top) == 2 for top in lists.top_logprobs[1:]))
        streamed = []
        for chunk in completion(temperature=0, logprobs=2, echo=True, stream=True):
            if chunk.choices[0].logprobs:
                streamed += chunk.choices[0].logprobs.token_logprobs
        self.assertEqual(streamed, lists.token_logprobs)
        # The same text as a prompt is as likely as it was when it was written.
        params = {"max_new_tokens": 16, "temperature": 0}
        written = post("/generate", {"text": "The sea is", "sampling_params": params})["output_ids"]
        ids = post("/tokenize", {"prompt": "The sea is"})["tokens"] + written
        alone = completion(prompt=ids, logprobs=2, echo=True, max_tokens=0)
        self.assertEqual(alone.choices[0].logprobs.token_logprobs, lists.token_logprobs)
        self.assertEqual((alone.choices[0].text, alone.choices[0].finish_reason), (choice.text, "length"))
        self.assertEqual(alone.usage.completion_tokens, 0)

    def test_choices_and_ways_of_drawing(self):
        both = completion(prompt=["The sea is", "A ship"], n=2, best_of=2, temperature=1, stream_options=None)
        self.assertEqual([c.index for c in both.choices], [0, 1, 2, 3])
        self.assertEqual(both.choices[1].text, completion(seed=8, temperature=1).choices[0].text)
        drawn = completion(max_tokens=24, **SHAPES)
        options = {"include_usage": True}
        chunks = list(completion(max_tokens=24, stream=True, stream_options=options, **SHAPES))
        self.assertEqual("".join(c.choices[0].text for c in chunks[:-1]), drawn.choices[0].text)
        self.assertEqual(chunks[-1].usage.completion_tokens, drawn.usage.completion_tokens)
        form = {"structured_outputs": {"regex": "[a-c]{5}"}, "speculation": {"report": True}}
        formed = completion(extra_body=form)
        self.assertEqual((len(formed.choices[0].text), formed.choices[0].finish_reason), (5, "stop"))
        self.assertGreaterEqual(formed.speculation["tau"], 1)


class Everything(unittest.TestCase):
    def test_models(self):
        listed = list(client().models.list())
        self.assertEqual([m.id for m in listed], [MODEL])
        self.assertEqual(client().models.retrieve(MODEL).id, MODEL)

    def test_errors_have_their_types(self):
        with self.assertRaises(openai.BadRequestError) as bad:
            chat(temperature=3)
        self.assertEqual(bad.exception.param, "temperature")
        self.assertEqual(bad.exception.type, "invalid_request_error")
        with self.assertRaises(openai.NotFoundError) as missing:
            chat(model="gpt-4")
        self.assertEqual(missing.exception.code, "model_not_found")
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{BASE}/v1", api_key="wrong", max_retries=0).models.list()
        with self.assertRaises(openai.BadRequestError) as long:
            chat(messages=[{"role": "user", "content": "word " * 20000}])
        self.assertEqual(long.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.BadRequestError):
            completion(suffix="end")

    def test_an_abandoned_stream_ends(self):
        stream = chat(stream=True, max_tokens=4000, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        self.assertTrue(chat(max_tokens=2).choices)

    def test_generate(self):
        ids = post("/tokenize", {"prompt": "The sea is"})["tokens"]
        params = {"max_new_tokens": 8, "temperature": 0}
        out = post("/generate", {"input_ids": ids, "sampling_params": params})
        self.assertEqual(len(out["output_ids"]), 8)
        self.assertEqual(out["text"], completion(temperature=0, max_tokens=8).choices[0].text)
        self.assertEqual(post("/detokenize", {"tokens": ids})["prompt"], "The sea is")
        asked = {"input_ids": ids, "sampling_params": params, "return_logprob": True, "top_logprobs_num": 1}
        told = post("/generate", {**asked, "logprob_start_len": 0})["meta_info"]
        self.assertEqual([entry[1] for entry in told["input_token_logprobs"]], ids)
        self.assertIsNone(told["input_token_logprobs"][0][0])
        self.assertEqual(len(told["output_token_logprobs"]), 8)
        late = post("/generate", {**asked, "logprob_start_len": 1})["meta_info"]
        self.assertEqual(late["input_token_logprobs"], told["input_token_logprobs"][1:])
        self.assertEqual(len(post("/generate", {**asked, "sampling_params": {**params, "n": 2}})), 2)


def post(path, body):
    request = urllib.request.Request(
        BASE + path,
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": "Bearer sk-suite"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


if __name__ == "__main__":
    unittest.main()
