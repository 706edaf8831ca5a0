//! What of a request is taken, and which field is named when it is not.

use model::chat::{Ending, Message};
use serde_json::{Value, json};
use server::chat::dialect::{Dialect, HERMES, MISTRAL, THINK, ToolFormat, ToolPrompt};
use server::chat::{CallIds, ChatFields, Constraint, Delta, Prepared};
use server::error::{BadRequest, read};

fn dialect(tools: &'static ToolFormat) -> Dialect {
    Dialect { tools, prompt: ToolPrompt::Template, reasoning: Some(&THINK) }
}

fn prepare(body: &Value) -> Result<Prepared, BadRequest> {
    read::<ChatFields>(body.to_string().as_bytes())?.prepare(&dialect(&HERMES))
}

fn messages(messages: Value) -> Vec<Message> {
    prepare(&json!({"messages": messages})).expect("a good request").messages
}

fn tool(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name}})
}

fn call(id: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}})
}

/// Each body is refused for the field and with the words.
fn refused(cases: &[(Value, &str, &str)]) {
    for (body, param, words) in cases {
        let error = prepare(body).expect_err(&body.to_string());
        assert_eq!(error.param, *param, "{body}: {error}");
        assert!(error.problem.contains(words), "{body}: {error}");
    }
}

#[test]
fn messages_at_fault_are_named() {
    let user = json!({"role": "user", "content": "Hi"});
    let image = json!({"type": "image_url", "image_url": {"url": "data:"}});
    let audio = json!({"type": "input_audio", "input_audio": {}});
    let with = |message: Value| json!({"messages": [user, message]});
    refused(&[
        (json!({"messages": []}), "messages", "send at least one message"),
        (json!({}), "", "missing field `messages`"),
        (json!({"messages": null}), "messages", "invalid type: null"),
        (json!({"messages": "Hi"}), "messages", "invalid type: string"),
        (json!({"messages": [7]}), "messages[0]", "invalid type: integer"),
        (with(json!({"content": "Hi"})), "messages[1]", "missing field `role`"),
        (with(json!({"role": "narrator", "content": "Hi"})), "messages[1].role", "use system"),
        (with(json!({"role": "function", "content": "Hi"})), "messages[1].role", "use system"),
        (with(json!({"role": "user"})), "messages[1].content", "send a string"),
        (with(json!({"role": "user", "content": null})), "messages[1].content", "send a string"),
        (with(json!({"role": "system"})), "messages[1].content", "send a string"),
        (
            with(json!({"role": "user", "content": 7})),
            "messages[1].content",
            "a string or a list of content parts",
        ),
        (
            with(json!({"role": "user", "content": [{"text": "Hi"}]})),
            "messages[1].content[0]",
            "missing field `type`",
        ),
        (
            with(json!({"role": "user", "content": [{"type": "text", "text": 7}]})),
            "messages[1].content[0].text",
            "expected a string",
        ),
        (
            with(json!({"role": "user", "content": [{"type": "text"}]})),
            "messages[1].content[0].text",
            "is missing",
        ),
        (
            with(json!({"role": "user", "content": [{"type": "text", "text": "a"}, image]})),
            "messages[1].content[1].type",
            "\"image_url\" cannot be read, this engine reads text only",
        ),
        (
            with(json!({"role": "user", "content": [audio]})),
            "messages[1].content[0].type",
            "\"input_audio\"",
        ),
        (with(json!({"role": "user", "content": "a", "name": 7})), "messages[1].name", "a string"),
        (with(json!({"role": "assistant"})), "messages[1].content", "`tool_calls` or both"),
        (
            with(json!({"role": "assistant", "content": null, "tool_calls": []})),
            "messages[1].content",
            "`tool_calls` or both",
        ),
    ]);
}

