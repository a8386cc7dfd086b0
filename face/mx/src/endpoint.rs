//! An endpoint of MX: one endpoint of `net` with the rail of its NIC and shared memory, and what MX says
//! about it.
//!
//! Invariants
//! * the state is locked for short times only, and never while a function of the program's runs;
//! * a function of the program's runs within a call of the program's, never in a thread of ours;
//! * while a handler runs, or progression is disabled, nothing that was completed is looked at.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use ropewalk_base::ids::ClusterId;
use ropewalk_base::limits::EAGER_BYTES_SHORT;
use ropewalk_base::pool::Pool;
use ropewalk_base::slots::SlotId;
use ropewalk_face_common::{Living, OpenErrorKind, WaiterElection, endpoint_config};
use ropewalk_host_mx::nics::{ENDPOINTS_MAX, Nic};
use ropewalk_host_mx::place::Place;
use ropewalk_net::modules::{self, EtherError, Listen, ModuleError};
use ropewalk_net::{Channel, Context, Endpoint};

use crate::abi::{ANY, Address, ErrorHandler, UnexpectedHandler};
use crate::codes::*;
use crate::connect::Connects;
use crate::environment::Options;
use crate::partners::Partners;
use crate::process::{self, Process};
use crate::requests::Requests;
use crate::search::Searches;

/// Programs that use MX are among themselves.
const CLUSTER: ClusterId = ClusterId(0x524f_5045_5741_4c4b_2020_4d58_0000_0001);
/// The time that a close waits for sent messages that have not reached their peers.
const LINGER: Duration = Duration::from_secs(1);

/// The arguments of `mx_open_endpoint` besides NIC and number.
#[derive(Clone, Copy, Default)]
pub struct Settings {
    pub key: u32,
    pub error_handler: Option<ErrorHandler>,
    pub context_bits: u8,
    pub context_shift: u8,
}

/// An open endpoint.
pub struct Ep {
    pub process: Arc<Process>,
    /// Its place in the table of endpoints.
    pub place: usize,
    error_handler: Mutex<Option<ErrorHandler>>,
    pub nic_number: u32,
    pub nic_id: u64,
    pub number: u8,
    pub session: u32,
    pub settings: Settings,
    /// Processes of this host are reached through shared memory.
    pub shares: bool,
    /// Its peers elsewhere speak MXoE.
    pub is_foreign: bool,
    pub opened_at: Instant,
    pub net: Endpoint,
    /// The contexts for completions: `main` for operations, `control` for connection messages.
    pub main: Context,
    pub control: Context,
    /// Memory for messages about connections, and for large ones to oneself.
    pub pool: Pool,
    pub election: WaiterElection,
    state: Mutex<State>,
    /// Changes whenever a waiter may find what it waits for.
    pub version: AtomicU64,
    /// The number of times that all waiters were told to end their wait.
    pub wakeups: AtomicU64,
    /// The number of calls to the keeper.
    pub calls: AtomicU64,
    pub is_closing: AtomicBool,
    keeper: Mutex<Option<JoinHandle<()>>>,
    _living: Living,
}

/// The mutable state of an endpoint.
pub struct State {
    pub requests: Requests,
    pub partners: Partners,
    pub own: SlotId,
    pub connects: Connects,
    pub searches: Searches,
    pub handler: Option<Handler>,
    /// The thread in which the handler of unexpected messages runs.
    pub in_handler: Option<ThreadId>,
    /// The number of times that progression was disabled and not enabled again.
    pub disabled: u32,
    /// Arrivals of messages for which the handler was asked, and those before the program's latest call.
    pub offers_seen: u64,
    pub arrivals_seen: u64,
    /// The bytes of the message about which it is asked.
    pub offered: Vec<u8>,
    pub events_seen: u64,
    /// For requests without one of their own; `None`: they wait as long as the peer lives.
    pub timeout: Option<Duration>,
}

/// The handler of unexpected messages.
#[derive(Clone, Copy)]
pub struct Handler {
    pub function: UnexpectedHandler,
    /// The user's pointer, as a number.
    pub context: usize,
}

impl State {
    /// Nothing that was completed is looked at.
    pub fn is_frozen(&self) -> bool {
        self.disabled > 0 || self.in_handler.is_some()
    }

    /// Whether this thread runs the handler.
    pub fn is_handling(&self) -> bool {
        self.in_handler == Some(std::thread::current().id())
    }
}

/// The code for a rail or a raw endpoint that could not be opened. Prints the details that the code does not
/// carry.
pub fn code_of(error: &ModuleError) -> Code {
    let code = match OpenErrorKind::of(error) {
        OpenErrorKind::InUse => BUSY,
        OpenErrorKind::NotPermitted => NO_PERMISSION,
        OpenErrorKind::Shortage => NO_RESOURCES,
        _ => NO_DEVICE,
    };
    let is_held = matches!(error, ModuleError::Ether(EtherError::Held { .. }));
    static SAID: Once = Once::new();
    match (code, is_held) {
        // Of who looks for a free number it would be said of each that is not.
        (BUSY, true) => SAID.call_once(|| eprintln!("libmyriexpress: {error}")),
        (BUSY, false) => {}
        _ => eprintln!("libmyriexpress: {error}"),
    }
    code
}

