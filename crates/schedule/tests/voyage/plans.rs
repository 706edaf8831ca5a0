//! Planned steps written out, and who is served when not all fit.

use crate::device::{Pace, Quality, Voyage, options, prompt, request};
use schedule::{
    Absorb, Admission, FinishReason, PromptLogProbs, Reject, Request, SchedulerOptions, Shortage,
    Speculation, StepPlan, Then, Work,
};

/// A step as text: `id: work, pages, absorb`, then what the page table lacks.
fn written(plan: &StepPlan) -> String {
    let mut lines = Vec::new();
    for row in &plan.rows {
        let work = match &row.work {
            Work::Block { width, .. } => format!("block of {width}"),
            Work::Chunk { tokens, start, then } => {
                let then = match then {
                    Then::Continue => "",
                    Then::Choose => " and choose",
                    Then::End => " and end",
                };
                format!("chunk {start}..{}{then}", start + tokens.len())
            }
        };
        let absorb = match row.absorb {
            Absorb::Keep => "",
            Absorb::Skip => ", not absorbed",
        };
        lines.push(format!("{}: {work}, {} pages{absorb}", row.id, row.pages));
    }
    for write in plan.table.iter() {
        lines.push(format!("table[{}][{}..] = {:?}", write.row, write.first, write.pages));
    }
    lines.join("\n")
}

fn steps(voyage: &mut Voyage, count: usize) -> Vec<String> {
    let step = |voyage: &mut Voyage| {
        voyage.turn();
        voyage.flying.as_ref().map_or_else(String::new, |flight| written(&flight.plan))
    };
    (0..count).map(|_| step(voyage)).collect()
}

#[test]
fn blocks_and_chunks_share_a_step() {
    let options = SchedulerOptions { step_tokens: 12, width: 4, ..options(4, 32) };
    let mut voyage = Voyage::new(options, Quality::Wrong, Pace::Early);
    voyage.submit(1, request(prompt(1, 6), 20));
    let first = steps(&mut voyage, 2);
    assert_eq!(first[0], "1: chunk 0..6 and choose, 2 pages\ntable[0][0..] = [0, 1]");
    assert_eq!(first[1], "1: block of 4, 3 pages\ntable[0][2..] = [2]");
    let undrafted = Speculation::Off;
    voyage.submit(2, Request { speculation: undrafted, ..request(prompt(2, 21), 3) });
    let second = steps(&mut voyage, 4);
    assert_eq!(
        second[0],
        "1: block of 4, 4 pages\n\
         2: chunk 0..8, 2 pages, not absorbed\n\
         table[0][3..] = [9]\n\
         table[1][0..] = [3, 4, 5, 6, 7, 8]"
    );
    assert_eq!(second[1], "1: block of 4, 4 pages\n2: chunk 8..16, 4 pages, not absorbed");
    assert_eq!(
        second[2],
        "1: block of 4, 4 pages\n\
         2: chunk 16..21 and choose, 6 pages, not absorbed"
    );
    assert_eq!(
        second[3],
        "1: block of 4, 5 pages\n\
         2: block of 1, 6 pages, not absorbed\n\
         table[0][4..] = [10]"
    );
}

#[test]
fn a_second_turn_computes_what_the_first_did_not() {
    let options = SchedulerOptions { width: 4, ..options(4, 32) };
    let mut voyage = Voyage::new(options, Quality::Perfect, Pace::Early);
    voyage.submit(1, request(prompt(1, 10), 3));
    voyage.finish();
    let said = voyage.got[&1].tokens.clone();
    voyage.submit(2, request([prompt(1, 10), said, vec![1, 2]].concat(), 4));
    assert_eq!(
        steps(&mut voyage, 1),
        ["2: chunk 12..15 and choose, 4 pages\ntable[0][0..] = [0, 1, 2, 3]"]
    );
}

/// A prompt whose tokens are to be reported is computed from the row before the first of them on,
/// whatever is cached; its pages serve others all the same.
#[test]
fn what_is_to_be_reported_is_computed_again() {
    let options = SchedulerOptions { step_tokens: 8, ..options(4, 32) };
    let mut voyage = Voyage::new(options, Quality::Perfect, Pace::Early);
    let undrafted = Request { speculation: Speculation::Off, ..request(prompt(1, 14), 0) };
    let reporting = |from| {
        let prompt_logprobs = Some(PromptLogProbs { from, top: 0 });
        Request { prompt_logprobs, ..undrafted.clone() }
    };
    let mut chunks = |id, request| {
        voyage.submit(id, request);
        let mut chunks = Vec::new();
        while !voyage.idle() {
            voyage.turn();
            let rows = voyage.flying.iter().flat_map(|flight| &flight.plan.rows);
            chunks.extend(rows.map(|row| {
                let first = row.scores.as_ref().map(|scores| scores.first);
                let Work::Chunk { start, then, .. } = row.work else { panic!("no output") };
                (start, first, then == Then::End)
            }));
        }
        assert_eq!(voyage.got[&id].finish, Some(FinishReason::Length));
        chunks
    };
    assert_eq!(chunks(1, reporting(0)), [(0, Some(0), false), (8, Some(9), true)]);
    assert_eq!(chunks(2, undrafted.clone()), [(12, None, true)]);
    assert_eq!(chunks(3, reporting(0)), [(0, Some(0), false), (8, Some(9), true)]);
    assert_eq!(chunks(4, reporting(9)), [(8, Some(9), true)]);
    assert_eq!(chunks(5, reporting(8)), [(4, Some(8), false), (12, Some(13), true)]);
    assert_eq!(chunks(6, reporting(13)), [(12, Some(13), true)]);
}

