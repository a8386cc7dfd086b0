use ropewalk_base::random::Random;
use ropewalk_wire::fs::attributes::InodeKind;
use ropewalk_wire::fs::meta::{Access, AttributeChange, DirectoryEntry, Entry};
use ropewalk_wire::fs::value::Timestamp;

use super::*;
use crate::exports::{IdRange, NOBODY, Squash};

fn bytes(groups: &[u32]) -> Vec<u8> {
    groups.iter().flat_map(|group| group.to_le_bytes()).collect()
}

fn lookup(who: Who<'_>) -> MetaRequest<'_> {
    MetaRequest::Lookup { who, parent: 1, name: Bytes(b"name") }
}

/// The caller of a request that was let in.
fn caller<'a>(mapped: &Mapped<'a>) -> Who<'a> {
    let mut request = *mapped.request();
    *request.who_mut().expect("it has one")
}

fn random_who<'a>(random: &mut Random, groups: &'a mut Vec<u8>) -> Who<'a> {
    let mut id = || match random.next_u64() % 4 {
        0 => 0,
        1 => (random.next_u64() % 2000) as u32,
        _ => random.next_u64() as u32,
    };
    let (user, group) = (id(), id());
    let count = id() % 20;
    *groups = (0..count).flat_map(|_| id().to_le_bytes()).collect();
    let judge = match random.next_u64() % 3 {
        0 => Judge::Server,
        other => Judge::Kernel { keeps_privileges: other == 1 },
    };
    Who { user, group, groups: Bytes(groups), judge }
}

/// Maps that have users 0 to 9 and 1000 to 1999.
fn mapped(squash: Squash) -> Export {
    let ranges = vec![
        IdRange { outer: 0, inner: 100_000, count: 10 },
        IdRange { outer: 1000, inner: 1, count: 1000 },
    ];
    Export { squash, users: ranges.clone(), groups: ranges, ..Export::WHOLE }
}

#[test]
fn the_default_export_maps_every_caller_to_himself() {
    let mut random = Random::from_seed(24);
    for _ in 0..2000 {
        let (mut said, mut room) = (Vec::new(), Vec::new());
        let who = random_who(&mut random, &mut said);
        let request = lookup(who);
        let admitted = Standing::OUTSIDE.admit(&request, &mut room).expect("it lets all in");
        assert_eq!(*admitted.request(), request);
        let change = AttributeChange {
            user: Some(who.user),
            group: Some(who.group),
            ..AttributeChange::default()
        };
        let chown = MetaRequest::SetAttributes { who, inode: 7, change };
        let mut room = Vec::new();
        let admitted = Standing::OUTSIDE.admit(&chown, &mut room).expect("it lets all in");
        assert_eq!(*admitted.request(), chown);
        let mut reply = entry(who.user, who.group);
        Standing::OUTSIDE.show(&mut reply);
        assert_eq!(reply, entry(who.user, who.group));
    }
}

#[test]
fn no_caller_gets_an_id_that_his_export_does_not_name() {
    let mut random = Random::from_seed(25);
    for squash in [Squash::None, Squash::Root, Squash::All] {
        for export in [mapped(squash), Export { squash, ..Export::WHOLE }] {
            let standing = Standing { limit: None, export: &export };
            for _ in 0..500 {
                let (mut said, mut room) = (Vec::new(), Vec::new());
                let who = random_who(&mut random, &mut said);
                let request = lookup(who);
                let admitted = standing.admit(&request, &mut room).expect("squash refuses nobody");
                let known = caller(&admitted);
                assert!(export.user_ids().may_name(known.user), "{who:?} became {known:?}");
                let groups = numbers(&known).chain([known.group]);
                assert!(groups.into_iter().all(|group| export.group_ids().may_name(group)));
                assert_eq!(numbers(&known).count(), numbers(&who).count());
                if !export.is_plain() {
                    assert_eq!(known.judge, Judge::Server, "no kernel judges by other ids");
                    assert!(known.user != 0 || squash == Squash::None);
                }
            }
        }
    }
}

