//! A network that the library has never heard of. A program that registers a module for a scheme reaches its
//! URLs through the C functions, as a client and as a server, without any change in them.
//!
//! The network is the simulated one. Since a process has one library, the other party is an endpoint of the
//! message layer in the same cluster.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bmi::*;
use ropewalk_base::ids::ClusterId;
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_base::time::Time;
use ropewalk_net::modules::{self, Listen, Module, ModuleError};
use ropewalk_net::{
    Address, Channel, Completed, Context, Endpoint, EndpointConfig, Level, Oversize, Posted,
};
use ropewalk_rail_sim::{SimConfig, SimNetwork};

/// That of all BMI programs (`src/library.rs`).
const CLUSTER: ClusterId = ClusterId(0x524f_5045_5741_4c4b_2042_4d49_0000_0001);
const HANG: Duration = Duration::from_secs(60);
const LONG: usize = 3_000_000;
const ENOPROTOOPT: c_int = (1 << 30) | (1 << 7) | 44;
const EINVAL: c_int = (1 << 30) | (1 << 7) | 15;
const INIT_SERVER: c_int = 1;
const METHODS_STRING: c_int = 17;

/// The network's time goes on while nobody polls.
struct Clock {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Clock {
    fn start(network: &SimNetwork) -> Clock {
        let (stop, network) = (Arc::new(AtomicBool::new(false)), network.clone());
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let start = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                network.set_now(Time(start.elapsed().as_nanos() as u64));
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        Clock { stop, thread: Some(thread) }
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// The other party.
struct Party {
    endpoint: Endpoint,
    context: Context,
}

impl Party {
    fn open(network: &SimNetwork, name: &str) -> Party {
        let rail = network.rail(name, SimConfig::stream());
        let mut config = EndpointConfig::new(CLUSTER);
        config.service_thread = false;
        let endpoint = Endpoint::open(config, vec![Box::new(rail)]).expect("an endpoint");
        let context = endpoint.context(true).expect("a context");
        Party { endpoint, context }
    }

    fn end(&self, posted: Result<Posted, (Memory, ropewalk_net::Fault)>) -> Completed {
        let begin = Instant::now();
        match posted.map_err(|(_, fault)| fault).expect("it was posted") {
            Posted::Done(completed) => completed,
            Posted::Pending(_) => loop {
                if let Some(completed) = self.endpoint.test(&self.context) {
                    return completed;
                }
                assert!(begin.elapsed() < HANG, "nothing ends");
            },
        }
    }

    /// Takes a request of `hello`, then sends a tagged message of its length back as it gets it.
    fn echo(&self) {
        let begin = Instant::now();
        let request = loop {
            self.endpoint.progress();
            if let Some(request) = self.endpoint.next_request() {
                break request;
            }
            assert!(begin.elapsed() < HANG, "no request");
        };
        assert_eq!((request.bytes(), request.bits), (&b"hello"[..], 5));
        let room = Pool::with_budget(1 << 30).take(LONG).expect("memory");
        let (peer, refuse) = (Some(request.peer), Oversize::Refuse);
        let received = self.endpoint.post_receive(
            &self.context,
            Channel::Tagged,
            peer,
            6,
            u64::MAX,
            Memory::pooled(room),
            refuse,
            0,
        );
        let received = self.end(received);
        assert_eq!((received.outcome, received.bytes), (Ok(()), LONG as u64));
        let (channel, level) = (Channel::Tagged, Level::Buffered);
        let memory = received.memory;
        let sent =
            self.endpoint.post_send(&self.context, request.peer, channel, 7, memory, level, 0);
        assert_eq!(self.end(sent).outcome, Ok(()));
    }
}

/// Waits for what a post of the library answered; its length.
fn finish(posted: c_int, id: i64, context: i64) -> i64 {
    let (mut count, mut error, mut size, begin) = (0, 0, 0, Instant::now());
    assert!(posted >= 0, "{posted}");
    while posted == 0 && count == 0 {
        // SAFETY: the pointers are those of variables that live.
        let result =
            unsafe { BMI_test(id, &mut count, &mut error, &mut size, null_mut(), 1, context) };
        assert!(result >= 0 && begin.elapsed() < HANG, "{result}");
    }
    assert_eq!(error, 0);
    size
}

fn look_up(url: &str) -> (c_int, i64) {
    let (url, mut address) = (CString::new(url).expect("text"), 0);
    // SAFETY: the text ends with a zero, and the address is a variable that lives.
    let result = unsafe { BMI_addr_lookup(&mut address, url.as_ptr()) };
    (result, address)
}

fn open_context() -> i64 {
    let mut context = -1;
    // SAFETY: the pointer is that of a variable that lives.
    assert_eq!(unsafe { BMI_open_context(&mut context) }, 0);
    context
}

/// A client whose module joins while the library runs.
fn client(network: &SimNetwork) {
    let party = Party::open(network, "party");
    // SAFETY: a client gives no texts.
    assert_eq!(unsafe { BMI_initialize(std::ptr::null(), std::ptr::null(), 0) }, 0);
    let context = open_context();
    assert_eq!(look_up("sim://party").0, -ENOPROTOOPT, "nobody has registered it");
    register(network);
    modules::register(Module::new("never", |_, _| {
        Err(ModuleError::Other("no rights".to_string()))
    }));
    assert_eq!(look_up("never://x").0, -EINVAL, "there is no other way");
    let (result, address) = look_up("never://x,sim://party");
    assert_eq!(result, 0);
    let echo = std::thread::spawn(move || party.echo());

    let (out, mut into) = (vec![7u8; LONG], vec![0u8; LONG]);
    let (mut ids, mut got) = ([0i64; 3], 0i64);
    let (large, bytes) = (out.as_ptr().cast(), LONG as i64);
    // SAFETY: the buffers live until all three operations have ended below.
    let posted = unsafe {
        let [receive, request, send] = &mut ids;
        let (into, null) = (into.as_mut_ptr().cast::<c_void>(), null_mut());
        let hello = b"hello".as_ptr().cast();
        [
            BMI_post_recv(receive, address, into, bytes, &mut got, 2, 7, null, context, null),
            BMI_post_sendunexpected(request, address, hello, 5, 2, 5, null, context, null),
            BMI_post_send(send, address, large, bytes, 2, 6, null, context, null),
        ]
    };
    finish(posted[1], ids[1], context);
    finish(posted[2], ids[2], context);
    assert_eq!(finish(posted[0], ids[0], context), bytes);
    assert_eq!(out, into);
    echo.join().expect("the other party is content");
    assert_eq!(BMI_finalize(), 0);
}

/// A server that listens by the module.
fn server(network: &SimNetwork) {
    let (methods, listen) = (c"bmi_tcp,bmi_sim", c"sim://served,tcp://127.0.0.1");
    // SAFETY: both texts end with a zero.
    let begun = unsafe { BMI_initialize(methods.as_ptr(), listen.as_ptr(), INIT_SERVER) };
    assert_eq!(begun, 0);
    let context = open_context();
    let party = Party::open(network, "asking");
    let peer = Address::parse("sim://served").expect("an address");
    let peer = party.endpoint.lookup(&peer).expect("a peer");
    let (channel, memory) = (Channel::Request, Memory::constant(b"who?"));
    let asked =
        party.endpoint.post_send(&party.context, peer, channel, 9, memory, Level::Buffered, 0);

    // SAFETY: all zero is such an answer.
    let mut info: BmiUnexpectedInfo = unsafe { std::mem::zeroed() };
    let (mut count, begin) = (0, Instant::now());
    while count == 0 {
        party.endpoint.progress();
        // SAFETY: there is room for one.
        assert!(unsafe { BMI_testunexpected(1, &mut count, &mut info, 1) } >= 0);
        assert!(begin.elapsed() < HANG, "no message");
    }
    assert_eq!(party.end(asked).outcome, Ok(()));
    assert_eq!((info.error_code, info.size, info.tag), (0, 4, 9));
    // SAFETY: the buffer has as many bytes, until it is given back.
    let bytes = unsafe { std::slice::from_raw_parts(info.buffer.cast::<u8>(), 4) };
    assert_eq!(bytes, b"who?");
    assert_eq!(BMI_unexpected_free(info.addr, info.buffer), 0);

    // And back, to the address that the message came from.
    let room = Pool::with_budget(1 << 20).take(64).expect("memory");
    let (memory, refuse) = (Memory::pooled(room), Oversize::Refuse);
    let endpoint = &party.endpoint;
    let (own, tagged, any) = (&party.context, Channel::Tagged, u64::MAX);
    let received = endpoint.post_receive(own, tagged, None, 10, any, memory, refuse, 0);
    let mut id = 0;
    // SAFETY: the text lives for ever.
    let posted = unsafe {
        let (text, null) = (c"me".as_ptr().cast(), null_mut());
        BMI_post_send(&mut id, info.addr, text, 2, 2, 10, null, context, null)
    };
    finish(posted, id, context);
    let received = party.end(received);
    assert_eq!((received.outcome, received.bytes), (Ok(()), 2));

    let mut names: *mut std::ffi::c_char = null_mut();
    // SAFETY: the option has such a pointer.
    assert_eq!(unsafe { BMI_get_info(0, METHODS_STRING, (&raw mut names).cast()) }, 6);
    // SAFETY: the text ends with a zero; it is small enough to be left to the end of the process.
    assert_eq!(unsafe { CStr::from_ptr(names) }, c"tcp,shm,udp,ether,sim,never,");
    assert_eq!(BMI_finalize(), 0);
}

fn register(network: &SimNetwork) {
    let network = network.clone();
    modules::register(Module::new("sim", move |listen, _| match listen {
        Listen::No => Ok(Box::new(network.rail("library", SimConfig::stream()))),
        Listen::At { address: "", .. } => Err(ModuleError::BadAddress("sim://".to_string())),
        Listen::At { address, .. } => Ok(Box::new(network.rail(address, SimConfig::stream()))),
    }));
}

#[test]
fn a_new_network_is_reached_by_registering_it() {
    let network = SimNetwork::new(11);
    let _clock = Clock::start(&network);
    client(&network);
    server(&network);
}