/// The code for an endpoint that lacks a system resource. Prints the error of the system.
fn short(error: std::io::Error) -> Code {
    eprintln!(
        "libmyriexpress: cannot open an endpoint: {error}; raise the limit (`ulimit -n`, `ulimit \
         -u`)"
    );
    NO_RESOURCES
}

/// Opens an endpoint at this place of the table. `ANY`: the first number that is free on any NIC.
pub fn open(
    process: &Arc<Process>,
    place: usize,
    nic_number: u32,
    number: u32,
    settings: Settings,
) -> Result<Arc<Ep>, Code> {
    let count = process.nics.nics.len() as u32;
    if nic_number != ANY && nic_number >= count {
        return Err(BOARD_UNKNOWN);
    }
    let number = if process.options.any_endpoint { ANY } else { number };
    if number != ANY && number >= ENDPOINTS_MAX {
        return Err(BAD_ENDPOINT);
    }
    let nic_numbers = if nic_number == ANY { 0..count } else { nic_number..nic_number + 1 };
    let numbers = if number == ANY { 0..ENDPOINTS_MAX } else { number..number + 1 };
    let mut nic_numbers: Vec<u32> = nic_numbers.collect();
    let mut code = NO_DEVICE;
    // All NICs for a number, then the next number: load is spread over NICs.
    for number in numbers {
        let mut next = 0;
        while let Some(nic_number) = nic_numbers.get(next).copied() {
            match Ep::open(process, place, nic_number, number, settings) {
                Ok(endpoint) => return Ok(endpoint),
                Err(BUSY) => (code, next) = (BUSY, next + 1),
                Err(other) => {
                    // Nor would there be any other of its endpoints.
                    code = other;
                    nic_numbers.remove(next);
                }
            }
        }
    }
    Err(code)
}

impl Ep {
    fn open(
        process: &Arc<Process>,
        place: usize,
        nic_number: u32,
        number: u32,
        settings: Settings,
    ) -> Result<Arc<Ep>, Code> {
        let living = process::begin();
        let own = process.nics.nics.get(nic_number as usize).cloned().ok_or(BOARD_UNKNOWN)?;
        let nic_id = own.place.nic_id();
        let rails = rails(&process.options, &own, number, settings.key)?;
        let mut config = endpoint_config(CLUSTER);
        config.teller = Some(ropewalk_host_mx::counts::start);
        config.core.eager_bytes_max = process.options.rendezvous_bytes;
        config.core.eager_bytes_min = EAGER_BYTES_SHORT;
        let net = Endpoint::open(config, rails).map_err(short)?;
        let main = net.context(false).map_err(short)?;
        let control = net.context(true).map_err(short)?;
        net.tell_of_arrivals(&main);
        net.follow_fetches();
        [&main, &control].into_iter().for_each(|context| net.tell_of_events(context));
        // Neither 0, which is none, nor what stands for an unknown one.
        let session = (ropewalk_net::host::random_seed() as u32).clamp(1, u32::MAX - 1);
        let state = State::new(&net, nic_id, number as u8, session)?;
        let endpoint = Arc::new(Ep {
            process: process.clone(),
            place,
            error_handler: Mutex::new(settings.error_handler),
            nic_number,
            nic_id,
            number: number as u8,
            session,
            settings,
            shares: !process.options.shared_disabled,
            is_foreign: own.is_foreign,
            opened_at: Instant::now(),
            net,
            main,
            control,
            pool: Pool::with_budget(usize::MAX / 2),
            election: WaiterElection::default(),
            state: Mutex::new(state),
            version: AtomicU64::new(0),
            wakeups: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            is_closing: AtomicBool::new(false),
            keeper: Mutex::new(None),
            _living: living,
        });
        let keeper = crate::keeper::start(&endpoint).map_err(short)?;
        let role = format!("MX endpoint {number} of board {nic_number}");
        ropewalk_host_paths::show(&endpoint.net, &role);
        *endpoint.keeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(keeper);
        Ok(endpoint)
    }

    /// The state.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its handler of errors; `None`: the process's.
    pub fn error_handler(&self) -> Option<ErrorHandler> {
        *self.error_handler.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets its handler of errors; the one before it.
    pub fn set_error_handler(&self, handler: Option<ErrorHandler>) -> Option<ErrorHandler> {
        let mut own = self.error_handler.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut own, handler)
    }

