//! Servers to test: over the tiny pair, or over a scripted target behind a gate.

use crate::client::{self, Answer, Response};
use crate::document::Document;
use device::{Cpu, Threads};
use engine::draft::Scripted;
use engine::{Choosing, Engine, EngineOptions, Features, Pair, PairOptions, Parts, Target};
use kernels::choose::LogProbs;
use model::chat::ChatTemplate;
use model::checkpoint::gguf;
use model::pass::Pass;
use model::tokenizer::{Specials, Tokenizer};
use serde_json::Value;
use server::{Config, Control, Model, Server};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// What clients call the model.
pub(crate) const NAME: &str = "tiny";

/// A running server.
pub(crate) struct Site {
    pub(crate) server: Option<Server>,
    pub(crate) control: Control,
    pub(crate) address: SocketAddr,
    /// What it says that it answers; every answer below is held against it.
    pub(crate) document: Document,
}

/// How a site differs from the usual one.
pub(crate) struct Setup {
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    /// Most tokens of a sequence, of scripted targets and of [`Site::long`].
    pub(crate) context: usize,
    /// How a scripted target holds conversations, if not as the tiny pair does.
    pub(crate) template: Option<Arc<ChatTemplate>>,
    /// KV memory of the tiny pair.
    pub(crate) kv_tokens: Option<usize>,
    pub(crate) config: Config,
}

impl Default for Setup {
    fn default() -> Setup {
        let config = Config { port: 0, ..Config::new(NAME) };
        Setup { running: 4, waiting: 64, context: 512, template: None, kv_tokens: None, config }
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models").join(name)
}

/// The tiny target and its drafter.
pub(crate) fn pair() -> Pair {
    let (target, draft) = (fixture("qwen3"), fixture("dflash"));
    Pair::load(&Cpu::new(2), &target, Some(&draft), &PairOptions::default())
        .expect("the committed models load")
}

/// The same pair, made for sequences of up to `context` tokens.
fn stretched(context: usize) -> Pair {
    let folder = tempfile::tempdir().expect("a folder");
    let [target, draft] = ["qwen3", "dflash"].map(|name| {
        let own = folder.path().join(name);
        std::fs::create_dir(&own).expect("a folder of its own");
        for file in fixture(name).read_dir().expect("the committed models") {
            let file = file.expect("a file");
            std::fs::copy(file.path(), own.join(file.file_name())).expect("a copy");
        }
        let config = std::fs::read_to_string(own.join("config.json")).expect("a configuration");
        let mut config: Value = serde_json::from_str(&config).expect("JSON");
        config["max_position_embeddings"] = context.into();
        std::fs::write(own.join("config.json"), config.to_string()).expect("written");
        own
    });
    Pair::load(&Cpu::new(2), &target, Some(&draft), &PairOptions::default()).expect("they load")
}

/// Its tokenizer.
pub(crate) fn tokenizer() -> Tokenizer {
    Tokenizer::from_folder(&fixture("qwen3")).expect("the committed models load")
}

/// The template of a model that reasons.
pub(crate) fn thinking() -> Arc<ChatTemplate> {
    let path = fixture("../chat/qwen3.jinja");
    let source = std::fs::read_to_string(path).expect("a committed template");
    let keys = [("tokenizer.chat_template".to_owned(), gguf::Value::String(source))];
    let metadata = gguf::Metadata::new(Path::new("model.gguf"), keys.into());
    let template = ChatTemplate::from_gguf(&metadata, &tokenizer()).expect("it compiles");
    Arc::new(template.expect("it is there"))
}

/// The ids of a text.
pub(crate) fn spell(text: &str) -> Vec<u32> {
    tokenizer().encode(text, Specials::AsText)
}

impl Site {
    /// Over the tiny pair.
    pub(crate) fn tiny(setup: Setup) -> Site {
        Site::over(pair(), setup)
    }

    /// Over the tiny pair, made for sequences of up to `setup.context` tokens.
    pub(crate) fn long(setup: Setup) -> Site {
        Site::over(stretched(setup.context), setup)
    }

    fn over(pair: Pair, setup: Setup) -> Site {
        let model = Model::of(&pair);
        let options = EngineOptions {
            max_running: setup.running,
            max_waiting: setup.waiting,
            kv_tokens: setup.kv_tokens,
            width: 4,
            ..EngineOptions::default()
        };
        Site::start(Engine::new(pair, options), model, setup.config)
    }

    /// Over a scripted target, drafted by one that knows the script.
    pub(crate) fn scripted(script: Script, setup: Setup) -> Site {
        let mut pair = pair();
        pair.template = setup.template.clone().or(pair.template);
        let model = Model::of(&pair);
        let says = script.says.clone();
        let parts = Parts {
            drafter: Box::new(Scripted::new(script.block, move |_, position| says(position))),
            target: Box::new(script),
            vocabulary: Arc::new(tokenizer()),
            context: setup.context,
            pages: (setup.running + 1) * setup.context.div_ceil(16),
            mask_id: None,
        };
        let options = EngineOptions {
            max_running: setup.running,
            max_waiting: setup.waiting,
            width: 8,
            ..EngineOptions::default()
        };
        Site::start(Engine::assemble(&Threads::new(), parts, options), model, setup.config)
    }

    fn start(engine: Engine, model: Model, config: Config) -> Site {
        let server = Server::start(engine, model, config).expect("a free port");
        let (control, address) = (server.control(), server.address());
        Site { server: Some(server), control, address, document: Document::new() }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        let answer = client::open(self.address, "GET", path, "").whole();
        self.document.answer("get", path, &answer);
        answer
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        let answer = self.open(path, body).whole();
        self.document.answer("post", path, &answer);
        if answer.status == 200 {
            self.document.taken(path, body);
        }
        answer
    }

