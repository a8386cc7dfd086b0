//! The BMI state of a process between the first initialize and the last finalize.
//!
//! A call looks at one pointer, which changes with the first initialize and the last finalize only, and
//! shares no lock with other calls (`presence`). The last finalize closes everything that the library has:
//! ports, connections, descriptors.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ropewalk_base::ids::ClusterId;
use ropewalk_face_common::{ForkGuard, Living, OpenErrorKind, endpoint_config};
use ropewalk_net::Endpoint;
use ropewalk_net::modules::{self, Listen, ModuleError};

use crate::addresses::{Addresses, BETWEEN_URLS};
use crate::buffers::Buffers;
use crate::contexts::{ContextSlot, Contexts};
use crate::errors::{
    EACCES, EADDRINUSE, EADDRNOTAVAIL, EHOSTNTFD, EINVAL, EMFILE, ENETDOWN, ENOPROTOOPT, ErrorCode,
};
use crate::options::{Options, from_environment};
use crate::presence::{self, Memory};
use crate::unexpected::Unexpected;

/// Programs that use BMI are among themselves: they reach no file system by mistake, nor each other's.
const CLUSTER: ClusterId = ClusterId(0x524f_5045_5741_4c4b_2042_4d49_0000_0001);

/// Connections that are kept open; idle ones beyond are closed and made again when they are needed.
const LINKS_MAX: usize = 512;

pub const INIT_SERVER: i32 = 1;
pub const TCP_BIND_SPECIFIC: i32 = 2;
pub const AUTO_REF_COUNT: i32 = 4;

/// The library of this process.
pub struct Library {
    pub endpoint: Endpoint,
    pub addresses: Mutex<Addresses>,
    pub contexts: Contexts,
    pub unexpected: Unexpected,
    pub buffers: Buffers,
    pub options: Options,
    /// Schemes whose rails this endpoint has.
    active: Mutex<Vec<String>>,
    pub counts_references: bool,
}

/// The time that the last finalize waits for threads inside a call: they are woken and leave at once.
const LEAVING_MAX: Duration = Duration::from_secs(10);
/// The time that the last finalize waits until sent messages have reached their peers.
const SETTLE_MAX: Duration = Duration::from_millis(200);
/// The interval between two checks of threads that are leaving.
const LEAVING_LOOK: Duration = Duration::from_micros(100);

/// The library; null where there is none. Changed under the lock of `REFERENCES`.
static LIBRARY: AtomicPtr<Library> = AtomicPtr::new(ptr::null_mut());
/// The users of the library.
static REFERENCES: Mutex<References> = Mutex::new(References { count: 0, living: None });

struct References {
    /// Initializations without their finalizations.
    count: usize,
    /// From the first initialization to the end of the last finalization.
    living: Option<Living>,
}

/// Tells children of this process that the library is their parent's.
static FORKS: ForkGuard = ForkGuard::new();

