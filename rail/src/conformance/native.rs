//! Properties of native access: remote memory that is read and written without its owner's help.
//!
//! They hold for rails that claim `native_read` or `native_write`. In every scene node 1 exposes and
//! node 0 accesses, after a frame has told it so, as the core does.

use std::sync::Arc;

use ropewalk_base::error::Fault;
use ropewalk_base::memory::{BufferId, Slice};
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{
    Capabilities, Help, Ordered, RemoteKey, RemoteLayout, RemoteSegment, Urgency, Verb,
};

use super::Fixture;
use super::recorder::Event;
use super::scene::{Pair, Scene, pattern};

const REGION_BYTES: usize = 300_000;

/// A region of node 1 that node 0 may access.
struct Region {
    pair: Pair,
    buffer: BufferId,
    key: RemoteKey,
    content: Vec<u8>,
}

/// A scene with an exposed region of many segments; `None` where `claim` is not made.
fn exposed<'f>(
    fixture: &'f mut dyn Fixture,
    claim: fn(&Capabilities) -> bool,
    writable: bool,
) -> Option<(Scene<'f>, Region)> {
    let (mut scene, pair) = Scene::pair(fixture);
    if !claim(&scene.capabilities(0)) {
        expect_refusals(&mut scene, pair);
        return None;
    }
    let content = pattern(3, REGION_BYTES);
    let segments = [1, 100_000, 0, 4096, 50_000, 3, 145_900];
    let buffer = scene.recorder(1).memory(&segments, &content);
    let key = RemoteKey { slot: SlotId { index: 4, generation: 9 }, secret: 0xFEED_FACE_CAFE_F00D };
    let region = Slice { buffer, offset: 0, len: REGION_BYTES as u64 };
    let link = pair.far.1;
    let outcome = scene.order(1, Verb::Expose { link, key, region, writable }, None);
    assert!(!matches!(outcome, Ordered::Refused(_)), "{outcome:?} for expose");
    // Only a frame that was sent after the expose entitles the peer to use the key.
    scene.send(pair.turned(), 0, 0, Urgency::Urgent);
    scene.arrived(pair.turned(), 1);
    Some((scene, Region { pair, buffer, key, content }))
}

/// A rail refuses at once every native access that its capabilities do not claim.
fn expect_refusals(scene: &mut Scene, pair: Pair) {
    let claims = scene.capabilities(0);
    let link = pair.near.1;
    let key = RemoteKey { slot: SlotId { index: 1, generation: 1 }, secret: 1 };
    let buffer = scene.recorder(0).memory(&[10], &[]);
    let local = Slice { buffer, offset: 0, len: 10 };
    let token = scene.recorder(0).token();
    let remote = RemoteLayout::At(0);
    if !claims.native_read {
        let verb = Verb::Read { link, key, remote: remote.clone(), local, token, help: Help::None };
        let outcome = scene.order(0, verb, None);
        assert!(matches!(outcome, Ordered::Refused(_)), "{outcome:?} for an unclaimed read");
    }
    if !claims.native_write {
        let verb = Verb::Write { link, key, remote, local, token };
        let outcome = scene.order(0, verb, None);
        assert!(matches!(outcome, Ordered::Refused(_)), "{outcome:?} for an unclaimed write");
    }
    scene.settle();
}

/// Reads from the region: the bytes, or why not.
fn read(
    scene: &mut Scene,
    region: &Region,
    key: RemoteKey,
    remote: RemoteLayout,
    bytes: usize,
) -> Result<Vec<u8>, Fault> {
    let buffer = scene.recorder(0).memory(&[bytes / 3, 0, bytes - bytes / 3], &vec![0xAB; bytes]);
    let local = Slice { buffer, offset: 0, len: bytes as u64 };
    let token = scene.recorder(0).token();
    let link = region.pair.near.1;
    let verb = Verb::Read { link, key, remote, local, token, help: Help::None };
    finish(scene, verb)?;
    let bytes = scene.recorder(0).bytes(local);
    scene.recorder(0).buffers.remove(buffer);
    Ok(bytes)
}

