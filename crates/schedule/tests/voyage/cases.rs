//! Failures of other engines as cases, by their ids in the project's list: `ov` overlap, `df`
//! DFlash, `rb` robustness.

use crate::device::{Pace, Quality, Voyage, options, prompt, request, serial};
use schedule::{
    Bounds, Commit, FinishReason, Origin, PromptLogProbs, Request, SchedulerOptions, Speculation,
    Stops, Text,
};

#[test]
fn ov_01_a_row_is_not_reused_while_a_launched_step_reads_it() {
    let mut reused = 0;
    for round in 0..200 {
        let options = SchedulerOptions { max_running: 2, width: 5, ..options(16, 24) };
        let context = options.bounds.context;
        let mut voyage = Voyage::new(options, Quality::Mixed, Pace::Late);
        let requests = [
            request(prompt(round, 5 + round as usize % 30), 9),
            request(prompt(round + 1, 20), 40),
            request(prompt(round + 2, 17), 20),
        ];
        voyage.submit(0, requests[0].clone());
        voyage.submit(1, requests[1].clone());
        while voyage.got[&0].finish.is_none() {
            voyage.turn();
        }
        reused += u32::from(voyage.in_flight(0));
        voyage.submit(2, requests[2].clone());
        voyage.finish();
        (0..3).for_each(|id| voyage.assert_serial(id as u64, &requests[id], context));
    }
    assert!(reused > 100, "in {reused} rounds only was the ended request in a launched step");
}

#[test]
fn ov_04_a_cancel_at_the_end_ends_a_request_once() {
    for round in 0..500 {
        let options = SchedulerOptions { width: 4, ..options(16, 64) };
        let mut voyage = Voyage::new(options, Quality::Mixed, Pace::Mixed);
        let requests: Vec<Request> =
            (0..16).map(|id| request(prompt(round + id, 3 + id as usize), 4)).collect();
        requests.iter().enumerate().for_each(|(id, r)| voyage.submit(id as u64, r.clone()));
        for turn in 0.. {
            if voyage.idle() {
                break;
            }
            voyage.turn();
            let ended = |voyage: &Voyage, id| voyage.got[&id].finish.is_some();
            for id in 0..16 {
                let now = match id % 3 {
                    // Between launch and result of its last step, or of one before.
                    0 => turn > round as usize % 3,
                    1 => ended(&voyage, id),
                    _ => turn == 2,
                };
                (0..2).filter(|_| now).for_each(|_| voyage.cancel(id));
            }
        }
        assert!(voyage.got.values().all(|got| got.finish.is_some()));
        voyage.submit(99, requests[0].clone());
        voyage.finish();
        voyage.assert_serial(99, &requests[0], 64 * 16 + 1);
    }
}

#[test]
fn ov_06_a_budget_for_one_block_serves_two_requests() {
    let options = SchedulerOptions { step_tokens: 8, width: 5, ..options(16, 32) };
    let context = options.bounds.context;
    let mut voyage = Voyage::new(options, Quality::Mixed, Pace::Mixed);
    let requests = [request(prompt(1, 4), 150), request(prompt(2, 4), 150)];
    voyage.submit(0, requests[0].clone());
    voyage.submit(1, requests[1].clone());
    for turn in 0..100 {
        voyage.turn();
        let Some(flight) = &voyage.flying else { break };
        assert!(flight.plan.tokens() <= 8);
        assert!(
            turn < 3
                || flight.plan.rows.len() == 2
                || voyage.got.values().any(|g| g.finish.is_some())
        );
    }
    voyage.finish();
    (0..2).for_each(|id| voyage.assert_serial(id as u64, &requests[id], context));
}

#[test]
fn ov_07_requests_that_do_not_fit_together_all_finish() {
    let options = options(16, 12);
    let context = options.bounds.context;
    let mut voyage = Voyage::new(options, Quality::Mixed, Pace::Mixed);
    let requests: Vec<Request> = (0..4).map(|id| request(prompt(id, 33), 32)).collect();
    requests.iter().enumerate().for_each(|(id, r)| voyage.submit(id as u64, r.clone()));
    voyage.finish();
    (0..4).for_each(|id| voyage.assert_serial(id as u64, &requests[id], context));
    assert!(voyage.scheduler.tally().retractions > 0, "the pool was tight");
}

