//! The page is well-formed whatever a report holds, and says what it must.

use super::super::args::Mode;
use super::super::compare::{Setting, Way};
use super::super::figures::{Blocked, Cache, Drafting, Figures, Kv, Percentiles, Point, Steps};
use super::super::play::Pacing;
use super::super::report::{LoadFacts, Machine, Model, Report, RunReport};
use super::page;
use device::Fence;

/// What a file or a command line might say.
const EVIL: &str = "</style><script>alert('&amp;')</script> \"quoted\" & <b>";

fn percentiles(scale: f64) -> Option<Percentiles> {
    Percentiles::of((1..=200).map(|i| scale * f64::from(i)).collect())
}

/// Figures of a run with some tokens, or with none at all.
fn figures(tokens: usize) -> Figures {
    let scale = |scale: f64| if tokens > 0 { percentiles(scale) } else { None };
    Figures {
        seconds: 2.0,
        requests: 3,
        prompt_tokens: 30,
        output_tokens: tokens,
        output_tokens_per_second: tokens as f64 / 2.0,
        requests_per_second: 1.5,
        ttft_ms: scale(1.0),
        itl_ms: scale(0.1),
        update_gap_ms: scale(0.2),
        end_to_end_ms: scale(10.0),
        queue_ms: scale(0.01),
        drafting: Drafting {
            tau: 2.5,
            passes: 10,
            committed: 25,
            drafted: tokens,
            accepted: vec![2, 3, 5],
            reached: vec![0.8, 0.5],
        },
        steps: Steps {
            count: 12,
            cycle_ms: scale(0.3),
            rows: 3.0,
            tokens: 9.0,
            draft_ms: 1.0,
            verify_ms: 2.0,
            absorb_ms: 0.5,
            blocked_ms: Blocked { land: 3.0, fence: 0.0 },
            planning_ms: 0.01,
            committing_ms: 0.02,
            launched_ahead_share: 1.0,
            device_idle_share: 0.1,
            card_idle_share: None,
        },
        cache: Cache { hit_share: 0.25, admitted_tokens: 30, cached_tokens: 8, retractions: 1 },
        kv: Kv { pages: 10, peak_share: 0.9, mean_share: 0.4 },
        itl_histogram: Vec::new(),
        timeline: vec![Point { seconds: 2.0, waiting: 1, running: 3, kv_share: 0.4 }],
    }
}

fn report(pacings: &[Pacing], tokens: usize, simulated: Option<&str>) -> Report {
    let run = |&pacing: &Pacing, mode| RunReport {
        pacing,
        setting: Setting {
            way: Way { mode, simulation: simulated.filter(|_| mode == Mode::Drafted).map(|_| 0) },
            fence: Fence::Fine,
        },
        load: pacing.to_string(),
        concurrency: match pacing {
            Pacing::Closed(open) => Some(open),
            _ => None,
        },
        mode: "",
        simulated_acceptance: simulated.filter(|_| mode == Mode::Drafted).map(str::to_owned),
        fence: "",
        repeat: 0,
        figures: figures(tokens),
        requests: Vec::new(),
    };
    let runs = pacings.iter().flat_map(|p| [Mode::Plain, Mode::Drafted].map(|mode| run(p, mode)));
    Report {
        schema: "",
        schema_version: 1,
        version: "0",
        command: EVIL.to_owned(),
        machine: Machine { cpu: EVIL.to_owned(), threads: 2 },
        model: Model {
            device: "cpu".to_owned(),
            target: EVIL.to_owned(),
            drafter: Some(EVIL.to_owned()),
            block: Some(16),
            width: Some(8),
            widths: "adaptive",
            context: 100,
            kv_tokens: 160,
        },
        load: LoadFacts {
            requests: 3,
            prompt_tokens: 30,
            max_tokens: 60,
            seed: 0,
            temperatures: [0.0, 0.7],
            ignore_eos: 3,
        },
        simulated_acceptance: simulated.map(str::to_owned),
        outputs_equal: true,
        runs: runs.collect(),
    }
}

/// Reads markup in which every element is closed and every attribute quoted, and gives the names of
/// its elements in order.
fn elements(page: &str) -> Vec<String> {
    let mut rest = page.strip_prefix("<!DOCTYPE html>").expect("a document type");
    let (mut open, mut all) = (Vec::new(), Vec::new());
    while let Some(at) = rest.find('<') {
        text(&rest[..at]);
        let end = at + rest[at..].find('>').expect("a tag ends");
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "what was opened last is closed first");
            continue;
        }
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        all.push(name.to_owned());
        let parts: Vec<&str> = attributes.split('"').collect();
        assert!(parts.len() % 2 == 1, "quotes come in pairs: {tag}");
        for pair in parts.chunks_exact(2) {
            let name = pair[0].trim().strip_suffix('=').expect("an attribute has a value");
            assert!(name.chars().all(|c| c.is_alphanumeric() || c == '-'), "{name} in {tag}");
            text(pair[1]);
        }
        match parts[parts.len() - 1].trim() {
            "/" => {}
            "" => open.push(name.to_owned()),
            other => panic!("{other:?} ends the tag {tag}"),
        }
    }
    assert_eq!(open, Vec::<String>::new(), "every element is closed");
    all
}

/// Demands text without markup.
fn text(text: &str) {
    assert!(!text.contains(['<', '>', '"']), "{text}");
    for (at, _) in text.match_indices('&') {
        let known = ["&amp;", "&lt;", "&gt;", "&quot;"];
        assert!(known.iter().any(|entity| text[at..].starts_with(entity)), "{text}");
    }
}

#[test]
fn every_page_is_well_formed_and_without_scripts() {
    let closed = [Pacing::Closed(1), Pacing::Closed(16)];
    for pacings in [&closed[..], &closed[..1], &[Pacing::Offline], &[Pacing::Arrivals(2.0)]] {
        for tokens in [0, 50] {
            for simulated in [None, Some(EVIL)] {
                let page = page(&report(pacings, tokens, simulated));
                let elements = elements(&page);
                assert!(!elements.iter().any(|name| name == "script"));
                assert!(elements.iter().filter(|name| *name == "svg").count() >= 7);
                assert!(!page.contains("NaN") && !page.contains("inf"), "places are numbers");
            }
        }
    }
}

#[test]
fn simulated_acceptance_is_labelled_and_real_acceptance_is_not() {
    let label = "Simulated acceptance";
    let real = page(&report(&[Pacing::Offline], 50, None));
    assert!(!real.to_lowercase().contains("simulated"));
    let simulated = page(&report(&[Pacing::Offline], 50, Some("τ 3")));
    assert!(simulated.contains(label) && simulated.contains("drafted (simulated acceptance)"));
}
