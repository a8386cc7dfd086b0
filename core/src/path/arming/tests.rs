//! A core whose peer a test plays: frames about paths, honest, late and made up.

use std::time::Duration;

use ropewalk_base::random::Random;
use ropewalk_base::verb::LinkId;
use ropewalk_wire::frame::{
    AckBody, Body, Envelope, LoadAnswerBody, LoadBody, MigrateBody, PATHS_ALTERNATE, PATHS_DRAINED,
    PATHS_MIGRATED, ProveBody, WithdrawBody,
};

use crate::api::PeerId;
use crate::apm::MigrationState::{Armed, Migrated, Rearm};
use crate::apm::{Connection, MigrationState, PathId, Role};
use crate::path::joining::tests::{FIRST, Rig, link};

const SECOND: LinkId = link(1, 1);
/// The path that the peer, whose id is the higher one, named.
const ITS: PathId = PathId(3);

/// A session with two paths; we have the lower id.
struct Peer {
    rig: Rig,
    spans: u64,
}

impl Peer {
    fn new() -> Peer {
        let mut rig = Rig::new();
        rig.tell_key();
        rig.join(SECOND, 1, |_| ());
        Peer { rig, spans: 1 }
    }

    fn id(&self) -> PeerId {
        self.rig.peer.expect("a session")
    }

    /// The frames that follow.
    fn say(&mut self, over: LinkId, session: u32, body: &Body) -> Vec<(LinkId, Body)> {
        let is_span = matches!(body, Body::Migrate(_) | Body::Withdraw(_));
        self.spans += u64::from(is_span);
        let span = if is_span { self.spans } else { 0 };
        let told = self.rig.place(over, Envelope { session, span, ..Envelope::default() }, body);
        assert_eq!(told.downs, 0);
        told.frames
    }

    fn tell(&mut self, over: LinkId, body: &Body) -> Vec<(LinkId, Body)> {
        let session = self.rig.session;
        self.say(over, session, body)
    }

    fn state(&self) -> MigrationState {
        self.rig.core.path_state(self.id()).migration
    }

    fn roles(&self) -> Vec<(PathId, Role)> {
        let roles = self.rig.core.roles_of(self.id()).expect("two paths");
        let ids = roles.entries().iter().map(|entry| entry.record.id);
        ids.map(|id| (id, roles.role(id).expect("it is known"))).collect()
    }

    /// Time passes.
    fn wait(&mut self, millis: u64) -> Vec<(LinkId, Body)> {
        self.rig.core.advance(self.rig.core.now() + Duration::from_millis(millis));
        self.rig.told().frames
    }

    /// Answers each probe and each load of an arming, and acknowledges what was sent, until it is armed.
    fn agree(&mut self) {
        for _ in 0..500 {
            let ack = AckBody::new(1 << 40, Duration::ZERO);
            self.tell(FIRST, &Body::Ack(ack));
            for (over, body) in self.wait(2) {
                let answer = match body {
                    Body::Prove(probe) => Body::Prove(ProveBody { is_answer: 1, ..probe }),
                    Body::Load(load) => Body::LoadAnswer(LoadAnswerBody {
                        arming: load.arming,
                        arming_by: load.arming_by,
                        refused: 0,
                        reserved: 0.into(),
                    }),
                    _ => continue,
                };
                self.tell(over, &answer);
            }
            if self.state() == Armed {
                return;
            }
        }
        panic!("it is not armed in a second");
    }
}

fn load(arming: u32, path: PathId) -> LoadBody {
    LoadBody {
        arming: arming.into(),
        path: path.0.into(),
        counter: 0.into(),
        primary: 0.into(),
        alternate: 0.into(),
        arming_by: 1,
        decided_by: 0,
        flags: 0,
        reserved: 0,
    }
}

fn migrate(counter: u32, primary: PathId) -> MigrateBody {
    MigrateBody {
        counter: counter.into(),
        primary: primary.0.into(),
        alternate: 0.into(),
        decided_by: 1,
        flags: PATHS_ALTERNATE,
        reserved: 0.into(),
    }
}

#[test]
fn the_default_policy_arms_the_path_that_joins_and_a_migrate_of_the_peer_is_followed() {
    let mut peer = Peer::new();
    assert_eq!((peer.state(), peer.roles()[1]), (Rearm, (ITS, Role::Alternate)));
    peer.agree();
    assert_eq!(peer.state(), Armed);
    assert_eq!(peer.rig.leaves_over(1), Some(FIRST));
    peer.tell(SECOND, &Body::Migrate(migrate(1, ITS)));
    assert_eq!(peer.roles()[1], (ITS, Role::Primary));
    assert_eq!(peer.rig.leaves_over(2), Some(SECOND));
    assert_eq!(peer.rig.core.counters().violations, 0);
}

#[test]
fn the_load_over_the_alternate_is_the_first_of_its_probes() {
    let mut peer = Peer::new();
    assert_eq!(peer.state(), Rearm);
    let probes = |frames: &[(LinkId, Body)]| {
        let number = |(over, body): &(LinkId, Body)| match body {
            Body::Prove(probe) if probe.is_answer == 0 => Some((*over, probe.number, probe.round)),
            _ => None,
        };
        frames.iter().filter_map(number).collect::<Vec<_>>()
    };
    let mut seen = Vec::new();
    for _ in 0..4 {
        let frames = peer.wait(2);
        seen.extend(probes(&frames));
    }
    assert_eq!(seen, [1, 2, 3, 4].map(|number| (SECOND, number, 0)));
    // Without an answer to the load all five go again.
    let again: Vec<_> = (0..60).flat_map(|_| probes(&peer.wait(2))).collect();
    assert_eq!(again[..5], [0, 1, 2, 3, 4].map(|number| (SECOND, number, 1)));
}