#[test]
fn tool_turns_at_fault_are_named() {
    let with = |calls: Value, answer: Value| {
        json!({"messages": [{"role": "user", "content": "?"},
            {"role": "assistant", "tool_calls": calls}, answer]})
    };
    let answer = json!({"role": "tool", "tool_call_id": "c", "content": "1"});
    let calls = "messages[1].tool_calls";
    let at = |rest: &str| format!("{calls}[0]{rest}");
    refused(&[
        (with(json!("f"), answer.clone()), calls, "invalid type: string"),
        (with(json!([{"function": {}}]), answer.clone()), &at(".function"), "field `name`"),
        (
            with(json!([{"function": {"name": "f", "arguments": "{}"}}]), answer.clone()),
            &at(""),
            "missing field `id`",
        ),
        (with(json!([{"id": "c"}]), answer.clone()), &at(".function"), "is missing"),
        (
            with(
                json!([{"id": "c", "type": "custom", "function": {"name": "f", "arguments": ""}}]),
                answer.clone(),
            ),
            &at(".type"),
            "use \"function\"",
        ),
        (
            with(json!([{"id": "c", "function": {"name": "f", "arguments": {}}}]), answer.clone()),
            &at(".function.arguments"),
            "expected a string",
        ),
        (
            with(json!([{"id": "c", "function": {"name": "", "arguments": ""}}]), answer.clone()),
            &at(".function.name"),
            "is empty",
        ),
        (
            with(json!([{"id": "", "function": {"name": "f", "arguments": ""}}]), answer.clone()),
            &at(".id"),
            "is empty",
        ),
        (
            with(json!([call("d")]), answer.clone()),
            "messages[2].tool_call_id",
            "\"c\" is no call of an earlier message",
        ),
        (
            with(json!([call("c")]), json!({"role": "tool", "content": "1"})),
            "messages[2].tool_call_id",
            "is missing",
        ),
        (
            with(json!([call("c")]), json!({"role": "tool", "tool_call_id": "c"})),
            "messages[2].content",
            "is missing",
        ),
    ]);
}

#[test]
fn tools_at_fault_are_named() {
    let with =
        |tools: Value| json!({"messages": [{"role": "user", "content": "?"}], "tools": tools});
    let chosen = |choice: Value| {
        let mut body = with(json!([tool("f")]));
        body["tool_choice"] = choice;
        body
    };
    let mut without_tools = chosen(json!("required"));
    without_tools["tools"] = json!(null);
    let long = "x".repeat(65);
    let function = |function: Value| with(json!([{"type": "function", "function": function}]));
    refused(&[
        (with(json!({})), "tools", "invalid type: map"),
        (with(json!([7])), "tools[0]", "must be an object"),
        (with(json!([{}])), "tools[0].type", "use \"function\""),
        (with(json!([{"type": "custom"}])), "tools[0].type", "\"custom\" is not supported"),
        (with(json!([{"type": "function"}])), "tools[0].function", "is missing"),
        (function(json!({})), "tools[0].function.name", "is missing"),
        (function(json!({"name": 7})), "tools[0].function.name", "must be a string"),
        (function(json!({"name": ""})), "tools[0].function.name", "use 1 to 64 letters"),
        (function(json!({"name": "a b"})), "tools[0].function.name", "\"a b\""),
        (function(json!({"name": long})), "tools[0].function.name", "use 1 to 64 letters"),
        (
            function(json!({"name": "f", "description": 7})),
            "tools[0].function.description",
            "must be a string",
        ),
        (
            function(json!({"name": "f", "parameters": "x"})),
            "tools[0].function.parameters",
            "must be a JSON schema",
        ),
        (with(json!([tool("f"), tool("f")])), "tools[1].function.name", "rename one"),
        (chosen(json!("any")), "tool_choice", "\"any\" is not known; use \"none\""),
        (chosen(json!(7)), "tool_choice", "7 is not known"),
        (chosen(json!({})), "tool_choice", "without a type"),
        (chosen(json!({"type": "allowed_tools"})), "tool_choice", "allowed_tools"),
        (chosen(json!({"type": "function"})), "tool_choice.function", "is missing"),
        (chosen(tool("g")), "tool_choice.function.name", "\"g\" is not among the `tools`"),
        (without_tools, "tool_choice", "there are no `tools`"),
    ]);
    let mut parallel = with(json!([tool("f")]));
    parallel["parallel_tool_calls"] = json!("no");
    refused(&[(parallel, "parallel_tool_calls", "expected a boolean")]);
}

