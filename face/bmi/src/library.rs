//! What a process has of BMI between the first initialize and the last finalize.
//!
//! Each thread keeps a handle on it and looks at one number to know that it is still the right one, so
//! that calls share no lock.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use ropewalk_base::ids::ClusterId;
use ropewalk_net::modules::{self, Listen, ModuleError};
use ropewalk_net::{Endpoint, EndpointConfig};

use crate::addresses::Addresses;
use crate::buffers::Buffers;
use crate::contexts::{ContextSlot, Contexts};
use crate::errors::{
    EACCES, EADDRINUSE, EADDRNOTAVAIL, EHOSTNTFD, EINVAL, EMFILE, ENETDOWN, ENOPROTOOPT, ErrorCode,
};
use crate::options::{Options, from_environment};
use crate::unexpected::Unexpected;

/// Programs that use BMI are among themselves: they reach no file system by mistake, nor each other's.
const CLUSTER: ClusterId = ClusterId(0x524f_5045_5741_4c4b_2042_4d49_0000_0001);

/// Operations that may be under way at a time.
const OPERATIONS_MAX: usize = 1 << 22;
/// Peers, those that are only known included.
const PEERS_MAX: usize = 1 << 16;

/// Connections that are kept open; idle ones beyond are closed and made again when they are needed.
const LINKS_MAX: usize = 512;

/// Messages of one peer that may wait here for their receives: 16 MiB, with what it takes to keep them.
const WAITING_BYTES_MAX: u32 = 14 << 20;

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

struct Current {
    library: Option<Arc<Library>>,
    /// Initializations without their finalizations.
    references: usize,
}

/// This process is a child that has only a copy of its parent's library: no threads, and connections that
/// are its parent's.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    IS_CHILD.store(true, Ordering::Relaxed);
    LIFE.fetch_add(1, Ordering::Release);
}

/// Has children of this process told that the library is none of theirs.
fn watch_forks() {
    static WATCHED: Once = Once::new();
    // SAFETY: the handler is a function of this object, which stays loaded, and only stores numbers.
    WATCHED.call_once(|| match unsafe { libc::pthread_atfork(None, None, Some(in_child)) } {
        0 => {}
        _ => {
            eprintln!("libbmi: without memory for it, children of this process are not told apart")
        }
    });
}

/// Whether the library was made by a process whose child we are.
fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

static CURRENT: Mutex<Current> = Mutex::new(Current { library: None, references: 0 });
/// Changes with every library; threads compare it with what they have seen.
static LIFE: AtomicU64 = AtomicU64::new(1);

/// What a thread remembers.
struct Seen {
    life: u64,
    library: Option<Arc<Library>>,
    contexts_version: u64,
    contexts: Vec<Option<Arc<ContextSlot>>>,
}

thread_local! {
    static SEEN: RefCell<Seen> = const {
        RefCell::new(Seen { life: 0, library: None, contexts_version: 0, contexts: Vec::new() })
    };
}

fn current() -> MutexGuard<'static, Current> {
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `work` with the library; `None` where there is none.
#[inline]
pub fn with<R>(work: impl FnOnce(&Library) -> R) -> Option<R> {
    with_seen(|seen| seen.library.as_deref().map(work))
}

/// A thread that is ending has forgotten what it saw: it has no library any more.
#[inline]
fn with_seen<R>(work: impl FnOnce(&mut Seen) -> Option<R>) -> Option<R> {
    let seen = SEEN.try_with(|seen| {
        let mut seen = seen.borrow_mut();
        seen.refresh();
        work(&mut seen)
    });
    seen.ok().flatten()
}

/// The same with one of its contexts.
#[inline]
pub fn with_context<R>(id: i64, work: impl FnOnce(&Library, &ContextSlot) -> R) -> Option<R> {
    with_seen(|seen| {
        let library = seen.library.as_deref()?;
        let version = library.contexts.version();
        if seen.contexts_version != version {
            seen.contexts = library.contexts.all();
            seen.contexts_version = version;
        }
        let context = seen.contexts.get(usize::try_from(id).ok()?)?.as_deref()?;
        Some(work(library, context))
    })
}

impl Seen {
    #[inline]
    fn refresh(&mut self) {
        if self.life != LIFE.load(Ordering::Acquire) {
            self.look_again();
        }
    }

    #[cold]
    fn look_again(&mut self) {
        if is_child() {
            // Nothing of it is ended here: its threads are the parent's, and so are its locks.
            std::mem::forget(self.library.take());
            std::mem::forget(std::mem::take(&mut self.contexts));
            self.life = LIFE.load(Ordering::Acquire);
            return;
        }
        let current = current();
        self.life = LIFE.load(Ordering::Acquire);
        self.library = current.library.clone();
        self.contexts_version = 0;
        self.contexts.clear();
    }
}

/// What `BMI_initialize` is given.
pub struct Start<'a> {
    pub methods: Option<&'a str>,
    pub listen: Option<&'a str>,
    pub flags: i32,
}