#[test]
fn a_user_acts_for_himself_and_the_export_maps_him() {
    let limit = Limit { user: 1000, groups: vec![1000, 1005] };
    let said = bytes(&[1005, 0, 7]);
    let kernel = Judge::Kernel { keeps_privileges: true };
    let who = Who { user: 1000, group: 0, groups: Bytes(&said), judge: kernel };
    let standing = Standing { limit: Some(&limit), export: &Export::WHOLE };
    let request = lookup(who);
    let mut room = Vec::new();
    let admitted = standing.admit(&request, &mut room).expect("it is he");
    let own = bytes(&[1005]);
    let known = Who { user: 1000, group: 1000, groups: Bytes(&own), judge: Judge::Server };
    assert_eq!(caller(&admitted), known);
    for user in [0, 7, 1005] {
        let (request, mut room) = (lookup(Who { user, ..who }), Vec::new());
        assert_eq!(standing.admit(&request, &mut room).err(), Some(Errno::EPERM));
    }
    let export = mapped(Squash::None);
    let standing = Standing { limit: Some(&limit), export: &export };
    let mut room = Vec::new();
    let admitted = standing.admit(&request, &mut room).expect("it is he");
    let own = bytes(&[6]);
    let known = Who { user: 1, group: 1, groups: Bytes(&own), judge: Judge::Server };
    assert_eq!(caller(&admitted), known);
    let mut room = Vec::new();
    let only = standing.only_caller(&mut room).expect("one user");
    assert_eq!((only.user, only.group, only.groups.0), (1, 1, &bytes(&[1, 6])[..]));
    let open = MetaRequest::Open {
        who,
        inode: 3,
        access: Access { read: true, write: false },
        truncate: false,
        execute: true,
    };
    let mut room = Vec::new();
    let admitted = standing.admit(&open, &mut room).expect("it is he");
    assert!(matches!(admitted.request(), MetaRequest::Open { execute: false, .. }));
}

#[test]
fn a_call_that_waits_is_mapped_once() {
    let export = mapped(Squash::None);
    let standing = Standing { limit: None, export: &export };
    // 1004 is 5 inside, and 5 would be 100,005 if it were mapped again.
    let who = Who { user: 1004, group: 1004, groups: Bytes(&[]), judge: Judge::Server };
    let (request, mut room) = (lookup(who), Vec::new());
    let admitted = standing.admit(&request, &mut room).expect("it is let in");
    let kept = admitted.keep();
    let again = kept.request().expect("it was encoded here");
    assert_eq!((caller(&again).user, caller(&again).group), (5, 5));
    assert!(Kept(vec![0xff; 3]).request().is_none());
}

fn attributes(user: u32, group: u32) -> Attributes {
    let never = Timestamp::default();
    Attributes {
        inode: 9,
        object_generation: 0,
        kind: InodeKind::File,
        mode: 0o644,
        link_count: 1,
        user,
        group,
        device: 0,
        size: 0,
        blocks: 0,
        accessed: never,
        modified: never,
        changed: never,
        created: never,
        has_xattrs: false,
        version: 1,
        capable: false,
    }
}

fn entry(user: u32, group: u32) -> MetaReply<'static> {
    let attributes = attributes(user, group);
    MetaReply::Entry(Entry { attributes, entry_cached: false, grant: None, directory: None })
}

#[test]
fn replies_have_the_ids_of_the_client_and_changes_come_in_them() {
    let export = mapped(Squash::Root);
    let standing = Standing { limit: None, export: &export };
    let shown = |user, group| {
        let mut reply = entry(user, group);
        standing.show(&mut reply);
        reply
    };
    assert_eq!(shown(1, 100_003), entry(1000, 3));
    assert_eq!(shown(0, 77_777), entry(NOBODY, NOBODY), "it has no id for root and 77,777");
    let listed = |user, group| {
        let entry = |attributes| DirectoryEntry {
            name: Bytes(b"a"),
            inode: 9,
            kind: InodeKind::File,
            cookie: 256,
            attributes,
            grant: None,
        };
        let entries = vec![entry(Some(attributes(user, group))), entry(None)];
        MetaReply::Directory { entries, end: true, grant: None }
    };
    let mut reply = listed(1, 2);
    standing.show(&mut reply);
    assert_eq!(reply, listed(1000, 1001));
    let chown = |user, group| {
        let change = AttributeChange { user, group, ..AttributeChange::default() };
        MetaRequest::SetAttributes { who: Who::ROOT, inode: 7, change }
    };
    let admit = |request: &MetaRequest<'_>| {
        let mut room = Vec::new();
        let admitted = standing.admit(request, &mut room)?;
        let MetaRequest::SetAttributes { change, .. } = *admitted.request() else { panic!() };
        Ok((change.user, change.group))
    };
    assert_eq!(admit(&chown(Some(1000), Some(3))), Ok((Some(1), Some(100_003))));
    assert_eq!(admit(&chown(None, None)), Ok((None, None)));
    assert_eq!(admit(&chown(Some(50), None)), Err(Errno::EINVAL));
    assert_eq!(admit(&chown(None, Some(50))), Err(Errno::EINVAL));
}

#[test]
fn a_session_goes_on_only_in_a_process_with_the_same_limit() {
    let user = |user, groups: &[u32]| Identity::User(Limit { user, groups: groups.to_vec() });
    assert!(user(7, &[7, 8]).admits(&user(7, &[7])));
    assert!(!user(7, &[7]).admits(&user(8, &[7])));
    for other in [Identity::Own, Identity::Unproven] {
        assert!(!other.admits(&user(7, &[7])) && !user(7, &[7]).admits(&other));
        assert!(Identity::Unproven.admits(&other));
    }
}