/// Writes to the region.
fn write(
    scene: &mut Scene,
    region: &Region,
    key: RemoteKey,
    remote: RemoteLayout,
    bytes: &[u8],
) -> Result<(), Fault> {
    let cut = bytes.len() / 3;
    let buffer = scene.recorder(0).memory(&[cut, 0, bytes.len() - cut], bytes);
    let local = Slice { buffer, offset: 0, len: bytes.len() as u64 };
    let token = scene.recorder(0).token();
    let verb = Verb::Write { link: region.pair.near.1, key, remote, local, token };
    finish(scene, verb)
}

/// Gives the order and waits for its outcome, without the help of node 1 where the rail can do so.
fn finish(scene: &mut Scene, verb: Verb) -> Result<(), Fault> {
    match scene.order(0, verb, None) {
        Ordered::Released => Ok(()),
        Ordered::Refused(fault) => Err(fault),
        Ordered::Pending => {
            let end = scene.fixture.now() + scene.fixture.patience();
            while scene.recorder(0).pending() > 0 {
                assert!(scene.fixture.now() < end, "a native access needs its target's help");
                scene.poll(0);
                if scene.fixture.native_needs_target_polls() {
                    scene.poll(1);
                }
                scene.fixture.step(true);
            }
            match scene.recorder(0).events.last() {
                Some(Event::Failed { fault, .. }) => Err(*fault),
                _ => Ok(()),
            }
        }
    }
}

fn list(pieces: &[(u64, u64)]) -> RemoteLayout {
    let pieces = pieces.iter().map(|&(offset, len)| RemoteSegment { offset, len });
    RemoteLayout::List(Arc::from_iter(pieces))
}

fn region_bytes(scene: &mut Scene, region: &Region) -> Vec<u8> {
    let whole = Slice { buffer: region.buffer, offset: 0, len: REGION_BYTES as u64 };
    scene.recorder(1).bytes(whole)
}

/// Reads from one byte up to the whole region, at any offset, fetch the region's bytes.
pub fn reads_fetch_what_the_region_holds(fixture: &mut dyn Fixture) {
    let claim = |claims: &Capabilities| claims.native_read;
    let Some((mut scene, region)) = exposed(fixture, claim, false) else { return };
    let before = scene.counters(0).bytes_native;
    let mut total = 0;
    for (offset, len) in [(0, 1), (0, REGION_BYTES), (99_999, 5000), (REGION_BYTES - 1, 1), (7, 0)]
    {
        let layout = RemoteLayout::At(offset as u64);
        let bytes = read(&mut scene, &region, region.key, layout, len).expect("allowed");
        assert!(bytes == region.content[offset..offset + len], "read of {len} at {offset}");
        total += len as u64;
    }
    assert_eq!(scene.counters(0).bytes_native - before, total);
}

/// Writes land where they are aimed at, and nowhere else.
pub fn writes_land_in_the_region(fixture: &mut dyn Fixture) {
    let claim = |claims: &Capabilities| claims.native_write;
    let Some((mut scene, region)) = exposed(fixture, claim, true) else { return };
    let mut expected = region.content.clone();
    for (offset, len) in [(0, 1), (99_990, 60_000), (REGION_BYTES - 5, 5), (12, 0)] {
        let bytes = pattern(offset as u64 + 1000, len);
        let layout = RemoteLayout::At(offset as u64);
        write(&mut scene, &region, region.key, layout, &bytes).expect("allowed");
        expected[offset..offset + len].copy_from_slice(&bytes);
        assert!(region_bytes(&mut scene, &region) == expected, "write of {len} at {offset}");
    }
}

