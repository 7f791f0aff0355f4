//! Founding, inviting, coming in, and everything that is refused on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use proptest::prelude::*;
use wire::lane::Reason;
use wire::{Address, Verified};

use super::hive::Hive;
use super::hive::{INVITE_MS_MAX, MEMBERSHIP_MS};
use super::invites::USES_MAX;
use super::*;
use crate::shell::lanes::{self, Incoming, Lanes};
use crate::shell::speaker::unix_now_ms;

const DAY: u64 = 24 * 3600 * 1000;
const NOW: Millis = Millis(1_700_000_000_000);

fn key(n: u8) -> Key {
    Key::new([n; 32])
}

fn wish(uses: u32, may_invite: bool) -> Wish {
    let lane: SocketAddr = "192.0.2.7:4611".parse().unwrap();
    let addresses = vec!["/ip4/192.0.2.7/udp/4610/quic-v1".into()];
    Wish { uses, lasts_ms: DAY, may_invite, addresses, lanes: vec![Address::new(lane)] }
}

fn founder() -> Hive {
    Hive { belonging: Belonging::Founder, ..Hive::public() }
}

fn invitation(hive: &mut Hive, by: &Key, wish: &Wish, id: u8) -> Vec<u8> {
    hive.invite(by, wish, [id; 16], NOW).unwrap().signed().encode()
}

/// A node in a folder of its own.
struct Node {
    folder: tempfile::TempDir,
    key: Key,
    admission: Admission,
}

impl Node {
    fn new(n: u8) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let admission = Admission::open(folder.path(), &key(n), NOW).unwrap();
        Self { folder, key: key(n), admission }
    }

    fn founder(n: u8) -> Self {
        let node = Self::new(n);
        node.admission.found().unwrap();
        node
    }

    fn id(&self) -> NodeId {
        self.key.id()
    }

    /// As after a crash: nothing is left but what is on disk.
    fn restart(&mut self, now: Millis) {
        self.admission = Admission::open(self.folder.path(), &self.key, now).unwrap();
    }

    fn invite(&self, wish: &Wish) -> Vec<u8> {
        self.admission.invite(wish, NOW).unwrap().0.encode()
    }

    fn admit(&self, invite: &[u8], peer: &Node, now: Millis) -> Result<Vec<u8>, Refusal> {
        let ask = Admit { invite: invite.to_vec(), membership: Vec::new() };
        self.admission.admit(&ask, peer.id(), now).map(|answer| answer.membership)
    }

    /// Comes into the hive of `issuer`.
    fn enter(&self, issuer: &Node, hive: &Node, may_invite: bool) {
        let invite = issuer.invite(&wish(1, may_invite));
        let membership = issuer.admit(&invite, self, NOW).unwrap();
        self.admission.enter(hive.id(), &membership, NOW).unwrap();
    }

    fn judges(&self, other: &Node, now: Millis) -> Result<Standing, Refusal> {
        self.admission.judge(&other.admission.hello(now), other.id(), now)
    }
}

#[test]
fn whoever_is_invited_becomes_a_member_and_stays_one_after_a_restart() {
    let (mut hive, mut guest) = (Node::founder(1), Node::new(2));
    assert_eq!(hive.judges(&guest, NOW).unwrap_err().say().reason, Reason::NotAllowed as i32);
    guest.enter(&hive, &hive, false);
    assert_eq!(hive.judges(&guest, NOW), Ok(Standing::Member));
    assert_eq!(guest.judges(&hive, NOW), Ok(Standing::Member));
    hive.admission.save().unwrap();
    hive.restart(NOW);
    guest.restart(NOW);
    assert_eq!(hive.admission.known_members(NOW), [guest.id()]);
    assert_eq!(guest.admission.known_members(NOW), [hive.id()]);
    assert_eq!(guest.judges(&hive, NOW), Ok(Standing::Member));
    assert_eq!(hive.judges(&guest, NOW), Ok(Standing::Member));
}

#[test]
fn members_of_one_hive_believe_each_other_though_they_never_met() {
    let (hive, a, b, c) = (Node::founder(1), Node::new(2), Node::new(3), Node::new(4));
    a.enter(&hive, &hive, true);
    b.enter(&hive, &hive, false);
    c.enter(&a, &hive, false);
    assert_eq!(b.judges(&c, NOW), Ok(Standing::Member));
    let mut known = b.admission.known_members(NOW);
    known.sort();
    let mut all = vec![hive.id(), a.id(), c.id()];
    all.sort();
    assert_eq!(known, all, "who vouches for a member is one, too");
    let mut may = c.admission.inviters(NOW);
    may.sort();
    let mut both = vec![hive.id(), a.id()];
    both.sort();
    assert_eq!(may, both);
}

