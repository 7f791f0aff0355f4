//! What frames do, over QUIC and over any other stream.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::io::{AsyncRead, AsyncWrite};
use tokio::io::{AsyncRead as _, AsyncWrite as _, AsyncWriteExt, DuplexStream, ReadBuf};

use super::*;

/// A stream as libp2p has them, within this process.
struct Foreign(DuplexStream);

impl AsyncRead for Foreign {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut into = ReadBuf::new(into);
        let read = Pin::new(&mut self.0).poll_read(cx, &mut into);
        read.map_ok(|()| into.filled().len())
    }
}

impl AsyncWrite for Foreign {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

fn foreign_pair(limits: PipeLimits) -> (Pipe, Pipe) {
    let (one, two) = tokio::io::duplex(10_000);
    let opened = Pipe::opened_over(id(2), Foreign(one), limits);
    (opened, Pipe::accepted_over(id(1), Foreign(two), limits))
}

fn brief() -> PipeLimits {
    PipeLimits {
        header_bytes_max: 100,
        body_bytes_max: 50_000,
        first_frame_wait: Duration::from_millis(150),
        frame_wait: Duration::from_millis(150),
        unread_wait: Duration::from_millis(300),
        ..PipeLimits::default()
    }
}

/// The same pair over QUIC and over a foreign stream; QUIC needs its nodes to live.
async fn pairs(limits: PipeLimits) -> ([(Pipe, Pipe); 2], [Lanes; 2]) {
    let (here, _) = start_with(1, Config { limits, ..config() }, yes());
    let mut there = start_with(2, Config { limits, ..config() }, yes());
    let (_, one, two) = connected(&here, &mut there).await;
    ([(one, two), foreign_pair(limits)], [here, there.0])
}

/// Frames of all sizes, in one and in many parts, then the end.
async fn both_ways(pipe: Pipe, sizes: [usize; 9]) {
    let (mut sender, mut receiver) = pipe.split();
    let sends = async {
        for (n, &size) in sizes.iter().enumerate() {
            let body = pattern(n, size);
            let parts: Vec<_> = body.chunks(1 + size / 3).map(|p| body.slice_ref(p)).collect();
            sender.send(&pattern(n, n * 10), parts).await.unwrap();
        }
        sender.finish().await.unwrap();
    };
    let receives = async {
        for (n, &size) in sizes.iter().enumerate() {
            let frame = receiver.recv().await.unwrap().unwrap();
            assert_eq!(frame.header, pattern(n, n * 10));
            assert_eq!(frame.body, pattern(n, size));
        }
        assert_eq!(receiver.recv().await.unwrap(), None);
    };
    tokio::join!(sends, receives);
}

#[test]
fn frames_pass_whole_and_in_order_both_ways_over_any_stream() {
    run(async {
        let (pairs, _nodes) = pairs(brief()).await;
        for (one, two) in pairs {
            let sizes = [0, 1, 7, 1170, 1400, 1401, 9_000, 49_999, 50_000];
            tokio::join!(both_ways(one, sizes), both_ways(two, sizes));
        }
    });
}

#[test]
fn own_frames_that_are_too_long_are_refused_and_the_pipe_goes_on() {
    run(async {
        let (pairs, _nodes) = pairs(brief()).await;
        for (mut one, mut two) in pairs {
            let error = one.send(&[0; 101], []).await.unwrap_err();
            assert!(matches!(error, PipeError::OwnHeader { bytes: 101, bytes_max: 100, .. }));
            let body = [pattern(0, 50_000), pattern(1, 1)];
            let error = one.send(b"", body).await.unwrap_err();
            assert!(matches!(error, PipeError::OwnBody { bytes: 50_001, bytes_max: 50_000, .. }));
            one.send(b"short", []).await.unwrap();
            assert_eq!(two.recv().await.unwrap().unwrap().header, "short");
        }
    });
}

#[test]
fn lengths_beyond_the_bounds_are_refused_with_the_numbers() {
    run(async {
        let wide = PipeLimits { header_bytes_max: 1 << 20, body_bytes_max: 1 << 20, ..brief() };
        let (here, _) = start_with(1, Config { limits: wide, ..config() }, yes());
        let mut there = start_with(2, Config { limits: brief(), ..config() }, yes());
        let (_, mut one, mut two) = connected(&here, &mut there).await;
        one.send(&[1; 101], []).await.unwrap();
        let error = two.recv().await.unwrap_err();
        assert!(matches!(error, PipeError::LongHeader { bytes: 101, bytes_max: 100, .. }));
        assert!(error.to_string().contains(&id(1).to_string()), "{error}");
        assert!(matches!(two.recv().await.unwrap_err(), PipeError::Over { .. }));

        let (_, mut one, mut two) = connected(&here, &mut there).await;
        one.send(b"", [pattern(0, 50_001)]).await.unwrap();
        let error = two.recv().await.unwrap_err();
        assert!(matches!(error, PipeError::LongBody { bytes: 50_001, bytes_max: 50_000, .. }));
        // The sender learns why as soon as it tries again; by then the refusal may be under way.
        let error = loop {
            if let Err(error) = one.send(b"", [pattern(0, 100)]).await {
                break error;
            }
            tokio::task::yield_now().await;
        };
        let PipeError::GivenUp { why, .. } = error else { panic!("{error}") };
        assert_eq!(why, Objection::LongBody);
    });
}

#[test]
fn four_gigabytes_announced_cost_nothing() {
    run(async {
        let (mut raw, other) = tokio::io::duplex(1000);
        let mut pipe = Pipe::accepted_over(id(1), Foreign(other), PipeLimits::default());
        let before = resident();
        raw.write_all(&[0, 0, 0, 0, 255, 255, 255, 255]).await.unwrap();
        let error = pipe.recv().await.unwrap_err();
        assert!(matches!(error, PipeError::LongBody { bytes: 0xffff_ffff, .. }), "{error}");
        assert!(resident().saturating_sub(before) < 256 << 20);
    });
}

#[test]
fn whoever_opens_a_pipe_has_to_speak_soon() {
    run(async {
        let (_raw, other) = tokio::io::duplex(1000);
        let mut pipe = Pipe::accepted_over(id(1), Foreign(other), brief());
        let error = pipe.recv().await.unwrap_err();
        assert!(matches!(error, PipeError::NoFirstFrame { .. }), "{error}");
    });
}

#[test]
fn a_frame_that_trickles_is_given_up_with_the_numbers() {
    run(async {
        let (mut raw, other) = tokio::io::duplex(1000);
        let mut pipe = Pipe::accepted_over(id(1), Foreign(other), brief());
        raw.write_all(&[4, 0, 0, 0, 10, 0, 0, 0, b'h']).await.unwrap();
        let error = pipe.recv().await.unwrap_err();
        let PipeError::Slow { bytes, bytes_wanted, .. } = error else { panic!("{error}") };
        assert_eq!((bytes, bytes_wanted), (9, 22));

        // Over QUIC the same, and the peer reads why.
        let (here, _) = start(1);
        let mut there = start_with(2, Config { limits: brief(), ..config() }, yes());
        let link = here.link(id(2), &[there.0.address()]).await.unwrap();
        let (mut raw, _back) = link.connection().open_bi().await.unwrap();
        raw.write_all(&[4, 0, 0]).await.unwrap();
        let mut pipe = within(there.1.recv()).await.unwrap().pipe;
        let error = pipe.recv().await.unwrap_err();
        assert!(matches!(error, PipeError::Slow { bytes: 3, bytes_wanted: 8, .. }), "{error}");
        let stopped = raw.stopped().await.unwrap();
        assert_eq!(stopped, Some(Objection::Slow.code()));
    });
}

#[test]
fn a_pipe_that_ends_within_a_frame_is_called_cut() {
    run(async {
        let (mut raw, other) = tokio::io::duplex(1000);
        let mut pipe = Pipe::opened_over(id(1), Foreign(other), brief());
        raw.write_all(&[0, 0, 0, 0, 10, 0, 0, 0, 1, 2]).await.unwrap();
        drop(raw);
        let error = pipe.recv().await.unwrap_err();
        assert!(matches!(error, PipeError::Cut { bytes: 10, bytes_wanted: 18, .. }), "{error}");
    });
}

#[test]
fn an_abandoned_receive_loses_nothing() {
    run(async {
        let (mut raw, other) = tokio::io::duplex(1000);
        let mut pipe = Pipe::opened_over(id(1), Foreign(other), brief());
        let whole = [2u8, 0, 0, 0, 3, 0, 0, 0, b'h', b'i', 7, 8, 9];
        for byte in &whole[..whole.len() - 1] {
            raw.write_all(&[*byte]).await.unwrap();
            assert!(futures_util::future::FutureExt::now_or_never(pipe.recv()).is_none());
        }
        raw.write_all(&whole[12..]).await.unwrap();
        let frame = pipe.recv().await.unwrap().unwrap();
        assert_eq!((&frame.header[..], &frame.body[..]), (&b"hi"[..], &[7u8, 8, 9][..]));
    });
}

#[test]
fn a_reader_that_does_not_read_stops_the_writer_and_memory_stays_flat() {
    run(async {
        let limits = PipeLimits { body_bytes_max: 1 << 20, ..brief() };
        let (pairs, _nodes) = pairs(limits).await;
        for (mut one, mut two) in pairs {
            let before = resident();
            let body = pattern(0, 1 << 20);
            let mut sent = 0;
            let error = loop {
                match one.send(b"", [body.clone()]).await {
                    Ok(()) => sent += 1,
                    Err(error) => break error,
                }
                assert!(sent <= 16, "the windows hold 4 and 8 MiB");
            };
            assert!(matches!(error, PipeError::Unread { bytes: 1_048_584, .. }), "{error}");
            assert!(error.to_string().contains(&id(2).to_string()), "{error}");
            assert!(resident().saturating_sub(before) < 64 << 20);
            assert!(matches!(one.send(b"", []).await.unwrap_err(), PipeError::Over { .. }));
            // What was complete before can still be read.
            for _ in 0..sent {
                assert_eq!(two.recv().await.unwrap().unwrap().body, body);
            }
        }
    });
}

#[test]
fn a_slow_reader_gets_everything_from_a_patient_writer() {
    run(async {
        let (pairs, _nodes) = pairs(PipeLimits::default()).await;
        for (one, two) in pairs {
            let (mut sender, _back) = one.split();
            let body = pattern(3, 1 << 20);
            let sends = async {
                for n in 0..24u8 {
                    sender.send(&[n], [body.clone()]).await.unwrap();
                }
            };
            let (_other, mut receiver) = two.split();
            let receives = async {
                for n in 0..24u8 {
                    let frame = receiver.recv().await.unwrap().unwrap();
                    assert_eq!((frame.header[0], &frame.body), (n, &body));
                    tokio::task::yield_now().await;
                }
            };
            tokio::join!(sends, receives);
        }
    });
}