/// Lists, also long ones and those that go back, are gathered and scattered piece by piece.
pub fn lists_gather_and_scatter(fixture: &mut dyn Fixture) {
    let claim = |claims: &Capabilities| claims.native_read;
    let Some((mut scene, region)) = exposed(fixture, claim, true) else { return };
    let long: Vec<(u64, u64)> = (0..1024).map(|number| (number * 290, number % 97)).collect();
    let short = [(200_000, 3000), (5, 0), (0, 2), (99_990, 20), (299_999, 1)];
    for pieces in [&short[..], &long] {
        let total = pieces.iter().map(|piece| piece.1 as usize).sum();
        let bytes = read(&mut scene, &region, region.key, list(pieces), total).expect("allowed");
        let part = |&(offset, len): &(u64, u64)| &region.content[offset as usize..][..len as usize];
        assert!(bytes == pieces.iter().map(part).collect::<Vec<_>>().concat(), "gathered");
        if !scene.capabilities(0).native_write {
            continue;
        }
        let fresh = pattern(total as u64, total);
        write(&mut scene, &region, region.key, list(pieces), &fresh).expect("allowed");
        let mut expected = region.content.clone();
        let mut rest = &fresh[..];
        for &(offset, len) in pieces {
            let (now, later) = rest.split_at(len as usize);
            expected[offset as usize..][..len as usize].copy_from_slice(now);
            rest = later;
        }
        assert!(region_bytes(&mut scene, &region) == expected, "scattered");
        let whole = region.content.clone();
        let back = RemoteLayout::At(0);
        write(&mut scene, &region, region.key, back, &whole).expect("allowed");
    }
}

/// Any key but the right one, and any byte beyond the region, is refused; nothing is touched.
pub fn wrong_keys_and_ranges_are_refused(fixture: &mut dyn Fixture) {
    let claim = |claims: &Capabilities| claims.native_read || claims.native_write;
    let Some((mut scene, region)) = exposed(fixture, claim, true) else { return };
    let claims = scene.capabilities(0);
    let right = region.key;
    let SlotId { index, generation } = right.slot;
    let slot = |index, generation| RemoteKey { slot: SlotId { index, generation }, ..right };
    let end = REGION_BYTES as u64;
    let mut attempts = vec![
        (RemoteKey { secret: right.secret ^ 1, ..right }, RemoteLayout::At(0)),
        (RemoteKey { secret: 0, ..right }, RemoteLayout::At(0)),
        (slot(index, generation + 1), RemoteLayout::At(0)),
        (slot(index, generation - 1), RemoteLayout::At(0)),
        (slot(index + 1, generation), RemoteLayout::At(0)),
        (slot(u32::MAX, u32::MAX), RemoteLayout::At(0)),
    ];
    for offset in [end - 9, end, end + 1, u64::MAX - 4, u64::MAX] {
        attempts.push((right, RemoteLayout::At(offset)));
    }
    attempts.push((right, list(&[(0, 5), (end - 4, 5)])));
    attempts.push((right, list(&[(0, 5), (u64::MAX, 5)])));
    for (key, remote) in attempts {
        // A rail that has no place for a slot leaves it to frames.
        let far = key.slot.index == u32::MAX;
        let is_right = |fault| match fault {
            Some(Fault::BadKey) => true,
            Some(Fault::NotPermitted) => far,
            _ => false,
        };
        if claims.native_read {
            let outcome = read(&mut scene, &region, key, remote.clone(), 10).err();
            assert!(is_right(outcome), "read with {key:?} at {remote:?}: {outcome:?}");
        }
        if claims.native_write {
            let outcome = write(&mut scene, &region, key, remote.clone(), &[1; 10]).err();
            assert!(is_right(outcome), "write with {key:?} at {remote:?}: {outcome:?}");
        }
    }
    assert!(region_bytes(&mut scene, &region) == region.content, "a refused write left a trace");
    // A list and a local slice of different lengths make no sense to anyone.
    if claims.native_read {
        let outcome = read(&mut scene, &region, right, list(&[(0, 11)]), 10);
        assert!(outcome.is_err(), "a list longer than its local slice was read");
    }
}

