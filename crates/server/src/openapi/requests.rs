//! The bodies of requests, as their readers take them.

use super::schema::{
    Field, any_of, boolean, constant, count, ids, integer, list, nullable, of, one_of, request,
    string,
};
use crate::openai::asked::{LONGEST_STOP, MOST_ALTERNATIVES, MOST_CHOICES, MOST_STOPS};
use crate::openai::refused::{self, Row, Taken};
use crate::openai::responses::request::{ELSEWHERE, INCLUDES, WITHOUT_EFFECT};
use engine::MOST_BIASES;
use serde_json::{Map, Value, json};

/// All of them, by name.
pub(super) fn schemas() -> Map<String, Value> {
    let schemas = [
        ("ChatRequest", chat()),
        ("ResponseRequest", response()),
        ("CompletionRequest", completion()),
        ("GenerateRequest", generate()),
        ("TokenizeText", tokenize_text()),
        ("TokenizeChat", tokenize_chat()),
        ("DetokenizeRequest", detokenize()),
        ("Speculation", speculation()),
        ("StreamOptions", stream_options()),
        ("Message", message()),
        ("Tool", tool()),
        ("Item", item()),
    ];
    schemas.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect()
}

const MODEL: &str = "A served name; the first one, without it.";

/// What every endpoint that generates takes.
fn sampling() -> Vec<Field> {
    let stop = json!({"type": "string", "minLength": 1, "maxLength": LONGEST_STOP});
    let mut stops = list(stop.clone());
    stops["maxItems"] = MOST_STOPS.into();
    vec![
        (
            "temperature",
            json!({"type": "number", "minimum": 0, "maximum": 2}),
            "0 is greedy; 1 without it.",
        ),
        (
            "top_p",
            json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
            "The likeliest tokens of so much probability; 1 keeps all.",
        ),
        (
            "top_k",
            integer(-1, i128::from(u32::MAX)),
            "So many of the likeliest tokens; 0 and -1 keep all.",
        ),
        (
            "min_p",
            json!({"type": "number", "minimum": 0, "maximum": 1}),
            "Tokens at least so likely in relation to the likeliest; 0 keeps all.",
        ),
        (
            "seed",
            integer(i128::from(i64::MIN), i128::from(u64::MAX)),
            "Random without it; the answer tells it.",
        ),
        (
            "stop",
            any_of([stop, stops]),
            "Texts that end the answer, of up to 1024 bytes; none of it is part of the text.",
        ),
        (
            "stop_token_ids",
            ids(),
            "Ids below the size of the vocabulary that end the answer; they are not part of it.",
        ),
        ("ignore_eos", boolean(), "Go on past end-of-text."),
    ]
    .into_iter()
    .chain(shaping())
    .chain(formats())
    .collect()
}

/// A JSON schema, as it is or as a text.
fn schema() -> Value {
    json!({"type": ["object", "boolean", "string"]})
}

/// What an answer may be told to be, by the name of its kind; `schema` is what a JSON schema comes
/// in.
fn kinds(schema: Vec<Field>) -> Value {
    let kind = |name: &str| vec![("type", constant(name), "")];
    let [text, object] = ["text", "json_object"].map(|name| request(kind(name), vec![]));
    any_of([text, object, request([kind("json_schema"), schema].concat(), vec![])])
}

/// What a JSON schema comes with.
fn named() -> Vec<Field> {
    vec![
        ("name", string(), "Taken, without an effect."),
        ("description", string(), "Taken, without an effect."),
        ("strict", boolean(), "Taken: every schema is kept to."),
    ]
}

/// What an answer must be: one of these at most.
fn formats() -> Vec<Field> {
    let texts = any_of([string(), list(string())]);
    let schemas = request(vec![("schema", schema(), "The schema.")], named());
    let structured = vec![
        ("json", schema(), "JSON of a schema."),
        ("regex", string(), "A text that matches an expression."),
        ("choice", texts.clone(), "One of these texts."),
        ("grammar", string(), "A text of a grammar: EBNF where it has `::=`, Lark otherwise."),
        ("json_object", boolean(), "A JSON object."),
    ];
    vec![
        ("response_format", kinds(vec![("json_schema", schemas, "")]), "What the answer is."),
        ("guided_json", schema(), "JSON of a schema, as vLLM says it."),
        ("guided_regex", string(), "A text that matches an expression."),
        ("guided_choice", texts, "One of these texts."),
        (
            "guided_grammar",
            string(),
            "A text of a grammar: EBNF where it has `::=`, Lark otherwise.",
        ),
        ("json_schema", schema(), "JSON of a schema, as SGLang says it."),
        ("regex", string(), "A text that matches an expression."),
        ("ebnf", string(), "A text of an EBNF grammar, as SGLang says it."),
        ("structured_outputs", request(vec![], structured), "The same, as vLLM says it now."),
    ]
}