#[test]
fn one_without_membership_may_ask_while_an_invitation_is_open_and_do_nothing_else() {
    let (hive, guest, stranger) = (Node::founder(1), Node::new(2), Node::new(3));
    let hello = Hello { network: hive.admission.network().bytes(), ..guest.admission.hello(NOW) };
    let judged = |now| hive.admission.judge(&hello, stranger.id(), now);
    assert_eq!(judged(NOW), Err(Refusal::Closed));
    hive.invite(&wish(1, false));
    assert_eq!(judged(NOW), Ok(Standing::Applicant));
    assert_eq!(hive.admission.standing(stranger.id(), NOW), Standing::Applicant);
    assert_eq!(judged(NOW.plus(DAY)), Err(Refusal::Closed));
    // One that may not let others in has no use for applicants.
    guest.enter(&hive, &hive, false);
    assert_eq!(guest.admission.judge(&hello, stranger.id(), NOW), Err(Refusal::Closed));
}

#[test]
fn versions_and_networks_are_named_when_they_differ() {
    let (hive, other, public) = (Node::founder(1), Node::founder(2), Node::new(3));
    let old = Hello { protocol: PROTOCOL + 1, ..public.admission.hello(NOW) };
    let skew = public.admission.judge(&old, hive.id(), NOW).unwrap_err().to_string();
    assert!(skew.contains("update the older one"), "{skew}");
    let error = hive.judges(&other, NOW).unwrap_err().to_string();
    assert!(error.contains(&hive.id().short()) && error.contains(&other.id().short()), "{error}");
    assert!(matches!(hive.judges(&public, NOW), Err(Refusal::Network { .. })));
    assert!(matches!(public.judges(&hive, NOW), Err(Refusal::Network { .. })));
    assert_eq!(public.judges(&Node::new(4), NOW), Ok(Standing::Member));
}

#[test]
fn a_membership_of_somebody_else_opens_no_door() {
    let (hive, guest, thief) = (Node::founder(1), Node::new(2), Node::new(3));
    guest.enter(&hive, &hive, true);
    let hello = guest.admission.hello(NOW);
    let stolen = Refusal::Membership(wire::MembershipError::Stolen(guest.id()));
    assert_eq!(hive.admission.judge(&hello, thief.id(), NOW), Err(stolen.clone()));
    let ask = Admit { invite: Vec::new(), membership: hello.membership };
    assert_eq!(hive.admission.admit(&ask, thief.id(), NOW), Err(stolen));
    assert_eq!(hive.admission.standing(thief.id(), NOW), Standing::Applicant);
}

#[test]
fn a_membership_ends_and_is_renewed_before_that_by_one_that_may() {
    let (hive, a, b) = (Node::founder(1), Node::new(2), Node::new(3));
    a.enter(&hive, &hive, true);
    b.enter(&hive, &hive, false);
    let late = NOW.plus(MEMBERSHIP_MS - DAY);
    let renewed = |by: &Node, whose: &Node, now| {
        let ask = Admit { invite: Vec::new(), membership: whose.admission.proof(now).unwrap() };
        by.admission.admit(&ask, whose.id(), now).map(|answer| answer.membership)
    };
    assert_eq!(renewed(&b, &a, late), Err(Refusal::Unentitled));
    let membership = renewed(&hive, &a, late).unwrap();
    a.admission.enter(hive.id(), &membership, late).unwrap();
    assert_eq!(a.admission.lasts(), Some(late.plus(MEMBERSHIP_MS)));
    // What a signs now lasts no longer than what a has.
    let membership = renewed(&a, &b, late.plus(1)).unwrap();
    b.admission.enter(hive.id(), &membership, late.plus(1)).unwrap();
    assert_eq!(b.admission.lasts(), a.admission.lasts());
    let end = late.plus(MEMBERSHIP_MS);
    assert_eq!(hive.judges(&b, late.plus(DAY)), Ok(Standing::Member));
    assert_eq!(hive.admission.standing(b.id(), end), Standing::Applicant);
    assert_eq!(hive.judges(&b, end), Err(Refusal::Closed));
    assert_eq!(b.admission.proof(end), None);
}

