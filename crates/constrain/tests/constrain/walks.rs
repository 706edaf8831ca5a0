//! Random walks: what a matcher allows is what it takes in, and what it took back never happened.

use crate::common::{SIZE, compile, grammars, next};
use constrain::{End, Grammar, Matcher};
use proptest::prelude::*;

fn some_grammars() -> Vec<Grammar> {
    let through = Grammar::Through("</think>".into());
    let nested = r##"{"type": "object", "properties": {
        "n": {"type": ["integer", "null"], "minimum": -3},
        "e": {"enum": ["ab", "abc", "name"]},
        "a": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}
    }, "required": ["e"], "additionalProperties": {"type": "boolean"}}"##;
    vec![
        Grammar::json_object(),
        Grammar::Json(nested.into()),
        Grammar::Regex("(ab|abc)*[0-9]{2,4}( +true)?".into()),
        Grammar::Lark("start: e\ne: e \"+\" e | \"(\" e \")\" | /[0-9]+/ | \"ab\"".into()),
        Grammar::Sequence(vec![through, Grammar::gap(), Grammar::json_object()]),
        Grammar::choice(["a", "ab", "abc", "abcabc", ""]),
        // Counting to its end takes tokens that a lexer must not take back wrongly.
        Grammar::Lark("start: word \"!\"\nword[max_tokens=3]: /[a-z]+/".into()),
    ]
}

/// One of the ids that may come next, or `None` at an end.
fn step(matcher: &mut Matcher, die: u32) -> Option<u32> {
    let ids = next(matcher).0;
    (!ids.is_empty()).then(|| ids[die as usize % ids.len()])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// After drafts were taken in and back, right ones and wrong ones, a matcher allows what one
    /// does that never saw them.
    #[test]
    fn drafts_leave_no_trace(
        which in 0usize..7,
        dice in prop::collection::vec(any::<u32>(), 1..24),
        drafts in prop::collection::vec(0u32..SIZE + 40, 0..5),
    ) {
        let compiled = compile(&some_grammars()[which]);
        // Of a grammar compiled for itself, so that not even a cache is shared.
        let mut plain = compile(&some_grammars()[which]).matcher();
        let mut drafted = compiled.matcher();
        for (i, &die) in dice.iter().enumerate() {
            prop_assert_eq!(next(&mut plain), next(&mut drafted), "at {}", i);
            // A true draft first, so that the next ones are tried from where it leads.
            let tried = step(&mut drafted, die.rotate_left(9)).into_iter();
            let tried = tried.chain(drafts.iter().copied());
            let taken = tried.take_while(|&draft| {
                let taken = drafted.advance(draft);
                if taken {
                    next(&mut drafted);
                }
                taken
            });
            let taken = taken.count();
            drafted.rewind(taken);
            let Some(token) = step(&mut plain, die) else { break };
            prop_assert!(plain.advance(token), "{} is allowed", token);
            prop_assert!(drafted.advance(token), "{} is allowed", token);
        }
    }

    /// A token is allowed exactly when it is taken in.
    #[test]
    fn masks_say_what_is_taken(
        which in 0usize..6,
        dice in prop::collection::vec(any::<u32>(), 1..16),
    ) {
        let mut matcher = compile(&some_grammars()[which]).matcher();
        for die in dice {
            let (ids, _) = next(&mut matcher);
            for id in 0..SIZE + 40 {
                let taken = matcher.advance(id);
                matcher.rewind(usize::from(taken));
                prop_assert_eq!(taken, ids.contains(&id), "{}", id);
            }
            let Some(token) = step(&mut matcher, die) else { break };
            prop_assert!(matcher.advance(token));
        }
    }
}

#[test]
fn every_walk_can_end() {
    for grammar in some_grammars() {
        let mut matcher = grammars().compile(&grammar).expect("it is a grammar").matcher();
        for die in 0..400u32 {
            let (ids, end) = next(&mut matcher);
            if ids.is_empty() {
                assert_eq!(end, End::May, "{grammar:?} is stuck");
                break;
            }
            let token = ids[die.wrapping_mul(0x9e37_79b9) as usize % ids.len()];
            assert!(matcher.advance(token));
        }
    }
}
