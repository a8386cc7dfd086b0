//! The hook by which an endpoint tells other processes what its rails count. `net` knows neither who asks nor in which
//! words the answer is given.
//!
//! Invariant: nothing is counted, copied or looked at for this purpose before somebody asks.

use std::io;
use std::os::fd::BorrowedFd;

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
