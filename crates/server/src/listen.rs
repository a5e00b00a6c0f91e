//! Listening, serving connections, and stopping.
//!
//! A stop goes in steps, each bounded: streams end and new work is refused while Tasks come to rest; then nothing more
//! is accepted and requests that are being answered finish; what is left after that is cut.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::response::Response;
use engine::Engine;
use engine::port::BoxFuture;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower::ServiceBuilder;

use crate::app::App;
use crate::config::{Config, Tls};
use crate::connection::{ConnectionSlot, ConnectionState, IdleLimits, WatchedBody};
use crate::head::HeadGuard;
use crate::routes;

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Plain HTTP where others could read it (AP-REST-02).
    #[error("plain HTTP on `{address}` would expose keys and content on the network")]
    PlainHttp {
        /// The address asked for.
        address: SocketAddr,
    },
    /// The address cannot be had.
    #[error("cannot listen on `{address}`: {source}")]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// Certificate or key cannot be used.
    #[error("cannot use `{}` for TLS: {message}", path.display())]
    Tls {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
}

impl ServeError {
    /// Returns what to do about it.
    pub fn advice(&self) -> &'static str {
        match self {
            ServeError::PlainHttp { .. } => {
                "give a certificate and a key, listen on 127.0.0.1, or allow plain HTTP explicitly"
            }
            ServeError::Bind { source, .. } => match source.kind() {
                std::io::ErrorKind::AddrInUse => {
                    "stop the program that uses this port, or listen on another one"
                }
                std::io::ErrorKind::PermissionDenied => "listen on a port above 1023",
                std::io::ErrorKind::AddrNotAvailable => {
                    "listen on an address of this machine, such as 127.0.0.1"
                }
                _ => "check the address to listen on",
            },
            ServeError::Tls { .. } => "give a certificate chain and its private key, both as PEM",
        }
    }
}

/// A server that has its address and does not answer yet.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Acceptor>,
    config: Config,
}

#[derive(Clone)]
struct Acceptor(TlsAcceptor);

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Acceptor")
    }
}

/// Takes the address to listen on.
///
/// # Errors
/// The address is not available, is not safe without TLS, or the certificate cannot be used.
pub async fn bind(config: Config) -> Result<Bound, ServeError> {
    let address = config.listen;
    if config.tls.is_none() && !config.allow_plain_http && !address.ip().is_loopback() {
        return Err(ServeError::PlainHttp { address });
    }
    let tls = config.tls.as_ref().map(acceptor).transpose()?;
    let refuse = |source| ServeError::Bind { address, source };
    let listener = TcpListener::bind(address).await.map_err(refuse)?;
    let address = listener.local_addr().map_err(refuse)?;
    Ok(Bound {
        listener,
        address,
        tls,
        config,
    })
}

/// Serves until told to stop, then stops in order.
///
/// # Errors
/// As [`bind`].
pub async fn serve(
    engine: Engine,
    config: Config,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    bind(config).await?.serve(engine, shutdown).await;
    Ok(())
}

impl Bound {
    /// Returns the address, with the port that was picked.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns where it will answer.
    pub fn url(&self) -> String {
        let scheme = match &self.tls {
            Some(_) => "https",
            None => "http",
        };
        format!("{scheme}://{}", self.address)
    }

    /// Serves until told to stop, then stops in order. Drains the engine.
    pub async fn serve(self, engine: Engine, shutdown: impl Future<Output = ()> + Send) {
        self.serve_until(engine, Box::pin(shutdown)).await;
    }

    /// A future is compiled where it is boxed: connections here, and not in whatever crate serves.
    fn serve_until<'a>(self, engine: Engine, shutdown: BoxFuture<'a, ()>) -> BoxFuture<'a, ()> {
        Box::pin(self.answer_until(engine, shutdown))
    }

    async fn answer_until(self, engine: Engine, shutdown: BoxFuture<'_, ()>) {
        let url = self.url();
        tracing::info!(url, "listening");
        let (closing, closed) = watch::channel(false);
        let app = App::new(engine.clone(), self.config, url, closed);
        let graceful = GracefulShutdown::new();
        let mut connections = JoinSet::new();
        {
            let server = Server {
                listener: self.listener,
                tls: self.tls,
                router: routes::router(Arc::clone(&app)),
                app: Arc::clone(&app),
                graceful: &graceful,
            };
            let mut accepting = pin!(server.accept(&mut connections));
            tokio::select! {
                () = shutdown => {}
                never = &mut accepting => match never {},
                never = app.keys.watch_streams(&**app.engine.store()) => match never {},
            }
            tracing::info!("draining");
            // Nobody is left to tell when all streams are gone.
            let _ = closing.send(true);
            tokio::select! {
                () = engine.drain() => {}
                never = &mut accepting => match never {},
            }
        }
        let finished = tokio::time::timeout(app.config.shutdown_timeout, graceful.shutdown()).await;
        if finished.is_err() {
            tracing::warn!("open connections were dropped");
        }
        connections.shutdown().await;
        // Sockets that were no longer HTTP say goodbye by themselves.
        let gone = app.sockets.write();
        if tokio::time::timeout(app.config.shutdown_timeout, gone)
            .await
            .is_err()
        {
            tracing::warn!("open WebSockets were dropped");
        }
    }
}

