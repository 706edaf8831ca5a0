//! A request's record as a span, in the words of OpenTelemetry's conventions for HTTP and for generative
//! AI where they have one, and in ours (`slipstream.…`) where they have none.

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span, SpanKind, Status, Tracer};
use opentelemetry::{Array, KeyValue, StringValue, Value};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracer;
use server::record::{Asked, Head, Record, Recorder};
use std::time::{Duration, SystemTime};

/// Makes spans of records.
#[derive(Debug)]
pub(crate) struct Spans {
    tracer: SdkTracer,
}

impl Spans {
    pub(crate) fn new(tracer: SdkTracer) -> Spans {
        Spans { tracer }
    }
}

impl Recorder for Spans {
    fn record(&self, record: &Record<'_>) {
        let parent = TraceContextPropagator::new().extract(&Caller(record.head));
        let builder = self
            .tracer
            .span_builder(name(record))
            .with_kind(SpanKind::Server)
            .with_start_time(record.head.begun);
        // What decides on a trace may look at what was known when it began.
        let builder = builder.with_attributes(of_head(record.head));
        let mut span = self.tracer.build_with_context(builder, &parent);
        if !span.is_recording() {
            return;
        }
        span.set_attributes(of_answer(record));
        span.set_attributes(of_asked(record));
        span.set_attributes(of_generations(record));
        events(record, &mut span);
        if let Some(failure) = &record.account.failure {
            span.set_attribute(KeyValue::new("error.type", failure.name));
            // A server's span is in error for what the server did, not for what a client sent.
            if record.account.status.is_some_and(|status| !(400..500).contains(&status)) {
                span.set_status(Status::error(failure.message.clone()));
            }
        }
        span.end_with_timestamp(record.head.begun + record.lasted);
    }
}

/// Where a caller stands in its trace.
struct Caller<'h>(&'h Head);

impl Extractor for Caller<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            "traceparent" => self.0.traceparent.as_deref(),
            "tracestate" => self.0.tracestate.as_deref(),
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent", "tracestate"]
    }
}

/// What the generation at a route is called.
fn operation(route: &str) -> Option<&'static str> {
    match route {
        "/v1/chat/completions" | "/v1/responses" => Some("chat"),
        "/v1/completions" | "/generate" => Some("text_completion"),
        _ => None,
    }
}

/// `chat smollm2`, or `POST /v1/chat/completions` where no model was named.
fn name(record: &Record<'_>) -> String {
    let Head { method, route, .. } = record.head;
    let route = route.as_deref().unwrap_or_default();
    match (operation(route), &record.account.model) {
        (Some(operation), Some(model)) => format!("{operation} {model}"),
        _ => format!("{method} {route}").trim_end().to_owned(),
    }
}

fn of_head(head: &Head) -> Vec<KeyValue> {
    let mut attributes = vec![
        KeyValue::new("http.request.method", head.method.clone()),
        KeyValue::new("url.path", head.path.clone()),
        KeyValue::new("slipstream.request.id", head.id.clone()),
    ];
    if let Some(route) = &head.route {
        attributes.push(KeyValue::new("http.route", route.clone()));
        attributes.extend(
            operation(route).map(|operation| KeyValue::new("gen_ai.operation.name", operation)),
        );
        attributes.push(KeyValue::new("gen_ai.provider.name", "slipstream"));
    }
    attributes
}

fn of_answer(record: &Record<'_>) -> Vec<KeyValue> {
    let account = record.account;
    let status = KeyValue::new("http.response.status_code", i64::from(record.status()));
    let model = account.model.iter().flat_map(|model| {
        ["gen_ai.request.model", "gen_ai.response.model"]
            .map(|name| KeyValue::new(name, model.clone()))
    });
    let answer = account.answer.iter().map(|id| KeyValue::new("gen_ai.response.id", id.clone()));
    [status].into_iter().chain(model).chain(answer).collect()
}

fn of_asked(record: &Record<'_>) -> Vec<KeyValue> {
    let Some(asked) = &record.account.asked else { return Vec::new() };
    let Asked { choices, max_tokens, temperature, top_p, top_k, seed, .. } = asked;
    let mut attributes = vec![
        KeyValue::new("gen_ai.request.choice.count", count(*choices)),
        KeyValue::new("gen_ai.request.temperature", f64::from(*temperature)),
        KeyValue::new("gen_ai.request.top_p", f64::from(*top_p)),
        // The conventions have whole numbers of 64 bits with a sign.
        KeyValue::new("gen_ai.request.seed", *seed as i64),
    ];
    attributes
        .extend(max_tokens.map(|most| KeyValue::new("gen_ai.request.max_tokens", count(most))));
    if *top_k > 0 {
        attributes.push(KeyValue::new("gen_ai.request.top_k", f64::from(*top_k)));
    }
    attributes
}

/// What the generations took, those of a request together; a prompt with several choices counts once.
fn of_generations(record: &Record<'_>) -> Vec<KeyValue> {
    let mut ends: Vec<_> = record.account.ends.iter().collect();
    if ends.is_empty() {
        return Vec::new();
    }
    ends.sort_by_key(|(number, _)| *number);
    let reasons = ends.iter().map(|(_, end)| StringValue::from(end.reason.name())).collect();
    vec![
        KeyValue::new("gen_ai.response.finish_reasons", Value::Array(Array::String(reasons))),
        KeyValue::new(
            "gen_ai.usage.input_tokens",
            count(record.sum_of_prompts(|stats| stats.prompt_tokens)),
        ),
        KeyValue::new("gen_ai.usage.output_tokens", count(record.sum(|stats| stats.output_tokens))),
        KeyValue::new(
            "slipstream.cached_tokens",
            count(record.sum_of_prompts(|stats| stats.cached_tokens)),
        ),
        KeyValue::new("slipstream.tau", record.tau()),
        KeyValue::new("slipstream.passes", count(record.sum(|stats| stats.steps))),
        KeyValue::new(
            "slipstream.drafts.accepted",
            count(record.sum(|stats| stats.accepted_drafts())),
        ),
        KeyValue::new(
            "slipstream.drafts.refused",
            count(record.sum(|stats| stats.rejected_drafts())),
        ),
    ]
}

/// When each generation was queued, when a step first took some of it, when its first token came and
/// when it ended.
fn events(record: &Record<'_>, span: &mut impl Span) {
    let Some(asked) = &record.account.asked else { return };
    let queued = record.head.begun + asked.after;
    let mut add = |name: &'static str, after: Duration, more: &[KeyValue]| {
        let at: SystemTime = queued + after;
        span.add_event_with_timestamp(name, at, more.to_vec());
    };
    add("slipstream.queued", Duration::ZERO, &[]);
    for (number, end) in &record.account.ends {
        let number = KeyValue::new("slipstream.generation", count(*number));
        let stats = &end.stats;
        if stats.output_tokens > 0 {
            add("slipstream.started", stats.queued, std::slice::from_ref(&number));
            add("slipstream.first_token", stats.first_token, std::slice::from_ref(&number));
        }
        let reason = KeyValue::new("slipstream.finish_reason", end.reason.name());
        add("slipstream.ended", stats.total, &[number, reason]);
    }
}

/// A count as the protocol has it.
fn count(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
