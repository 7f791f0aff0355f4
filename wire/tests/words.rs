//! Words at the door: what is taken, what is refused, and which bytes they have.

use std::net::SocketAddr;

use proptest::prelude::*;
use wire::lane::{self, Line, Say};
use wire::*;

fn key(n: u8) -> Key {
    Key::new([n; 32])
}

fn offer() -> Offer {
    let lane: SocketAddr = "192.0.2.7:4001".parse().unwrap();
    Offer {
        sequence: 1_700_000_000_000,
        life_ms: 90_000,
        protocol: PROTOCOL,
        program: "cadencia 0.1.0".into(),
        class: "int8x-v1".into(),
        lanes: vec![Address::new(lane)],
        health: Some(Health {
            int8_gops: 90,
            read_mb_s: 15_000,
            ram_free_mb: 8_000,
            battery_percent: Some(80),
            mains: true,
            stability_permille: 990,
            throttled_permille: 0,
            neighbours: vec![Neighbour { node: key(2).id().0.to_vec(), rtt_us: 450 }],
            threads: 2,
        }),
        held: vec![Held {
            manifest: vec![7; 32],
            halves: Some(Halves::new(2, 31)),
            positions_free: 8192,
        }],
        files: vec![vec![7; 32]],
        memory_free_mb: 4_000,
        seats_free: 16,
    }
}

fn open() -> Line {
    Say::Open(lane::Open {
        session: vec![1; 16],
        manifest: vec![7; 32],
        halves: Some(Halves::new(2, 30)),
        positions: 300,
        next: vec![lane::Hop { node: key(3).id().0.to_vec(), lanes: vec![], leg: 1 }],
        from: vec![key(4).id().0.to_vec()],
        beginning: vec![9; 32],
        leg: 0,
    })
    .into()
}

fn rows() -> Line {
    Say::Rows(lane::Rows { step: 9, first: 31, count: 1, wanted: 2, onward: 0 }).into()
}

fn check_bytes(word: &impl Word, expected: &str) {
    let bytes = encode(word);
    let hex: String = digest(0, &bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, expected, "{} has other bytes than before: {bytes:02x?}", word.encoded_len());
}

#[test]
fn bytes_on_the_wire_are_what_they_were() {
    check_bytes(&offer(), "e7ae88fd45a441bd");
    check_bytes(&open(), "15223cb1493a405c");
    check_bytes(&rows(), "2333ae4b197ea043");
    assert_eq!(encode(&rows()), [0x22, 0x08, 0x08, 0x09, 0x10, 0x1f, 0x18, 0x01, 0x20, 0x02]);
}

#[test]
fn a_word_has_one_encoding() {
    let mut bytes = encode(&offer());
    assert_eq!(decode::<Offer>(&bytes), Ok(offer()));
    // A field that nobody knows.
    bytes.extend([0xf8, 0x07, 0x01]);
    assert_eq!(decode::<Offer>(&bytes), Err(Malformed::NotCanonical { what: "an offer" }));
    // A number written longer than it need be.
    let long = [0x22, 0x09, 0x08, 0x89, 0x00, 0x10, 0x1f, 0x18, 0x01, 0x20, 0x02];
    assert_eq!(decode::<Line>(&long), Err(Malformed::NotCanonical { what: "a frame's header" }));
    assert!(matches!(decode::<Line>(&[]), Err(Malformed::OutOfRange { field: "say", .. })));
}

#[test]
fn what_is_too_large_is_refused_before_it_is_read() {
    let error = decode::<Line>(&vec![0; Line::BYTES_MAX + 1]).unwrap_err();
    let (size, max) = (Line::BYTES_MAX + 1, Line::BYTES_MAX);
    assert_eq!(error, Malformed::TooLong { what: "a frame's header", size, max });
}

#[test]
fn fields_out_of_range_are_named() {
    let refused = |change: &dyn Fn(&mut Offer), named: &str| {
        let mut wrong = offer();
        change(&mut wrong);
        match decode::<Offer>(&encode(&wrong)) {
            Err(Malformed::OutOfRange { field, .. }) => assert_eq!(field, named),
            other => panic!("{named}: {other:?}"),
        }
    };
    refused(&|o| o.life_ms = 0, "life_ms");
    refused(&|o| o.program = "a\u{1b}[2J".into(), "program");
    refused(&|o| o.files = vec![vec![0; 31]], "files");
    refused(&|o| o.held[0].halves = None, "held");
    refused(&|o| o.held = vec![o.held[0].clone(); 17], "held");
    refused(&|o| o.health = None, "health");
    refused(&|o| o.health.as_mut().unwrap().battery_percent = Some(101), "battery_percent");
}

#[test]
fn only_a_checked_signature_opens_an_envelope() {
    let verified = Verified::sign(offer(), &key(1)).unwrap();
    let bytes = verified.signed().encode();
    let read = Signed::<Offer>::decode(&bytes).unwrap();
    assert_eq!(read.signer(), key(1).id());
    assert_eq!(read.verify().unwrap().content(), &offer());

    // Any flipped bit is noticed, wherever it is.
    for at in 0..bytes.len() {
        let mut wrong = bytes.clone();
        wrong[at] ^= 1;
        let opened = Signed::<Offer>::decode(&wrong).map(Signed::verify);
        assert!(!matches!(opened, Ok(Ok(_))), "byte {at} may be changed");
    }
}

