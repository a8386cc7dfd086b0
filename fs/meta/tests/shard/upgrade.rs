//! The order to leave the first format: who stands in its way, and what it does to rows.

use ropewalk_base::random::Random;
use ropewalk_meta::{Batch, Call, Config, Outcome, Rows, Shard};
use ropewalk_wire::fs::decode;
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::layout::Members;
use ropewalk_wire::fs::meta::{MetaReply, MetaRequest, MetaResult};
use ropewalk_wire::fs::upgrade::{Telling, UpgradeOrder};
use ropewalk_wire::fs::value::{Bytes, Errno};

use crate::common::*;

/// Executes a request outside of sessions, and gives its answer to `look`.
fn ask<T>(
    cluster: &mut Cluster,
    request: MetaRequest<'_>,
    look: impl FnOnce(MetaResult<'_>) -> T,
) -> T {
    let now = cluster.moment();
    match cluster.shard().execute(Call { session: 0, slot: 0, sequence: 0, request, now }) {
        Outcome::Reply(reply) => look(decode(&reply.bytes).expect("a reply")),
        other => panic!("{other:?}"),
    }
}

/// Gives the order: the format afterwards, and whether somebody stands in the way.
fn order(cluster: &mut Cluster, order: UpgradeOrder) -> (u8, bool) {
    ask(cluster, MetaRequest::Upgrade(order), |reply| match reply {
        Ok(MetaReply::Upgrade(state)) => (state.format, !state.is_free()),
        other => panic!("{other:?}"),
    })
}

fn old() -> Cluster {
    Cluster::new(1, Config { first_format: true, ..Config::default() }, 1)
}

#[test]
fn all_who_act_on_the_format_have_to_be_heard_and_new() {
    let mut cluster = old();
    let session = cluster.clients[0].session;
    assert_eq!(order(&mut cluster, UpgradeOrder::Begin), (1, true), "nobody said anything");
    cluster.shard().note_server_version(1, 11);
    assert_eq!(order(&mut cluster, UpgradeOrder::Begin), (1, true), "the client did not");
    cluster.shard().note_client_version(session, 10);
    assert_eq!(order(&mut cluster, UpgradeOrder::Begin), (1, true), "it is of before");
    cluster.shard().note_client_version(session, 12);
    cluster.shard().note_server_version(1, 10);
    assert_eq!(order(&mut cluster, UpgradeOrder::Begin), (1, true), "the server went back");
    cluster.shard().note_server_version(1, 11);
    assert_eq!(order(&mut cluster, UpgradeOrder::Show), (1, false), "asking changes nothing");
    assert_eq!(order(&mut cluster, UpgradeOrder::Begin), (2, false));
    // Once more it is the same; so it is after a restart, when nobody was heard.
    assert_eq!(order(&mut cluster, UpgradeOrder::Begin), (2, false));
    cluster.restart();
    assert_eq!(order(&mut cluster, UpgradeOrder::Begin).0, 2);
    let answer = cluster.call(0, MetaRequest::GetPool { version: 1 });
    let MetaReply::Pool { pool, .. } = answer.ok() else { panic!() };
    assert_eq!(pool.members, Members::Bands(vec![0]));
}

#[test]
fn objects_are_told_the_groups_that_clients_compute() {
    let mut cluster = old();
    let file = cluster.create(0, b"a");
    let answer = cluster.call(0, open(file, READ));
    let MetaReply::Opened { layout, .. } = answer.ok() else { panic!() };
    let generation = answer.attributes().object_generation;
    let objects = [(file, generation, 0), (file, generation, 700), (file, generation + 1, 0)];
    let gone = (file + 1000, 1, 5);
    let bytes: Vec<u8> =
        objects.iter().chain([&gone]).flat_map(|it| Telling::bytes(it.0, it.1, it.2)).collect();
    let telling = Telling { server: 1, told: 3, done: false, objects: Bytes(&bytes) };
    let request = MetaRequest::TellGroups(telling);
    let refused = ask(&mut cluster, request, |reply| reply.err());
    assert_eq!(refused, Some(Errno::EOPNOTSUPP), "the first format has no groups to tell");
    let session = cluster.clients[0].session;
    cluster.shard().note_client_version(session, 11);
    cluster.shard().note_server_version(1, 11);
    assert_eq!(order(&mut cluster, UpgradeOrder::Begin), (2, false));
    let answer = cluster.call(0, MetaRequest::GetPool { version: layout.pool_version });
    let MetaReply::Pool { pool, .. } = answer.ok() else { panic!() };
    let pool = pool.clone();
    let (groups, step) = ask(&mut cluster, request, |reply| match reply {
        Ok(MetaReply::Groups { groups, step }) => (groups, step),
        other => panic!("{other:?}"),
    });
    let expected = [0, 700].map(|stripe| layout.group(stripe, &pool).number());
    assert_eq!((&groups[..2], step != 0), (&expected[..], true));
    assert_eq!(groups[2..], [Group::NOBODYS.number(); 2]);
    cluster.restart();
    let again = ask(&mut cluster, request, |reply| match reply {
        Ok(MetaReply::Groups { groups, step }) => (groups, step),
        other => panic!("{other:?}"),
    });
    assert_eq!(again, (groups, step));
    let odd = Telling { objects: Bytes(&bytes[1..]), ..telling };
    let refused = ask(&mut cluster, MetaRequest::TellGroups(odd), |reply| reply.err());
    assert_eq!(refused, Some(Errno::EINVAL));
}

#[test]
fn a_newer_format_is_told_from_damage() {
    let mut cluster = old();
    let mut rows = cluster.shard.take().expect("it runs").into_rows();
    let (key, mut row) = {
        let found = rows.iter().find(|(key, _)| *key == b"B").expect("a superblock");
        (found.0.to_vec(), found.1.to_vec())
    };
    row[0] = 4;
    let mut batch = Batch::default();
    batch.put(key, row);
    rows.commit(batch).expect("rows in memory do not fail");
    let opened = Shard::open(rows, cluster.config, Random::from_seed(1), cluster.moment());
    let Err(error) = opened else { panic!("a newer format was opened") };
    let text = error.to_string();
    assert!(text.contains("format 4") && text.contains("up to 3"), "{text}");
}

/// The number that a former program finds in the superblock.
fn superblock(cluster: &mut Cluster) -> u8 {
    cluster.shard().rows().get(b"B").expect("readable").expect("a superblock")[0]
}

#[test]
fn former_programs_find_no_format_that_they_know_before_all_objects_have_learned_their_groups() {
    let mut cluster = old();
    (2..4).for_each(|server| cluster.heartbeat_of(server));
    let session = cluster.clients[0].session;
    cluster.shard().note_client_version(session, 11);
    (1..4).for_each(|server| cluster.shard().note_server_version(server, 11));
    assert_eq!(
        (superblock(&mut cluster), order(&mut cluster, UpgradeOrder::Begin)),
        (1, (2, false))
    );
    let tell = |cluster: &mut Cluster, server, done| {
        let telling = Telling { server, told: 0, done, objects: Bytes(&[]) };
        ask(cluster, MetaRequest::TellGroups(telling), |reply| assert!(reply.is_ok(), "{reply:?}"));
        superblock(cluster)
    };
    assert_eq!([tell(&mut cluster, 1, true), tell(&mut cluster, 2, false)], [3; 2]);
    // Another life was told nothing.
    cluster.restart();
    assert_eq!([tell(&mut cluster, 2, true), tell(&mut cluster, 3, false)], [3; 2]);
    assert_eq!(order(&mut cluster, UpgradeOrder::Show).0, 2, "its rows have the newest format");
    assert_eq!([tell(&mut cluster, 3, true), tell(&mut cluster, 1, true)], [3, 2]);
    cluster.restart();
    assert_eq!(superblock(&mut cluster), 2);
}
