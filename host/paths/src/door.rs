//! The side of a process that shows its endpoints: a socket, and a thread that sleeps at it.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ropewalk_net::path_status::WeakEndpoint;
use ropewalk_net::{Endpoint, host, threads};
use rustix::net::sockopt::socket_peercred;

use crate::{NAME, answer};

/// The longest question.
const QUESTION_BYTES_MAX: u64 = 4096;
/// How long one who asks may take to ask, or to read.
const PATIENCE: Duration = Duration::from_secs(1);

/// An endpoint that is shown.
pub(crate) struct Shown {
    endpoint: WeakEndpoint,
    /// What it is in its process, for people: `metadata server`.
    pub role: String,
}

#[derive(Default)]
struct Door {
    shown: Vec<Shown>,
    is_open: bool,
}

static DOOR: Mutex<Door> = Mutex::new(Door { shown: Vec::new(), is_open: false });

fn door() -> MutexGuard<'static, Door> {
    DOOR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shows the paths of an endpoint, under this role, to root and the user of this process, as long as the endpoint is
/// open. Without a descriptor or a thread for that it is not shown. The socket's name is one of the network namespace
/// in which this thread was when it showed the first endpoint.
pub fn show(endpoint: &Endpoint, role: &str) {
    let mut door = door();
    door.shown.retain(|shown| shown.endpoint.upgrade().is_some_and(|it| !it.is_closed()));
    door.shown.push(Shown { endpoint: endpoint.downgrade(), role: role.to_string() });
    if !door.is_open
        && let Some(listener) = listen()
    {
        let serves = threads::start("ropewalk-paths", move || serve(&listener));
        door.is_open = serves.is_ok();
    }
}

fn listen() -> Option<UnixListener> {
    let name = format!("{NAME}{:016x}", host::random_seed());
    let address = SocketAddr::from_abstract_name(name).ok()?;
    UnixListener::bind_addr(&address).ok()
}

fn serve(listener: &UnixListener) {
    loop {
        match listener.accept() {
            // One who has gone meanwhile, or is too slow, misses the answer.
            Ok((stream, _)) => _ = attend(&stream),
            // Without a descriptor for the caller there is none for the next one either.
            Err(_) => std::thread::sleep(PATIENCE),
        }
    }
}

fn attend(mut stream: &UnixStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let asker = socket_peercred(stream)?.uid;
    if !asker.is_root() && asker != rustix::process::geteuid() {
        return Ok(());
    }
    let mut question = String::new();
    BufReader::new(stream.take(QUESTION_BYTES_MAX)).read_line(&mut question)?;
    stream.write_all(answer::to(&question).to_string().as_bytes())
}

/// The endpoints that are open, in the order in which they were shown.
pub(crate) fn shown() -> Vec<(Endpoint, String)> {
    let door = door();
    let open = door.shown.iter().filter_map(|shown| {
        let endpoint = shown.endpoint.upgrade().filter(|endpoint| !endpoint.is_closed())?;
        Some((endpoint, shown.role.clone()))
    });
    open.collect()
}
