//! The hooks by which other processes ask about an endpoint: what its rails count, and whatever else a door is for. `net`
//! knows neither who asks nor in which words the answer is given.
//!
//! Invariant: nothing is counted, copied or looked at for this purpose before somebody asks.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ropewalk_rail::Account;

/// Answers those who ask for the counters of an endpoint. The service thread sleeps at its descriptor beside its own
/// ones; the teller ends with the endpoint.
pub trait Teller: Send + Sync {
    /// Readable while somebody asks; the same as long as the teller lives.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Answers one who asks, and waits for nobody. `accounts` takes the engine of the endpoint, and gives the accounts
    /// of its rails at that moment. After an error the teller is dropped: its descriptor would stay readable, and the
    /// service thread would ask it without end.
    fn answer(&self, accounts: &dyn Fn() -> Vec<Account>) -> io::Result<()>;
}

/// Starts the teller of an endpoint, once the endpoint has a rail with an account. `None`: there is no descriptor for
/// it, and the endpoint goes on without.
pub type StartTeller = fn() -> Option<Box<dyn Teller>>;

/// A place where others call. The service thread of an endpoint sleeps at it beside its own descriptors. Several endpoints may
/// have the same one.
pub trait Door: Send + Sync {
    /// Readable while somebody calls; the same as long as the door lives.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Lets one in who calls, and waits for nobody: whatever takes time is another thread's. It is no error that nobody is
    /// there any more. After an error the endpoint leaves the door.
    fn answer(&self) -> io::Result<()>;
}

/// Those whom the service thread answers.
#[derive(Default)]
pub(crate) struct Callers {
    pub teller: Option<Arc<dyn Teller>>,
    pub door: Option<Arc<dyn Door>>,
}

/// Which of them are asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub teller: bool,
    pub door: bool,
}

impl Asked {
    pub fn any(self) -> bool {
        self.teller || self.door
    }
}
