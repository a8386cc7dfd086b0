//! Bytes go in and come out again; wrong requests are refused and leave no trace.

use ropewalk_base::random::Random;
use ropewalk_data::Counters;
use ropewalk_rpc::CallError;
use ropewalk_sim::{SimConfig, Simulation};
use ropewalk_wire::fs::data::{
    DataRequest, EMBEDDED_BYTES_MAX, Found, ObjectRange, PIECES_MAX, Source, TRANSFER_BYTES_MAX,
};
use ropewalk_wire::fs::value::{Bytes, Errno};

use crate::client::{Failed, checksums, file, range, total};
use crate::cluster::{Cluster, Setup, rails, run};

fn random_bytes(random: &mut Random, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for eight in bytes.chunks_mut(8) {
        let value = random.next_u64().to_le_bytes();
        eight.copy_from_slice(&value[..eight.len()]);
    }
    bytes
}

const INVALID: Failed = Failed::Errno(Errno::EINVAL);

#[test]
fn every_size_and_offset_is_read_as_it_was_written() {
    for rail in rails() {
        let mut simulation = Simulation::new(11);
        let cluster = Cluster::new(&mut simulation, &Setup::new(rail));
        let mut random = simulation.fork_random();
        let client = cluster.client.clone();
        run(&mut simulation, async move {
            let sizes = [
                1,
                100,
                4095,
                4096,
                4097,
                16_383,
                16_384,
                16_385,
                65_536,
                100_000,
                1 << 20,
                (1 << 20) + 1,
                3_000_000,
                TRANSFER_BYTES_MAX,
            ];
            for (number, len) in sizes.into_iter().enumerate() {
                for offset in [0, 1, 4095, 4096, 999_999] {
                    let bytes = random_bytes(&mut random, len as usize);
                    let (file, pieces) = (file(number as u64 + 1), [range(offset, offset, len)]);
                    client.write(file, &pieces, &bytes).await.unwrap();
                    let read = client.read(file, &pieces).await.unwrap();
                    assert_eq!(read.found, [Found::Present]);
                    assert!(read.bytes == bytes, "{len} bytes at {offset}");
                    // A window of it, in the other way of travelling.
                    let part = (len / 3).clamp(1, EMBEDDED_BYTES_MAX);
                    let window = [range(offset, offset + len - part, part)];
                    let end = &bytes[(len - part) as usize..];
                    let read = client.read_embedded(file, &window).await.unwrap();
                    assert_eq!(read.bytes, end);
                    let read = client.read_bulk(file, &window).await.unwrap();
                    assert_eq!(read.bytes, end);
                }
            }
        });
        let Counters { checksum_errors, turned_away, under_way, .. } = cluster.counters();
        assert_eq!((checksum_errors, turned_away, under_way), (0, 0, 0));
    }
}

#[test]
fn lists_of_pieces_go_where_they_belong_and_overwrite_in_part() {
    for rail in rails() {
        let mut simulation = Simulation::new(12);
        let cluster = Cluster::new(&mut simulation, &Setup::new(rail));
        let mut random = simulation.fork_random();
        let client = cluster.client.clone();
        run(&mut simulation, async move {
            const BYTES: usize = 3 << 20;
            let mut model = vec![vec![0u8; BYTES]; 3];
            let whole: Vec<_> = (0..3).map(|stripe| range(stripe, 0, BYTES as u32)).collect();
            for stripe in &whole {
                client.write(file(1), &[*stripe], &vec![0; BYTES]).await.unwrap();
            }
            for round in 0..40 {
                let most = if round % 2 == 0 { 300 } else { 60_000 };
                let count = 1 + random.below(PIECES_MAX as u64 / 2);
                let mut pieces: Vec<ObjectRange> = Vec::new();
                for _ in 0..count {
                    let len = 1 + random.below(most) as u32;
                    let offset = random.below(BYTES as u64 - u64::from(len)) as u32;
                    pieces.push(range(random.below(3) as u32, offset, len));
                }
                while total(&pieces) > TRANSFER_BYTES_MAX as usize {
                    pieces.pop();
                }
                let bytes = random_bytes(&mut random, total(&pieces));
                client.write(file(1), &pieces, &bytes).await.unwrap();
                let mut rest = &bytes[..];
                for piece in &pieces {
                    let (own, more) = rest.split_at(piece.len as usize);
                    rest = more;
                    let place = &mut model[piece.stripe as usize][piece.offset as usize..];
                    place[..own.len()].copy_from_slice(own);
                }
                let read = client.read(file(1), &pieces).await.unwrap();
                let expected = pieces.iter().flat_map(|piece| {
                    let place = &model[piece.stripe as usize][piece.offset as usize..];
                    place[..piece.len as usize].to_vec()
                });
                assert!(read.bytes == expected.collect::<Vec<_>>(), "round {round}");
            }
            for stripe in whole {
                let read = client.read(file(1), &[stripe]).await.unwrap();
                assert!(read.bytes == model[stripe.stripe as usize]);
            }
        });
    }
}