#[test]
fn the_last_block_is_narrower() {
    let mut voyage = Voyage::new(options(16, 8), Quality::Perfect, Pace::Early);
    voyage.submit(1, request(prompt(1, 10), 6));
    let all = steps(&mut voyage, 3);
    // Of 16 tokens the first 15 need KV, so five come after the prompt.
    assert_eq!(all[1], "1: block of 5, 1 pages");
    assert_eq!(all[2], "1: block of 4, 1 pages", "the block before adds one at least");
}

#[test]
fn higher_priority_goes_first_and_arrival_decides_among_equals() {
    let options = SchedulerOptions { max_running: 1, ..options(16, 32) };
    let mut voyage = Voyage::new(options, Quality::Mixed, Pace::Early);
    let with = |priority| Request { priority, ..request(prompt(1, 10), 4) };
    for (id, priority) in [(0, 0), (1, 0), (2, 5), (3, -5), (4, 5), (5, 0)] {
        voyage.submit(id, with(priority));
    }
    let mut ended = Vec::new();
    while !voyage.idle() {
        voyage.turn();
        let new = |id: &u64| voyage.got[id].finish.is_some() && !ended.contains(id);
        let new: Vec<u64> = (0..6).filter(new).collect();
        ended.extend(new);
    }
    assert_eq!(ended, [2, 4, 0, 1, 5, 3]);
}

#[test]
fn admission_is_a_value() {
    let options = SchedulerOptions { max_running: 1, max_waiting: 2, ..options(16, 4) };
    let mut voyage = Voyage::new(options, Quality::Mixed, Pace::Early);
    let small = request(prompt(1, 10), 40);
    let admission = |voyage: &Voyage, request: &Request| voyage.scheduler.admission(request);
    assert_eq!(admission(&voyage, &small), Admission::Admit);
    let rejected = admission(&voyage, &request(vec![], 4));
    let Admission::Reject(Reject::Invalid(error)) = rejected else { panic!("{rejected:?}") };
    assert_eq!(error.field, "prompt");
    voyage.submit(0, small.clone());
    voyage.turn();
    assert_eq!(admission(&voyage, &small), Admission::Wait(Shortage::Rows));
    voyage.submit(1, small.clone());
    assert_eq!(admission(&voyage, &small), Admission::Wait(Shortage::Turn));
    assert_eq!(
        admission(&voyage, &Request { priority: 1, ..small.clone() }),
        Admission::Wait(Shortage::Rows)
    );
    voyage.submit(2, small.clone());
    let full = voyage.scheduler.submit(3, small.clone()).unwrap_err();
    assert_eq!(full, Reject::QueueFull { limit: 3 });
    assert!(full.to_string().contains("max_waiting"), "{full}");
    voyage.cancel(1);
    voyage.submit(3, small);
    voyage.finish();
}

#[test]
fn a_long_prompt_does_not_starve_decoding_nor_decoding_a_prompt() {
    let options = SchedulerOptions { step_tokens: 16, width: 8, ..options(16, 256) };
    let mut voyage = Voyage::new(options, Quality::Wrong, Pace::Early);
    (0..4).for_each(|id| voyage.submit(id, request(prompt(id as u32, 4), 100)));
    (0..4).for_each(|_| voyage.turn());
    voyage.submit(9, request(prompt(9, 2000), 1));
    let mut chunks = 0;
    for _ in 0..30 {
        voyage.turn();
        let plan = &voyage.flying.as_ref().expect("there is work").plan;
        let blocks = plan.rows.iter().filter(|row| matches!(row.work, Work::Block { .. }));
        assert_eq!(blocks.count(), 4, "all decode in every step");
        let chunk = plan.rows.iter().find(|row| row.id == 9).expect("the prompt has its share");
        assert_eq!(plan.tokens(), 16, "the budget is used");
        chunks += chunk.work.tokens();
    }
    assert!(chunks >= 30 * 8, "half of each step is the prompt's");
    voyage.cancel(9);
    voyage.finish();
}

#[test]
fn requests_take_turns_when_a_step_has_no_room_for_all() {
    let options = SchedulerOptions { step_tokens: 4, ..options(16, 64) };
    let mut voyage = Voyage::new(options, Quality::Wrong, Pace::Early);
    (0..10).for_each(|id| voyage.submit(id, request(prompt(id as u32, 2), 40)));
    let mut served = [0; 10];
    for turn in 0..60 {
        voyage.turn();
        let plan = &voyage.flying.as_ref().expect("there is work").plan;
        assert!(plan.tokens() <= 4);
        if turn >= 10 {
            plan.rows.iter().for_each(|row| served[row.id as usize] += 1);
        }
    }
    // 50 steps of 4 rows for 10 requests.
    assert!(served.iter().all(|&steps| (19..=21).contains(&steps)), "{served:?}");
    voyage.finish();
}