extern "C" fn in_child() {
    if FORKS.in_child() {
        LIBRARY.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

fn watch_forks() {
    // SAFETY: the handler is a function of this object, which stays loaded, and only stores numbers.
    FORKS.watch("libbmi", || unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
}

/// Whether the library was made by a process whose child we are.
pub fn is_child() -> bool {
    FORKS.is_child()
}

fn references() -> MutexGuard<'static, References> {
    REFERENCES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `work` with the library; `None` where there is none.
#[inline]
pub fn with<R>(work: impl FnOnce(&Library) -> R) -> Option<R> {
    enter(|library, _| Some(work(library)))
}

#[inline]
fn enter<R>(work: impl FnOnce(&Library, &mut Memory) -> Option<R>) -> Option<R> {
    // Threads that never see a library leave nothing behind.
    if LIBRARY.load(Ordering::Relaxed).is_null() {
        return None;
    }
    presence::inside(|memory| {
        let library = LIBRARY.load(Ordering::Acquire);
        if library.is_null() {
            return None;
        }
        // SAFETY: the library was in sight with this thread's flag up: it is not taken apart, and nobody
        // else touches the thread's memory, before the flag goes down. Calls do not nest.
        unsafe { work(&*library, &mut *memory) }
    })
}

/// The same with one of its contexts.
#[inline]
pub fn with_context<R>(id: i64, work: impl FnOnce(&Library, &ContextSlot) -> R) -> Option<R> {
    enter(|library, memory| {
        let context = library.contexts.find(&mut memory.contexts, id)?;
        Some(work(library, context))
    })
}

/// The arguments of `BMI_initialize`.
pub struct Start<'a> {
    pub methods: Option<&'a str>,
    pub listen: Option<&'a str>,
    pub flags: i32,
}

/// The first call makes the library; later ones are counted.
pub fn initialize(start: &Start<'_>) -> Result<(), ErrorCode> {
    if is_child() {
        eprintln!(
            "libbmi: a child cannot use BMI if its parent was initialized before the fork: \
             initialize after the fork, or call exec in the child"
        );
        return Err(-ENETDOWN);
    }
    watch_forks();
    presence::prepare();
    // Before the lock is taken: a child that is forked meanwhile would find it held for ever.
    let living = FORKS.begin();
    let mut references = references();
    let plan = plan(start)?;
    if LIBRARY.load(Ordering::Relaxed).is_null() {
        let library = Library::new(&plan, start.flags).map_err(|error| refusal(&error))?;
        LIBRARY.store(Box::into_raw(Box::new(library)), Ordering::Release);
        references.living = Some(living);
    }
    references.count += 1;
    Ok(())
}

/// The last call ends the library: operations under way are given up, and all that it has is closed.
pub fn finalize() {
    if is_child() {
        return;
    }
    // Held until the end: another library would find ports that are still taken.
    let mut references = references();
    references.count = references.count.saturating_sub(1);
    if references.count > 0 {
        return;
    }
    let library = LIBRARY.swap(ptr::null_mut(), Ordering::AcqRel);
    if library.is_null() {
        return;
    }
    // SAFETY: it came from a box, and only this function gives it back.
    let ending = unsafe { &*library };
    ending.end();
    let begin = Instant::now();
    let left = presence::wait_for_all(|| {
        // Wakes threads that were about to sleep when the endpoint closed.
        ending.endpoint.wake_sleepers();
        std::thread::sleep(LEAVING_LOOK);
        begin.elapsed() < LEAVING_MAX
    });
    if left {
        // SAFETY: nobody sees it any more, and all who saw it have left.
        drop(unsafe { Box::from_raw(library) });
    } else {
        eprintln!(
            "libbmi: a thread is still in a call of the library, so its connections and memory \
             stay open"
        );
    }
    references.living = None;
}

/// A module to open, with where it listens.
type Planned<'a> = (&'a str, Option<&'a str>);

/// Finds the addresses to listen at for each method: of several, each is a path of its own.
fn plan<'a>(start: &Start<'a>) -> Result<Vec<Planned<'a>>, ErrorCode> {
    let server = start.flags & INIT_SERVER != 0;
    if server && (start.methods.is_none() || start.listen.is_none()) {
        return Err(-EINVAL);
    }
    if !server && start.listen.is_some() {
        return Err(-EINVAL);
    }
    let words = |text: Option<&'a str>| {
        text.unwrap_or("").split(BETWEEN_URLS).filter(|word| !word.is_empty())
    };
    let mut planned = Vec::new();
    for method in words(start.methods) {
        let scheme = method.strip_prefix("bmi_").ok_or(-EINVAL)?;
        let own = |url: &&str| url.split_once("://").is_some_and(|(begin, _)| begin == scheme);
        let listen = words(start.listen).filter(own).filter_map(|url| url.split_once("://"));
        let places: Vec<_> = listen.map(|(_, place)| (scheme, Some(place))).collect();
        match places.is_empty() {
            true if server => return Err(-EINVAL),
            true => planned.push((scheme, None)),
            false => planned.extend(places),
        }
    }
    if server && planned.is_empty() {
        return Err(-EINVAL);
    }
    Ok(planned)
}

/// The code, negated, for a network that cannot be used. Says on the standard error what went wrong: a code alone does not
/// say what to do.
pub fn refusal(error: &ModuleError) -> ErrorCode {
    eprintln!("libbmi: {error}");
    -code_of(error)
}

fn code_of(error: &ModuleError) -> ErrorCode {
    match OpenErrorKind::of(error) {
        OpenErrorKind::UnknownModule => ENOPROTOOPT,
        OpenErrorKind::UnknownHost => EHOSTNTFD,
        OpenErrorKind::InUse => EADDRINUSE,
        OpenErrorKind::NoSuchAddress => EADDRNOTAVAIL,
        OpenErrorKind::NotPermitted => EACCES,
        OpenErrorKind::Shortage => EMFILE,
        OpenErrorKind::Other => EINVAL,
    }
}

