//! Unrequested messages to the kernel: the cached data that it must not believe any longer.
//!
//! The kernel handles such a message within the write that brings it, and may wait there for a page
//! that a READ in work has locked, or for a directory that a CREATE in work holds. So messages are
//! written by threads of their own, and no request may ever wait for one whose end depends on that
//! request.
//!
//! Invariants: every message is reported to its sender, exactly once; a message that
//! waits in the kernel does not hold up the others (up to `THREADS_MAX` of them); the queue is
//! bounded; messages may overtake each other, which is harmless as each only takes belief away.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use ropewalk_base::task::{Receiver, Sender, oneshot};
use zerocopy::IntoBytes;

use crate::abi::flags::misc::EXPIRE_ONLY;
use crate::abi::{NAME_BYTES_MAX, notify_code, replies as abi};
use crate::errno::Errno;

/// Most messages that wait to be written.
const QUEUE_MAX: usize = 1 << 16;
/// Most messages that wait inside the kernel at once.
const THREADS_MAX: usize = 32;

/// Completes when the kernel has handled the message: `Some(Ok)` also where it knew nothing of the
/// node or name. `None` where the notifier was dropped first.
pub type Notified = Receiver<Result<(), Errno>>;

/// The reason that a message was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotifyError {
    /// Too many wait already.
    #[error("{QUEUE_MAX} notifications wait for the kernel: wait for one of them to complete")]
    Full,
    /// A name that no entry can have.
    #[error("a name of {0} bytes cannot be in the kernel's cache")]
    BadName(usize),
    /// No thread could be started to write it.
    #[error("no thread for notifications could be started: raise the limit on threads")]
    NoThread,
}

struct Message {
    bytes: Vec<u8>,
    /// Bytes that are announced behind them and cannot be read.
    withheld: usize,
    done: Sender<Result<(), Errno>>,
}

struct State {
    queue: VecDeque<Message>,
    threads: usize,
    idle: usize,
    closed: bool,
}

struct Inner {
    file: OwnedFd,
    state: Mutex<State>,
    changed: Condvar,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the queue of notifications is never left half-changed")
    }
}

/// Sends notifications of one mount, from any thread. Cloning gives another handle; the threads end
/// with the last one.
#[derive(Clone)]
pub struct Notifier {
    handle: Arc<Handle>,
}

struct Handle {
    inner: Arc<Inner>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inner.lock().closed = true;
        self.inner.changed.notify_all();
    }
}

impl Notifier {
    /// Writes to `file`, any descriptor of the mount's connection.
    pub fn new(file: OwnedFd) -> Notifier {
        let state = State { queue: VecDeque::new(), threads: 0, idle: 0, closed: false };
        let inner = Inner { file, state: Mutex::new(state), changed: Condvar::new() };
        Notifier { handle: Arc::new(Handle { inner: Arc::new(inner) }) }
    }

    /// Attributes of a node end, and its pages from `offset` on for `len` bytes (0: to the end).
    /// With a negative offset the pages stay. Dirty pages of memory maps are written back first:
    /// those WRITEs have to be served meanwhile.
    pub fn invalidate_inode(
        &self,
        node: u64,
        offset: i64,
        len: i64,
    ) -> Result<Notified, NotifyError> {
        let body = abi::NotifyInodeOut { node, offset, len };
        self.send(notify_code::INVAL_INODE, body.as_bytes(), &[])
    }

    /// The node has at least `size` bytes. The kernel has no word for that; it learns a size with bytes
    /// that it is to store in its pages, and learns it before it takes the bytes. So the last byte is
    /// offered and withheld: the size stays, and no page changes.
    pub fn grow_inode(&self, node: u64, size: u64) -> Result<Notified, NotifyError> {
        let offset = size.saturating_sub(1);
        let body = abi::NotifyStoreOut { node, offset, size: 1, padding: 0 };
        self.send_all(notify_code::STORE, body.as_bytes(), &[], 1)
    }

    /// The name is dropped from the kernel's cache; entries below it stay where they are in use.
    pub fn invalidate_entry(&self, parent: u64, name: &[u8]) -> Result<Notified, NotifyError> {
        self.entry(parent, name, 0)
    }

    /// The name is asked anew at its next use, but not dropped: mounts on it and open files below
    /// it stay.
    pub fn expire_entry(&self, parent: u64, name: &[u8]) -> Result<Notified, NotifyError> {
        self.entry(parent, name, EXPIRE_ONLY)
    }

    /// The name was removed by somebody else: as `invalidate_entry`, and those who watch the
    /// directory hear of it.
    pub fn delete(&self, parent: u64, child: u64, name: &[u8]) -> Result<Notified, NotifyError> {
        let name_len = name_len(name)?;
        let body = abi::NotifyDeleteOut { parent, child, name_len, padding: 0 };
        self.send(notify_code::DELETE, body.as_bytes(), name)
    }

    /// Wakes those who poll the open file that a POLL request named.
    pub fn poll_wakeup(&self, kernel_handle: u64) -> Result<Notified, NotifyError> {
        let body = abi::NotifyPollOut { kernel_handle };
        self.send(notify_code::POLL, body.as_bytes(), &[])
    }

