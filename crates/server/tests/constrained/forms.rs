//! Expressions, choices, grammars, calls and reasoning, on the real pair, beside requests that may
//! say anything.

use crate::{engine, pair, request, same_with_drafts};
use constrain::{Grammar, Prose, ProseEnd};
use engine::{FinishReason, Limits, Request, Sampling, Stops};
use server::Grammars;

/// Whether a text is what its grammar says, by plain code.
type Judge = fn(&str) -> bool;

fn forms() -> Vec<(Grammar, Judge)> {
    let sum = "start: n (\"+\" n)~1..3 \"=\" n\nn: /[1-9][0-9]?/\n";
    let call = Grammar::Sequence(vec![
        Grammar::Text("<tool_call>\n{\"name\": \"f\", \"arguments\": ".into()),
        Grammar::Json("{\"type\": \"object\", \"additionalProperties\": false}".into()),
        Grammar::Text("}\n</tool_call>".into()),
    ]);
    let mark = || "<tool_call>".to_owned();
    let prose = |end| Grammar::Prose(Prose { mark: mark(), head: None, end });
    let called = Grammar::Sequence(vec![
        prose(ProseEnd::Mark),
        Grammar::Text("\n{\"name\": \"f\"}\n</tool_call>".into()),
    ]);
    let prose = Grammar::Choice(vec![called, prose(ProseEnd::NoMark)]);
    let thought = Grammar::Sequence(vec![
        Grammar::Text("<think>".into()),
        Grammar::Regex("[a-z ]{0,20}".into()),
        Grammar::Through("</think>".into()),
        Grammar::gap(),
        Grammar::choice(["yes", "no"]),
    ]);
    let way = "root ::= city \": \" [1-9] [0-9]{0,2} unit\ncity ::= [A-Z] [a-z]{2,8}\n\
               unit ::= \" km\" | \" miles\"";
    let lists = "root ::= \"[\" (item (\", \" item){0,2})? \"]\"\nitem ::= [1-9] [0-9]? | root";
    vec![
        (Grammar::Ebnf(way.into()), |text| {
            let (city, way) = text.split_once(": ").expect("a colon");
            city.len() >= 3 && (way.ends_with(" km") || way.ends_with(" miles"))
        }),
        (Grammar::Ebnf(lists.into()), |text| {
            serde_json::from_str::<serde_json::Value>(text).is_ok_and(|value| value.is_array())
        }),
        (Grammar::Regex("[A-Z][a-z]{2,5} [0-9]{3}".into()), |text| {
            let (word, number) = text.split_once(' ').expect("a space");
            number.len() == 3 && (3..=6).contains(&word.len())
        }),
        (Grammar::choice(["Paris", "Rome", "Oslo"]), |text| {
            ["Paris", "Rome", "Oslo"].contains(&text)
        }),
        (Grammar::Lark(sum.into()), |text| text.contains('+') && text.matches('=').count() == 1),
        (call, |text| {
            let inner = text.strip_prefix("<tool_call>\n").expect("an opening marker");
            let inner = inner.strip_suffix("\n</tool_call>").expect("a closing marker");
            serde_json::from_str::<serde_json::Value>(inner).is_ok()
        }),
        (prose, |text| {
            let call = text.split_once("<tool_call>");
            call.is_none_or(|(_, call)| call == "\n{\"name\": \"f\"}\n</tool_call>")
        }),
        (thought, |text| {
            let (thought, said) = text.rsplit_once("</think>").expect("a thought");
            thought.starts_with("<think>") && ["yes", "no"].contains(&said.trim())
        }),
    ]
}

#[test]
fn every_form_is_kept_to_and_its_neighbours_notice_nothing() {
    let pair = pair();
    let grammars = Grammars::new(pair.tokenizer.clone());
    let free = |seed| request(&pair, "Give the capital of Japan as JSON.", None, seed);
    let forms = forms();
    let mut requests = Vec::new();
    for temperature in [0.0, 1.0] {
        for (seed, (grammar, _)) in forms.iter().enumerate() {
            let compiled = grammars.compile(grammar).expect("a good grammar");
            let one = request(&pair, "Answer in short.", Some(compiled), seed as u64);
            let sampling = Sampling { temperature, ..one.sampling };
            // Without an end of text among its stops, a text ends where it is whole.
            let limits = Limits { max_tokens: Some(64), ..one.limits };
            let endless = Request { sampling, limits, stops: Stops::default(), ..one };
            let sampling = endless.sampling;
            let stops = Stops { ids: pair.tokenizer.end_ids().to_vec(), strings: vec![] };
            requests.push(Request { sampling, stops, ..endless.clone() });
            requests.push(endless);
        }
        requests.push(free(7));
    }
    let alone = vec![free(7)];
    let mut engine = engine(pair);
    let alone = engine.run(alone).expect("runs");
    let outputs = same_with_drafts(&mut engine, requests);
    for (i, output) in outputs.iter().enumerate() {
        let Some((grammar, judge)) = forms.get(i % (2 * forms.len() + 1) / 2) else {
            assert_eq!(output.ids(), alone[0].ids(), "a neighbour's answer");
            continue;
        };
        if output.reason != FinishReason::Length {
            assert_eq!(output.reason, FinishReason::Stop, "{grammar:?}: {:?}", output.text);
            assert!(judge(&output.text), "{grammar:?}: {:?}", output.text);
        }
    }
    let whole = outputs.iter().filter(|output| output.reason == FinishReason::Stop).count();
    // All but the two that may say anything, the four that are prose, the four whose thoughts may go on and
    // the four whose lists may nest.
    assert!(whole >= 20, "{whole} of {} came to their end", outputs.len());
    assert!(engine.counters().times.masks > std::time::Duration::ZERO, "masks are counted");
}