impl Library {
    fn new(planned: &[Planned<'_>], flags: i32) -> Result<Library, ModuleError> {
        let other = |error: std::io::Error| ModuleError::Other(error.to_string());
        let exactly = flags & TCP_BIND_SPECIFIC != 0;
        let mut rails = Vec::new();
        let mut active = Vec::new();
        for (scheme, listen) in planned {
            let listen = listen.map_or(Listen::No, |address| Listen::At { address, exactly });
            rails.push(modules::open(scheme, &listen)?);
            active.push((*scheme).to_string());
        }
        let mut config = endpoint_config(CLUSTER);
        config.teller = Some(ropewalk_host_mx::counts::start);
        config.core.links_max = LINKS_MAX;
        config.core.separate_sessions = true;
        from_environment(&mut config).map_err(ModuleError::Other)?;
        let options = Options::new().map_err(ModuleError::Other)?;
        let endpoint = Endpoint::open(config, rails).map_err(other)?;
        let unexpected = Unexpected::new(&endpoint).map_err(other)?;
        let is_server = flags & INIT_SERVER != 0;
        ropewalk_host_paths::show(&endpoint, if is_server { "BMI server" } else { "BMI client" });
        Ok(Library {
            endpoint,
            addresses: Mutex::new(Addresses::default()),
            contexts: Contexts::new(),
            unexpected,
            buffers: Buffers::default(),
            options,
            active: Mutex::new(active),
            counts_references: flags & AUTO_REF_COUNT != 0,
        })
    }

    pub fn addresses(&self) -> MutexGuard<'_, Addresses> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn active(&self) -> MutexGuard<'_, Vec<String>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any module is active.
    pub fn is_active(&self) -> bool {
        !self.active().is_empty()
    }

    /// Makes sure that addresses of this scheme can be reached, of which this is the first.
    pub fn activate(&self, scheme: &str, place: &str) -> Result<(), ErrorCode> {
        let mut active = self.active();
        if active.iter().any(|other| other == scheme) {
            return Ok(());
        }
        if !self.endpoint.has_rail_of(scheme) {
            let rail = modules::open_to_call(scheme, place).map_err(|error| refusal(&error))?;
            self.endpoint.add_rail(rail).map_err(|_| -EMFILE)?;
        }
        active.push(scheme.to_string());
        Ok(())
    }

    /// The port that the tcp module listens at; `None` where it does not.
    pub fn port(&self) -> Option<u16> {
        let addresses = self.endpoint.addresses();
        let own = addresses.split(',').find_map(|url| url.strip_prefix("tcp://"))?;
        own.rsplit_once(':')?.1.parse().ok()
    }

    fn end(&self) {
        // Sends that were reported as complete are not lost by what follows, where their peers take them.
        self.endpoint.settle(SETTLE_MAX);
        self.endpoint.close();
        self.unexpected.forget_lent();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned<'a>(
        methods: Option<&'a str>,
        listen: Option<&'a str>,
        flags: i32,
    ) -> Result<Vec<Planned<'a>>, ErrorCode> {
        plan(&Start { methods, listen, flags })
    }

    #[test]
    fn each_method_of_a_server_needs_an_address_of_its_scheme() {
        let both = Some("bmi_tcp,bmi_shm");
        let listen = Some("shm://name,tcp://h:1");
        let found = planned(both, listen, INIT_SERVER).unwrap();
        assert_eq!(found, [("tcp", Some("h:1")), ("shm", Some("name"))]);
        assert_eq!(planned(both, Some("tcp://h:1"), INIT_SERVER), Err(-EINVAL));
        assert_eq!(planned(None, listen, INIT_SERVER), Err(-EINVAL));
        assert_eq!(planned(both, None, INIT_SERVER), Err(-EINVAL));
        assert_eq!(planned(Some("tcp"), Some("tcp://h:1"), INIT_SERVER), Err(-EINVAL));
        for none in ["", " ", ",", "\n"] {
            assert_eq!(planned(Some(none), Some("tcp://h:1"), INIT_SERVER), Err(-EINVAL));
        }
        let lines = planned(Some("bmi_tcp\n"), Some("tcp://h:1\n"), INIT_SERVER).unwrap();
        assert_eq!(lines, [("tcp", Some("h:1"))], "a newline ends an address");
    }

    #[test]
    fn a_client_may_name_methods_and_listens_nowhere() {
        assert_eq!(planned(None, None, 0), Ok(vec![]));
        assert_eq!(planned(Some("bmi_tcp"), None, 0), Ok(vec![("tcp", None)]));
        assert_eq!(planned(Some("bmi_tcp"), Some("tcp://h:1"), 0), Err(-EINVAL));
    }
}