struct Server<'a> {
    listener: TcpListener,
    tls: Option<Acceptor>,
    router: Router,
    app: Arc<App>,
    graceful: &'a GracefulShutdown,
}

impl Server<'_> {
    async fn accept(self, connections: &mut JoinSet<()>) -> Infallible {
        let places_max = self.app.config.connections_max;
        let places = Arc::new(Semaphore::new(places_max));
        let open = Arc::clone(&self.app.connections);
        loop {
            while connections.try_join_next().is_some() {}
            let (stream, address) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Mostly a lack of file handles: waiting is all that helps.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            // Whoever has to make room for this one is gone in a moment; when nobody has to, this one waits.
            let listed = open.admit(address.ip(), places_max / UNKNOWN_SHARE);
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                // Invariant: the semaphore is never closed.
                std::future::pending::<()>().await;
                continue;
            };
            let connection = Connection {
                tls: self.tls.clone(),
                router: self.router.clone(),
                app: Arc::clone(&self.app),
                life: Arc::clone(&listed.life),
                seat: ConnectionSlot::new(listed, place),
                watcher: self.graceful.watcher(),
            };
            connections.spawn(async move {
                connection
                    .app
                    .http
                    .connections
                    .fetch_add(1, Ordering::Relaxed);
                let app = Arc::clone(&connection.app);
                let life = Arc::clone(&connection.life);
                tokio::select! {
                    () = connection.run(stream) => {}
                    () = life.over(patience(&app.config)) => {
                        tracing::debug!("a stalled connection was closed");
                    }
                }
                app.http.connections.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }
}

struct Connection {
    tls: Option<Acceptor>,
    router: Router,
    app: Arc<App>,
    life: Arc<ConnectionState>,
    seat: Arc<ConnectionSlot>,
    watcher: Watcher,
}

/// The longest head of a request, and the most that is read ahead of a body.
const HEAD_BYTES_MAX: usize = 128 * 1024;
/// One address may hold this part of all places with connections that have not authenticated.
const UNKNOWN_SHARE: usize = 4;

/// How long a connection may stand still once it is known; longer than any answer and any pause of a stream.
pub(crate) fn patience(config: &Config) -> IdleLimits {
    const KNOWN_MIN: Duration = Duration::from_secs(60);
    let answer = config.request_timeout + config.header_read_timeout;
    IdleLimits {
        unknown: config.header_read_timeout,
        known: KNOWN_MIN.max(answer).max(config.sse_heartbeat * 3),
    }
}

impl Connection {
    async fn run(self, stream: TcpStream) {
        let patience = self.app.config.header_read_timeout;
        // Answers are written whole; waiting for more would only delay small frames.
        let _ = stream.set_nodelay(true);
        match self.tls.clone() {
            None => self.answer(stream).await,
            Some(acceptor) => {
                match tokio::time::timeout(patience, acceptor.0.accept(stream)).await {
                    Ok(Ok(stream)) => self.answer(stream).await,
                    Ok(Err(error)) => tracing::debug!(%error, "no TLS handshake"),
                    Err(_) => tracing::debug!("the TLS handshake timed out"),
                }
            }
        }
    }

    async fn answer<S>(self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let patience = self.app.config.header_read_timeout;
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .max_buf_size(HEAD_BYTES_MAX)
            // Only where the guard below cannot tell that a head has begun.
            .header_read_timeout(patience);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(patience);
        // Before the connection itself is cut.
        let head_patience = patience.mul_f64(0.9);
        let stream = HeadGuard::new(
            stream,
            Arc::clone(&self.app),
            Arc::clone(&self.life),
            head_patience,
        );
        let (life, answering, seat) = (Arc::clone(&self.life), self.life, self.seat);
        let service = ServiceBuilder::new()
            .map_request(move |mut request: Request<Incoming>| {
                life.note_progress();
                life.answering();
                request.extensions_mut().insert(Arc::clone(&life));
                request.extensions_mut().insert(Arc::clone(&seat));
                request
            })
            .map_response(move |response: Response| {
                response.map(|body| Body::new(WatchedBody::new(body, Arc::clone(&answering))))
            })
            .service(self.router);
        let service = TowerToHyperService::new(service);
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        if let Err(error) = self.watcher.watch(connection.into_owned()).await {
            tracing::debug!(error, "connection ended");
        }
    }
}

fn acceptor(files: &Tls) -> Result<Acceptor, ServeError> {
    let refuse = |path: &PathBuf, message: String| ServeError::Tls {
        path: path.clone(),
        message,
    };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&files.cert)
        .and_then(Iterator::collect)
        .map_err(|error| refuse(&files.cert, error.to_string()))?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| refuse(&files.key, error.to_string()))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| refuse(&files.cert, error.to_string()))?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| refuse(&files.cert, error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Acceptor(TlsAcceptor::from(Arc::new(config))))
}