#[test]
fn an_older_migration_a_stale_load_and_an_unknown_path_change_nothing() {
    let mut peer = Peer::new();
    peer.agree();
    peer.tell(FIRST, &Body::Migrate(migrate(7, ITS)));
    peer.agree();
    let before = (peer.state(), peer.roles(), peer.rig.core.path_state(peer.id()));
    let newest = LoadBody { counter: 6.into(), flags: PATHS_MIGRATED, ..load(9, PathId(0)) };
    let late = [
        Body::Migrate(migrate(6, PathId(0))),
        Body::Migrate(migrate(7, PathId(0))),
        Body::Migrate(migrate(8, PathId(40))),
        Body::Load(load(1, PathId(0))),
        Body::Load(load(0, PathId(0))),
        Body::Load(newest),
        Body::Load(load(50, PathId(40))),
        Body::LoadAnswer(LoadAnswerBody {
            arming: 1.into(),
            arming_by: 0,
            refused: 18,
            reserved: 0.into(),
        }),
        Body::Prove(ProveBody {
            arming: 1.into(),
            arming_by: 0,
            number: 4,
            is_answer: 1,
            round: 0,
        }),
    ];
    for (place, body) in late.iter().enumerate() {
        peer.tell(if place % 2 == 0 { FIRST } else { SECOND }, body);
        let after = (peer.state(), peer.roles(), peer.rig.core.path_state(peer.id()));
        assert_eq!(after, before, "{body:?}");
    }
    assert_eq!(peer.rig.core.counters().violations, 0);
}

#[test]
fn frames_of_an_old_session_change_nothing() {
    let bodies = [
        Body::Migrate(migrate(9, ITS)),
        Body::Load(load(9, PathId(0))),
        Body::Withdraw(WithdrawBody {
            arming: 0.into(),
            path: ITS.0.into(),
            arming_by: 0,
            flags: PATHS_DRAINED,
            order: 0.into(),
        }),
        Body::Prove(ProveBody {
            arming: 1.into(),
            arming_by: 0,
            number: 0,
            is_answer: 0,
            round: 0,
        }),
    ];
    for body in bodies {
        let mut peer = Peer::new();
        peer.agree();
        let (before, old) = ((peer.state(), peer.roles()), peer.rig.session ^ 8);
        let frames = peer.say(SECOND, old, &body);
        assert!(frames.iter().all(|(_, body)| !matches!(body, Body::Prove(_))), "no answer");
        assert_eq!((peer.state(), peer.roles()), before, "{body:?}");
        assert_eq!(peer.rig.leaves_over(1), Some(FIRST));
    }
}

#[test]
fn frames_that_a_peer_makes_up_never_break_what_holds() {
    for seed in 0..200 {
        let mut random = Random::from_seed(seed);
        let mut peer = Peer::new();
        for _ in 0..200 {
            let mut small = |most: u64| random.below(most + 1) as u32;
            let number = |small: &mut dyn FnMut(u64) -> u32| match small(9) {
                0 => u32::MAX - small(1),
                _ => small(6),
            };
            let mut next = || number(&mut small);
            let [first, second, third, fourth, fifth] = std::array::from_fn(|_| next());
            let (by, decided) = ((next() & 1) as u8, (next() & 1) as u8);
            let (flags, kind, over) = (next() as u8, next() % 6, next());
            let body = match kind {
                0 => Body::Load(LoadBody {
                    arming: first.into(),
                    path: second.into(),
                    counter: third.into(),
                    primary: fourth.into(),
                    alternate: fifth.into(),
                    arming_by: by,
                    decided_by: decided,
                    flags,
                    reserved: 0,
                }),
                1 => Body::LoadAnswer(LoadAnswerBody {
                    arming: first.into(),
                    arming_by: by,
                    refused: second as u8,
                    reserved: 0.into(),
                }),
                2 => Body::Migrate(MigrateBody {
                    counter: first.into(),
                    primary: second.into(),
                    alternate: third.into(),
                    decided_by: by,
                    flags,
                    reserved: 0.into(),
                }),
                3 => Body::Withdraw(WithdrawBody {
                    arming: first.into(),
                    path: second.into(),
                    arming_by: by,
                    flags: flags << 1,
                    order: 0.into(),
                }),
                _ => Body::Prove(ProveBody {
                    arming: first.into(),
                    arming_by: by,
                    number: second as u8,
                    is_answer: decided,
                    round: third as u8,
                }),
            };
            let over = if over % 2 == 0 { FIRST } else { SECOND };
            peer.tell(over, &body);
            if seed % 2 == 0 {
                peer.wait(u64::from(first % 8));
            }
        }
        // A counter that is used up ends the roles, and nothing else.
        let spent = peer.rig.core.path_state(peer.id()).connection == Connection::Error;
        assert_eq!(peer.rig.core.counters().violations, 0);
        assert!(spent || peer.roles().len() == 2, "seed {seed}");
        let left = peer.rig.leaves_over(1);
        assert!(left == Some(FIRST) || left == Some(SECOND), "seed {seed}: data goes on");
        assert!([Migrated, Rearm, Armed].contains(&peer.state()));
    }
}