#[test]
fn a_renewed_member_is_known_by_its_gossip_though_it_says_hello_as_before() {
    let (hive, a, b) = (Node::founder(1), Node::new(2), Node::new(3));
    a.enter(&hive, &hive, false);
    b.enter(&hive, &hive, false);
    let hello = a.admission.hello(NOW);
    let late = NOW.plus(MEMBERSHIP_MS - 1);
    let ask = Admit { invite: Vec::new(), membership: hello.membership.clone() };
    let renewed = hive.admission.admit(&ask, a.id(), late).unwrap().membership;
    let ended = NOW.plus(MEMBERSHIP_MS);
    assert!(b.admission.judge(&hello, a.id(), ended).is_err());
    b.admission.learn(&renewed, late).unwrap();
    assert_eq!(b.admission.judge(&hello, a.id(), ended), Ok(Standing::Member));
}

#[test]
fn the_same_guest_comes_again_without_another_use_even_after_a_crash() {
    let (mut hive, guest, other) = (Node::founder(1), Node::new(2), Node::new(3));
    let invite = hive.invite(&wish(1, false));
    let first = hive.admit(&invite, &guest, NOW).unwrap();
    // The answer was lost with the process.
    hive.restart(NOW);
    assert_eq!(hive.admit(&invite, &guest, NOW.plus(5)), Ok(first));
    assert_eq!(hive.admit(&invite, &other, NOW), Err(Refusal::UsedUp(1)));
}

#[test]
fn invitations_that_are_forged_expired_foreign_or_withdrawn_are_refused_with_what_to_do() {
    let (hive, other, guest) = (Node::founder(1), Node::founder(2), Node::new(3));
    let invite = hive.invite(&wish(2, false));
    let refused = |by: &Node, invite: &[u8], now| by.admit(invite, &guest, now).unwrap_err();
    assert_eq!(refused(&other, &invite, NOW), Refusal::Elsewhere(hive.id()));
    assert_eq!(refused(&hive, &invite, NOW.plus(DAY)), Refusal::Expired(0));
    assert_eq!(refused(&hive, b"nonsense", NOW).say().reason, Reason::Broken as i32);
    // Signed by this node, but for a hive that it is not of.
    let foreign = wire::Invite {
        network: other.admission.network().bytes(),
        id: vec![1; 16],
        uses: 9,
        expires_ms: NOW.0 + DAY,
        ..Default::default()
    };
    let foreign = Verified::sign(foreign, &hive.key).unwrap().signed().encode();
    assert!(matches!(refused(&hive, &foreign, NOW), Refusal::Foreign { .. }));
    let id = hive.admission.invites(NOW).unwrap()[0].0;
    assert!(hive.admission.withdraw(&id).unwrap() && !hive.admission.withdraw(&id).unwrap());
    assert_eq!(refused(&hive, &invite, NOW), Refusal::Withdrawn);
    let empty = hive.admission.admit(&Admit::default(), guest.id(), NOW);
    assert_eq!(empty, Err(Refusal::Empty));
    assert!(!Refusal::Unentitled.say().text.is_empty());
}

#[test]
fn a_use_that_cannot_be_written_down_lets_nobody_in() {
    let (hive, guest) = (Node::founder(1), Node::new(2));
    let invite = hive.invite(&wish(1, false));
    // Where the new file is to be written stands a folder that is not empty.
    let part = hive.folder.path().join("hive.part");
    std::fs::create_dir_all(part.join("in the way")).unwrap();
    assert_eq!(hive.admit(&invite, &guest, NOW), Err(Refusal::Unable));
    assert_eq!(hive.admission.standing(guest.id(), NOW), Standing::Applicant);
    std::fs::remove_dir_all(&part).unwrap();
    assert!(hive.admit(&invite, &guest, NOW).is_ok());
}