#[test]
fn a_signature_of_one_kind_is_none_of_another() {
    let invite = invite(&key(1), NetworkId::Public);
    let bytes = invite.signed().encode();
    let other = Signed::<Membership>::decode(&bytes).unwrap().verify();
    assert_eq!(other, Err(SignatureError::Forged { what: "a membership", signer: key(1).id() }));
}

fn invite(by: &Key, network: NetworkId) -> Verified<Invite> {
    let invite = Invite {
        network: network.bytes(),
        id: vec![5; 16],
        uses: 3,
        expires_ms: 1_000,
        addresses: vec!["/ip4/192.0.2.7/udp/4001/quic-v1".into()],
        may_invite: false,
        lanes: vec![],
    };
    Verified::sign(invite, by).unwrap()
}

#[test]
fn an_invitation_survives_being_passed_on_as_text() {
    let invite = invite(&key(1), NetworkId::Private(key(1).id()));
    let text = InviteText(invite.signed().clone()).to_string();
    assert_eq!(format!(" {text}\n").parse(), Ok(InviteText(invite.signed().clone())));
    let cut: Result<InviteText, _> = text[..text.len() - 1].parse();
    assert!(cut.map(|text| text.0.verify().is_err()).unwrap_or(true));
    assert!("http://example.org".parse::<InviteText>().is_err());
}

fn membership(hive: &Key, member: &Key, by: &Key, issuer: Vec<u8>, may_invite: bool) -> Vec<u8> {
    let (hive, member) = (hive.id().0.to_vec(), member.id().0.to_vec());
    let membership = Membership { hive, member, may_invite, expires_ms: 1_000, issuer };
    Verified::sign(membership, by).unwrap().signed().encode()
}

#[test]
fn members_let_others_in_as_far_as_they_may() {
    let (hive, a, b, c) = (key(1), key(2), key(3), key(4));
    let prove = |bytes: &[u8], who: &Key, now| {
        Membership::prove(bytes, who.id(), hive.id(), Millis(now)).map(|_| ())
    };
    let first = membership(&hive, &a, &hive, vec![], true);
    assert_eq!(prove(&first, &a, 999), Ok(()));
    assert_eq!(prove(&first, &a, 1_000), Err(MembershipError::Expired));
    assert_eq!(prove(&first, &b, 999), Err(MembershipError::Stolen(a.id())));

    let second = membership(&hive, &b, &a, first.clone(), false);
    assert_eq!(prove(&second, &b, 999), Ok(()));
    let third = membership(&hive, &c, &b, second, true);
    assert_eq!(prove(&third, &c, 999), Err(MembershipError::Unentitled(b.id())));

    // Somebody vouches for themselves, or with another's proof.
    let own = membership(&hive, &b, &b, vec![], true);
    assert_eq!(prove(&own, &b, 999), Err(MembershipError::Unentitled(b.id())));
    let borrowed = membership(&hive, &b, &c, first, false);
    assert_eq!(prove(&borrowed, &b, 999), Err(MembershipError::Stolen(a.id())));
    let other = membership(&b, &b, &b, vec![], true);
    assert_eq!(prove(&other, &b, 999), Err(MembershipError::Foreign));
}

#[test]
fn names_of_nodes_are_those_of_libp2p() {
    let id = key(1).id();
    let text = id.to_string();
    assert!(text.starts_with("12D3KooW") && text.len() == 52, "{text}");
    assert_eq!(text.parse(), Ok(id));
    for wrong in [
        "",
        "12D3KooW",
        &text[1..],
        &"1".repeat(65),
        "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",
    ] {
        assert!(wrong.parse::<NodeId>().is_err(), "{wrong}");
    }
}

#[test]
fn whatever_a_refusal_tells_can_be_read() {
    for text in ["\u{1b}[2J gone\n".into(), "\u{e9}".repeat(600), "\u{1f980}".repeat(129)] {
        let refused = lane::Refused::new(lane::Reason::Full, &text, 0);
        let lost = lane::Lost::new(key(1).id(), &text);
        for line in [Line::from(Say::Refused(refused)), Say::Lost(lost).into()] {
            assert_eq!(decode(&encode(&line)), Ok(line));
        }
    }
}

#[test]
fn half_blocks_are_named_by_layers() {
    let named = |start, end| Halves::new(start, end).to_string();
    assert_eq!([named(2, 60), named(2, 59), named(3, 60)], ["1-29", "1-29a", "1f-29"]);
    assert_eq!(Halves::new(2, 5).attentions(), 2);
    assert_eq!(Halves::new(3, 5).attentions(), 1);
    assert_eq!(Halves::new(3, 4).attentions(), 0);
}

/// Whatever comes, a word is refused, or is exactly what it was read from.
fn read<W: Word + PartialEq>(bytes: &[u8]) {
    if let Ok(word) = decode::<W>(bytes) {
        assert_eq!(encode(&word), bytes);
    }
}

proptest! {
    #[test]
    fn nothing_that_comes_is_taken_for_something_else(
        seed in prop::collection::vec(any::<u8>(), 0..200),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let signed = Verified::sign(offer(), &key(1)).unwrap().signed().encode();
        for start in [seed, encode(&offer()), encode(&open()), encode(&rows()), signed] {
            let mut bytes = start;
            for (at, with) in &flips {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = *with;
                }
            }
            read::<Offer>(&bytes);
            read::<Line>(&bytes);
            read::<Hello>(&bytes);
            read::<Manifest>(&bytes);
            read::<Membership>(&bytes);
            read::<Invite>(&bytes);
            let _ = Signed::<Offer>::decode(&bytes).map(Signed::verify);
        }
    }
}
