//! A server's life: it binds, serves, drains and ends.

use crate::app::{App, Model, Phase};
use crate::config::Config;
use crate::http::connections::Connections;
use engine::{Engine, EngineLost, Handle, Service};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Longest wait for the last bytes of answers once the engine has ended.
const FLUSH: Duration = Duration::from_secs(10);

/// A running server, and what it runs on.
pub struct Server {
    runtime: Runtime,
    address: SocketAddr,
    control: Control,
    life: JoinHandle<Result<(), EngineLost>>,
}

/// Ends a [`Server`] from elsewhere. Clones are alike.
#[derive(Clone)]
pub struct Control {
    app: Arc<App>,
}

/// A server that could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is taken, not ours, or not an address.
    #[error("{host}:{port}: {source}; choose another with --host and --port")]
    Bind {
        /// As configured.
        host: String,
        /// As configured.
        port: u16,
        /// What the system said.
        source: io::Error,
    },
    /// The system gives no threads.
    #[error("the server's threads could not start: {0}")]
    Threads(io::Error),
}

impl Server {
    /// Binds the configured address and serves `engine` there, on threads of its own. The limit of
    /// open files is raised to what the system allows.
    ///
    /// # Errors
    /// An address that cannot be bound.
    ///
    /// # Panics
    /// When `config` has no name for the model, or the engine is not idle.
    pub fn start(engine: Engine, model: Model, config: Config) -> Result<Server, StartError> {
        assert!(!config.names.is_empty(), "expected a name for the model");
        let threads = thread::available_parallelism().map_or(1, |cpus| cpus.get());
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            // Templates and tokenizers: more at once than processors would only take turns.
            .max_blocking_threads(threads)
            .thread_name("server")
            .enable_all()
            .build()
            .map_err(StartError::Threads)?;
        let bind = TcpListener::bind((config.host.as_str(), config.port));
        let bound = runtime.block_on(bind).and_then(|listener| {
            let address = listener.local_addr()?;
            Ok((listener, address))
        });
        let (listener, address) = bound.map_err(|source| StartError::Bind {
            host: config.host.clone(),
            port: config.port,
            source,
        })?;
        let service = Service::start(engine);
        let app = Arc::new(App::new(service.handle().clone(), model, config));
        let ended = watch(service);
        let life = runtime.spawn(live(app.clone(), listener, ended));
        Ok(Server { runtime, address, control: Control { app }, life })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Waits until the server has ended: after [`Control::drain`], or because its engine failed.
    ///
    /// # Errors
    /// Why the engine failed.
    pub fn wait(self) -> Result<(), EngineLost> {
        let Server { runtime, life, .. } = self;
        let ended = runtime.block_on(life).expect("the server's own task does not panic");
        // What still runs are connections that were given time enough.
        runtime.shutdown_background();
        ended
    }

    /// Lets SIGINT and SIGTERM drain the server; a second one ends the process at once, with the
    /// exit code 130.
    ///
    /// # Errors
    /// A system that lets nobody listen for signals.
    pub fn heed_signals(&self) -> io::Result<()> {
        let control = self.control();
        let _guard = self.runtime.enter();
        let mut signals = Signals::new()?;
        self.runtime.spawn(async move {
            signals.next().await;
            tracing::info!("ending: open requests are finished; once more to end at once");
            control.drain();
            signals.next().await;
            std::process::exit(130);
        });
        Ok(())
    }
}

impl Control {
    /// Takes no further requests, finishes the open ones within the configured time, and ends the
    /// server.
    pub fn drain(&self) {
        self.app.phase.send_if_modified(|phase| match phase {
            Phase::Serving => {
                *phase = Phase::Draining;
                true
            }
            Phase::Draining | Phase::Lost(_) => false,
        });
        self.app.leave.notify_one();
    }

    /// The engine's handle.
    pub fn engine(&self) -> &Handle {
        &self.app.engine
    }
}

/// Tells when the service has ended, and how.
fn watch(service: Service) -> oneshot::Receiver<Result<(), EngineLost>> {
    let (send, ended) = oneshot::channel();
    let join = move || {
        // Nobody listens any more when the server is being dropped.
        let _ = send.send(service.join().map(drop));
    };
    thread::Builder::new()
        .name("engine-end".into())
        .spawn(join)
        .expect("the operating system can start a thread");
    ended
}

/// From the first connection to the last.
async fn live(
    app: Arc<App>,
    listener: TcpListener,
    mut ended: oneshot::Receiver<Result<(), EngineLost>>,
) -> Result<(), EngineLost> {
    let connections = Connections::new(app.clone());
    let limits = &app.config.limits;
    let failed = {
        let mut accepting = std::pin::pin!(connections.accept(listener));
        tokio::select! {
            never = &mut accepting => match never {},
            () = app.leave.notified() => None,
            end = &mut ended => {
                let lost = failure(end);
                if let Some(lost) = &lost {
                    tracing::error!(%lost, "the engine failed");
                    app.phase.send_replace(Phase::Lost(lost.clone()));
                    // Whoever asks is told, for a while.
                    tokio::select! {
                        never = &mut accepting => match never {},
                        _ = timeout(limits.failure_time, app.leave.notified()) => {}
                    }
                }
                Some(lost)
            }
        }
    };
    let lost = match failed {
        Some(lost) => lost,
        None => drain(&app, &mut ended).await,
    };
    if timeout(FLUSH, connections.close()).await.is_err() {
        tracing::warn!("connections whose clients do not read were closed");
    }
    lost.map_or(Ok(()), Err)
}

/// Lets the open requests finish, and ends those that do not within their time.
async fn drain(
    app: &App,
    ended: &mut oneshot::Receiver<Result<(), EngineLost>>,
) -> Option<EngineLost> {
    app.engine.drain();
    if let Ok(end) = timeout(app.config.limits.drain_time, &mut *ended).await {
        return failure(end);
    }
    tracing::warn!("open requests were ended: their time to finish is over");
    app.engine.shutdown();
    failure(ended.await)
}

fn failure(end: Result<Result<(), EngineLost>, oneshot::error::RecvError>) -> Option<EngineLost> {
    end.expect("the thread that joins the engine reports").err()
}

/// SIGINT and SIGTERM, or what the system has instead.
struct Signals {
    #[cfg(unix)]
    kinds: [tokio::signal::unix::Signal; 2],
}

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals { kinds: [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?] })
    }

    async fn next(&mut self) {
        let [interrupt, terminate] = &mut self.kinds;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
}

#[cfg(not(unix))]
impl Signals {
    fn new() -> io::Result<Signals> {
        Ok(Signals {})
    }

    async fn next(&mut self) {
        // Without a handler there is nothing to wait for; the process ends as it would have.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