#[test]
fn invitations_are_bounded_and_only_those_who_may_make_them() {
    let (hive, guest, public) = (Node::founder(1), Node::new(2), Node::new(3));
    guest.enter(&hive, &hive, false);
    let refused = |node: &Node, wish: &Wish| match node.admission.invite(wish, NOW) {
        Err(AdmissionError::Invite(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&guest, &wish(1, false)), InviteError::Refused(Refusal::Unentitled));
    assert_eq!(refused(&hive, &wish(0, false)), InviteError::Uses(0));
    let long = Wish { lasts_ms: INVITE_MS_MAX + 1, ..wish(1, false) };
    assert!(matches!(refused(&hive, &long), InviteError::Lasts { .. }));
    assert_eq!(refused(&hive, &Wish { lanes: vec![], ..wish(1, false) }), InviteError::Nowhere);
    let open = hive.admission.invites(NOW).unwrap().len();
    (open..invites::INVITES_MAX).for_each(|_| drop(hive.invite(&wish(1, false))));
    assert_eq!(refused(&hive, &wish(1, false)), InviteError::TooMany);
    assert!(hive.admission.invite(&wish(1, false), NOW.plus(DAY)).is_ok(), "those are over");
    // Of the public network an invitation says only where it is.
    let book = public.admission.invite(&wish(1, true), NOW).unwrap().0.verify().unwrap();
    assert_eq!(book.content().network(), NetworkId::Public);
    assert!(!book.content().may_invite && public.admission.invites(NOW).unwrap().is_empty());
    let bytes = book.signed().encode();
    assert_eq!(public.admit(&bytes, &guest, NOW), Err(Refusal::Public));
}

#[test]
fn a_chain_of_members_ends_where_nobody_would_believe_it() {
    let hive = Node::founder(1);
    let mut last = Node::new(2);
    last.enter(&hive, &hive, true);
    for n in 3..=7 {
        let next = Node::new(n);
        next.enter(&last, &hive, true);
        assert_eq!(hive.judges(&next, NOW), Ok(Standing::Member));
        last = next;
    }
    let invite = last.invite(&wish(1, false));
    assert_eq!(last.admit(&invite, &Node::new(8), NOW), Err(Refusal::TooDeep));
}

#[test]
fn a_file_that_is_damaged_or_open_to_others_lets_nobody_in() {
    let hive = Node::founder(1);
    hive.invite(&wish(3, false));
    let path = hive.folder.path().join("hive");
    let whole = std::fs::read_to_string(&path).unwrap();
    let other = whole.replace(&hive.id().to_string(), &key(2).id().to_string());
    let more = whole.replace("uses = 3", "uses = 65");
    let odd = whole.clone() + "surprise = 1\n";
    for text in [&whole[..whole.len() / 2], &other, &more, &odd, "\u{0}"] {
        std::fs::write(&path, text).unwrap();
        let error = Admission::open(hive.folder.path(), &hive.key, NOW).unwrap_err();
        assert!(matches!(error, AdmissionError::Store(StoreError::Damaged { .. })), "{text}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "it is left alone");
    }
    std::fs::write(&path, &whole).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        let error = Admission::open(hive.folder.path(), &hive.key, NOW).unwrap_err();
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }
}

#[test]
fn a_node_is_in_one_hive_at_a_time_and_may_leave_it() {
    let (hive, other, guest) = (Node::founder(1), Node::founder(2), Node::new(3));
    guest.enter(&hive, &hive, false);
    assert!(matches!(guest.admission.found(), Err(AdmissionError::Taken(_))));
    let membership = other.admit(&other.invite(&wish(1, false)), &guest, NOW).unwrap();
    let error = guest.admission.enter(other.id(), &membership, NOW);
    assert!(matches!(error, Err(AdmissionError::Taken(_))));
    guest.admission.leave().unwrap();
    assert_eq!(guest.admission.network(), NetworkId::Public);
    guest.admission.enter(other.id(), &membership, NOW).unwrap();
    assert_eq!(guest.admission.known_members(NOW), [other.id()]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Disk and answers are played here: a crash may come before the new state is on disk, or
    /// between that and the answer.
    #[test]
    fn no_sequence_of_guests_and_crashes_lets_more_in_than_an_invitation_has_uses(
        uses in 1..5u32,
        steps in prop::collection::vec((0..8u8, 0..3u8, 0..2u8, 0..DAY / 4), 1..40),
    ) {
        let own = key(1);
        let mut disk = founder();
        let invites: Vec<_> =
            (0..2).map(|id| invitation(&mut disk, &own, &wish(uses, false), id)).collect();
        let mut counted = BTreeMap::<u8, BTreeSet<NodeId>>::new();
        let mut held = BTreeMap::<(u8, NodeId), Millis>::new();
        let mut now = NOW;
        for (who, crash, id, passed) in steps {
            now = now.plus(passed);
            let guest = key(100 + who).id();
            let mut memory = disk.clone();
            let outcome = memory.redeem(&own, &invites[id as usize], guest, now);
            match (&outcome, crash) {
                // The power went before anything was written.
                (_, 0) => continue,
                (Ok(_), _) => {
                    disk = memory;
                    counted.entry(id).or_default().insert(guest);
                }
                (Err(error), _) => {
                    prop_assert_eq!(&memory, &disk, "after {} nothing has changed", error);
                    if let Refusal::UsedUp(_) = error {
                        prop_assert_eq!(counted[&id].len(), uses as usize);
                        prop_assert!(!counted[&id].contains(&guest));
                    }
                }
            }
            // With crash 1 the answer is lost, and counted all the same.
            if let (Ok(membership), 2) = (outcome, crash) {
                let until = Millis(membership.content().expires_ms);
                prop_assert!(until > now && now < NOW.plus(DAY));
                held.insert((id, guest), until);
            }
            for id in 0..2 {
                let came = held.keys().filter(|(by, _)| *by == id).count();
                prop_assert!(came <= uses as usize, "{} came by {} uses", came, uses);
            }
        }
    }

    #[test]
    fn no_invitation_with_a_changed_byte_lets_anybody_in(
        at in any::<prop::sample::Index>(), with in 1..=255u8, cut in any::<prop::sample::Index>(),
    ) {
        let own = key(1);
        let mut hive = founder();
        let invite = invitation(&mut hive, &own, &wish(2, true), 1);
        let before = hive.clone();
        let mut changed = invite.clone();
        let at = at.index(changed.len());
        changed[at] ^= with;
        for bytes in [&changed[..], &invite[..cut.index(invite.len())]] {
            prop_assert!(hive.redeem(&own, bytes, key(9).id(), NOW).is_err());
            prop_assert_eq!(&hive, &before);
        }
        // Signed anew by somebody else, it is an invitation to somebody else.
        let content = wire::Signed::<wire::Invite>::decode(&invite).unwrap().verify().unwrap();
        let forged = Verified::sign(content.content().clone(), &key(9)).unwrap();
        let refused = hive.redeem(&own, &forged.signed().encode(), key(9).id(), NOW);
        prop_assert_eq!(refused, Err(Refusal::Elsewhere(key(9).id())));
    }

    #[test]
    fn the_file_says_what_was_put_in(uses in prop::collection::vec(1..=USES_MAX, 0..6), came in 0..5u8) {
        let mut node = Node::founder(1);
        let invites: Vec<_> = uses.iter().map(|uses| node.invite(&wish(*uses, *uses > 9))).collect();
        for (n, invite) in (0..came).zip(&invites) {
            node.admit(invite, &Node::new(50 + n), NOW).unwrap();
        }
        let before = node.admission.invites(NOW).unwrap();
        node.restart(NOW);
        prop_assert_eq!(node.admission.invites(NOW).unwrap(), before);
    }
}

/// Lanes of `node`, which lets in whoever may come.
fn serve_lanes(node: &Node) -> (Lanes, Address) {
    let now = || Millis(unix_now_ms());
    let admission = node.admission.clone();
    let judge = move |hello: &lanes::Hello| {
        let said = wire::decode(&hello.body).map_err(|error| error.to_string())?;
        let judged = admission.judge(&said, hello.peer, now());
        judged.map(|_| ()).map_err(|refusal| refusal.to_string())
    };
    let hello = wire::encode(&node.admission.hello(now()));
    let any = "127.0.0.1:0".parse().unwrap();
    let keys = libp2p::identity::Keypair::ed25519_from_bytes(node.key.secret()).unwrap();
    let config = lanes::Config::new(any, hello.into());
    let (lanes, mut incoming) = Lanes::start(&keys, config, Arc::new(judge)).unwrap();
    let admission = node.admission.clone();
    lanes.spawn(async move {
        while let Some(Incoming { mut pipe, .. }) = incoming.recv().await {
            let frame = pipe.recv().await.unwrap().unwrap();
            let line = wire::decode::<wire::lane::Line>(&frame.header).unwrap();
            let Some(wire::lane::Say::Admit(ask)) = line.say else { panic!("{line:?}") };
            let _ = serve(admission.clone(), ask, pipe, async |_| {}).await;
        }
    });
    let address = Address::new(lanes.address());
    (lanes, address)
}

#[test]
fn a_node_is_let_in_over_lanes_once_for_each_use_and_hears_why_not_otherwise() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let hive = Node::founder(1);
        let (lanes, address) = serve_lanes(&hive);
        let wish = Wish { lanes: vec![address], ..wish(1, false) };
        let text = hive.admission.invite(&wish, Millis(unix_now_ms())).unwrap();
        let (guest, late) = (Node::new(2), Node::new(3));
        let joined = join(guest.folder.path(), &guest.key, &text).await.unwrap();
        assert_eq!(joined.network(), NetworkId::Private(hive.id()));
        let now = Millis(unix_now_ms());
        assert_eq!(hive.admission.standing(guest.id(), now), Standing::Member);
        // Started again with the same flag, it asks nobody.
        join(guest.folder.path(), &guest.key, &text).await.unwrap();
        let error = join(late.folder.path(), &late.key, &text).await.unwrap_err().to_string();
        assert!(error.contains("all 1 uses") && error.contains("ask for a new one"), "{error}");
        let reopened = Admission::open(late.folder.path(), &late.key, now).unwrap();
        assert_eq!(reopened.network(), NetworkId::Public);
        tokio::task::spawn_blocking(move || lanes.stop()).await.unwrap();
    });
}