    pub(crate) fn open(&self, path: &str, body: &Value) -> Response {
        client::open(self.address, "POST", path, &body.to_string())
    }

    /// A JSON answer that went well.
    pub(crate) fn ask(&self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body);
        assert_eq!(answer.status, 200, "{body}: {}", answer.text);
        answer.json()
    }

    /// The events of a stream that went well.
    pub(crate) fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let mut body = body.clone();
        body["stream"] = true.into();
        let response = self.open(path, &body);
        assert_eq!(response.status, 200, "{body}");
        assert_eq!(response.header("content-type"), Some("text/event-stream; charset=utf-8"));
        self.document.taken(path, &body);
        let events = response.events();
        events.iter().for_each(|event| self.document.event(path, event));
        events
    }

    /// Running and waiting requests.
    pub(crate) fn load(&self) -> (usize, usize) {
        let snapshot = self.control.engine().snapshot();
        (snapshot.running, snapshot.waiting)
    }

    /// A metric's value, by its name and labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").text;
        let line = text.lines().find(|line| line.split(' ').next() == Some(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
        line.split(' ').nth(1).and_then(|value| value.parse().ok()).expect("a number")
    }

    /// Ends the server and says how.
    pub(crate) fn end(mut self) -> Result<(), engine::EngineLost> {
        self.control.drain();
        self.server.take().expect("ended once").wait()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            self.control.drain();
            let _ = server.wait();
        }
    }
}

/// Asks until it is so. The limit is there to fail instead of hanging.
pub(crate) fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !so() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what} never came true");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Lets so many passes run, and holds the others.
#[derive(Default)]
pub(crate) struct Gate {
    permits: Mutex<u64>,
    changed: Condvar,
}

impl Gate {
    pub(crate) fn pass(&self) {
        let permits = self.permits.lock().unwrap();
        let (mut permits, wait) = self
            .changed
            .wait_timeout_while(permits, Duration::from_secs(120), |permits| *permits == 0)
            .unwrap();
        assert!(!wait.timed_out(), "nobody opened the gate");
        *permits -= 1;
    }

    pub(crate) fn give(&self, permits: u64) {
        *self.permits.lock().unwrap() += permits;
        self.changed.notify_all();
    }

    /// Holds nobody any more.
    pub(crate) fn open(&self) {
        *self.permits.lock().unwrap() = u64::MAX;
        self.changed.notify_all();
    }
}

type Says = Arc<dyn Fn(usize) -> u32 + Send + Sync>;

/// A target that says the same token at a position, whoever asks.
pub(crate) struct Script {
    says: Says,
    before: Box<dyn FnMut(usize) + Send>,
    passes: usize,
    block: usize,
}

impl Script {
    /// Says `says(position)`, one token a step.
    pub(crate) fn new(says: impl Fn(usize) -> u32 + Send + Sync + 'static) -> Script {
        Script { says: Arc::new(says), before: Box::new(|_| {}), passes: 0, block: 1 }
    }

    /// Says `ids` behind a prompt of `prompt` tokens, and then end-of-text.
    pub(crate) fn of(prompt: usize, ids: Vec<u32>) -> Script {
        Script::new(move |position| {
            position.checked_sub(prompt).and_then(|at| ids.get(at)).copied().unwrap_or(END)
        })
    }

    /// Letters without end.
    pub(crate) fn letters() -> Script {
        let letters = spell("abcdefgh");
        Script::new(move |position| letters[position % letters.len()])
    }

    /// Drafted in blocks of `block`, all of which are accepted.
    pub(crate) fn in_blocks(self, block: usize) -> Script {
        Script { block, ..self }
    }

    /// With `before` at the beginning of each pass, with its number.
    pub(crate) fn before(self, before: impl FnMut(usize) + Send + 'static) -> Script {
        Script { before: Box::new(before), ..self }
    }

    /// Held by `gate`.
    pub(crate) fn behind(self, gate: &Arc<Gate>) -> Script {
        let gate = gate.clone();
        self.before(move |_| gate.pass())
    }
}

/// End-of-text.
pub(crate) const END: u32 = 2;

impl Target for Script {
    fn forward(&mut self, _: &Pass, _: &[usize]) {
        (self.before)(self.passes);
        self.passes += 1;
    }

    fn features(&self) -> Features<'_> {
        Features::none()
    }

    /// Keeps to its script where that is allowed, and says the first id that is where it is not.
    fn choose(&mut self, rows: &Choosing<'_>, out: &mut [u32]) {
        let Choosing { draws, shapes, .. } = *rows;
        for (i, (draw, out)) in draws.iter().zip(out).enumerate() {
            let wanted = (self.says)(draw.position as usize);
            let mask = shapes.get(i).and_then(|shape| shape.allowed);
            let allowed =
                |id: &u32| mask.is_none_or(|mask| mask[*id as usize / 32] >> (id % 32) & 1 == 1);
            *out = [wanted].into_iter().chain(0..320).find(allowed).expect("a row that may choose");
        }
    }

    fn log_probs(&self, _: usize, token: u32, top: usize) -> LogProbs {
        let top = (0..top as u32).map(|id| ((token + id) % 320, -0.5 - id as f32)).collect();
        LogProbs { chosen: -0.5, top }
    }

    fn score(&mut self, _: &[usize], tokens: &[u32], top: usize) -> Vec<LogProbs> {
        tokens.iter().map(|&token| self.log_probs(0, token, top)).collect()
    }
}
