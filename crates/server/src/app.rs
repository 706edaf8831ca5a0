//! What every handler shares.

use crate::chat::Dialect;
use crate::config::Config;
use crate::grammars::Grammars;
use crate::http::error::ApiError;
use crate::ids::Ids;
use crate::metrics::Metrics;
use engine::{EngineLost, Handle, Pair};
use model::chat::ChatTemplate;
use model::tokenizer::Tokenizer;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, watch};
use tokio::task;

/// What the server knows of the model, besides the engine.
#[derive(Clone)]
pub struct Model {
    pub(crate) tokenizer: Arc<Tokenizer>,
    /// `None` for models that hold no conversations.
    pub(crate) chat: Option<Chat>,
}

/// How a model holds conversations.
#[derive(Clone)]
pub(crate) struct Chat {
    pub(crate) template: Arc<ChatTemplate>,
    pub(crate) dialect: Dialect,
}

impl Model {
    /// Of a loaded pair. The formats of tool calls and of reasoning are those that the template
    /// speaks of.
    pub fn of(pair: &Pair) -> Model {
        let tokenizer = pair.tokenizer.clone();
        let chat = pair.template.clone().map(|template| {
            let dialect = Dialect::detect(&template, &tokenizer);
            Chat { template, dialect }
        });
        Model { tokenizer, chat }
    }
}

/// Where the server stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Phase {
    /// It takes requests.
    Serving,
    /// It was told to end.
    Draining,
    /// Its engine failed.
    Lost(EngineLost),
}

/// Shared by all handlers.
pub(crate) struct App {
    pub(crate) engine: Handle,
    pub(crate) model: Model,
    pub(crate) config: Config,
    pub(crate) metrics: Metrics,
    pub(crate) grammars: Grammars,
    pub(crate) ids: Ids,
    pub(crate) phase: watch::Sender<Phase>,
    /// The server is to end.
    pub(crate) leave: Notify,
    /// Seconds since 1970.
    pub(crate) started: u64,
}

impl App {
    pub(crate) fn new(engine: Handle, model: Model, config: Config) -> App {
        let metrics = Metrics::new(engine.clone());
        let (phase, _) = watch::channel(Phase::Serving);
        let (leave, ids) = (Notify::new(), Ids::new());
        let grammars = Grammars::new(model.tokenizer.clone());
        App { engine, model, config, metrics, grammars, ids, phase, leave, started: now() }
    }

    /// Refuses work in a server that takes none.
    pub(crate) fn accepting(&self) -> Result<(), ApiError> {
        match &*self.phase.borrow() {
            Phase::Serving => Ok(()),
            Phase::Draining => Err(ApiError::shutting_down()),
            Phase::Lost(lost) => Err(ApiError::lost(lost)),
        }
    }

    /// Runs what takes a while (a template, a tokenizer, a large body) where it holds up nobody
    /// else.
    pub(crate) async fn aside<T: Send + 'static>(
        self: &Arc<App>,
        work: impl FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let app = self.clone();
        let done = task::spawn_blocking(move || work(&app)).await;
        // It panicked, which the log has from the panic itself.
        done.unwrap_or_else(|_| Err(ApiError::internal()))
    }

    /// The served name that a request means: the first when it says none.
    pub(crate) fn served(&self, name: Option<String>) -> Result<String, ApiError> {
        let names = &self.config.names;
        match name {
            None => Ok(names[0].clone()),
            Some(name) if names.contains(&name) => Ok(name),
            Some(name) => Err(ApiError::no_model(&name, names)),
        }
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
