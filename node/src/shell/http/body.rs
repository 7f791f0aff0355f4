//! Reads a request's body, within bounds of size, time and memory.

use std::time::Duration;

use axum::body::{Body, BodyDataStream, HttpBody};
use axum::http::StatusCode;
use futures_util::StreamExt;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::Api;
use super::fault::Fault;

/// Bytes of a request's body: several times what the longest context holds as text.
const BODY_BYTES_MAX: usize = 4 << 20;
/// Bytes read and thrown away beyond that, so that the client lives to read its refusal.
const BODY_DISCARDED_MAX: usize = 64 << 20;
/// How long a body may take to arrive.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);

/// A whole body, and the share of the memory for bodies that it takes until it is dropped.
#[derive(Debug)]
pub struct Whole {
    /// It.
    pub bytes: Vec<u8>,
    share: Option<OwnedSemaphorePermit>,
}

impl Whole {
    fn add(&mut self, api: &Api, chunk: &[u8]) -> Result<(), Fault> {
        let wanted = u32::try_from(chunk.len()).unwrap_or(u32::MAX);
        let Ok(more) = api.bodies.clone().try_acquire_many_owned(wanted) else {
            let message = "too many requests are being received; try again";
            let fault = Fault::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message);
            return Err(fault.later(1));
        };
        match &mut self.share {
            Some(share) => share.merge(more),
            None => self.share = Some(more),
        }
        self.bytes.extend_from_slice(chunk);
        Ok(())
    }
}

/// The whole body, if it is small enough and comes in time.
pub async fn read(api: &Api, body: Body) -> Result<Whole, Fault> {
    let announced = body.size_hint().lower();
    // Far too large: not even worth reading for the sake of a kind refusal.
    if announced > BODY_DISCARDED_MAX as u64 {
        return Err(large());
    }
    let collect = collect(api, body.into_data_stream());
    timeout(BODY_TIME_MAX, collect).await.unwrap_or_else(|_| {
        let message = format!("the body took longer than {} s", BODY_TIME_MAX.as_secs());
        Err(Fault::new(StatusCode::REQUEST_TIMEOUT, "body_late", message))
    })
}

async fn collect(api: &Api, mut chunks: BodyDataStream) -> Result<Whole, Fault> {
    let (mut whole, mut length) = (Whole { bytes: Vec::new(), share: None }, 0usize);
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| {
            let message = "the body ended before it was complete";
            Fault::new(StatusCode::BAD_REQUEST, "body_incomplete", message)
        })?;
        length = length.saturating_add(chunk.len());
        match length {
            n if n > BODY_DISCARDED_MAX => break,
            n if n > BODY_BYTES_MAX => whole = Whole { bytes: Vec::new(), share: None },
            _ => whole.add(api, &chunk)?,
        }
    }
    if length > BODY_BYTES_MAX { Err(large()) } else { Ok(whole) }
}

fn large() -> Fault {
    let message = format!("the body has more than {BODY_BYTES_MAX} bytes");
    Fault::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
}
