//! Bootstrap records: which bytes they have, and which are none.

use std::net::SocketAddr;

use proptest::prelude::*;
use wire::*;

fn record() -> BootstrapRecord {
    let lane: SocketAddr = "192.0.2.7:4611".parse().unwrap();
    BootstrapRecord {
        network: NetworkId::Public.bytes(),
        addresses: vec!["/ip4/192.0.2.7/udp/4610/quic-v1".into()],
        lanes: vec![Address::new(lane)],
        made_ms: 1_700_000_000_000,
        expires_ms: 1_700_000_000_000 + SEED_LIFE_MAX,
        protocol: PROTOCOL,
    }
}

fn text() -> String {
    let signed = Verified::sign(record(), &Key::new([1; 32])).unwrap();
    SeedText(signed.signed().clone()).to_string()
}

#[test]
fn a_record_in_a_file_is_what_it_was() {
    let golden = include_str!("seed.golden");
    assert_eq!(format!("{}\n", text()), golden, "it has other bytes than before");
    let read: SeedText = golden.parse().unwrap();
    let verified = read.0.verify().unwrap();
    assert_eq!((verified.signer(), verified.content()), (Key::new([1; 32]).id(), &record()));
    assert!(golden.len() < 400, "{} characters", golden.len());
}

#[test]
fn fields_out_of_range_are_named() {
    let refused = |change: &dyn Fn(&mut BootstrapRecord), named: &str| {
        let mut wrong = record();
        change(&mut wrong);
        match wrong.check() {
            Err(Malformed::OutOfRange { field, .. }) => assert_eq!(field, named),
            other => panic!("{named}: {other:?}"),
        }
    };
    refused(&|r| r.network = vec![0; 31], "network");
    refused(&|r| r.addresses.clear(), "addresses");
    refused(&|r| r.addresses = vec![r.addresses[0].clone(); 9], "addresses");
    refused(&|r| r.addresses = vec!["a\u{1b}[2J".into()], "addresses");
    refused(&|r| r.lanes = vec![r.lanes[0].clone(); 9], "lanes");
    refused(&|r| r.expires_ms = r.made_ms, "expires_ms");
    refused(&|r| r.expires_ms = r.made_ms - 1, "expires_ms");
    refused(&|r| r.expires_ms += 1, "expires_ms");
}

proptest! {
    #[test]
    fn a_text_that_was_changed_is_no_record(at in any::<prop::sample::Index>(), with in "[1-9A-Za-z]", cut in any::<prop::sample::Index>()) {
        let text = text();
        let at = at.index(text.len());
        let changed = [&text[..at], &with, &text[at + 1..]].concat();
        for text in [&changed[..], &text[..cut.index(text.len())]] {
            if changed == self::text() { continue; }
            let read = text.parse::<SeedText>().map(|seed| seed.0.verify());
            prop_assert!(!matches!(read, Ok(Ok(_))), "{text}");
        }
    }
}
