//! What is counted, for Prometheus. Names follow what operators know from vLLM, under our own
//! prefix; the book lists them.

use device::LaneId;
use engine::{Finished, Handle, Snapshot, Update};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// The prefix of every name.
const PREFIX: &str = "slipstream";

/// Type of the text that [`Metrics::text`] gives out.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The registry, and what is counted as it happens. The engine is asked when somebody reads.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Arc<Requests>,
    http: Family<HttpLabels, Counter>,
}

/// What is counted of generations.
struct Requests {
    prompt_tokens: Counter,
    generation_tokens: Counter,
    finished: Family<ReasonLabel, Counter>,
    first_token: Histogram,
    inter_token: Histogram,
    total: Histogram,
    queued: Histogram,
    drafts: Counter,
    draft_tokens: Counter,
    accepted_tokens: Counter,
    accepted_by_position: Family<PositionLabel, Counter>,
    committed_tokens: Counter,
}

/// Counts one generation, on the engine's thread.
pub(crate) struct Meter {
    requests: Arc<Requests>,
    last: Option<Instant>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    finished_reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PositionLabel {
    position: u32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct HttpLabels {
    handler: String,
    method: &'static str,
    status: u16,
}

/// Bounds of buckets, in seconds.
const FIRST_TOKEN: [f64; 15] =
    [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
const INTER_TOKEN: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0];
const WHOLE: [f64; 13] = [0.1, 0.3, 0.5, 0.8, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0];

impl Metrics {
    /// Everything at 0; `engine` is asked for the rest.
    pub(crate) fn new(engine: Handle) -> Metrics {
        let mut registry = Registry::with_prefix(PREFIX);
        let requests = Arc::new(Requests::register(&mut registry));
        let http = Family::<HttpLabels, Counter>::default();
        registry.register("http_requests", "Answers, by route, method and status", http.clone());
        registry.register_collector(Box::new(EngineCollector(engine)));
        Metrics { registry, requests, http }
    }

    /// For one generation.
    pub(crate) fn meter(&self) -> Meter {
        Meter { requests: self.requests.clone(), last: None }
    }

    /// Counts an answer. `handler` is a route, not a path: there are few of them.
    pub(crate) fn answered(&self, handler: &str, method: &'static str, status: u16) {
        let labels = HttpLabels { handler: handler.to_owned(), method, status };
        self.http.get_or_create(&labels).inc();
    }

    /// As Prometheus reads it.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("a String takes all text");
        text
    }
}

impl Requests {
    fn register(registry: &mut Registry) -> Requests {
        fn add<M>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M
        where
            M: Clone + prometheus_client::registry::Metric,
        {
            registry.register(name, help, metric.clone());
            metric
        }
        let mut seconds = |name: &str, help: &str, buckets: &[f64]| {
            let histogram = Histogram::new(buckets.iter().copied());
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
            histogram
        };
        let first_token = seconds("time_to_first_token", "Submission to first token", &FIRST_TOKEN);
        let inter_token =
            seconds("inter_token_latency", "Time between tokens after the first", &INTER_TOKEN);
        let total = seconds("e2e_request_latency", "Submission to last token", &WHOLE);
        let queued = seconds("request_queue_time", "Submission to first computation", &FIRST_TOKEN);
        Requests {
            first_token,
            inter_token,
            total,
            queued,
            prompt_tokens: add(registry, "prompt_tokens", "Prompt tokens", Counter::default()),
            generation_tokens: add(
                registry,
                "generation_tokens",
                "Tokens given out",
                Counter::default(),
            ),
            finished: add(registry, "request_success", "Ends, by reason", Family::default()),
            drafts: add(
                registry,
                "spec_decode_num_drafts",
                "Verify passes after the prompt",
                Counter::default(),
            ),
            draft_tokens: add(
                registry,
                "spec_decode_num_draft_tokens",
                "Drafts that verify passes looked at",
                Counter::default(),
            ),
            accepted_tokens: add(
                registry,
                "spec_decode_num_accepted_tokens",
                "Drafts that were accepted",
                Counter::default(),
            ),
            accepted_by_position: add(
                registry,
                "spec_decode_num_accepted_tokens_per_pos",
                "Accepted drafts, by their place in the block, from 0",
                Family::default(),
            ),
            committed_tokens: add(
                registry,
                "spec_decode_num_committed_tokens",
                "Tokens that verify passes committed, bonus tokens included: over the passes this is \
                 the acceptance length",
                Counter::default(),
            ),
        }
    }
}

impl Meter {
    /// Counts what a step brought.
    pub(crate) fn update(&mut self, update: &Update) {
        let tokens = update.tokens.len();
        self.requests.generation_tokens.inc_by(tokens as u64);
        if tokens > 0 {
            let now = Instant::now();
            // A step commits several tokens at once: each took its share of the time.
            if let Some(last) = self.last {
                let each = (now - last).as_secs_f64() / tokens as f64;
                (0..tokens).for_each(|_| self.requests.inter_token.observe(each));
            }
            self.last = Some(now);
        }
        if let Some(finished) = &update.finished {
            self.finished(finished);
        }
    }