/// A region exposed for reading only is never written.
pub fn read_only_regions_refuse_writes(fixture: &mut dyn Fixture) {
    let claim = |claims: &Capabilities| claims.native_write;
    let Some((mut scene, region)) = exposed(fixture, claim, false) else { return };
    let outcome = write(&mut scene, &region, region.key, RemoteLayout::At(0), &[1; 10]);
    assert_eq!(outcome, Err(Fault::BadKey));
    assert!(region_bytes(&mut scene, &region) == region.content);
}

/// After `revoked` nobody reaches the region; the slot can be exposed anew under a new generation.
pub fn revoked_regions_are_out_of_reach(fixture: &mut dyn Fixture) {
    let claim = |claims: &Capabilities| claims.native_read || claims.native_write;
    let Some((mut scene, region)) = exposed(fixture, claim, true) else { return };
    let claims = scene.capabilities(0);
    let (link, key) = (region.pair.far.1, region.key);
    let outcome = scene.order(1, Verb::Revoke { link, key }, None);
    assert!(!matches!(outcome, Ordered::Refused(_)), "{outcome:?} for revoke");
    scene.until("the revoke is confirmed", |scene| {
        scene.recorder(1).events.contains(&Event::Revoked { link, key })
    });
    let first = RemoteLayout::At(0);
    if claims.native_read {
        let outcome = read(&mut scene, &region, key, first.clone(), 10);
        assert_eq!(outcome, Err(Fault::BadKey));
    }
    if claims.native_write {
        let outcome = write(&mut scene, &region, key, first.clone(), &[1; 10]);
        assert_eq!(outcome, Err(Fault::BadKey));
        assert!(region_bytes(&mut scene, &region) == region.content);
    }
    let slot = SlotId { generation: key.slot.generation + 1, ..key.slot };
    let next = RemoteKey { slot, secret: 42 };
    let part = Slice { buffer: region.buffer, offset: 1000, len: 500 };
    let writable = false;
    scene.order(1, Verb::Expose { link, key: next, region: part, writable }, None);
    scene.send(region.pair.turned(), 1, 0, Urgency::Urgent);
    scene.arrived(region.pair.turned(), 2);
    if claims.native_read {
        let bytes = read(&mut scene, &region, next, first.clone(), 500).expect("allowed");
        assert_eq!(bytes, region.content[1000..1500]);
        let outcome = read(&mut scene, &region, next, first, 501);
        assert_eq!(outcome, Err(Fault::BadKey), "beyond the part that is exposed");
    }
    scene.settle();
}

/// A region may be taken back from a link that is closing already: nothing lands in it after that.
pub fn regions_are_revoked_while_their_link_closes(fixture: &mut dyn Fixture) {
    let claim = |claims: &Capabilities| claims.native_write;
    let Some((mut scene, region)) = exposed(fixture, claim, true) else { return };
    let (link, key) = (region.pair.far.1, region.key);
    // The frames that are still to be sent keep the link closing, and so open for the pending write.
    for sequence in 1..40 {
        scene.send(region.pair.turned(), sequence, 256 * 1024, Urgency::Bulk);
    }
    let buffer = scene.recorder(0).memory(&[REGION_BYTES], &[1; REGION_BYTES]);
    let local = Slice { buffer, offset: 0, len: REGION_BYTES as u64 };
    let (token, remote) = (scene.recorder(0).token(), RemoteLayout::At(0));
    scene.order(0, Verb::Write { link: region.pair.near.1, key, remote, local, token }, None);
    scene.order(1, Verb::Close { link }, None);
    let outcome = scene.order(1, Verb::Revoke { link, key }, None);
    if !matches!(outcome, Ordered::Refused(_)) {
        scene.until("the revoke is confirmed", |scene| {
            scene.recorder(1).events.contains(&Event::Revoked { link, key })
        });
    }
    let before = region_bytes(&mut scene, &region);
    scene.until("the link is down", |scene| scene.recorder(1).fault(link).is_some());
    scene.settle();
    assert!(region_bytes(&mut scene, &region) == before, "a write received after the revocation");
}
