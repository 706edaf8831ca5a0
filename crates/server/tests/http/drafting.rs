//! What answers and the trace show of drafting: where tokens came from, which drafts were refused, and
//! when steps were where.

use crate::client::open_with;
use crate::site::{Script, Setup, Site};
use serde_json::{Value, json};
use server::ApiKey;

fn generate(width: usize, report: bool) -> Value {
    let speculation = match width {
        1 => json!({"enabled": false, "report": report}),
        _ => json!({"max_width": width, "report": report}),
    };
    json!({
        "text": "the sea ", "speculation": speculation,
        "sampling_params": {"max_new_tokens": 40, "temperature": 0.8, "seed": 3},
    })
}

fn list<'v>(meta: &'v Value, name: &str) -> &'v Vec<Value> {
    meta[name].as_array().unwrap_or_else(|| panic!("{name} in {meta}"))
}

/// Holds what an answer says about origins to what it says otherwise.
fn consistent(answer: &Value) {
    let meta = &answer["meta_info"];
    let drafted = list(meta, "output_token_drafted");
    assert_eq!(drafted.len(), list(answer, "output_ids").len());
    let pieces = list(meta, "output_segments");
    let text: String = pieces.iter().map(|piece| piece["text"].as_str().expect("text")).collect();
    assert_eq!(answer["text"], text);
    for refused in list(meta, "refused_drafts") {
        assert!(refused["id"].is_u64() && refused["token"].is_string(), "{refused}");
    }
}

#[test]
fn each_token_says_whether_it_was_drafted_and_refused_drafts_say_for_which_place() {
    let site = Site::tiny(Setup::default());
    let whole = site.ask("/generate", &generate(4, true));
    consistent(&whole);
    let meta = &whole["meta_info"];
    let drafted = list(meta, "output_token_drafted");
    let accepted = drafted.iter().filter(|own| **own == json!(true)).count();
    assert_eq!(meta["spec_accept_token_num"], accepted);
    let refused = list(meta, "refused_drafts");
    assert_eq!(meta["spec_draft_token_num"], accepted + refused.len());
    assert!(!refused.is_empty(), "a drafter of random weights is refused");
    let ids = list(&whole, "output_ids");
    let mut runs = 0;
    for (i, draft) in refused.iter().enumerate() {
        let place = |draft: &Value| draft["position"].as_u64().expect("a place") as usize;
        let at = place(draft);
        // Behind the refused draft before it, in the same pass; or the first of its pass.
        if i > 0 && place(&refused[i - 1]) + 1 == at && drafted[at - 1] == json!(false) {
            continue;
        }
        runs += 1;
        assert_eq!(drafted[at], json!(false), "the target chose another token at {at}");
        assert_ne!(draft["id"], ids[at]);
    }
    assert!(runs > 1);
    let mut streamed: [Vec<Value>; 3] = Default::default();
    for event in site.stream("/generate", &generate(4, true)) {
        consistent(&event);
        for (all, name) in
            streamed.iter_mut().zip(["output_token_drafted", "output_segments", "refused_drafts"])
        {
            all.extend(list(&event["meta_info"], name).clone());
        }
    }
    assert_eq!(&streamed[0], drafted);
    assert_eq!(&streamed[1], list(meta, "output_segments"));
    assert_eq!(&streamed[2], refused);
}

#[test]
fn without_drafting_every_token_is_the_targets_own_and_without_a_report_nothing_is_said() {
    let site = Site::tiny(Setup::default());
    let plain = site.ask("/generate", &generate(1, true));
    consistent(&plain);
    let meta = &plain["meta_info"];
    assert!(list(meta, "output_token_drafted").iter().all(|own| *own == json!(false)));
    assert_eq!(meta["refused_drafts"], json!([]));
    let silent = site.ask("/generate", &generate(4, false));
    assert_eq!(silent["output_ids"], plain["output_ids"]);
    for name in ["output_token_drafted", "output_segments", "refused_drafts"] {
        assert_eq!(silent["meta_info"].get(name), None);
    }
}

#[test]
fn blocks_that_are_accepted_whole_end_with_a_token_of_the_target() {
    let site = Site::scripted(Script::letters().in_blocks(4), Setup::default());
    let events = site.stream("/generate", &generate(4, true));
    let block = json!([true, true, true, false]);
    // The prompt's pass gives a token of the target; whole blocks follow.
    assert_eq!(events[0]["meta_info"]["output_token_drafted"], json!([false]));
    assert_eq!(events[1]["meta_info"]["output_token_drafted"], block);
    let pieces = list(&events[1]["meta_info"], "output_segments");
    let lengths: Vec<usize> =
        pieces.iter().map(|piece| piece["text"].as_str().expect("text").len()).collect();
    assert_eq!(lengths, [3, 1]);
    assert_eq!((&pieces[0]["drafted"], &pieces[1]["drafted"]), (&json!(true), &json!(false)));
    assert!(events.iter().all(|event| event["meta_info"]["refused_drafts"] == json!([])));
}

#[test]
fn the_trace_shows_the_newest_steps_by_lane() {
    let site = Site::scripted(Script::letters().in_blocks(4), Setup::default());
    let nothing = site.get("/trace/recent").json();
    assert_eq!(nothing["steps"], json!([]));
    let whole = site.ask("/generate", &generate(4, true));
    let trace = site.get("/trace/recent").json();
    assert_eq!(
        (&trace["num_requests_running"], &trace["num_requests_waiting"]),
        (&json!(0), &json!(0))
    );
    let steps = trace["steps"].as_array().expect("steps");
    let sum =
        |name: &str| steps.iter().map(|step| step[name].as_u64().expect("a count")).sum::<u64>();
    assert_eq!(sum("kept"), 40);
    assert_eq!(
        whole["meta_info"]["spec_accept_token_num"].as_u64().expect("a count"),
        sum("accepted")
    );
    let span = |span: &Value| -> [f64; 2] {
        serde_json::from_value(span.clone()).expect("a begin and an end")
    };
    let now = trace["now"].as_f64().expect("a time");
    for (number, step) in steps.iter().enumerate() {
        assert_eq!(step["step"], number);
        let [plan, land, commit] = ["plan", "land", "commit"].map(|part| span(&step["host"][part]));
        let forward = span(&step["lanes"]["forward"]);
        let copies = span(&step["lanes"]["copies"]);
        let order =
            [plan[0], forward[0], forward[1], copies[0], copies[1], land[1], commit[1], now];
        assert!(order.is_sorted(), "{step}");
        for part in ["draft", "verify", "absorb"] {
            assert!(step["parts"][part].as_f64().expect("seconds") >= 0.0);
        }
    }
}

#[test]
fn the_trace_takes_a_key_where_the_server_does() {
    let mut setup = Setup::default();
    setup.config.keys = vec![ApiKey::new("key").expect("a key")];
    let site = Site::scripted(Script::letters(), setup);
    assert_eq!(site.get("/trace/recent").refusal().0, 401);
    let own = [("authorization", "Bearer key")];
    assert_eq!(open_with(site.address, "GET", "/trace/recent", &own, b"").status, 200);
}
