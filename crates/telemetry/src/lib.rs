//! A span of OpenTelemetry for each request, sent to a collector by OTLP over HTTP.
//!
//! A span is made when its request is over, out of the server's [`Record`](server::record::Record): while
//! a request runs nothing is done for it. Spans wait in a bounded queue, which a thread of its own empties;
//! when a collector is slow or gone the queue fills and further spans are dropped. Nobody waits for one.

mod client;
mod span;

use client::Client;
use opentelemetry::trace::TracerProvider;
use opentelemetry::{Key, KeyValue};
use opentelemetry_otlp::{WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider};
use server::record::Recorder;
use span::Spans;
use std::sync::Arc;
use std::time::Duration;

/// Where spans go when nobody says so, as the standard has it.
const PATH: &str = "/v1/traces";

/// The name of the service, unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` has another.
const SERVICE: &str = "slipstream";

/// Longest wait for a collector when the process ends.
const LAST_WAIT: Duration = Duration::from_secs(3);

/// Where spans go, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The collector (`http://127.0.0.1:4318`); `/v1/traces` is added.
    pub endpoint: String,
    /// Time between two batches; `None` for what `OTEL_BSP_SCHEDULE_DELAY` says, else five seconds.
    pub pace: Option<Duration>,
    /// Most spans that wait; `None` for what `OTEL_BSP_MAX_QUEUE_SIZE` says, else 2,048.
    pub queue: Option<usize>,
    /// Longest wait for a collector's answer.
    pub patience: Duration,
}

impl Options {
    /// To the collector at `endpoint`, at the usual pace.
    pub fn new(endpoint: impl Into<String>) -> Options {
        let endpoint = endpoint.into();
        Options { endpoint, pace: None, queue: None, patience: Duration::from_secs(10) }
    }
}

/// Spans that cannot be sent.
#[derive(Debug, thiserror::Error)]
#[error("{endpoint}: {problem}; give the address of a collector, such as http://127.0.0.1:4318")]
pub struct TelemetryError {
    endpoint: String,
    problem: String,
}

/// Sends spans until it is ended.
#[derive(Debug)]
pub struct Telemetry {
    provider: SdkTracerProvider,
}

impl Telemetry {
    /// Starts the thread that sends spans. Headers for the collector come from
    /// `OTEL_EXPORTER_OTLP_HEADERS`, the choice of traces from `OTEL_TRACES_SAMPLER`, as the standard
    /// has it.
    ///
    /// # Errors
    /// An endpoint that is none.
    pub fn start(options: &Options) -> Result<Telemetry, TelemetryError> {
        let Options { endpoint, pace, queue, patience } = options;
        let refused = |problem: String| TelemetryError { endpoint: endpoint.clone(), problem };
        if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
            return Err(refused("is neither http:// nor https://".into()));
        }
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(Client::new(*patience))
            .with_endpoint(format!("{}{PATH}", endpoint.trim_end_matches('/')))
            .build()
            .map_err(|error| refused(error.to_string()))?;
        let mut config = BatchConfigBuilder::default();
        if let Some(pace) = *pace {
            config = config.with_scheduled_delay(pace);
        }
        if let Some(queue) = *queue {
            config = config.with_max_queue_size(queue);
        }
        let batches =
            BatchSpanProcessor::builder(exporter).with_batch_config(config.build()).build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(batches)
            .with_resource(resource())
            .build();
        Ok(Telemetry { provider })
    }

    /// What a server's [`Config`](server::Config) takes.
    pub fn recorder(&self) -> Arc<dyn Recorder> {
        Arc::new(Spans::new(self.provider.tracer(SERVICE)))
    }

    /// Sends what waits, if the collector takes it soon.
    pub fn end(self) {
        if let Err(error) = self.provider.shutdown_with_timeout(LAST_WAIT) {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}

/// What sends the spans.
fn resource() -> Resource {
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let found = Resource::builder().with_attribute(version.clone()).build();
    let named = found
        .get(&Key::from_static_str("service.name"))
        .is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    if named {
        return found;
    }
    Resource::builder().with_attribute(version).with_service_name(SERVICE).build()
}
