//! The server dies and comes back; calls are sent again.

use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_net::{Audience, Channel, Level};
use ropewalk_rpc::CallError;
use ropewalk_sim::{Kill, SimConfig, Simulation};
use ropewalk_wire::fs::data::{Bulk, DataReply, DataRequest, DataResult, Source};
use ropewalk_wire::fs::head::{CallHead, ReplyHead, Service, Status};
use ropewalk_wire::fs::value::{Bytes, Errno};
use ropewalk_wire::fs::{decode, encode};

use crate::client::{Client, Failed, checksums, file, range};
use crate::cluster::{Cluster, SESSION, Setup, rails, run};

#[test]
fn what_was_acknowledged_survives_the_process_and_what_was_synced_the_power() {
    for (seed, rail) in (40..).zip(rails()) {
        let mut simulation = Simulation::new(seed);
        let cluster = Cluster::new(&mut simulation, &Setup::new(rail));
        let pieces = [range(0, 77, 300_000), range(1, 0, 10)];
        let bytes = |round: u8| vec![round; 300_010];
        let (mut boots, mut eras) = (Vec::new(), Vec::new());
        for round in 1..=6u8 {
            let power = round % 2 == 0;
            let client = cluster.client.clone();
            let boot = run(&mut simulation, async move {
                let boot = client.write(file(1), &pieces, &bytes(round)).await.unwrap();
                if power {
                    assert_eq!(client.sync(&[file(1)]).await, Ok(boot));
                }
                boot
            });
            boots.push(boot);
            eras.push(cluster.client.era.get());
            assert_eq!(boot, cluster.server().boot());
            let kill = if power { Kill::Power } else { Kill::Process(Default::default()) };
            cluster.restart(&mut simulation, kill);
            let client = cluster.client.clone();
            run(&mut simulation, async move {
                let read = client.read(file(1), &pieces).await.unwrap();
                assert!(read.bytes == bytes(round), "round {round}");
            });
        }
        boots.sort_unstable();
        boots.dedup();
        assert_eq!(boots.len(), 6, "each life has a boot id of its own");
        let kept = eras.windows(2).map(|pair| pair[0] == pair[1]);
        assert!(
            kept.eq([true, false, true, false, true]),
            "power losses alone end an era: {eras:?}"
        );
    }
}

#[test]
fn a_call_to_a_server_that_is_down_is_answered_by_its_next_life() {
    let mut simulation = Simulation::new(42);
    let cluster = Cluster::new(&mut simulation, &Setup::new(SimConfig::stream()));
    let (client, pieces) = (cluster.client.clone(), [range(0, 0, 3 << 20)]);
    let writer = client.clone();
    let done = std::rc::Rc::new(std::cell::Cell::new(false));
    let flag = done.clone();
    simulation.node("client").world().spawn(async move {
        for round in 1..=20u8 {
            writer.write(file(1), &pieces, &vec![round; 3 << 20]).await.unwrap();
        }
        flag.set(true);
    });
    let mut random = simulation.fork_random();
    for _ in 0..8 {
        simulation.run_for(std::time::Duration::from_micros(random.below(40_000)));
        cluster.restart(&mut simulation, Kill::Process(Default::default()));
    }
    assert!(simulation.run_until(crate::cluster::LIMIT, |_| done.get()));
    run(&mut simulation, async move {
        let read = client.read(file(1), &pieces).await.unwrap();
        assert!(read.bytes.iter().all(|byte| *byte == 20));
    });
}

/// A call with any number, sent once.
struct Raw {
    client: Client,
    pool: Pool,
    bits: std::cell::Cell<u64>,
}

impl Raw {
    fn new(client: &Client) -> Raw {
        let pool = Pool::with_budget(16 << 20);
        Raw { client: client.clone(), pool, bits: std::cell::Cell::new(1 << 40) }
    }

    /// Sends a write; the future is its reply.
    fn send(
        &self,
        slot: u16,
        sequence: u64,
        source: Source<'_>,
        sums: &[u8],
        len: u32,
    ) -> impl Future<Output = (Status, Option<Result<(), Errno>>)> + use<> {
        self.bits.set(self.bits.get() + 1);
        let head = CallHead {
            retry: true,
            session: SESSION + 1,
            slot,
            sequence,
            reply_bits: self.bits.get(),
            epoch: 1,
            token: self.client.token(SESSION + 1),
            ..CallHead::free(Service::Data)
        };
        let (pieces, checksums) = (vec![range(0, 0, len)], Bytes(sums));
        let request = DataRequest::Write { file: file(1), pieces, source, checksums };
        let mut bytes = Vec::new();
        head.encode(&mut bytes);
        encode(&request, &mut bytes);
        let (endpoint, peer) = (&self.client.endpoint, self.client.connection.peer());
        let room = Memory::pooled(self.pool.take(4096).unwrap());
        let receive = endpoint.receive(Channel::Tagged, Some(peer), head.reply_bits, room);
        let memory = Memory::pooled(self.pool.copy_of(&bytes).unwrap());
        let send = endpoint.send(peer, Channel::Request, 0, memory, Level::Buffered);
        async move {
            send.await.outcome.unwrap();
            let received = receive.await;
            let buffer = received.memory.into_pooled().unwrap();
            let (head, body) = ReplyHead::decode(&buffer[..received.bytes as usize]).unwrap();
            assert_eq!(head.sequence, sequence);
            let result = (head.status == Status::Done).then(|| {
                let result = decode::<DataResult<'_>>(body).unwrap();
                result.map(|reply| assert_eq!(reply, DataReply::Written))
            });
            (head.status, result)
        }
    }

