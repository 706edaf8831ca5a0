//! The bodies of answers and the events of streams. Nothing else is in them: the tests hold every
//! answer that they get against these.

use super::schema::{
    answer, any_of, boolean, constant, count, ids, integer, list, nullable, number, of, one_of,
    string,
};
use device::LaneId;
use serde_json::{Map, Value, json};

/// All of them, by name.
pub(super) fn schemas() -> Map<String, Value> {
    let groups = [common(), chats(), completions(), responses(), native(), operators()];
    let schemas = groups.into_iter().flatten().chain([("Steps", steps())]);
    schemas.map(|(name, schema)| (name.to_owned(), schema)).collect()
}

type Named = Vec<(&'static str, Value)>;

fn null() -> Value {
    json!({"type": "null"})
}

/// What several answers have.
fn common() -> Named {
    let error = answer(
        vec![
            ("message", string()),
            ("type", one_of(&["invalid_request_error", "rate_limit_error", "server_error"])),
            ("param", nullable(string())),
            ("code", nullable(string())),
        ],
        vec![],
    );
    let prompt = answer(vec![("cached_tokens", count(0))], vec![]);
    let completion = answer(
        vec![
            ("reasoning_tokens", count(0)),
            ("accepted_prediction_tokens", count(0)),
            ("rejected_prediction_tokens", count(0)),
        ],
        vec![],
    );
    let usage = answer(
        vec![
            ("prompt_tokens", count(1)),
            ("completion_tokens", count(0)),
            ("total_tokens", count(1)),
            ("prompt_tokens_details", prompt),
            ("completion_tokens_details", completion),
        ],
        vec![],
    );
    let speculated = answer(
        vec![("tau", number()), ("steps", count(0)), ("accepted_by_position", list(count(0)))],
        vec![],
    );
    let candidate =
        || vec![("token", string()), ("logprob", number()), ("bytes", list(integer(0, 255)))];
    let top = vec![("top_logprobs", list(answer(candidate(), vec![])))];
    vec![
        ("Error", answer(vec![("error", error)], vec![])),
        ("Usage", usage),
        ("Speculated", speculated),
        ("Extra", answer(vec![("seed", integer(0, i128::from(u64::MAX)))], vec![])),
        ("LogProb", answer([candidate(), top].concat(), vec![])),
    ]
}

fn head(object: &str) -> Named {
    vec![
        ("id", string()),
        ("object", constant(object)),
        ("created", count(0)),
        ("model", string()),
        ("system_fingerprint", string()),
    ]
}

/// A whole answer: what it begins with, and its choices.
fn whole(object: &str, choice: Value) -> Value {
    let mut choices = list(choice);
    choices["minItems"] = 1.into();
    let own = vec![("choices", choices), ("usage", of("Usage")), ("slipstream", of("Extra"))];
    answer([head(object), own].concat(), vec![("speculation", of("Speculated"))])
}

/// A piece of one, or the error that ended it.
fn chunk(object: &str, choice: Value) -> Value {
    let sometimes = vec![
        ("usage", nullable(of("Usage"))),
        ("slipstream", of("Extra")),
        ("speculation", of("Speculated")),
    ];
    let always = [head(object), vec![("choices", list(choice))]].concat();
    any_of([answer(always, sometimes), of("Error")])
}

fn chats() -> Named {
    let function = answer(vec![("name", string()), ("arguments", string())], vec![]);
    let call = answer(
        vec![("id", string()), ("type", constant("function")), ("function", function)],
        vec![],
    );
    let message = answer(
        vec![("role", constant("assistant")), ("content", nullable(string())), ("refusal", null())],
        vec![("reasoning_content", string()), ("tool_calls", list(call))],
    );
    let logprobs = answer(vec![("content", list(of("LogProb"))), ("refusal", null())], vec![]);
    let reason = one_of(&["stop", "length", "tool_calls"]);
    let choice = answer(
        vec![
            ("index", count(0)),
            ("message", message),
            ("logprobs", nullable(logprobs.clone())),
            ("finish_reason", reason.clone()),
        ],
        vec![],
    );
    let function = answer(vec![("arguments", string())], vec![("name", string())]);
    let call = answer(
        vec![("index", count(0)), ("function", function)],
        vec![("id", string()), ("type", constant("function"))],
    );
    let delta = answer(
        vec![],
        vec![
            ("role", constant("assistant")),
            ("content", string()),
            ("reasoning_content", string()),
            ("tool_calls", list(call)),
        ],
    );
    let piece = answer(
        vec![
            ("index", count(0)),
            ("delta", delta),
            ("logprobs", nullable(logprobs)),
            ("finish_reason", nullable(reason)),
        ],
        vec![],
    );
    vec![
        ("ChatCompletion", whole("chat.completion", choice)),
        ("ChatChunk", chunk("chat.completion.chunk", piece)),
    ]
}

fn completions() -> Named {
    let top = json!({"type": "object", "additionalProperties": number()});
    let lists = answer(
        vec![
            ("tokens", list(string())),
            ("token_logprobs", list(nullable(number()))),
            ("top_logprobs", list(nullable(top))),
            ("text_offset", list(count(0))),
            ("bytes", list(list(integer(0, 255)))),
        ],
        vec![],
    );
    let choice = |reason: Value| {
        answer(
            vec![
                ("index", count(0)),
                ("text", string()),
                ("logprobs", nullable(lists.clone())),
                ("finish_reason", reason),
            ],
            vec![],
        )
    };
    let reason = one_of(&["stop", "length"]);
    vec![
        ("Completion", whole("text_completion", choice(reason.clone()))),
        ("CompletionChunk", chunk("text_completion", choice(nullable(reason)))),
    ]
}

/// What a response answers with: messages, reasoning, calls.
fn output_item() -> Value {
    let status = ("status", one_of(&["in_progress", "completed", "incomplete"]));
    let message = answer(
        vec![
            ("id", string()),
            ("type", constant("message")),
            status.clone(),
            ("role", constant("assistant")),
            ("content", list(of("OutputText"))),
        ],
        vec![],
    );
    let reasoning = answer(
        vec![
            ("id", string()),
            ("type", constant("reasoning")),
            status.clone(),
            ("summary", json!({"type": "array", "maxItems": 0})),
            ("content", list(of("ReasoningText"))),
        ],
        vec![],
    );
    let call = answer(
        vec![
            ("id", string()),
            ("type", constant("function_call")),
            status,
            ("call_id", string()),
            ("name", string()),
            ("arguments", string()),
        ],
        vec![],
    );
    any_of([message, reasoning, call])
}

fn responses() -> Named {
    let text = answer(
        vec![
            ("type", constant("output_text")),
            ("text", string()),
            ("annotations", json!({"type": "array", "maxItems": 0})),
            ("logprobs", list(of("LogProb"))),
        ],
        vec![],
    );
    let thought = answer(vec![("type", constant("reasoning_text")), ("text", string())], vec![]);
    vec![
        ("OutputText", text),
        ("ReasoningText", thought),
        ("OutputItem", output_item()),
        ("Response", response()),
        ("ResponseEvent", response_event()),
    ]
}

fn response() -> Value {
    let error = answer(vec![("code", string()), ("message", string())], vec![]);
    let reason = answer(vec![("reason", constant("max_output_tokens"))], vec![]);
    let reasoning = answer(vec![("effort", nullable(string())), ("summary", null())], vec![]);
    let text = answer(vec![("format", json!({"type": "object"}))], vec![("verbosity", string())]);
    let cached = answer(vec![("cached_tokens", count(0))], vec![]);
    let thought = answer(vec![("reasoning_tokens", count(0))], vec![]);
    let usage = answer(
        vec![
            ("input_tokens", count(1)),
            ("input_tokens_details", cached),
            ("output_tokens", count(0)),
            ("output_tokens_details", thought),
            ("total_tokens", count(1)),
        ],
        vec![],
    );
    let status = one_of(&["in_progress", "completed", "incomplete", "failed"]);
    let always = vec![
        ("id", string()),
        ("object", constant("response")),
        ("created_at", count(0)),
        ("completed_at", nullable(count(0))),
        ("status", status),
        ("error", nullable(error)),
        ("incomplete_details", nullable(reason)),
        ("model", string()),
        ("output", list(of("OutputItem"))),
        ("instructions", nullable(string())),
        ("max_output_tokens", nullable(count(1))),
        ("metadata", json!({"type": "object", "additionalProperties": string()})),
        ("parallel_tool_calls", boolean()),
        ("reasoning", reasoning),
        ("temperature", number()),
        ("text", text),
        ("tool_choice", any_of([string(), json!({"type": "object"})])),
        ("tools", list(json!({"type": "object"}))),
        ("top_logprobs", count(0)),
        ("top_p", number()),
        ("user", nullable(string())),
        ("background", constant(false)),
        ("store", constant(false)),
        ("previous_response_id", null()),
        ("truncation", constant("disabled")),
        ("service_tier", constant("default")),
        ("usage", nullable(usage)),
        ("slipstream", of("Extra")),
    ];
    answer(always, vec![("speculation", of("Speculated"))])
}

/// Events of each shape, by what they are about.
fn response_event() -> Value {
    let event = |kinds: &[&str], own: Named| {
        let head = vec![("type", one_of(kinds)), ("sequence_number", count(0))];
        answer([head, own].concat(), vec![])
    };
    let item = vec![("output_index", count(0)), ("item", of("OutputItem"))];
    let at = || vec![("item_id", string()), ("output_index", count(0))];
    let within = || [at(), vec![("content_index", constant(0))]].concat();
    let with = |place: Named, own: Named| [place, own].concat();
    let part = any_of([of("OutputText"), of("ReasoningText")]);
    let logprobs = || ("logprobs", list(of("LogProb")));
    any_of([
        event(
            &[
                "response.created",
                "response.in_progress",
                "response.completed",
                "response.incomplete",
                "response.failed",
            ],
            vec![("response", of("Response"))],
        ),
        event(&["response.output_item.added", "response.output_item.done"], item),
        event(
            &["response.content_part.added", "response.content_part.done"],
            with(within(), vec![("part", part)]),
        ),
        event(
            &["response.output_text.delta"],
            with(within(), vec![("delta", string()), logprobs()]),
        ),
        event(&["response.output_text.done"], with(within(), vec![("text", string()), logprobs()])),
        event(&["response.reasoning_text.delta"], with(within(), vec![("delta", string())])),
        event(&["response.reasoning_text.done"], with(within(), vec![("text", string())])),
        event(&["response.function_call_arguments.delta"], with(at(), vec![("delta", string())])),
        event(
            &["response.function_call_arguments.done"],
            with(at(), vec![("name", string()), ("arguments", string())]),
        ),
    ])
}

fn native() -> Named {
    // [log-probability, id, token]
    let entry = |logprob: Value| {
        json!({
            "type": "array", "prefixItems": [logprob, count(0), string()], "items": false,
            "minItems": 3,
        })
    };
    let logprob = entry(number());
    let reason = answer(vec![("type", one_of(&["stop", "length"]))], vec![("length", count(0))]);
    let piece = answer(vec![("text", string()), ("drafted", boolean())], vec![]);
    let refused =
        answer(vec![("position", count(0)), ("id", count(0)), ("token", string())], vec![]);
    let meta = answer(
        vec![
            ("id", string()),
            ("seed", integer(0, i128::from(u64::MAX))),
            ("finish_reason", nullable(reason)),
            ("prompt_tokens", count(1)),
            ("completion_tokens", count(0)),
        ],
        vec![
            ("input_token_logprobs", list(entry(nullable(number())))),
            ("input_top_logprobs", list(nullable(list(logprob.clone())))),
            ("output_token_logprobs", list(logprob.clone())),
            ("output_top_logprobs", list(list(logprob))),
            ("cached_tokens", count(0)),
            ("queue_time", number()),
            ("time_to_first_token", number()),
            ("e2e_latency", number()),
            ("spec_verify_ct", count(0)),
            ("spec_accept_length", number()),
            ("spec_draft_token_num", count(0)),
            ("spec_accept_token_num", count(0)),
            ("accepted_by_position", list(count(0))),
            ("output_token_drafted", list(boolean())),
            ("output_segments", list(piece)),
            ("refused_drafts", list(refused)),
        ],
    );
    let output = answer(
        vec![("index", count(0)), ("text", string()), ("output_ids", ids()), ("meta_info", meta)],
        vec![],
    );
    let tokens = answer(
        vec![
            ("count", count(0)),
            ("max_model_len", count(1)),
            ("tokens", ids()),
            ("token_strs", nullable(list(string()))),
        ],
        vec![],
    );
    vec![
        ("Output", output),
        ("Outputs", any_of([of("Output"), list(of("Output"))])),
        ("OutputEvent", any_of([of("Output"), of("Error")])),
        ("Tokens", tokens),
        ("Text", answer(vec![("prompt", string())], vec![])),
    ]
}

fn operators() -> Named {
    let model = answer(
        vec![
            ("id", string()),
            ("object", constant("model")),
            ("created", count(0)),
            ("owned_by", string()),
            ("root", string()),
            ("max_model_len", count(1)),
        ],
        vec![],
    );
    let models = answer(vec![("object", constant("list")), ("data", list(of("Model")))], vec![]);
    let model_info = answer(
        vec![
            ("model_path", string()),
            ("served_model_names", list(string())),
            ("is_generation", constant(true)),
            ("context_length", count(1)),
            ("vocab_size", count(1)),
            ("has_chat_template", boolean()),
        ],
        vec![],
    );
    let draft = answer(vec![("block", count(1)), ("width", nullable(count(1)))], vec![]);
    let server_info = answer(
        vec![
            ("version", string()),
            ("model_path", string()),
            ("served_model_name", string()),
            ("context_length", count(1)),
            ("max_total_num_tokens", count(1)),
            ("speculation", nullable(draft)),
            ("num_requests_running", count(0)),
            ("num_requests_waiting", count(0)),
            ("uptime_seconds", count(0)),
            ("dp_size", constant(1)),
            ("tp_size", constant(1)),
        ],
        vec![],
    );
    let load = answer(
        vec![
            ("dp_rank", constant(0)),
            ("num_reqs", count(0)),
            ("num_running_reqs", count(0)),
            ("num_waiting_reqs", count(0)),
            ("num_tokens", count(0)),
            ("max_total_num_tokens", count(1)),
        ],
        vec![],
    );
    let status = |text: &str| answer(vec![("status", constant(text))], vec![]);
    vec![
        ("Model", model),
        ("Models", models),
        ("ModelInfo", model_info),
        ("ServerInfo", server_info),
        ("Loads", list(load)),
        ("Health", status("ok")),
        ("Ready", status("ready")),
        ("Version", answer(vec![("name", constant("slipstream")), ("version", string())], vec![])),
    ]
}

/// When the engine's newest steps were where.
fn steps() -> Value {
    let seconds = || json!({"type": "number", "minimum": 0});
    // Begin and end.
    let span = || json!({"type": "array", "items": seconds(), "minItems": 2, "maxItems": 2});
    let host = ["plan", "land", "commit"].map(|part| (part, span()));
    let lanes = LaneId::ALL.map(|lane| (lane.name(), nullable(span())));
    let parts = ["draft", "verify", "absorb"].map(|part| (part, seconds()));
    let counts = ["step", "chunks", "blocks", "tokens", "drafted", "accepted", "kept"];
    let counts = counts.map(|name| (name, count(0)));
    let own = vec![
        ("host", answer(host.into(), vec![])),
        ("lanes", answer(lanes.into(), vec![])),
        ("parts", answer(parts.into(), vec![])),
    ];
    let always = vec![
        ("now", seconds()),
        ("num_requests_running", count(0)),
        ("num_requests_waiting", count(0)),
        ("steps", list(answer([counts.to_vec(), own].concat(), vec![]))),
    ];
    answer(always, vec![])
}