/// What is done to the logits before that.
fn shaping() -> Vec<Field> {
    let penalty = || json!({"type": "number", "minimum": -2, "maximum": 2});
    let bias = json!({
        "type": "object", "maxProperties": MOST_BIASES,
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    });
    vec![
        ("presence_penalty", penalty(), "Taken off tokens that the output has."),
        ("frequency_penalty", penalty(), "Taken off a token each time the output has it."),
        (
            "repetition_penalty",
            json!({"type": "number", "exclusiveMinimum": 0}),
            "Divides positive logits of tokens that prompt or output have, multiplies others.",
        ),
        ("logit_bias", bias, "Added to the logits of tokens, by their ids."),
        ("min_tokens", count(0), "Output tokens before anything may end it."),
        ("min_new_tokens", count(0), "The same, as SGLang says it."),
    ]
}

fn choices() -> Field {
    ("n", integer(1, MOST_CHOICES), "Choices; choice i has the seed plus i.")
}

fn drafting() -> Field {
    ("speculation", of("Speculation"), "How to draft.")
}

/// Fields without an effect: what may stand in them.
fn without_effect(rows: &'static [Row]) -> Vec<Field> {
    let field = |(name, taken, reason): &(&'static str, Taken, &'static str)| {
        let schema = match *taken {
            Taken::All => json!({}),
            Taken::Empty => json!({"enum": ["", [], {}]}),
            Taken::Boolean(boolean) => constant(boolean),
            Taken::Number(number) => constant(number),
            Taken::Texts(texts) => any_of([one_of(texts), list(one_of(texts))]),
        };
        let what = if reason.is_empty() { "Taken, without an effect." } else { *reason };
        (*name, schema, what)
    };
    rows.iter().map(field).collect()
}

fn speculation() -> Value {
    request(
        vec![],
        vec![
            ("enabled", boolean(), "Whether to draft; true without it."),
            ("max_width", count(1), "Tokens verified at once, up to the drafter's block."),
            ("report", boolean(), "Whether the answer tells how drafting went."),
        ],
    )
}

fn stream_options() -> Value {
    request(
        vec![],
        vec![
            ("include_usage", boolean(), "Whether a last chunk has the usage."),
            ("include_obfuscation", boolean(), "Taken: there is none."),
            ("continuous_usage_stats", boolean(), "Taken, without an effect."),
        ],
    )
}

fn streaming() -> Vec<Field> {
    vec![
        ("stream", boolean(), "Whether the answer comes as server-sent events."),
        ("stream_options", of("StreamOptions"), "For streams only."),
    ]
}

/// What is said, and by whom; templates may look at further fields.
fn message() -> Value {
    let part = |kind: &str, other: &str| {
        let mut part = json!({"type": "object", "required": ["type", kind]});
        part["properties"]["type"] = constant(kind);
        part["properties"][kind] = string();
        part["properties"][other] = json!({"type": ["string", "null"]});
        part
    };
    let part = any_of([part("text", "refusal"), part("refusal", "text")]);
    let content = any_of([string(), list(part)]);
    let name = json!({"type": ["string", "null"]});
    let said = json!({"type": "object", "required": ["role", "content"], "properties": {
        "role": one_of(&["system", "developer", "user"]),
        "content": content.clone(), "name": name.clone(),
    }});
    // Content, a refusal or calls.
    let spoken = json!({"type": "object", "required": ["role"], "properties": {
        "role": constant("assistant"), "content": nullable(content.clone()),
        "refusal": {"type": ["string", "null"]}, "name": name.clone(),
        "tool_calls": nullable(list(call())),
    }});
    let returned = json!({"type": "object", "required": ["role", "content", "tool_call_id"],
        "properties": {
            "role": constant("tool"), "content": content, "tool_call_id": string(), "name": name,
        },
    });
    any_of([said, spoken, returned])
}

fn call() -> Value {
    json!({"type": "object", "required": ["id", "function"], "properties": {
        "id": {"type": "string", "minLength": 1},
        "type": {"enum": ["function", null]},
        "function": {"type": "object", "required": ["name", "arguments"], "properties": {
            "name": {"type": "string", "minLength": 1}, "arguments": string(),
        }},
    }})
}

fn function() -> Map<String, Value> {
    let function = json!({
        "name": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
        "description": {"type": ["string", "null"]},
        "parameters": {"type": ["object", "null"]},
    });
    let Value::Object(function) = function else { panic!("an object was made") };
    function
}

