//! What an endpoint does while nothing happens.

use std::sync::Arc;
use std::time::Duration;

use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::time::Time;
use ropewalk_net::{Endpoint, EndpointConfig};
use ropewalk_rail::Rail;
use ropewalk_rail_shm::{ShmConfig, ShmRail};
use ropewalk_rail_tcp::{TcpConfig, TcpRail};

fn rails(name: &str) -> Vec<Box<dyn Rail>> {
    let name = format!("idle-{name}-{}", std::process::id());
    let listen = TcpConfig::listening("127.0.0.1:0".parse().unwrap());
    let shm = ShmRail::open(ShmConfig::named(name)).unwrap();
    vec![Box::new(TcpRail::open(listen).unwrap()), Box::new(shm)]
}

fn config(number: u64) -> EndpointConfig {
    let mut config = EndpointConfig::new(ClusterId(1));
    config.endpoint = EndpointId(number.into());
    config.incarnation = Incarnation(number);
    config
}

#[test]
fn quiet_sockets_are_hardly_asked_beside_shared_memory() {
    let mut config = config(1);
    config.service_thread = false;
    // No time passes but that of the kernel's ticks.
    config.clock = Arc::new(|| Time(1 << 40));
    let endpoint = Endpoint::open(config, rails("quiet")).unwrap();
    let calls = || endpoint.counters().1.iter().map(|(_, rail)| rail.system_calls).sum::<u64>();
    // At first it is not known that they are quiet.
    for _ in 0..1000 {
        endpoint.progress();
    }
    let (before, begin) = (calls(), std::time::Instant::now());
    let passes = 100_000;
    for _ in 0..passes {
        endpoint.progress();
    }
    let ticks = begin.elapsed().as_millis() as u64 + 1;
    let asked = calls() - before;
    assert!(asked <= ticks, "{asked} system calls in {passes} passes and at most {ticks} ticks");
}

/// How often a thread of this process went to sleep.
fn sleeps_of(thread: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let of = |directory: std::path::PathBuf| -> Option<u64> {
        let name = std::fs::read_to_string(directory.join("comm")).ok()?;
        let status = std::fs::read_to_string(directory.join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        (name.trim() == thread).then(|| line.trim().parse().unwrap())
    };
    tasks.filter_map(|task| of(task.unwrap().path())).sum()
}

#[test]
fn the_service_thread_leaves_an_idle_application_alone() {
    let endpoint = Endpoint::open(config(2), rails("service")).unwrap();
    let context = endpoint.context(true).unwrap();
    let wait = || assert!(endpoint.wait(&context, Duration::from_millis(10)).is_none());
    (0..30).for_each(|_| wait());
    let before = sleeps_of("ropewalk-servic");
    let begin = std::time::Instant::now();
    (0..100).for_each(|_| wait());
    let sleeps = sleeps_of("ropewalk-servic") - before;
    // At each look that would be one each 10 ms.
    let most = begin.elapsed().as_millis() as u64 / 40;
    assert!((1..=most).contains(&sleeps), "{sleeps} sleeps, at most {most}");
}

#[test]
fn a_wait_in_vain_asks_the_kernel_once() {
    let mut config = config(3);
    config.service_thread = false;
    let endpoint = Endpoint::open(config, rails("vain")).unwrap();
    let context = endpoint.context(true).unwrap();
    let calls = || endpoint.counters().1.iter().map(|(_, rail)| rail.system_calls).sum::<u64>();
    let wait = || assert!(endpoint.wait(&context, Duration::from_millis(10)).is_none());
    (0..10).for_each(|_| wait());
    let before = calls();
    (0..50).for_each(|_| wait());
    // The rails themselves are asked nothing: the sleep has shown that they are quiet.
    let asked = calls() - before;
    assert!(asked <= 25, "{asked} system calls of rails in 50 waits");
}