#[test]
fn bodies_that_are_no_json_are_refused() {
    for body in ["", "{", "[]", "{\"messages\": []} x", "\u{0}"] {
        let error = read::<ChatFields>(body.as_bytes()).expect_err(body);
        assert_eq!(error.param, "", "{body:?}: {error}");
    }
    let cut = read::<ChatFields>(b"{\"messages\": [{\"role\": \"us").unwrap_err();
    assert_eq!(cut.param, "messages[0].role");
}

#[test]
fn legal_shapes_are_taken() {
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let all = messages(json!([
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": parts, "name": "ann"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": []},
        {"role": "assistant", "refusal": "No.", "content": null, "annotations": [], "audio": null},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "Never."}]},
        {"role": "assistant", "content": "2", "reasoning_content": "add", "tool_calls": null},
    ]));
    let texts: Vec<_> = all.iter().map(|m| (m.role.as_str(), m.content.as_deref())).collect();
    let expected = [
        ("system", Some("Be brief.")),
        ("user", Some("a\nb")),
        ("assistant", Some("")),
        ("user", Some("")),
        ("assistant", Some("No.")),
        ("assistant", Some("Never.")),
        ("assistant", Some("2")),
    ];
    assert_eq!(texts, expected);
    assert_eq!(all[1].extra["name"], "ann");
    assert_eq!(json!(all[4].extra), json!({"annotations": []}));
    assert_eq!(json!(all[6].extra), json!({"reasoning_content": "add"}));
}

#[test]
fn tool_turns_are_kept() {
    let all = messages(json!([
        {"role": "user", "content": "?"},
        {"role": "assistant", "tool_calls": [call("c"), call("d")]},
        {"role": "tool", "tool_call_id": "d", "content": [{"type": "text", "text": "2"}]},
        {"role": "tool", "tool_call_id": "c", "content": "1", "name": "own"},
    ]));
    assert_eq!(
        (all[1].content.as_deref(), &all[1].extra["tool_calls"]),
        (None, &json!([call("c"), call("d")]))
    );
    assert_eq!(json!(all[2].extra), json!({"tool_call_id": "d", "name": "f"}));
    assert_eq!((all[2].content.as_deref(), &all[3].extra["name"]), (Some("2"), &json!("own")));
}

#[test]
fn templates_that_take_nine_letters_get_nine_letters() {
    let body = json!({"messages": [
        {"role": "user", "content": "?"},
        {"role": "assistant", "tool_calls": [call("call_VvvODy9mTVvvODy9mTVvvODy"), call("call00001")]},
        {"role": "tool", "tool_call_id": "call_VvvODy9mTVvvODy9mTVvvODy", "content": "1"},
        {"role": "tool", "tool_call_id": "call00001", "content": "1"}]});
    let fields: ChatFields = read(body.to_string().as_bytes()).expect("parses");
    let all = fields.prepare(&dialect(&MISTRAL)).expect("a good request").messages;
    let id = all[1].extra["tool_calls"][0]["id"].as_str().expect("an id");
    assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
    assert_eq!(all[2].extra["tool_call_id"], id);
    assert_eq!(all[1].extra["tool_calls"][1]["id"], "call00001");
    assert_eq!(all[3].extra["tool_call_id"], "call00001");
}

