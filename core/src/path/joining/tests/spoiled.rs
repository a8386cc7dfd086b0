//! Spans whose payloads were spoiled on the way, as their receiver says.

use super::*;

const SECOND: LinkId = link(1, 1);

/// The links of messages that go again when the peer says over a link that this span came spoiled over a path.
fn say_spoiled(rig: &mut Rig, over: LinkId, path: PathId, span: u64) -> Vec<LinkId> {
    let cause = Suspicion::Corrupt.to_wire();
    let (path, span) = (path.name().into(), span.into());
    let word = SuspectBody { path, cause, reserved: [0; 3], span };
    let told = rig.place(over, rig.envelope(), &Body::Suspect(word));
    let messages = told.frames.into_iter().filter(|(_, body)| matches!(body, Body::Eager(_)));
    messages.map(|(link, _)| link).collect()
}

#[test]
fn each_span_that_was_spoiled_goes_again_at_once_whatever_is_believed_of_its_path() {
    let mut rig = Rig::new();
    rig.tell_key();
    rig.join(SECOND, 1, |_| ());
    at(&mut rig, 1000);
    assert_eq!(rig.leaves_over(1), Some(FIRST));
    // One of these numbers is that of the message, which takes the path with it.
    let again: Vec<Vec<LinkId>> =
        (1..9).map(|span| say_spoiled(&mut rig, SECOND, PathId::FIRST, span)).collect();
    assert_eq!(again.concat(), [SECOND], "{again:?}");
    assert_eq!(rig.core.counters().paths_suspected_by_peers, 1);
    // The path is well, and another message is spoiled there before a word about a path is believed again.
    rig.place(FIRST, rig.envelope(), &probe());
    assert_eq!(rig.leaves_over(2), Some(FIRST));
    let again: Vec<Vec<LinkId>> =
        (1..9).map(|span| say_spoiled(&mut rig, SECOND, PathId::FIRST, span)).collect();
    assert_eq!(again.concat(), [SECOND], "{again:?}");
    assert_eq!(rig.core.counters().paths_suspected_by_peers, 1);
    // The message went over the other path since, and was not spoiled on this one.
    for span in (1..9).chain([0, 1000, u64::MAX]) {
        assert!(say_spoiled(&mut rig, SECOND, PathId::FIRST, span).is_empty(), "{span}");
        assert!(say_spoiled(&mut rig, SECOND, PathId::named(77), span).is_empty(), "{span}");
    }
}

#[test]
fn a_spoiled_span_is_named_over_its_own_link_where_no_other_is_up() {
    let mut rig = Rig::new();
    rig.tell_key();
    let named = |rig: &mut Rig, span: u64| -> Vec<(LinkId, u64)> {
        rig.core.suspect_spoiled(FIRST, span);
        let words = rig.told().frames.into_iter().filter_map(|(over, body)| match body {
            Body::Suspect(word) => Some((over, word.span.get())),
            _ => None,
        });
        words.collect()
    };
    assert_eq!(named(&mut rig, 5), [(FIRST, 5)], "there is one path");
    assert!(named(&mut rig, 0).is_empty(), "nothing can go again");
    rig.join(SECOND, 1, |_| ());
    assert_eq!(named(&mut rig, 6), [(SECOND, 6)]);
    rig.place(FIRST, rig.envelope(), &probe());
    rig.core.link_down(SECOND, Fault::PeerReset);
    rig.told();
    assert_eq!(named(&mut rig, 7), [(FIRST, 7)], "the other path has lost its link");
}