#[test]
fn absent_objects_are_told_apart_and_stand_as_zeros() {
    let mut simulation = Simulation::new(13);
    let cluster = Cluster::new(&mut simulation, &Setup::new(SimConfig::native()));
    let client = cluster.client.clone();
    run(&mut simulation, async move {
        client.write(file(1), &[range(5, 10, 3)], b"abc").await.unwrap();
        let pieces = [range(4, 0, 5000), range(5, 9, 5), range(6, 1, 2)];
        for read in [
            client.read_embedded(file(1), &pieces).await.unwrap(),
            client.read_bulk(file(1), &pieces).await.unwrap(),
        ] {
            assert_eq!(read.found, [Found::Absent, Found::Present, Found::Absent]);
            assert!(read.bytes[..5000].iter().all(|byte| *byte == 0));
            assert_eq!(read.bytes[5000..], *b"\0abc\0\0\0");
        }
    });
}

#[test]
fn bytes_that_do_not_match_their_checksums_are_never_stored() {
    for rail in rails() {
        let mut simulation = Simulation::new(14);
        let cluster = Cluster::new(&mut simulation, &Setup::new(rail));
        let client = cluster.client.clone();
        run(&mut simulation, async move {
            for len in [5000usize, 3 << 20] {
                let (old, new) = (vec![1; len], vec![2; len]);
                let pieces = [range(0, 50, len as u32)];
                client.write(file(1), &pieces, &old).await.unwrap();
                let mut sums = checksums(&pieces, &new);
                *sums.last_mut().unwrap() ^= 1;
                let source = Source::Embedded(Bytes(&new));
                let refused = if len <= EMBEDDED_BYTES_MAX as usize {
                    client.write_from(file(1), &pieces, source, &sums).await
                } else {
                    client.write_bulk(file(1), &pieces, &new, &sums).await
                };
                assert_eq!(refused, Err(Failed::Errno(Errno::EIO)));
                // The bytes under the wrong checksum keep their old content; chunks before may be new.
                let read = client.read(file(1), &pieces).await.unwrap();
                assert_eq!(read.bytes[len - 50..], old[len - 50..]);
                assert!(read.bytes.iter().all(|byte| *byte == 1 || len > 5000));
            }
        });
        assert_eq!(cluster.counters().checksum_errors, 2);
        assert!(cluster.lines.borrow().iter().any(|line| line.contains("checksum")));
    }
}