    fn finished(&self, finished: &Finished) {
        let (Finished { reason, stats }, requests) = (finished, &self.requests);
        let label = ReasonLabel { finished_reason: reason.name() };
        requests.finished.get_or_create(&label).inc();
        requests.prompt_tokens.inc_by(stats.prompt_tokens as u64);
        requests.queued.observe(stats.queued.as_secs_f64());
        requests.total.observe(stats.total.as_secs_f64());
        if stats.output_tokens > 0 {
            requests.first_token.observe(stats.first_token.as_secs_f64());
        }
        requests.drafts.inc_by(stats.steps as u64);
        requests.draft_tokens.inc_by(stats.drafted as u64);
        requests.committed_tokens.inc_by(stats.committed as u64);
        requests.accepted_tokens.inc_by(stats.accepted_drafts() as u64);
        for (position, passes) in by_position(&stats.accepted).into_iter().enumerate() {
            let label = PositionLabel { position: position as u32 };
            requests.accepted_by_position.get_or_create(&label).inc_by(passes as u64);
        }
    }
}

/// Passes that accepted the draft at each place of the block, from passes by how many they accepted.
pub(crate) fn by_position(accepted: &[usize]) -> Vec<usize> {
    let mut places = vec![0; accepted.len().saturating_sub(1)];
    let mut passes = 0;
    for (place, count) in places.iter_mut().zip(accepted.iter().skip(1)).rev() {
        passes += count;
        *place = passes;
    }
    places
}

/// Asks the engine when somebody reads.
struct EngineCollector(Handle);

impl fmt::Debug for EngineCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineCollector")
    }
}

impl Collector for EngineCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let snapshot = self.0.snapshot();
        gauges(&snapshot, &mut encoder)?;
        counters(&snapshot, &mut encoder)
    }
}

fn gauges(snapshot: &Snapshot, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let Snapshot { waiting, running, pages, .. } = snapshot;
    let usage = pages.held as f64 / pages.total.max(1) as f64;
    let cached = pages.cached as f64 / pages.total.max(1) as f64;
    for (name, help, value) in [
        ("num_requests_running", "Requests that run", *running as f64),
        ("num_requests_waiting", "Requests that wait", *waiting as f64),
        ("kv_cache_usage_perc", "Share of KV memory that requests hold alone, 0 to 1", usage),
        ("prefix_cache_usage_perc", "Share of KV memory in the prefix cache, 0 to 1", cached),
    ] {
        let gauge = ConstGauge::new(value);
        let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        gauge.encode(metric)?;
    }
    Ok(())
}

fn counters(snapshot: &Snapshot, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let Snapshot { tally, counters, usage, .. } = snapshot;
    for (name, help, value) in [
        ("prefix_cache_queries", "Tokens looked up in the prefix cache", tally.admitted_tokens),
        ("prefix_cache_hits", "Tokens that the prefix cache had", tally.cached_tokens),
        ("num_preemptions", "Requests retracted for want of memory", tally.retractions),
        ("recomputations", "Requests recomputed for want of drafter context", tally.recomputations),
        ("steps", "Steps that landed", counters.steps),
        ("steps_led", "Steps that still ran when the next had been launched", counters.led),
    ] {
        let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(metric)?;
    }
    let times = counters.times;
    let parts = [
        ("draft", times.draft.as_secs_f64()),
        ("masks", times.masks.as_secs_f64()),
        ("verify", times.verify.as_secs_f64()),
        ("absorb", times.absorb.as_secs_f64()),
    ];
    seconds(encoder, "step", "Device time of steps, by part", "part", parts)?;
    let waits =
        [("landing", usage.results.time.as_secs_f64()), ("fence", usage.fence.time.as_secs_f64())];
    seconds(encoder, "host_blocked", "Time the host waited for the device", "place", waits)?;
    let busy = LaneId::ALL.map(|lane| (lane.name(), usage.busy[lane.index()].as_secs_f64()));
    seconds(encoder, "device_busy", "Time the lanes ran jobs", "lane", busy)
}

/// One counter of seconds for each value of a label.
fn seconds(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &'static str,
    values: impl IntoIterator<Item = (&'static str, f64)>,
) -> fmt::Result {
    let mut metric: MetricEncoder<'_> =
        encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Counter)?;
    for (value, seconds) in values {
        let labels = [(label, value)];
        ConstCounter::new(seconds).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::by_position;

    #[test]
    fn passes_by_count_become_passes_by_position() {
        // Three passes accepted nothing, two one draft, one three.
        assert_eq!(by_position(&[3, 2, 0, 1]), [3, 1, 1]);
        assert_eq!(by_position(&[5]), [0usize; 0]);
        assert_eq!(by_position(&[]), [0usize; 0]);
    }
}
