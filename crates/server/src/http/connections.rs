//! Connections: how many there may be, how long they may be idle, and how they end.

use crate::app::App;
use crate::http::caller::Connection;
use crate::http::error::ApiError;
use crate::http::patient::Patient;
use crate::http::router;
use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::sleep;

/// Descriptors that are not connections: models, the listener, timers, standard streams.
const OTHER_FILES: usize = 64;

/// Connections beyond the limit, which are told so. Past these, nobody is told.
const EXCESS: usize = 64;

/// How long one of those may take to say what it wants.
const EXCESS_TIME: Duration = Duration::from_secs(1);

/// How long to wait when the system has no descriptor to give.
const NO_FILES: Duration = Duration::from_millis(50);

/// The sockets of a server.
pub(crate) struct Connections {
    app: Arc<App>,
    router: Router,
    places: Arc<Semaphore>,
    excess: Arc<Semaphore>,
    /// `true` once connections are to end with the answer they are at.
    closing: watch::Sender<bool>,
    /// Every connection has a clone.
    alive: mpsc::Sender<Infallible>,
    ended: mpsc::Receiver<Infallible>,
}

impl Connections {
    pub(crate) fn new(app: Arc<App>) -> Connections {
        let files = rlimit::increase_nofile_limit(u64::MAX).unwrap_or(1024);
        let files = usize::try_from(files).unwrap_or(usize::MAX);
        let most = files.saturating_sub(OTHER_FILES + EXCESS).max(1);
        let places = app.config.limits.connections.min(most).min(Semaphore::MAX_PERMITS);
        let (alive, ended) = mpsc::channel(1);
        Connections {
            router: router(app.clone()),
            app,
            places: Arc::new(Semaphore::new(places)),
            excess: Arc::new(Semaphore::new(EXCESS)),
            closing: watch::channel(false).0,
            alive,
            ended,
        }
    }

    /// Takes connections in until the future is dropped.
    pub(crate) async fn accept(&self, listener: TcpListener) -> Infallible {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => self.take(stream),
                // Out of descriptors, or the client is gone already: neither ends the server.
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(NO_FILES).await;
                }
            }
        }
    }

    fn take(&self, stream: TcpStream) {
        let room = |places: &Arc<Semaphore>| places.clone().try_acquire_owned().ok();
        let (place, kind) = if let Some(place) = room(&self.places) {
            (place, Kind::Full)
        } else if let Some(place) = room(&self.excess) {
            (place, Kind::Excess)
        } else {
            return;
        };
        // Events are small and must not wait for each other.
        let _ = stream.set_nodelay(true);
        tokio::spawn(self.serve(stream, kind, place));
    }

    /// One connection, from its first request to its end.
    fn serve(
        &self,
        stream: TcpStream,
        kind: Kind,
        place: OwnedSemaphorePermit,
    ) -> impl Future<Output = ()> + Send + 'static {
        let limits = &self.app.config.limits;
        let connection = Connection::default();
        let service = service_fn(handler(self.router.clone(), kind, connection.clone()));
        let io = TokioIo::new(Patient::new(stream, limits.stall_time));
        let head_time = match kind {
            Kind::Full => limits.head_time,
            Kind::Excess => EXCESS_TIME,
        };
        let mut closing = self.closing.subscribe();
        let alive = self.alive.clone();
        async move {
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(head_time)
                .keep_alive(kind == Kind::Full)
                .serve_connection(io, service);
            let mut served = pin!(served);
            tokio::select! {
                // How a connection ends is its client's affair.
                _ = served.as_mut() => {}
                () = connection.is_cut() => {}
                () = until(&mut closing) => {
                    served.as_mut().graceful_shutdown();
                    tokio::select! {
                        _ = served => {}
                        () = connection.is_cut() => {}
                    }
                }
            }
            drop((place, alive));
        }
    }

    /// Lets every connection end with the answer it is at, and waits until all have.
    pub(crate) async fn close(self) {
        let Connections { closing, alive, mut ended, .. } = self;
        closing.send_replace(true);
        drop(alive);
        ended.recv().await;
    }
}

/// Waits until connections are to end.
async fn until(closing: &mut watch::Receiver<bool>) {
    // The sender is gone only when the server is.
    let _ = closing.wait_for(|closing| *closing).await;
}

/// Whether a connection has a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It has.
    Full,
    /// It is told that there is none; it may ask whether the server lives.
    Excess,
}

type Answer = Result<Response, Infallible>;

/// What answers the requests of one connection.
fn handler(
    router: Router,
    kind: Kind,
    connection: Connection,
) -> impl Fn(hyper::Request<Incoming>) -> futures_util::future::BoxFuture<'static, Answer> {
    let router = TowerToHyperService::new(router);
    move |mut request| {
        if kind == Kind::Excess && request.uri().path() != "/health" {
            return Box::pin(async { Ok(ApiError::overloaded().into_response()) });
        }
        request.extensions_mut().insert(connection.clone());
        Box::pin(router.call(Request::from(request)))
    }
}