    async fn write(
        &self,
        slot: u16,
        sequence: u64,
        bytes: &[u8],
    ) -> (Status, Option<Result<(), Errno>>) {
        let sums = checksums(&[range(0, 0, bytes.len() as u32)], bytes);
        self.send(slot, sequence, Source::Embedded(Bytes(bytes)), &sums, bytes.len() as u32).await
    }
}

#[test]
fn a_call_that_is_sent_again_takes_effect_once_and_gets_its_first_reply() {
    let mut simulation = Simulation::new(43);
    let cluster = Cluster::new(&mut simulation, &Setup::new(SimConfig::stream()));
    let client = cluster.client.clone();
    run(&mut simulation, async move {
        let raw = Raw::new(&client);
        let written = (Status::Done, Some(Ok(())));
        assert_eq!(raw.write(5, 1, b"one!").await, written);
        assert_eq!(raw.write(5, 2, b"two!").await, written);
        client.write(file(1), &[range(0, 0, 4)], b"free").await.unwrap();
        assert_eq!(raw.write(5, 2, b"two!").await, written);
        assert_eq!(raw.write(5, 1, b"one!").await, (Status::BadSequence, None));
        let read = client.read(file(1), &[range(0, 0, 4)]).await.unwrap();
        assert_eq!(read.bytes, b"free");
        // An error is a reply, too: good bytes under the same number change nothing any more.
        let failed = (Status::Done, Some(Err(Errno::EIO)));
        let bad = raw.send(5, 3, Source::Embedded(Bytes(b"bad!")), &[0; 4], 4);
        assert_eq!(bad.await, failed);
        assert_eq!(raw.write(5, 3, b"bad!").await, failed);
        assert_eq!(client.read(file(1), &[range(0, 0, 4)]).await.unwrap().bytes, b"free");
    });
}

#[test]
fn a_write_that_was_given_up_does_nothing_after_the_slots_next_call() {
    for rail in rails() {
        let mut simulation = Simulation::new(44);
        let cluster = Cluster::new(&mut simulation, &Setup::new(rail));
        let client = cluster.client.clone();
        run(&mut simulation, async move {
            let raw = Raw::new(&client);
            let len = 1 << 20;
            let old = vec![1; len as usize];
            let memory = Memory::pooled(raw.pool.copy_of(&old).unwrap());
            let key = client.endpoint.expose(memory, false, Audience::Everybody).unwrap();
            let (key_slot, key_secret) = (key.slot.to_u64(), key.secret);
            let bulk = Source::Bulk(Bulk { key_slot, key_secret, offset: 0 });
            // The bytes of the first one are on their way when the second one comes.
            let first = raw.send(9, 1, bulk, &checksums(&[range(0, 0, len)], &old), len);
            let second = raw.write(9, 2, b"new!").await;
            assert_eq!(second, (Status::Done, Some(Ok(()))));
            let silent = client.world.timeout(std::time::Duration::from_secs(5), first).await;
            assert_eq!(silent, None, "nobody waits for the reply");
            let read = client.read(file(1), &[range(0, 0, 8)]).await.unwrap();
            assert_eq!(read.bytes, *b"new!\0\0\0\0");
        });
        assert_eq!(cluster.counters().under_way, 0);
    }
}

#[test]
fn a_server_that_is_known_by_another_address_knows_the_calls_that_came_by_the_first() {
    let mut simulation = Simulation::new(47);
    let cluster = Cluster::new(&mut simulation, &Setup::new(SimConfig::stream()));
    let (before, pieces) = (cluster.client.clone(), [range(0, 0, 10)]);
    run(&mut simulation, async move {
        for round in 0..5 {
            before.write(file(1), &pieces, &[round; 10]).await.unwrap();
        }
        let after = before.moved();
        for round in 5..10 {
            after.write(file(1), &pieces, &[round; 10]).await.unwrap();
            assert_eq!(before.read(file(1), &pieces).await.unwrap().bytes, [round; 10]);
        }
    });
}

#[test]
fn a_region_that_vanished_is_an_error_of_the_caller() {
    let mut simulation = Simulation::new(45);
    let cluster = Cluster::new(&mut simulation, &Setup::new(SimConfig::native()));
    let client = cluster.client.clone();
    run(&mut simulation, async move {
        let bulk = Bulk { key_slot: u64::MAX, key_secret: 1, offset: 0 };
        let request = DataRequest::Read {
            file: file(1),
            pieces: vec![range(0, 0, 10)],
            bulk: Some(bulk),
            verify: true,
        };
        let refused = client.call(&request, |_| ()).await;
        assert_eq!(refused.err(), Some(Failed::Errno(Errno::EINVAL)));
        let refused = client.connection.call(Service::Session, &[]).await;
        assert_eq!(refused.err(), Some(CallError::Malformed));
    });
}
