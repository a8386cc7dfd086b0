//! Rails that are opened by need: when an address is looked up for which the endpoint has none.

use std::sync::{Arc, Mutex};

use crate::common::{Medium, World, check, message};
use ropewalk_net::Address;
use ropewalk_net::modules::{self, Module, ModuleError};
use ropewalk_rail_tcp::TcpConfig;

/// An endpoint over UDP that opens others by need, one over TCP, and the errors that the first one reported.
fn pair() -> (World, Arc<Mutex<Vec<String>>>) {
    let mut world = World::new(Medium::Udp);
    world.add();
    world.add_listening(TcpConfig::listening("127.0.0.1:0".parse().unwrap()), |_| ());
    let heard = Arc::new(Mutex::new(Vec::new()));
    let told = heard.clone();
    let hear = move |error: &ModuleError| told.lock().unwrap().push(error.to_string());
    world.nodes[0].endpoint.open_rails_by_need(hear);
    (world, heard)
}

#[test]
fn a_peer_of_another_network_is_called_by_a_rail_that_is_opened_for_it() {
    let (world, heard) = pair();
    let to = world.peer(0, 1);
    let memories = [world.memory(100_000, 5), world.memory(100_000, 0)];
    let [_, received] = message(&world.nodes[0], &world.nodes[1], to, memories);
    check(received, 100_000, 5);
    assert_eq!(world.nodes[0].endpoint.peer_rail(to), Some("tcp"));
    assert_eq!(world.nodes[0].endpoint.counters().1.len(), 2, "one was opened, and kept");
    world.peer(0, 1);
    assert_eq!(world.nodes[0].endpoint.counters().1.len(), 2);
    assert_eq!(*heard.lock().unwrap(), Vec::<String>::new());
}

#[test]
fn a_network_that_cannot_be_used_is_told_of_once_and_where_there_is_no_other_way() {
    modules::register(Module::new("never", |_, _| {
        Err(ModuleError::Other("no rights".to_string()))
    }));
    let (world, heard) = pair();
    let endpoint = &world.nodes[0].endpoint;
    let parse = |text: &str| Address::parse(text).unwrap();
    let beside = format!("never://x,{}", world.nodes[1].endpoint.addresses());
    for address in [&beside, "never://x,tcp://127.0.0.1:1"] {
        endpoint.reach(&parse(address)).unwrap();
        endpoint.lookup(&parse(address)).unwrap();
    }
    assert_eq!(heard.lock().unwrap().len(), 0, "there is another way");
    assert_eq!(endpoint.reach(&parse("never://x")).unwrap_err().to_string(), "no rights");
    for _ in 0..3 {
        endpoint.lookup(&parse("never://x")).unwrap();
        // Shared memory leads to no other host.
        endpoint.reach(&parse("shm://x,never://x")).unwrap();
        endpoint.lookup(&parse("never://y,shm://y")).unwrap();
    }
    assert_eq!(*heard.lock().unwrap(), ["no rights"]);
    let unknown = endpoint.reach(&parse("gm://x")).unwrap_err().to_string();
    assert!(unknown.contains("'gm'") && unknown.contains("tcp://"), "{unknown}");
}