#[test]
fn ov_07_a_request_beyond_the_pool_is_refused_and_the_next_one_served() {
    let bounds = Bounds { context: 2048, ..options(16, 4).bounds };
    let options = SchedulerOptions { bounds, ..options(16, 4) };
    let mut voyage = Voyage::new(options, Quality::Mixed, Pace::Mixed);
    let refused = voyage.scheduler.submit(0, request(prompt(0, 40), 100)).unwrap_err();
    assert!(refused.to_string().contains("max_tokens") && refused.to_string().contains("64"));
    let small = request(prompt(0, 8), 20);
    voyage.submit(1, small.clone());
    voyage.finish();
    voyage.assert_serial(1, &small, 2048);
}

#[test]
fn ov_08_slots_reserved_ahead_come_back() {
    for page_size in [1, 16, 64] {
        let mut voyage =
            Voyage::new(options(page_size, 512 / page_size), Quality::Mixed, Pace::Mixed);
        for id in 0..100 {
            voyage.submit(id, request(prompt(id as u32, 5), [1, 2, 9][id as usize % 3]));
            voyage.turn();
            if id % 3 == 2 {
                voyage.cancel(id - 1);
            }
        }
        voyage.finish();
        voyage.scheduler.flush();
        let pages = voyage.scheduler.pages();
        assert_eq!((pages.free, pages.cached, pages.in_use), (pages.total, 0, 0));
    }
}

/// A stop id whose first occurrence in the serial output is token `at`, and the seed for it.
fn stop_at(base: &Request, at: usize) -> Request {
    let with_seed = |seed| {
        let mut request = base.clone();
        request.sampling.seed = seed;
        request
    };
    (0..1000)
        .map(with_seed)
        .find_map(|request| {
            let (tokens, _) = serial(&request, 10_000);
            let first = tokens.iter().position(|token| *token == tokens[at])?;
            let stops = Stops { ids: vec![tokens[at]], strings: vec![] };
            (first == at).then_some(Request { stops, ..request })
        })
        .expect("some seed makes a token new")
}

#[test]
fn ov_10_a_stop_in_the_middle_of_a_block_ends_the_generation() {
    let options = options(1, 512);
    let context = options.bounds.context;
    // One token from the prompt, then blocks of 8: tokens 9 to 16 are the second block.
    for at in 10..15 {
        let request = stop_at(&request(prompt(3, 12), 40), at);
        let mut voyage = Voyage::new(options.clone(), Quality::Perfect, Pace::Mixed);
        voyage.submit(0, request.clone());
        voyage.finish();
        voyage.assert_serial(0, &request, context);
        let got = &voyage.got[&0];
        assert_eq!((got.tokens.len(), got.finish), (at, Some(FinishReason::Stop)));
        assert_eq!(got.committed, at, "the stop is looked at, what follows never happened");
        assert_eq!(voyage.scheduler.pages().cached, 12 + at, "prompt and output, nothing else");
    }
}

#[test]
fn ov_11_a_stop_comes_before_the_length_cap_in_the_same_block() {
    let block = [7, 8, 9, 50, 60, 61, 62, 63].map(|id| (id, Origin::Draft));
    for (stop, kept, finish) in
        [(50, 3, FinishReason::Stop), (62, 6, FinishReason::Length), (61, 5, FinishReason::Stop)]
    {
        let stops = Stops { ids: vec![stop], strings: vec![] };
        let committed = Commit::new(stops, 0..=6).offer(block, None, |_| b"", &mut Text::default());
        assert_eq!((committed.kept, committed.finish), (kept, Some(finish)), "stop {stop}");
    }
}

#[test]
fn ov_12_every_length_cap_is_exact() {
    for max_tokens in 1..=17 {
        let options = options(16, 32);
        let context = options.bounds.context;
        let mut voyage = Voyage::new(options, Quality::Perfect, Pace::Mixed);
        let request = request(prompt(5, 10), max_tokens);
        voyage.submit(0, request.clone());
        voyage.finish();
        voyage.assert_serial(0, &request, context);
        let got = &voyage.got[&0];
        // The first token comes from the prompt, all others from verify passes.
        assert_eq!((got.tokens.len(), got.committed), (max_tokens, max_tokens - 1));
    }
}

