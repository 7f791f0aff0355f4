//! Accepts connections and speaks HTTP/1.1 on them, with a deadline for everything a client may
//! make us wait for.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};

use super::metrics::Connections;

/// Connections at a time; more wait in the system's backlog.
const CONNECTIONS_MAX: usize = 512;
/// How long the head of a request may take, and how long a connection may idle between requests.
const HEAD_TIME_MAX: Duration = Duration::from_secs(30);
/// Headers of one request.
const HEADERS_MAX: usize = 64;
/// Bytes buffered for one connection, its request's head among them.
const BUFFER_BYTES_MAX: usize = 64 << 10;
/// How long a client may leave its answer unread before it counts as gone.
const UNREAD_TIME_MAX: Duration = Duration::from_secs(60);
/// After an accept that failed: until some connection has been closed, most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listener with its routes.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    router: Router,
    open: Connections,
    connections: Arc<Semaphore>,
    graceful: GracefulShutdown,
}

impl Server {
    /// Serves `router` on `listener`, once [`Server::run`] is called. Connections are counted in
    /// `open`.
    pub fn new(listener: TcpListener, router: Router, open: Connections) -> Self {
        Self {
            listener,
            router,
            open,
            connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            graceful: GracefulShutdown::new(),
        }
    }

    /// Accepts until `stop` is over. No wait in it is lost when it is dropped.
    pub async fn run(&self, stop: impl Future<Output = ()>) {
        let accepting = async {
            loop {
                let permit = self.connections.clone().acquire_owned().await;
                let permit = permit.expect("it is never closed");
                match self.listener.accept().await {
                    Ok((stream, _)) => self.speak(stream, permit),
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        };
        tokio::select! {
            () = accepting => {}
            () = stop => {}
        }
    }

    /// Stops listening, and waits until the requests that run are answered.
    pub async fn drain(self) {
        drop(self.listener);
        self.graceful.shutdown().await;
    }

    fn speak(&self, stream: TcpStream, permit: OwnedSemaphorePermit) {
        // Tokens are small and must not wait for each other.
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(self.router.clone());
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIME_MAX)
            .max_headers(HEADERS_MAX)
            .max_buf_size(BUFFER_BYTES_MAX)
            .serve_connection(TokioIo::new(Patient::new(stream)), service);
        let connection = self.graceful.watch(connection);
        let open = self.open.open();
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended");
            }
            drop((permit, open));
        });
    }
}

/// A stream whose writes fail when the other side has read nothing for a while.
#[derive(Debug)]
struct Patient {
    stream: TcpStream,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    fn new(stream: TcpStream) -> Self {
        Self { stream, waiting: None }
    }

    /// Passes `poll` on; starts the clock where it must wait, and stops it where it need not.
    fn limit<T>(
        &mut self,
        context: &mut Context,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.waiting = None;
            return poll;
        }
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(UNREAD_TIME_MAX)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        buffer: &mut ReadBuf,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.limit(context, poll)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_flush(context);
        self.limit(context, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
