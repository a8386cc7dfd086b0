//! The side of a process that shows its endpoints: a socket, and who sleeps at it.
//!
//! The service thread of an endpoint sleeps there beside its own descriptors, and whoever calls is attended by a thread of
//! his own. Where an endpoint has no service thread, since its program drives it, one thread of the process sleeps there.
//!
//! Invariants
//! * a process has one socket, whatever it shows; it ends with the last endpoint that has a service thread, unless a
//!   thread of the process sleeps there;
//! * callers that are attended at a time are few: others are turned away.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};
use std::time::Duration;

use ropewalk_net::{Door, Endpoint, host, notice, threads};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::socket_peercred;

use crate::{NAME, SHOW_VARIABLE, answer, shown};

/// The longest question.
const QUESTION_BYTES_MAX: u64 = 4096;
/// How long one who asks may take to ask, or to read.
const PATIENCE: Duration = Duration::from_secs(1);
/// Callers that are attended at a time.
const CALLERS_MAX: usize = 4;

/// The socket of this process.
struct Listener {
    socket: UnixListener,
    /// Threads that attend to callers.
    attending: Arc<AtomicUsize>,
}

struct Doors {
    listener: Weak<Listener>,
    /// A thread of this process sleeps there until its end.
    is_watched: bool,
}

static DOORS: Mutex<Doors> = Mutex::new(Doors { listener: Weak::new(), is_watched: false });

/// What is wrong with the variable was told.
static TOLD: Once = Once::new();

fn unclear(text: &str) -> String {
    format!("{SHOW_VARIABLE}='{text}' is neither 0 nor 1: paths are shown; 0 has them hidden")
}

/// Shows the paths of an endpoint, under this role, to root and the user of this process, as long as the endpoint is
/// open. Without a descriptor, or a thread where it needs one, it is not shown, nor where the environment says so
/// (`ROPEWALK_SHOW_PATHS=0`). The socket's name is one of the network namespace in which this thread was when it showed the
/// first endpoint.
///
/// It costs a descriptor of the process; and a thread, where the endpoint has no service thread.
pub fn show(endpoint: &Endpoint, role: &str) {
    let said = std::env::var_os(SHOW_VARIABLE);
    let said = said.as_ref().map(|value| value.to_string_lossy());
    match said.as_deref() {
        Some("0") => return,
        Some(text) if text != "1" => TOLD.call_once(|| notice::tell(&unclear(text))),
        _ => {}
    }
    shown::add(endpoint, role);
    let mut doors = DOORS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(listener) = doors.listener.upgrade().or_else(listen) else { return };
    doors.listener = Arc::downgrade(&listener);
    if !endpoint.attend(listener.clone()) && !doors.is_watched {
        doors.is_watched = threads::start("ropewalk-paths", move || watch(&listener)).is_ok();
    }
}

fn listen() -> Option<Arc<Listener>> {
    let name = format!("{NAME}{:016x}", host::random_seed());
    let address = SocketAddr::from_abstract_name(name).ok()?;
    let socket = UnixListener::bind_addr(&address).ok()?;
    // Several threads may see the same call.
    socket.set_nonblocking(true).ok()?;
    Some(Arc::new(Listener { socket, attending: Arc::default() }))
}

fn watch(listener: &Listener) {
    loop {
        let _ = poll(&mut [PollFd::new(&listener.socket, PollFlags::IN)], None);
        match listener.accept() {
            // One who has gone meanwhile, or is too slow, misses the answer.
            Ok(Some(stream)) => _ = attend(&stream),
            Ok(None) => {}
            // Without a descriptor for the caller there is none for the next one either.
            Err(_) => std::thread::sleep(PATIENCE),
        }
    }
}

impl Listener {
    /// The next caller who may ask; `None`: there is none.
    fn accept(&self) -> io::Result<Option<UnixStream>> {
        let stream = match self.socket.accept() {
            Ok((stream, _)) => stream,
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {
                    return Ok(None);
                }
                _ => return Err(error),
            },
        };
        let Ok(asker) = socket_peercred(&stream) else { return Ok(None) };
        let may_ask = asker.uid.is_root() || asker.uid == rustix::process::geteuid();
        Ok(may_ask.then_some(stream))
    }
}

impl Door for Listener {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn answer(&self) -> io::Result<()> {
        let Some(stream) = self.accept()? else { return Ok(()) };
        let place = Place(self.attending.clone());
        if self.attending.fetch_add(1, Ordering::SeqCst) < CALLERS_MAX {
            // Without a thread the caller is turned away.
            let _ = threads::start("ropewalk-paths", move || {
                let _ = attend(&stream);
                drop(place);
            });
        }
        Ok(())
    }
}

/// The place of a caller that is attended.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn attend(mut stream: &UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut question = String::new();
    BufReader::new(stream.take(QUESTION_BYTES_MAX)).read_line(&mut question)?;
    stream.write_all(answer::to(&question).to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_hides_nothing_is_told_with_the_one_that_does() {
        assert!(unclear("no").contains("ROPEWALK_SHOW_PATHS='no' is neither 0 nor 1"));
        assert!(unclear("no").contains("0 has them hidden"));
    }
}