    /// Its own address.
    pub fn own_address(&self, state: &State) -> Address {
        state.partners.address(self.place, state.own)
    }

    /// A waiter may find what it waits for.
    pub fn announce(&self) {
        self.version.fetch_add(1, Ordering::SeqCst);
        if self.election.is_anybody_here() {
            self.main.wake();
            self.election.tell();
        }
    }

    /// The keeper has something to do.
    pub fn rouse(&self) {
        // A keeper that is about to sleep sees that it was called meanwhile.
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.control.wake();
    }

    /// All waiters end their waits.
    pub fn wake_up(&self) {
        self.wakeups.fetch_add(1, Ordering::SeqCst);
        self.announce();
    }

    /// Ends it: operations under way are dropped. Nobody finds it any more.
    pub fn close(&self) {
        self.is_closing.store(true, Ordering::SeqCst);
        self.wake_up();
        self.rouse();
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(keeper) = keeper {
            // One that panicked has said so.
            let _ = keeper.join();
        }
        self.net.settle(LINGER);
        self.net.close();
    }

    /// Whether the bits that choose a context number are all in a mask.
    pub fn covers_context(&self, mask: u64) -> bool {
        let Settings { context_bits, context_shift, .. } = self.settings;
        let ones = (1u64 << context_bits) - 1;
        let bits = ones.checked_shl(context_shift.into()).unwrap_or(0);
        mask & bits == bits
    }
}

/// The rails of an endpoint: the rail of the NIC, the rail to hosts of ours if MXoE is spoken with others,
/// shared memory, and one by each further interface that the environment names (`ROPEWALK_INTERFACES`). The rail of the NIC makes
/// sure that nobody else has the number.
fn rails(
    options: &Options,
    nic: &Nic,
    number: u32,
    key: u32,
) -> Result<Vec<Box<dyn ropewalk_net::modules::Rail>>, Code> {
    let silence = options.give_up_after;
    let (scheme, mut address) = nic.listen(number, key, silence).ok_or(BAD_ENDPOINT)?;
    let own = match nic.place {
        Place::Udp(at) => ropewalk_net::host::interface_of(at.ip()).unwrap_or_default(),
        Place::Ether(_) => nic.interface.clone(),
    };
    let named = ropewalk_net::interfaces().map_err(|error| code_of(&error))?;
    let further: Vec<&String> = named.iter().filter(|name| **name != own).collect();
    if let Place::Udp(at) = nic.place
        && !further.is_empty()
        && !at.ip().is_unspecified()
    {
        address = format!("{address}?source={}", at.ip());
    }
    let open = |scheme, address: &str| {
        let listen = Listen::At { address, exactly: true };
        modules::open(scheme, &listen).map_err(|error| code_of(&error))
    };
    let mut rails = vec![open(scheme, &address)?];
    if let Some(address) = nic.listen_for_ours(number) {
        rails.push(open("ether", &address)?);
    }
    for interface in further {
        let (scheme, address) = match nic.place {
            Place::Udp(_) => ("udp", format!("0.0.0.0:0?interface={interface}")),
            Place::Ether(_) => ("ether", interface.clone()),
        };
        rails.push(open(scheme, &address)?);
    }
    if !options.shared_disabled {
        rails.push(open("shm", &Nic::shared_name(nic.place.nic_id(), number))?);
    }
    Ok(rails)
}

impl State {
    fn new(net: &Endpoint, nic_id: u64, number: u8, session: u32) -> Result<State, Code> {
        // Another one of this place had other handles and addresses, in all likelihood.
        let first = (ropewalk_net::host::random_seed() as u32 >> 1) + 1;
        let mut partners = Partners::new(first);
        let own = partners.at(nic_id, number).ok_or(NO_RESOURCES)?;
        let peer = net.own_peer().map_err(|_| NO_RESOURCES)?;
        partners.name(peer, own);
        if let Some(partner) = partners.get_mut(own) {
            partner.session = session;
            partner.peer = Some(peer);
            partner.is_up = true;
            partner.is_own = true;
        }
        Ok(State {
            requests: Requests::new(first),
            partners,
            own,
            connects: Connects::default(),
            searches: Searches::default(),
            handler: None,
            in_handler: None,
            disabled: 0,
            offers_seen: 0,
            arrivals_seen: 0,
            offered: Vec::new(),
            events_seen: 0,
            timeout: None,
        })
    }
}

impl Ep {
    /// Sets the handler of unexpected messages; `None`: there is none any more. It is asked about those that nobody was
    /// asked about and that came since the program's latest call: that the library took them in is not its business.
    pub fn set_handler(&self, handler: Option<Handler>) {
        let mut state = self.lock();
        state.handler = handler;
        state.offers_seen = self.net.arrivals().wrapping_sub(1);
        self.net.offer_unmatched(handler.map(|_| (Channel::Tagged, state.arrivals_seen)));
    }
}
