//! What the server adds to the engine: time per token at 64 streams, and to the first token of one.
//! The target is a script, so that the engine's own share is small; clients run in this process and
//! their share counts as the server's. Run from the repository's root.

use device::{Cpu, Threads};
use engine::draft::NoDrafter;
use engine::{
    Choosing, Engine, EngineOptions, Features, Handle, Limits, Pair, PairOptions, Parts, Request,
    Service, Target,
};
use kernels::choose::LogProbs;
use model::pass::Pass;
use server::{Config, Model, Server};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

const STREAMS: usize = 64;
const TOKENS: usize = 400;
const FIRSTS: usize = 400;
const ROUNDS: usize = 5;

/// Says a letter.
struct Script;

impl Target for Script {
    fn forward(&mut self, _: &Pass, _: &[usize]) {}

    fn features(&self) -> Features<'_> {
        Features::none()
    }

    fn choose(&mut self, _: &Choosing<'_>, out: &mut [u32]) {
        out.fill(70);
    }

    fn log_probs(&self, _: usize, _: u32, _: usize) -> LogProbs {
        LogProbs::default()
    }

    fn score(&mut self, rows: &[usize], _: &[u32], _: usize) -> Vec<LogProbs> {
        vec![LogProbs::default(); rows.len()]
    }
}

fn pair() -> Pair {
    let path = Path::new("fixtures/models/qwen3");
    Pair::load(&Cpu::new(1), path, None, &PairOptions::default()).expect("the tiny model loads")
}

fn engine(pair: &Pair) -> Engine {
    let parts = Parts {
        target: Box::new(Script),
        drafter: Box::new(NoDrafter),
        vocabulary: pair.tokenizer.clone(),
        context: 1024,
        pages: 2 * STREAMS * 64,
        mask_id: None,
    };
    let options = EngineOptions { max_running: STREAMS, ..EngineOptions::default() };
    Engine::assemble(&Threads::new(), parts, options)
}

fn request(tokens: usize) -> Request {
    Request {
        limits: Limits { max_tokens: Some(tokens), ..Limits::default() },
        ..Request::new(vec![10, 11])
    }
}

/// Streams at once, read to their ends.
fn crowd(stream: impl Fn(usize) -> Duration + Sync) -> Duration {
    let begin = Instant::now();
    thread::scope(|scope| {
        (0..STREAMS).for_each(|_| {
            scope.spawn(|| stream(TOKENS));
        });
    });
    begin.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// A request of `tokens` tokens, with a sink that tells of its first token and of its end only.
/// Returns the time to its first token.
fn run(engine: &Handle, tokens: usize) -> Duration {
    let begin = Instant::now();
    let (tell, told) = channel();
    let mut first = true;
    let ticket = engine.submit(request(tokens), move |event| {
        let update = event.expect("the engine lives");
        if std::mem::take(&mut first) || update.finished.is_some() {
            tell.send(update.finished.is_some()).expect("somebody waits for the end");
        }
        ControlFlow::Continue(())
    });
    let ticket = ticket.expect("it is taken");
    let mut ended = told.recv().expect("a first token");
    let elapsed = begin.elapsed();
    while !ended {
        ended = told.recv().expect("an end");
    }
    drop(ticket);
    elapsed
}

/// A stream of `tokens` tokens, read to its end. Returns the time to its first token.
fn read(address: SocketAddr, tokens: usize) -> Duration {
    let body = format!(
        "{{\"prompt\": [10, 11], \"max_tokens\": {tokens}, \"ignore_eos\": true, \"stream\": true}}"
    );
    let begin = Instant::now();
    let mut stream = TcpStream::connect(address).expect("the server listens");
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("the server reads");
    let mut lines = BufReader::new(stream).lines();
    // The first event is there before any token is.
    let mut events = lines.by_ref().map_while(Result::ok).filter(|line| line.starts_with("data: "));
    assert!(events.nth(1).is_some(), "no token came");
    let elapsed = begin.elapsed();
    events.for_each(drop);
    elapsed
}

fn main() {
    let pair = pair();
    let service = Service::start(engine(&pair));
    let config = Config { port: 0, ..Config::new("x") };
    let server = Server::start(engine(&pair), Model::of(&pair), config).expect("a free port");
    let address = server.address();
    let alone = |tokens| run(service.handle(), tokens);
    let (mut engines, mut servers) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        engines.push(crowd(alone));
        servers.push(crowd(|tokens| read(address, tokens)));
    }
    let each = |time: Duration| time.as_secs_f64() * 1e6 / (STREAMS * TOKENS) as f64;
    let (plain, served) = (each(median(engines)), each(median(servers)));
    let added = served - plain;
    println!(
        "{STREAMS} streams of {TOKENS} tokens: engine {plain:.1} µs a token, server {served:.1}, \
         added {added:.1}"
    );
    let first = |of: &dyn Fn() -> Duration| median((0..FIRSTS).map(|_| of()).collect());
    let (plain, served) = (first(&|| alone(1)), first(&|| read(address, 1)));
    println!(
        "first token of one request: engine {} µs, server {} µs",
        plain.as_micros(),
        served.as_micros()
    );
    server.control().drain();
    server.wait().expect("the engine lives");
}