#[test]
fn df_03_newcomers_on_a_shared_prefix_write_none_of_its_pages() {
    let options = SchedulerOptions { width: 16, ..options(16, 128) };
    let context = options.bounds.context;
    let mut voyage = Voyage::new(options, Quality::Perfect, Pace::Mixed);
    let prefix = prompt(4, 64);
    voyage.submit(100, request([prefix.as_slice(), &[1]].concat(), 2));
    voyage.finish();
    let first = request([prefix.as_slice(), &[2, 3]].concat(), 300);
    voyage.submit(0, first.clone());
    voyage.turn();
    let shared =
        voyage.flying.as_ref().expect("a step was launched").launched[0].pages[..4].to_vec();
    voyage.turn();
    let before = voyage.device.contents(&shared);
    let full = |id: usize| request([prefix.as_slice(), &[id as u32]].concat(), 20);
    for id in 1..=8 {
        voyage.submit(id as u64, full(id));
        voyage.turn();
        assert_eq!(voyage.device.contents(&shared), before);
    }
    voyage.finish();
    assert_eq!(voyage.device.contents(&shared), before);
    voyage.assert_serial(0, &first, context);
    for id in 1..=8 {
        voyage.assert_serial(id as u64, &full(id), context);
        assert_eq!(voyage.got[&(id as u64)].cached, 64);
    }
    let tau = voyage.got[&0].committed as f64 / voyage.got[&0].passes as f64;
    assert!(tau > 15.0, "a perfect drafter keeps its acceptance length, not {tau}");
}

#[test]
fn df_06_a_request_ends_at_the_context_and_not_in_its_neighbours() {
    for page_size in [1, 16] {
        for round in 0..20 {
            let bounds = Bounds { context: 256, ..options(page_size, 1024 / page_size).bounds };
            let options =
                SchedulerOptions { bounds, width: 16, ..options(page_size, 1024 / page_size) };
            let mut voyage = Voyage::new(options, Quality::Mixed, Pace::Mixed);
            let requests = [
                request(prompt(round, 200), 1000),
                request(prompt(round + 1, 200 - round as usize), 1000),
                request(prompt(round + 2, 30), 100),
            ];
            requests.iter().enumerate().for_each(|(id, r)| voyage.submit(id as u64, r.clone()));
            voyage.finish();
            (0..3).for_each(|id| voyage.assert_serial(id as u64, &requests[id], 256));
            assert_eq!(voyage.got[&0].tokens.len(), 56);
            assert_eq!(voyage.got[&0].finish, Some(FinishReason::Length));
            voyage.scheduler.flush();
            assert_eq!(voyage.scheduler.pages().free, voyage.scheduler.pages().total);
        }
    }
}

#[test]
fn df_16_the_next_turn_finds_the_delivered_tokens_and_nothing_after_the_stop() {
    // The stop is the third token of the first block.
    let first = stop_at(&request(prompt(6, 20), 40), 3);
    let whole = serial(&Request { stops: Stops::default(), ..first.clone() }, 10_000).0;
    let mut voyage = Voyage::new(options(1, 512), Quality::Perfect, Pace::Mixed);
    voyage.submit(0, first.clone());
    voyage.finish();
    let delivered = voyage.got[&0].tokens.clone();
    assert_eq!(delivered, whole[..3]);
    let conversation = [first.prompt.as_slice(), &delivered].concat();
    let next = [conversation.as_slice(), &[49, 48, 47, 46, 45]].concat();
    voyage.submit(1, request(next, 5));
    // A prompt that goes on as the dropped part of the block did.
    voyage.submit(2, request([conversation.as_slice(), &whole[3..8], &[1]].concat(), 5));
    voyage.finish();
    assert_eq!([1, 2].map(|id| voyage.got[&id].cached), [conversation.len(); 2]);
}

/// Acceptance length over the last 10 passes of a request that a drafter serves perfectly, with
/// `pause` in force for 20 steps in the middle.
fn after_a_pause(pause: Speculation) -> (f64, u64) {
    let options = options(16, 128);
    let context = options.bounds.context;
    let mut voyage = Voyage::new(options, Quality::Perfect, Pace::Mixed);
    let request = request(prompt(2, 50), 600);
    voyage.submit(0, request.clone());
    (0..6).for_each(|_| voyage.turn());
    voyage.scheduler.set_speculation(0, pause).expect("the width is in range");
    (0..20).for_each(|_| voyage.turn());
    voyage.scheduler.set_speculation(0, Speculation::Auto).expect("the width is in range");
    (0..4).for_each(|_| voyage.turn());
    let (passes, committed) = (voyage.got[&0].passes, voyage.got[&0].committed);
    (0..10).for_each(|_| voyage.turn());
    let got = &voyage.got[&0];
    let tau = (got.committed - committed) as f64 / (got.passes - passes) as f64;
    voyage.finish();
    voyage.assert_serial(0, &request, context);
    (tau, voyage.scheduler.tally().recomputations)
}

