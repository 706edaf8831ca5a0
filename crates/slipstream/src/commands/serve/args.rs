//! Options of `slipstream serve`, their ranges and their help.

use crate::args::{ModelArgs, at_least_one, seconds};
use clap::{Args, ValueEnum};
use server::ApiKey;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(super) listen: ListenArgs,
    #[command(flatten)]
    pub(super) engine: EngineArgs,
    #[command(flatten)]
    pub(super) limits: LimitArgs,
    #[command(flatten)]
    pub(super) model: ModelArgs,
}

/// Where it listens, and to whom.
#[derive(Debug, Args)]
#[command(next_help_heading = "Listening")]
pub(super) struct ListenArgs {
    /// Name or address to listen on; others than this machine's own let the network in
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    pub(super) host: String,
    /// Port; 0 takes any that is free
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub(super) port: u16,
    /// A key that requests must bring (`Authorization: Bearer KEY`); may be given several times.
    /// Other users of this machine can read it: a file is safer
    #[arg(long, value_name = "KEY", value_parser = key)]
    pub(super) api_key: Vec<ApiKey>,
    /// A file of keys, one a line; empty lines and lines that begin with # are skipped
    #[arg(long, value_name = "PATH")]
    pub(super) api_key_file: Option<PathBuf>,
    /// What clients call the model; may be given several times, the first is what answers say. The
    /// name after --model otherwise
    #[arg(long, value_name = "NAME", value_parser = crate::args::not_empty)]
    pub(super) served_name: Vec<String>,
    /// An origin whose pages may read answers, as scheme and host, or *; may be given several
    /// times, none may otherwise
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    pub(super) cors_origin: Vec<String>,
    /// What standard error gets of each request
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(super) log: Log,
    /// A collector that gets a span of OpenTelemetry for each request (http://127.0.0.1:4318);
    /// OTEL_EXPORTER_OTLP_ENDPOINT otherwise. For programs built with the feature `otel`
    #[arg(long, value_name = "URL")]
    pub(super) otlp_endpoint: Option<String>,
}

/// What the log is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Log {
    /// Lines for people
    Text,
    /// A JSON object a line
    Json,
    /// Nothing
    Off,
}

/// What the engine may hold.
#[derive(Debug, Args)]
#[command(next_help_heading = "Engine")]
pub(super) struct EngineArgs {
    /// Requests that run at once at most
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = at_least_one)]
    pub(super) max_running: usize,
    /// Requests that wait at most; further ones are refused with status 429
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(super) max_waiting: usize,
    /// KV memory, in tokens over all requests; otherwise a full context for each of the running
    /// requests, within a quarter of the available memory
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(super) kv_tokens: Option<usize>,
}

/// What one client may take.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub(super) struct LimitArgs {
    /// Largest body of a request, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 32, value_parser = at_least_one)]
    pub(super) max_body: usize,
    /// Connections at once at most; the system may allow fewer
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = at_least_one)]
    pub(super) max_connections: usize,
    /// Seconds that a connection may take to send the head of a request, and may be idle
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub(super) header_timeout: Duration,
    /// Seconds of a request at most, waiting included
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    pub(super) request_timeout: Duration,
    /// Seconds that open requests get to finish after SIGTERM or Ctrl-C; a second signal ends all at
    /// once
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub(super) drain_timeout: Duration,
}

fn key(text: &str) -> Result<ApiKey, String> {
    ApiKey::new(text).map_err(|error| error.to_string())
}

fn origin(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let plain = rest.is_some_and(|host| {
        !host.is_empty() && host.bytes().all(|b| b.is_ascii_graphic() && b != b'/')
    });
    if plain || text == "*" {
        return Ok(text.into());
    }
    Err("give scheme and host, such as https://example.org, without a path; or *".into())
}