/// The first call makes the library; later ones are counted.
pub fn initialize(start: &Start<'_>) -> Result<(), ErrorCode> {
    if is_child() {
        eprintln!("libbmi: initialize in a child only before its parent does, or after an exec");
        return Err(-ENETDOWN);
    }
    watch_forks();
    let mut current = current();
    let plan = plan(start)?;
    if current.library.is_none() {
        let library = Library::new(&plan, start.flags).map_err(|error| {
            complain(&error);
            -code_of(&error)
        })?;
        current.library = Some(Arc::new(library));
        LIFE.fetch_add(1, Ordering::Release);
    }
    current.references += 1;
    Ok(())
}

/// The last call ends the library: what is under way is given up.
pub fn finalize() {
    if is_child() {
        return;
    }
    let mut current = current();
    current.references = current.references.saturating_sub(1);
    if current.references > 0 {
        return;
    }
    if let Some(library) = current.library.take() {
        LIFE.fetch_add(1, Ordering::Release);
        drop(current);
        library.end();
    }
}

/// A module to open, with where it listens.
type Planned<'a> = (&'a str, Option<&'a str>);

/// Finds an address to listen at for each method.
fn plan<'a>(start: &Start<'a>) -> Result<Vec<Planned<'a>>, ErrorCode> {
    let server = start.flags & INIT_SERVER != 0;
    if server && (start.methods.is_none() || start.listen.is_none()) {
        return Err(-EINVAL);
    }
    if !server && start.listen.is_some() {
        return Err(-EINVAL);
    }
    let words = |text: Option<&'a str>| {
        text.unwrap_or("").split([',', ' ', '\t']).filter(|word| !word.is_empty())
    };
    let mut planned = Vec::new();
    for method in words(start.methods) {
        let scheme = method.strip_prefix("bmi_").ok_or(-EINVAL)?;
        let own = |url: &&str| url.split_once("://").is_some_and(|(begin, _)| begin == scheme);
        let listen = words(start.listen).find(own).and_then(|url| url.split_once("://"));
        if server && listen.is_none() {
            return Err(-EINVAL);
        }
        planned.push((scheme, listen.map(|(_, rest)| rest)));
    }
    Ok(planned)
}

/// Says on the standard error what went wrong: a code alone does not say what to do.
fn complain(error: &ModuleError) {
    eprintln!("libbmi: {error}");
}

fn code_of(error: &ModuleError) -> ErrorCode {
    use ropewalk_net::modules::{EtherError, TcpError, UdpError};
    match error {
        ModuleError::Unknown { .. } => ENOPROTOOPT,
        ModuleError::UnknownHost(_) => EHOSTNTFD,
        ModuleError::Tcp(TcpError::PortInUse(_)) => EADDRINUSE,
        ModuleError::Tcp(TcpError::NoSuchAddress(_)) => EADDRNOTAVAIL,
        ModuleError::Tcp(TcpError::PortReserved(_)) => EACCES,
        ModuleError::Tcp(TcpError::Descriptors(_)) => EMFILE,
        ModuleError::Udp(UdpError::PortInUse(_)) => EADDRINUSE,
        ModuleError::Udp(UdpError::NoSuchAddress(_)) => EADDRNOTAVAIL,
        ModuleError::Ether(EtherError::Taken { .. } | EtherError::AllTaken(_)) => EADDRINUSE,
        ModuleError::Ether(EtherError::NotPermitted(_)) => EACCES,
        ModuleError::Ether(
            EtherError::NoInterface(_)
            | EtherError::NoneUp
            | EtherError::Several { .. }
            | EtherError::Down(_),
        ) => EADDRNOTAVAIL,
        ModuleError::Descriptors(_) => EMFILE,
        ModuleError::Shm(modules::ShmError::NameInUse { .. }) => EADDRINUSE,
        ModuleError::Shm(modules::ShmError::Resources { .. }) => EMFILE,
        _ => EINVAL,
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
        let mut config = EndpointConfig::new(CLUSTER);
        config.core.operations_max = OPERATIONS_MAX;
        config.core.peers_max = PEERS_MAX;
        config.core.links_max = LINKS_MAX;
        config.core.eager_window_bytes_max = WAITING_BYTES_MAX;
        from_environment(&mut config).map_err(ModuleError::Other)?;
        let options = Options::new().map_err(ModuleError::Other)?;
        let endpoint = Endpoint::open(config, rails).map_err(other)?;
        let unexpected = Unexpected::new(&endpoint).map_err(other)?;
        Ok(Library {
            endpoint,
            addresses: Mutex::new(Addresses::default()),
            contexts: Contexts::default(),
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
        let rail = modules::open_to_call(scheme, place).map_err(|error| {
            complain(&error);
            -code_of(&error)
        })?;
        self.endpoint.add_rail(rail).map_err(|_| -EMFILE)?;
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
    }

    #[test]
    fn a_client_may_name_methods_and_listens_nowhere() {
        assert_eq!(planned(None, None, 0), Ok(vec![]));
        assert_eq!(planned(Some("bmi_tcp"), None, 0), Ok(vec![("tcp", None)]));
        assert_eq!(planned(Some("bmi_tcp"), Some("tcp://h:1"), 0), Err(-EINVAL));
    }
}