#[test]
fn requests_beyond_the_limits_are_refused_and_change_nothing() {
    let mut simulation = Simulation::new(15);
    let cluster = Cluster::new(&mut simulation, &Setup::new(SimConfig::native()));
    let client = cluster.client.clone();
    let before = simulation.now();
    run(&mut simulation, async move {
        let many = vec![range(0, 0, 1); PIECES_MAX + 1];
        let object_bytes = ropewalk_store::objects::Config::default().object_bytes as u32;
        let big = TRANSFER_BYTES_MAX + 1;
        let cases: [&[ObjectRange]; 6] = [
            &[],
            &[range(0, 0, 0)],
            &many,
            &[range(0, 0, big)],
            &[range(0, object_bytes, 1)],
            &[range(0, u32::MAX, u32::MAX)],
        ];
        for pieces in cases {
            let sums = vec![0; 4 * pieces.len()];
            let source = Source::Embedded(Bytes(&[]));
            assert_eq!(client.write_from(file(1), pieces, source, &sums).await, Err(INVALID));
            let request = DataRequest::Read {
                file: file(1),
                pieces: pieces.to_vec(),
                bulk: None,
                verify: true,
            };
            assert_eq!(client.call(&request, |_| ()).await.err(), Some(INVALID));
            let punch = DataRequest::Punch { file: file(1), pieces: pieces.to_vec() };
            if pieces.first().is_none_or(|piece| piece.len != big) {
                assert_eq!(client.done(&punch).await, Err(INVALID));
            }
        }
        // Too few bytes, too few checksums, too many; too much for a reply.
        let (one, four) = (Source::Embedded(Bytes(b"a")), [0; 4]);
        for (pieces, sums) in [
            (&[range(0, 0, 2)], &four[..]),
            (&[range(0, 0, 1)], &[][..]),
            (&[range(0, 4095, 1)], &[0; 8][..]),
        ] {
            assert_eq!(client.write_from(file(1), pieces, one, sums).await, Err(INVALID));
        }
        let long = [range(0, 0, EMBEDDED_BYTES_MAX + 1)];
        let request =
            DataRequest::Read { file: file(1), pieces: long.to_vec(), bulk: None, verify: true };
        assert_eq!(client.call(&request, |_| ()).await.err(), Some(INVALID));
        // A region that nobody exposed, and one that wraps around.
        for offset in [0, u64::MAX] {
            let bulk = ropewalk_wire::fs::data::Bulk { key_slot: 9, key_secret: 9, offset };
            let pieces = [range(0, 0, 4)];
            let written = client.write_from(file(1), &pieces, Source::Bulk(bulk), &four).await;
            assert_eq!(written, Err(INVALID));
        }
        let raw = client.connection.call(ropewalk_wire::fs::head::Service::Data, &[200, 1]).await;
        assert_eq!(raw.err(), Some(CallError::Malformed));
        let raw = client.connection.call(ropewalk_wire::fs::head::Service::Meta, &[0]).await;
        assert_eq!(raw.err(), Some(CallError::Malformed));
        assert_eq!(client.status().await.unwrap().objects, 0);
    });
    assert!(simulation.now().since(before).as_secs() < 5, "refusals need no patience");
}

#[test]
fn more_transfers_than_buffers_take_turns() {
    let mut simulation = Simulation::new(16);
    let setup = Setup { transfer_bytes: 0, ..Setup::new(SimConfig::stream()) };
    let cluster = Cluster::new(&mut simulation, &setup);
    let client = cluster.client.clone();
    run(&mut simulation, async move {
        let tasks = (1..=30u64).map(|number| {
            let client = client.clone();
            async move {
                let pieces = [range(0, 17, 2_500_000)];
                let bytes = vec![number as u8; 2_500_000];
                client.write(file(number), &pieces, &bytes).await.unwrap();
                let read = client.read(file(number), &pieces).await.unwrap();
                assert!(read.bytes == bytes);
            }
        });
        ropewalk_base::task::join_all(tasks).await;
    });
    assert_eq!(cluster.counters().turned_away, 0);
}

#[test]
fn a_rotten_block_is_an_error_with_the_objects_name() {
    let mut simulation = Simulation::new(17);
    let cluster = Cluster::new(&mut simulation, &Setup::new(SimConfig::native()));
    let client = cluster.client.clone();
    let writer = client.clone();
    run(&mut simulation, async move {
        writer.write(file(1), &[range(2, 0, 100_000)], &[7; 100_000]).await.unwrap();
        writer.sync(&[file(1)]).await.unwrap();
    });
    // A byte of the content: every byte of it has the same value, and nothing else in the file has.
    let path = cluster.object_path(1, 1, 2);
    let bytes = cluster.disk.bytes(&path).unwrap();
    let sevens: Vec<_> = bytes.windows(8).enumerate().filter(|(_, run)| *run == [7; 8]).collect();
    cluster.disk.flip_bit(&path, sevens[sevens.len() / 2].0 as u64, 3);
    run(&mut simulation, async move {
        let io = Err(Failed::Errno(Errno::EIO));
        assert_eq!(client.read(file(1), &[range(2, 0, 100_000)]).await, io);
        let read = client.read(file(1), &[range(2, 0, 4096)]).await.unwrap();
        assert_eq!(read.bytes, [7; 4096]);
    });
    let lines = cluster.lines.borrow();
    assert!(lines.iter().any(|line| line.contains("object 1.1.2")), "{lines:?}");
}