#[test]
fn df_18_drafting_resumes_on_full_context_after_a_pause() {
    assert_eq!(after_a_pause(Speculation::Auto), (8.0, 0), "never paused");
    assert_eq!(after_a_pause(Speculation::Width(1)), (8.0, 0), "context was made all the same");
    assert_eq!(after_a_pause(Speculation::Off), (8.0, 1), "context was made anew");
}

#[test]
fn df_18_context_that_the_prefix_lacks_is_a_miss_and_then_made() {
    let mut voyage = Voyage::new(options(16, 64), Quality::Perfect, Pace::Mixed);
    let undrafted = Request { speculation: Speculation::Off, ..request(prompt(7, 40), 20) };
    let drafted = request(prompt(7, 40), 20);
    let mut cached = Vec::new();
    for (id, request) in [&undrafted, &undrafted, &drafted, &drafted].into_iter().enumerate() {
        voyage.submit(id as u64, request.clone());
        voyage.finish();
        voyage.assert_serial(id as u64, request, 64 * 16 + 1);
        cached.push(voyage.got[&(id as u64)].cached);
    }
    assert_eq!(cached, [0, 32, 0, 32]);
}

#[test]
fn df_18_drafting_turned_on_before_the_first_chunk_counts_the_prefix_as_a_miss() {
    let options = SchedulerOptions { step_tokens: 4, ..options(16, 64) };
    let mut voyage = Voyage::new(options, Quality::Perfect, Pace::Early);
    let undrafted = Request { speculation: Speculation::Off, ..request(prompt(7, 40), 20) };
    voyage.submit(0, undrafted.clone());
    voyage.finish();
    // A long prompt takes all the room, so the second request starts but computes nothing yet.
    voyage.submit(1, request(prompt(8, 200), 1));
    voyage.submit(2, undrafted.clone());
    voyage.turn();
    assert!(voyage.scheduler.load() == (0, 2) && !voyage.in_flight(2));
    voyage.scheduler.set_speculation(2, Speculation::Auto).expect("the width is in range");
    voyage.finish();
    voyage.assert_serial(2, &undrafted, 64 * 16 + 1);
    assert_eq!(voyage.scheduler.tally().recomputations, 1);
}

/// A request that is retracted while its prompt is read reports no token twice and loses none, and
/// finds what it has reported already in the cache.
#[test]
fn a_retracted_prompt_is_reported_once() {
    let mut retracted = 0;
    for from in [0, 1, 30, 69] {
        for page_size in [1, 4] {
            let options =
                SchedulerOptions { step_tokens: 2, ..options(page_size, 100 / page_size) };
            let context = options.bounds.context;
            let mut voyage = Voyage::new(options, Quality::Wrong, Pace::Mixed);
            let elder = Request { priority: 1, ..request(prompt(1, 4), 60) };
            let prompt_logprobs = Some(PromptLogProbs { from, top: 0 });
            let younger = Request { prompt_logprobs, ..request(prompt(2, 70), 5) };
            voyage.submit(0, elder.clone());
            voyage.submit(1, younger.clone());
            voyage.finish();
            retracted += voyage.scheduler.tally().retractions;
            voyage.assert_serial(0, &elder, context);
            voyage.assert_serial(1, &younger, context);
            assert_eq!(voyage.got[&1].reported, younger.prompt[from..], "from {from}");
        }
    }
    assert!(retracted >= 8, "{retracted} retractions of 8 prompts");
}

#[test]
fn rb_01_a_prompt_beyond_the_pool_blocks_nobody() {
    let bounds = Bounds { context: 2048, ..options(16, 40).bounds };
    let mut voyage =
        Voyage::new(SchedulerOptions { bounds, ..options(16, 40) }, Quality::Mixed, Pace::Mixed);
    let refused = voyage.scheduler.submit(0, request(vec![1; 900], 10)).unwrap_err();
    assert!(refused.to_string().contains("640"), "{refused}");
    let short = request(prompt(1, 10), 10);
    voyage.submit(1, short.clone());
    voyage.turn();
    assert!(voyage.in_flight(1), "it starts at once");
    for id in 2..22 {
        let long = request(prompt(id as u32, 284), 100);
        voyage.submit(id, long.clone());
        voyage.finish();
        voyage.assert_serial(id, &long, 2048);
    }
    voyage.assert_serial(1, &short, 2048);
}