    fn entry(&self, parent: u64, name: &[u8], flags: u32) -> Result<Notified, NotifyError> {
        let body = abi::NotifyEntryOut { parent, name_len: name_len(name)?, flags };
        self.send(notify_code::INVAL_ENTRY, body.as_bytes(), name)
    }

    fn send(&self, code: i32, body: &[u8], name: &[u8]) -> Result<Notified, NotifyError> {
        self.send_all(code, body, name, 0)
    }

    fn send_all(
        &self,
        code: i32,
        body: &[u8],
        name: &[u8],
        withheld: usize,
    ) -> Result<Notified, NotifyError> {
        let terminator: &[u8] = if name.is_empty() { &[] } else { &[0] };
        let behind = body.len() + name.len() + terminator.len();
        let len = (size_of::<abi::OutHeader>() + behind + withheld) as u32;
        // A unique number of 0 marks what is no reply; the code stands in the error's place.
        let header = abi::OutHeader { len, error: code, unique: 0 };
        let bytes = [header.as_bytes(), body, name, terminator].concat();
        let (done, notified) = oneshot();
        let inner = &self.handle.inner;
        let mut state = inner.lock();
        if state.queue.len() >= QUEUE_MAX {
            return Err(NotifyError::Full);
        }
        if state.idle <= state.queue.len() && state.threads < THREADS_MAX {
            match start_thread(inner.clone()) {
                Ok(()) => state.threads += 1,
                Err(()) if state.threads == 0 => return Err(NotifyError::NoThread),
                // The threads that run will get to it.
                Err(()) => {}
            }
        }
        state.queue.push_back(Message { bytes, withheld, done });
        drop(state);
        inner.changed.notify_one();
        Ok(notified)
    }
}

fn name_len(name: &[u8]) -> Result<u32, NotifyError> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(NotifyError::BadName(name.len()));
    }
    Ok(name.len() as u32)
}

fn start_thread(inner: Arc<Inner>) -> Result<(), ()> {
    let thread = std::thread::Builder::new().name("mount-notify".into()).stack_size(128 << 10);
    thread.spawn(move || write_messages(&inner)).map(drop).map_err(drop)
}

fn write_messages(inner: &Inner) {
    let mut state = inner.lock();
    loop {
        if let Some(message) = state.queue.pop_front() {
            drop(state);
            message.done.send(write(&inner.file, &message.bytes, message.withheld));
            state = inner.lock();
        } else if state.closed {
            state.threads -= 1;
            return;
        } else {
            state.idle += 1;
            state = inner
                .changed
                .wait(state)
                .expect("the queue of notifications is never left half-changed");
            state.idle -= 1;
        }
    }
}

fn write(file: &OwnedFd, bytes: &[u8], withheld: usize) -> Result<(), Errno> {
    loop {
        let written = match withheld {
            0 => rustix::io::writev(file, &[IoSlice::new(bytes)]),
            _ => crate::withheld::write(file, bytes, withheld),
        };
        return match written {
            // As it has to be.
            Err(rustix::io::Errno::FAULT) if withheld > 0 => Ok(()),
            Err(rustix::io::Errno::INTR) => continue,
            // The kernel does not know the node or name: then there is nothing to forget. Neither
            // is there where it drops a directory that is in use: it expires it instead.
            Ok(_) | Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTEMPTY) => Ok(()),
            Err(error) => Err(error.into()),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn messages_have_the_kernels_layout_and_are_reported() {
        let (mut kernel, daemon) = UnixStream::pair().unwrap();
        let notifier = Notifier::new(daemon.into());
        assert_eq!(notifier.delete(1, 2, b"").err(), Some(NotifyError::BadName(0)));
        let mut notified = notifier.expire_entry(7, b"name").unwrap();
        let mut bytes = [0; 16 + 16 + 5];
        kernel.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes[..4], 37u32.to_ne_bytes());
        assert_eq!(bytes[4..8], 3i32.to_ne_bytes());
        assert_eq!(bytes[8..16], [0; 8]);
        assert_eq!(bytes[16..24], 7u64.to_ne_bytes());
        assert_eq!(bytes[28..32], 1u32.to_ne_bytes());
        assert_eq!(&bytes[32..], b"name\0");
        let executor = ropewalk_base::executor::Executor::new(Box::new(|| ()));
        let (send, receive) = std::sync::mpsc::channel();
        executor.spawn(async move {
            let outcome =
                std::future::poll_fn(|context| std::pin::Pin::new(&mut notified).poll(context));
            send.send(outcome.await).unwrap();
        });
        while receive.try_recv().map(|done| assert_eq!(done, Some(Ok(())))).is_err() {
            executor.run();
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_message_that_hangs_does_not_hold_up_the_next() {
        // A full pipe stands for a kernel that waits: writes to it block.
        let (mut kernel, daemon) = UnixStream::pair().unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&daemon, 2048).unwrap();
        let notifier = Notifier::new(daemon.into());
        for node in 0..10_000 {
            drop(notifier.invalidate_inode(node, 0, 0).unwrap());
        }
        let threads = notifier.handle.inner.lock().threads;
        assert!(threads > 1 && threads <= THREADS_MAX, "{threads}");
        let mut bytes = vec![0; 10_000 * 40];
        kernel.read_exact(&mut bytes).unwrap();
        let inner = notifier.handle.inner.clone();
        drop(notifier);
        while inner.lock().threads > 0 {
            std::thread::yield_now();
        }
    }
}
