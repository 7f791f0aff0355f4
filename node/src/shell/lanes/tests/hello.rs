//! Who is let in, and what both sides hear when somebody is not.

use super::*;

#[test]
fn an_admitted_peer_is_known_by_name_and_hello() {
    run(async {
        let heard = Arc::new(std::sync::Mutex::new(Vec::new()));
        let list = Arc::clone(&heard);
        let judge: Judge = Arc::new(move |hello| {
            list.lock().unwrap().push((hello.peer, hello.body.clone()));
            Ok(())
        });
        let mut there = start_with(2, config(), judge);
        let (here, _) = start(1);
        let (link, _pipe, other) = connected(&here, &mut there).await;
        assert_eq!(link.peer(), id(2));
        assert_eq!(link.hello().body, "good day");
        assert_eq!(other.peer(), id(1));
        assert_eq!(*heard.lock().unwrap(), [(id(1), Bytes::from_static(b"good day"))]);
        assert!(link.rtt() < Duration::from_secs(1));
    });
}

#[test]
fn two_versions_refuse_each_other_and_name_both() {
    run(async {
        let newer = Config { lane_version: 7, program: "cadencia 9.9".into(), ..config() };
        let judge: Judge = Arc::new(|_| panic!("another version is not for the owner to judge"));
        let (new, _new_pipes) = start_with(1, newer, Arc::clone(&judge));
        let (old, _old_pipes) = start_with(2, config(), judge);
        let error = old.link(id(1), &[new.address()]).await.unwrap_err();
        assert!(matches!(error, LinkError::Version { theirs: 7, ours: LANE_VERSION, .. }));
        let text = error.to_string();
        assert!(text.contains("version 7 (cadencia 9.9)"), "{text}");
        assert!(text.contains(&format!("{LANE_VERSION} ({})", config().program)), "{text}");
        let error = new.link(id(2), &[old.address()]).await.unwrap_err();
        assert!(matches!(error, LinkError::Version { theirs: LANE_VERSION, ours: 7, .. }));
        assert!(old.links().is_empty() && new.links().is_empty());
    });
}

#[test]
fn a_refused_dialler_reads_the_reason() {
    run(async {
        let judge: Judge = Arc::new(|_| Err("no invitation of this hive".into()));
        let (there, _pipes) = start_with(2, config(), judge);
        let (here, _) = start(1);
        let error = here.link(id(2), &[there.address()]).await.unwrap_err();
        let LinkError::RefusedThere { peer, reason } = &error else { panic!("{error}") };
        assert_eq!((*peer, reason.as_str()), (id(2), "no invitation of this hive"));
        assert!(there.links().is_empty() && here.links().is_empty());
    });
}

#[test]
fn a_dialler_may_refuse_as_well() {
    run(async {
        let judge: Judge = Arc::new(|_| Err("it was thrown out yesterday".into()));
        let (here, _) = start_with(1, config(), judge);
        let (there, _pipes) = start(2);
        let error = here.link(id(2), &[there.address()]).await.unwrap_err();
        assert!(matches!(error, LinkError::Refused { .. }), "{error}");
        assert!(there.links().is_empty() && here.links().is_empty());
    });
}

#[test]
fn another_peer_than_the_wanted_one_is_named_and_not_linked() {
    run(async {
        let (there, _pipes) = start(2);
        let (here, _) = start(1);
        let error = here.link(id(3), &[there.address()]).await.unwrap_err();
        let LinkError::WrongPeer { wanted, found, address } = error else { panic!("{error}") };
        assert_eq!((wanted, found, address), (id(3), id(2), there.address()));
    });
}

#[test]
fn the_next_address_is_tried_when_one_leads_elsewhere() {
    run(async {
        let (elsewhere, _pipes) = start(2);
        let there = start_echo(3, config());
        let (here, _) = start(1);
        let link = here.link(id(3), &[elsewhere.address(), there.address()]).await.unwrap();
        assert_eq!(link.peer(), id(3));
    });
}

#[test]
fn a_node_does_not_link_to_itself() {
    run(async {
        let (here, _) = start(1);
        let error = here.link(id(1), &[here.address()]).await.unwrap_err();
        assert!(matches!(error, LinkError::Itself { .. }));
        let error = here.link(id(2), &[]).await.unwrap_err();
        assert!(matches!(error, LinkError::NoAddress { .. }));
    });
}

#[test]
fn two_who_dial_each_other_at_once_both_have_working_pipes() {
    run(async {
        for _ in 0..10 {
            let (one, two) = (start_echo(1, config()), start_echo(2, config()));
            let (at_one, at_two) = ([one.address()], [two.address()]);
            let (to_two, to_one) = tokio::join!(one.link(id(2), &at_two), two.link(id(1), &at_one));
            for link in [to_two.unwrap(), to_one.unwrap()] {
                let mut pipe = link.open().await.unwrap();
                pipe.send(b"here", [pattern(1, 5000)]).await.unwrap();
                assert_eq!(pipe.recv().await.unwrap().unwrap().body, pattern(1, 5000));
            }
            assert!(one.links().len() <= 2 && two.links().len() <= 2);
        }
    });
}

#[test]
fn those_who_want_the_same_peer_share_one_link() {
    run(async {
        let there = start_echo(2, config());
        let (here, _) = start(1);
        let address = [there.address()];
        let links = futures_util::future::join_all((0..8).map(|_| here.link(id(2), &address)));
        assert!(links.await.iter().all(|link| link.as_ref().unwrap().is_open()));
        assert_eq!(here.links().len(), 1);
    });
}

#[test]
fn what_is_no_node_is_said_to_be_none_or_silent() {
    run(async {
        let (here, _) = start(1);
        let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = nobody.local_addr().unwrap();
        let error = here.link(id(2), &[address]).await.unwrap_err();
        assert!(matches!(error, LinkError::NoAnswer { .. }), "{error}");
        assert!(error.to_string().contains(&address.to_string()));
    });
}
