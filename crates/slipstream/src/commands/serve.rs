//! `slipstream serve`: the pair behind an OpenAI-compatible server, until a signal ends it.

mod args;
mod memory;
mod spans;

pub(crate) use args::ServeArgs;

use crate::failure::Failure;
use crate::session;
use args::{EngineArgs, LimitArgs, ListenArgs, Log};
use engine::{EngineOptions, KvNeed, Pair, WidthPolicy};
use server::{ApiKey, Config, Limits, Model, Server};
use spans::Spans;
use std::fs;
use std::io::{self, Write, stdout};
use std::path::Path;

pub(crate) fn run(args: ServeArgs) -> Result<(), Failure> {
    let mut config = config(&args)?;
    let spans = Spans::start(args.listen.otlp_endpoint.as_deref())?;
    config.recorder = spans.recorder();
    log(args.listen.log);
    let pair = session::load(&args.model)?;
    let model = Model::of(&pair);
    let options = options(&args.engine, args.model.width, &pair);
    let engine = session::engine(pair, options)?;
    let server = Server::start(engine, model, config).map_err(Failure::input)?;
    server.heed_signals()?;
    // One line, for whoever started this and waits for it.
    writeln!(stdout(), "listening on http://{}", server.address())?;
    stdout().flush()?;
    let ended = server.wait();
    spans.end();
    Ok(ended?)
}

fn config(args: &ServeArgs) -> Result<Config, Failure> {
    let ListenArgs { host, port, api_key, api_key_file, served_name, cors_origin, .. } =
        &args.listen;
    let LimitArgs { max_body, max_connections, header_timeout, request_timeout, drain_timeout } =
        args.limits;
    let mut keys = api_key.clone();
    if let Some(path) = api_key_file {
        keys.extend(keys_of(path)?);
    }
    let names = match &served_name[..] {
        [] => vec![args.model.model.clone()],
        names => names.to_vec(),
    };
    Ok(Config {
        host: host.clone(),
        port: *port,
        names,
        keys,
        origins: cors_origin.clone(),
        limits: Limits {
            body_bytes: max_body.saturating_mul(1 << 20),
            connections: max_connections,
            head_time: header_timeout,
            request_time: Some(request_timeout),
            drain_time: drain_timeout,
            ..Limits::default()
        },
        recorder: None,
    })
}

/// The keys in a file; at least one, so that an empty file does not open the server.
fn keys_of(path: &Path) -> Result<Vec<ApiKey>, Failure> {
    let problem =
        |what: String| Failure::Input(format!("--api-key-file {}: {what}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| problem(error.to_string()))?;
    let lines = text.lines().map(str::trim).enumerate();
    let keys = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let keys = keys.map(|(index, line)| {
        ApiKey::new(line).map_err(|error| problem(format!("line {}: {error}", index + 1)))
    });
    let keys: Vec<ApiKey> = keys.collect::<Result<_, _>>()?;
    if keys.is_empty() {
        return Err(problem("holds no key".into()));
    }
    Ok(keys)
}

fn options(args: &EngineArgs, width: Option<usize>, pair: &Pair) -> EngineOptions {
    let EngineArgs { max_running, max_waiting, kv_tokens } = *args;
    let kv_tokens = kv_tokens.unwrap_or_else(|| affordable(pair, max_running));
    let kv_tokens = Some(kv_tokens);
    let options = EngineOptions { max_running, max_waiting, kv_tokens, ..EngineOptions::default() };
    match width {
        Some(width) => EngineOptions { width, widths: WidthPolicy::Fixed, ..options },
        None => options,
    }
}

/// The KV memory that a server takes by itself, in tokens; the log says how it came to it.
fn affordable(pair: &Pair, running: usize) -> usize {
    let (context, token_bytes) = (pair.context(), pair.kv_token_bytes());
    let available = pair.free_on_card().map_or_else(memory::available, Some);
    let need = KvNeed { context, running, token_bytes, available };
    let kv_tokens = need.tokens();
    let mib = |bytes: usize| bytes >> 20;
    tracing::info!(
        kv_tokens,
        kv_mib = mib(kv_tokens.saturating_mul(token_bytes)),
        available_mib = need.available.map(mib),
        max_running = running,
        context,
        "KV memory: a context for each running request, within a quarter of the available memory; \
         --kv-tokens sets another"
    );
    if kv_tokens < context {
        tracing::warn!(
            kv_tokens,
            context,
            "there is not memory enough for one whole context: sequences are shorter"
        );
    }
    kv_tokens
}

/// Sends what the server notes to standard error.
fn log(format: Log) {
    let lines = tracing_subscriber::fmt().with_writer(io::stderr).with_target(false);
    match format {
        Log::Text => lines.with_ansi(false).init(),
        Log::Json => lines.json().flatten_event(true).init(),
        Log::Off => {}
    }
}
