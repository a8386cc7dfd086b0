//! The side of a command: it finds the processes that show their paths, and asks them.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde_json::Value;

use crate::NAME;

/// A process that does not answer for so long is stopped. A move to a path that is not proven yet takes its time.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest answer.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// What a process answered.
#[derive(Debug, Clone)]
pub struct Answer {
    pub process: u32,
    pub object: Value,
}

/// The reason why a process did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    #[error("there is no process {0}")]
    NoProcess(u32),
    #[error(
        "process {0}{1} shows no paths here: it is not a server, a mount or a benchmark of Ropewalk, or it runs in \
         another network namespace (`ip netns exec NAME ropewalk paths ...` asks there)"
    )]
    NotShown(u32, String),
    #[error("process {process} belongs to user {user}: run this command as that user, or as root")]
    Foreign { process: u32, user: u32 },
    #[error("process {0} does not answer: it may be stopped, or at its end")]
    Silent(u32),
    /// So many wait for its answer that not even its number is known.
    #[error("a process here takes no further question about its paths: it may be stopped")]
    Full,
    #[error("process {process} refused: {cause}")]
    Refused { process: u32, cause: String },
    #[error("process {0} gave an answer that is none: it may be of another version")]
    Unreadable(u32),
    #[error("cannot ask process {process}: {cause}")]
    System { process: u32, cause: String },
}

impl AskError {
    /// The process, where it is known.
    pub fn process(&self) -> Option<u32> {
        match self {
            AskError::NoProcess(process)
            | AskError::NotShown(process, _)
            | AskError::Foreign { process, .. }
            | AskError::Silent(process)
            | AskError::Refused { process, .. }
            | AskError::Unreadable(process)
            | AskError::System { process, .. } => Some(*process),
            AskError::Full => None,
        }
    }
}

/// A socket at which a process shows its paths.
struct Found {
    process: u32,
    user: u32,
    stream: UnixStream,
}

/// Asks a process. `question`: one JSON object.
pub fn ask(process: u32, question: &Value) -> Result<Answer, AskError> {
    let mut all = found();
    if let Some(index) = all.iter().position(|it| it.as_ref().is_ok_and(|it| it.process == process))
    {
        return all.swap_remove(index).and_then(|found| found.ask(question));
    }
    let name = std::fs::read_to_string(format!("/proc/{process}/comm"));
    Err(match name {
        Ok(_) if all.iter().any(Result::is_err) => AskError::Silent(process),
        Ok(name) => AskError::NotShown(process, format!(" ({})", name.trim_end())),
        Err(_) => AskError::NoProcess(process),
    })
}

/// Asks all processes of this network namespace that show their paths, by their numbers. They are asked at once: one that
/// is stopped delays no other.
pub fn ask_all(question: &Value) -> Vec<Result<Answer, AskError>> {
    let all = found();
    std::thread::scope(|scope| {
        let asked: Vec<_> = all
            .into_iter()
            .map(|found| scope.spawn(|| found.and_then(|found| found.ask(question))))
            .collect();
        asked.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    })
}

/// Sorted by process; those whose number is not known come first.
fn found() -> Vec<Result<Found, AskError>> {
    let table = std::fs::read_to_string("/proc/thread-self/net/unix").unwrap_or_default();
    let names = table.lines().filter_map(|line| line.split_whitespace().nth(7)?.strip_prefix('@'));
    let mut names: Vec<&str> = names.filter(|name| name.starts_with(NAME)).collect();
    // Sockets that are being told something are in the table, too.
    names.sort_unstable();
    names.dedup();
    let mut found: Vec<_> = names.into_iter().filter_map(call).collect();
    found.sort_by_key(|found| found.as_ref().map_or(0, |found| found.process));
    found
}

/// `None`: nobody has this name any more, or the process that had it has ended and left the socket to a child.
fn call(name: &str) -> Option<Result<Found, AskError>> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?;
    // A call waits where the process is stopped and others wait already.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    match connect(&socket, &address) {
        Ok(()) => {}
        Err(rustix::io::Errno::AGAIN) => return Some(Err(AskError::Full)),
        Err(_) => return None,
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false).ok()?;
    let owner = socket_peercred(&stream).ok()?;
    let process = owner.pid.as_raw_nonzero().get().cast_unsigned();
    let lives = std::path::Path::new("/proc").join(process.to_string()).exists();
    lives.then(|| Ok(Found { process, user: owner.uid.as_raw(), stream }))
}

impl Found {
    fn ask(self, question: &Value) -> Result<Answer, AskError> {
        let Found { process, user, mut stream } = self;
        let own = rustix::process::geteuid();
        if !own.is_root() && own.as_raw() != user {
            return Err(AskError::Foreign { process, user });
        }
        let mut text = Vec::new();
        let asked = stream
            .set_read_timeout(Some(PATIENCE))
            .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
            .and_then(|()| stream.write_all(format!("{question}\n").as_bytes()))
            .and_then(|()| (&stream).take(ANSWER_BYTES_MAX).read_to_end(&mut text));
        match asked.map_err(|error| (error.kind(), error.to_string())) {
            Ok(0) => return Err(AskError::Silent(process)),
            Ok(_) => {}
            Err((
                ErrorKind::WouldBlock
                | ErrorKind::TimedOut
                | ErrorKind::BrokenPipe
                | ErrorKind::ConnectionReset,
                _,
            )) => return Err(AskError::Silent(process)),
            Err((_, cause)) => return Err(AskError::System { process, cause }),
        }
        let unreadable = |_| AskError::Unreadable(process);
        let object: Value = serde_json::from_slice(&text).map_err(unreadable)?;
        match object["error"].as_str() {
            Some(cause) => Err(AskError::Refused { process, cause: cause.to_string() }),
            None if object.is_object() => Ok(Answer { process, object }),
            None => Err(AskError::Unreadable(process)),
        }
    }
}