#[test]
fn tools_reach_the_template_as_they_are_unless_they_may_not_be_called() {
    let strict = json!({"type": "function", "x": 1, "function": {
        "strict": true, "name": "f", "parameters": {"type": "object", "properties": {}}}});
    let mut body = json!({"messages": [{"role": "user", "content": "?"}], "tools": [strict],
        "chat_template_kwargs": {"enable_thinking": false}});
    let prepared = prepare(&body).expect("a good request");
    assert_eq!(json!(prepared.options.tools).to_string(), json!([strict]).to_string());
    assert_eq!(json!(prepared.options.extra), json!({"enable_thinking": false}));
    assert!(matches!(prepared.constraint, Constraint::Strict(..)), "it may call");
    body["tool_choice"] = json!("none");
    assert!(prepare(&body).expect("a good request").options.tools.is_empty());
    body["tools"] = json!([]);
    assert!(prepare(&body).expect("a good request").options.tools.is_empty());
}

#[test]
fn the_last_message_may_go_on() {
    let body = |last: Value| {
        json!({"continue_final_message": true,
        "messages": [{"role": "user", "content": "?"}, last]})
    };
    let prepared = prepare(&body(json!({"role": "assistant", "content": "Well, "})));
    assert_eq!(prepared.expect("a good request").options.ending, Ending::ContinueFinal);
    refused(&[
        (body(json!({"role": "user", "content": "?"})), "continue_final_message", "send one"),
        (
            body(json!({"role": "assistant", "tool_calls": [call("c")]})),
            "continue_final_message",
            "leave the field out",
        ),
    ]);
}

/// The answer's deltas, after a prompt that ends with `tail`.
fn answer(body: &Value, tail: &str, text: &str) -> Vec<Delta> {
    let prepared = prepare(body).expect("a good request");
    let mut splitter = prepared.splitter(tail, CallIds::new("chatcmpl-1", 0));
    let mut deltas = splitter.push(text);
    deltas.extend(splitter.finish());
    deltas
}

#[test]
fn answers_are_read_as_the_request_says() {
    let content = |text: &str| Delta::Content(text.into());
    let reasoning = |text: &str| Delta::Reasoning(text.into());
    let mut body = json!({"messages": [{"role": "user", "content": "?"}]});
    let prompt = "<|im_start|>assistant\n";
    let thought = "<think>\na\n</think>\n\nb";
    assert_eq!(answer(&body, prompt, thought), [reasoning("a"), content("b")]);
    assert_eq!(
        answer(&body, "<|im_start|>assistant\n<think>\n", "a\n</think>\n\nb"),
        [reasoning("a"), content("b")]
    );
    // Thinking was switched off by a block that the template closed.
    assert_eq!(answer(&body, "<think>\n\n</think>\n\n", "b"), [content("b")]);
    // Calls count where tools were offered.
    let call = "<tool_call>{\"name\": \"g\"}</tool_call>";
    assert_eq!(answer(&body, prompt, call), [content(call)]);
    body["tools"] = json!([tool("f")]);
    let [Delta::ToolCall { name, .. }, _] = &answer(&body, prompt, call)[..] else {
        panic!("a call of a function that was not offered is a call");
    };
    assert_eq!(name, "g");
    body["tool_choice"] = tool("f");
    assert_eq!(answer(&body, prompt, call), [content(call)]);
    body["tool_choice"] = json!("none");
    assert_eq!(answer(&body, prompt, call), [content(call)]);
    body["separate_reasoning"] = json!(false);
    assert_eq!(answer(&body, prompt, thought), [content(thought)]);
}

#[test]
fn a_continued_message_may_be_inside_its_reasoning() {
    let body = |content: &str| {
        json!({"continue_final_message": true, "messages": [
        {"role": "user", "content": "?"}, {"role": "assistant", "content": content}]})
    };
    let inside = answer(&body("<think>\nLet me"), "Let me", " see</think>ok");
    assert_eq!(inside, [Delta::Reasoning(" see".into()), Delta::Content("ok".into())]);
    let behind = answer(&body("<think>\nLet me</think>So"), "So", " it is");
    assert_eq!(behind, [Delta::Content(" it is".into())]);
}