fn tool() -> Value {
    json!({"type": "object", "required": ["type", "function"], "properties": {
        "type": constant("function"),
        "function": {"type": "object", "required": ["name"], "properties": function()},
    }})
}

/// Whether to call, and whom; `named` is a function.
fn tool_choice(named: Value) -> Field {
    let modes = one_of(&["auto", "none", "required"]);
    ("tool_choice", any_of([modes, named]), "Whether to call, or the function to call.")
}

/// What is talked about.
fn conversation() -> (Vec<Field>, Vec<Field>) {
    let mut messages = list(of("Message"));
    messages["minItems"] = 1.into();
    let needed = vec![("messages", messages, "The conversation.")];
    let named = json!({"type": "object", "required": ["type", "function"], "properties": {
        "type": constant("function"),
        "function": {"type": "object", "required": ["name"], "properties": {"name": string()}},
    }});
    let free = vec![
        ("tools", list(of("Tool")), "Functions that the model may call."),
        tool_choice(named),
        ("parallel_tool_calls", boolean(), "Whether an answer may have several calls."),
        ("continue_final_message", boolean(), "Go on inside the last message, the assistant's."),
        ("separate_reasoning", boolean(), "Whether reasoning is kept apart; true without it."),
        ("chat_template_kwargs", json!({"type": "object"}), "Variables of the chat template."),
    ];
    (needed, free)
}

fn chat() -> Value {
    let (needed, conversation) = conversation();
    let own = vec![
        ("model", string(), MODEL),
        ("max_completion_tokens", count(1), "Most output tokens; what the context leaves."),
        ("max_tokens", count(1), "The same, if the other is absent."),
        ("logprobs", boolean(), "Whether log-probabilities are told."),
        ("top_logprobs", integer(0, MOST_ALTERNATIVES), "Alternatives of each; with `logprobs`."),
        choices(),
        drafting(),
    ];
    let effectless = without_effect(refused::TABLE);
    request(needed, [conversation, own, streaming(), sampling(), effectless].concat())
}

fn completion() -> Value {
    let text = json!({"type": "string", "minLength": 1});
    let filled = |items: Value| json!({"type": "array", "items": items, "minItems": 1});
    let id = integer(0, i128::from(u32::MAX));
    let prompt = any_of([text.clone(), filled(text), filled(id.clone()), filled(filled(id))]);
    let needed = vec![("prompt", prompt, "Texts, or ids below the size of the vocabulary.")];
    let own = vec![
        ("model", string(), MODEL),
        ("max_tokens", count(0), "Most output tokens; 16 without it."),
        ("logprobs", integer(0, MOST_ALTERNATIVES), "Alternatives of each token."),
        ("echo", boolean(), "Whether the prompt stands in front, in the log-probabilities too."),
        ("best_of", integer(1, MOST_CHOICES), "The same as `n`: choices are not ranked."),
        choices(),
        drafting(),
    ];
    let effectless = without_effect(refused::TABLE);
    request(needed, [own, streaming(), sampling(), effectless].concat())
}

fn generate() -> Value {
    let mut prompt = ids();
    prompt["minItems"] = 1.into();
    let params = [
        vec![("max_new_tokens", count(0), "Most output tokens; 128 without it."), choices()],
        sampling(),
        without_effect(refused::TABLE),
    ];
    let own = vec![
        ("text", json!({"type": "string", "minLength": 1}), "The prompt, or `input_ids`."),
        ("input_ids", prompt, "The prompt as ids below the size of the vocabulary."),
        ("sampling_params", request(vec![], params.concat()), "How to generate."),
        ("model", string(), MODEL),
        ("stream", boolean(), "Whether the answer comes as server-sent events."),
        ("return_logprob", boolean(), "Whether log-probabilities are told."),
        ("top_logprobs_num", integer(0, MOST_ALTERNATIVES), "Alternatives of each."),
        ("return_text_in_logprobs", boolean(), "Taken: their text is told anyway."),
        (
            "logprob_start_len",
            integer(-1, i128::from(u32::MAX)),
            "Token of the prompt from which on its tokens are told too; -1 for none.",
        ),
        drafting(),
    ];
    let mut schema = request(vec![], [own, without_effect(refused::TABLE)].concat());
    let alone = |name: &str, other: &str, kind: &str| {
        let mut alone = json!({"required": [name]});
        alone["properties"][name] = json!({ "type": kind });
        alone["properties"][other] = json!({"type": "null"});
        alone
    };
    schema["anyOf"] =
        json!([alone("text", "input_ids", "string"), alone("input_ids", "text", "array"),]);
    schema
}

fn tokenize_text() -> Value {
    request(
        vec![("prompt", string(), "The text.")],
        vec![
            ("model", string(), MODEL),
            ("add_special_tokens", boolean(), "As for a prompt; true without it."),
            ("return_token_strs", boolean(), "Whether the tokens are spelled."),
        ],
    )
}

fn tokenize_chat() -> Value {
    let (needed, conversation) = conversation();
    let own = vec![
        ("model", string(), MODEL),
        ("return_token_strs", boolean(), "Whether the tokens are spelled."),
    ];
    request(needed, [own, conversation].concat())
}

fn detokenize() -> Value {
    let tokens = ("tokens", ids(), "Ids below the size of the vocabulary.");
    request(vec![tokens], vec![("model", string(), MODEL)])
}

/// Items of a response's input. What an answer's items have besides is passed over.
fn item() -> Value {
    let text = json!({"type": "object", "required": ["type", "text"], "properties": {
        "type": one_of(&["input_text", "output_text"]), "text": string(),
    }});
    let refusal = json!({"type": "object", "required": ["type", "refusal"], "properties": {
        "type": constant("refusal"), "refusal": string(),
    }});
    let part = any_of([text, refusal]);
    let content = any_of([string(), list(part)]);
    let message = json!({"type": "object", "required": ["role", "content"], "properties": {
        "type": {"enum": ["message", null]},
        "role": one_of(&["system", "developer", "user", "assistant"]),
        "content": content.clone(),
    }});
    let texts = any_of([
        list(json!({"type": "object", "required": ["text"], "properties": {"text": string()}})),
        json!({"type": "null"}),
    ]);
    let reasoning = json!({"type": "object", "required": ["type"], "properties": {
        "type": constant("reasoning"), "content": texts.clone(), "summary": texts,
    }});
    let filled = json!({"type": "string", "minLength": 1});
    let call = json!({"type": "object", "required": ["type", "call_id", "name", "arguments"],
        "properties": {
            "type": constant("function_call"), "call_id": filled.clone(), "name": filled.clone(),
            "arguments": string(),
        },
    });
    let output = json!({"type": "object", "required": ["type", "call_id", "output"], "properties": {
        "type": constant("function_call_output"), "call_id": filled, "output": content,
    }});
    any_of([message, reasoning, call, output])
}

fn response() -> Value {
    let mut items = list(of("Item"));
    items["minItems"] = 1.into();
    let mut tool = function();
    tool.insert("type".into(), constant("function"));
    let tool = json!({"type": "object", "required": ["type", "name"], "properties": tool});
    // What a chat may leave without an effect, but for fields that are elsewhere here.
    let elsewhere = |name: &str| ELSEWHERE.iter().any(|(other, _)| *other == name);
    let mut shared = [sampling(), without_effect(refused::TABLE)].concat();
    shared.retain(|(name, ..)| !elsewhere(name) && !["user", "metadata"].contains(name));
    let format = kinds([vec![("schema", schema(), "The schema.")], named()].concat());
    let function = json!({"type": "object", "required": ["type", "name"], "properties": {
        "type": constant("function"), "name": string(),
    }});
    let text = vec![("format", format, "What the text is."), ("verbosity", string(), "Taken.")];
    let reasoning = vec![
        ("effort", string(), "Taken: the model thinks as much as it likes."),
        ("summary", constant("auto"), "There are none: reasoning is told in full."),
        ("generate_summary", constant("auto"), "The same."),
    ];
    let metadata = json!({"type": "object", "additionalProperties": string()});
    let own = vec![
        ("model", string(), MODEL),
        ("instructions", string(), "What the system says."),
        ("tools", list(tool), "Functions that the model may call."),
        tool_choice(function),
        ("parallel_tool_calls", boolean(), "Whether an answer may have several calls."),
        ("max_output_tokens", count(1), "Most output tokens; what the context leaves."),
        ("text", request(vec![], text), "The text of the answer."),
        ("reasoning", request(vec![], reasoning), "What comes before it."),
        ("include", list(one_of(&INCLUDES)), "What else to tell; reasoning is told anyway."),
        ("top_logprobs", integer(0, MOST_ALTERNATIVES), "Alternatives, where they are included."),
        ("metadata", metadata, "Repeated in the answer."),
        ("user", string(), "Repeated in the answer."),
        ("chat_template_kwargs", json!({"type": "object"}), "Variables of the chat template."),
        drafting(),
    ];
    let effectless = without_effect(WITHOUT_EFFECT);
    let input = ("input", any_of([string(), items]), "A text, or items of a conversation.");
    request(vec![input], [own, streaming(), shared, effectless].concat())
}
