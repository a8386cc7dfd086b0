//! The references: bare sockets, a bare cache line between two threads, and bare reads of another
//! process's memory.
//!
//! The overhead of a message layer can be judged only beside the cost of the bare medium, measured by the same code
//! at the same moment.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ropewalk_rail_shm::read_process;
use rustix::event::{PollFd, PollFlags, epoll};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::host;
use crate::net::{Case, Peer, WARM};

/// Nanoseconds of each round trip, or of the whole stream; and the processor time of both sides.
pub fn measure(case: &Case) -> Result<(Vec<u64>, u64)> {
    if case.medium == "shm" && case.depth == 1 {
        let before = host::own_cpu_nanos();
        let samples = cache_line(case.rounds);
        return Ok((samples, host::own_cpu_nanos() - before));
    }
    if case.medium == "shm" {
        return attached(case);
    }
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let peer = Peer::start(case, &listener.local_addr()?.to_string())?;
    let mut stream = Stream::new(listener.accept()?.0, &case.wait)?;
    let cpu = || host::own_cpu_nanos() + peer.cpu_nanos();
    if case.depth > 1 {
        // As many buffers as messages are under way: one alone would lie in the cache.
        let buffers = vec![vec![1u8; case.bytes]; case.depth];
        let mut send = |rounds| -> Result<()> {
            for round in 0..rounds {
                stream.write(&buffers[round % case.depth])?;
            }
            stream.read(&mut [0; 8])
        };
        send(case.rounds.min(WARM))?;
        let (begin, before) = (Instant::now(), cpu());
        send(case.rounds)?;
        let nanos = begin.elapsed().as_nanos() as u64;
        return Ok((vec![nanos], cpu() - before));
    }
    // One buffer to send and one to receive, as programs and the other side of this comparison have them.
    let (out, mut into) = (vec![1u8; case.bytes], vec![1u8; case.bytes]);
    let warm = case.rounds / 10 + 5;
    let mut samples = Vec::with_capacity(case.rounds);
    let before = cpu();
    for round in 0..case.rounds + warm {
        let begin = Instant::now();
        stream.write(&out)?;
        stream.read(&mut into)?;
        if round >= warm {
            samples.push(begin.elapsed().as_nanos() as u64);
        }
    }
    Ok((samples, cpu() - before))
}

/// The bare system call by which one process reads another's memory, over as many buffers on each
/// side as messages are under way.
fn attached(case: &Case) -> Result<(Vec<u64>, u64)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let peer = Peer::start(case, &listener.local_addr()?.to_string())?;
    let mut stream = listener.accept()?.0;
    let mut word = || -> Result<u64> {
        let mut bytes = [0; 8];
        stream.read_exact(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    };
    let process = Pid::from_raw(word()? as i32).ok_or(ErrorKind::InvalidData)?;
    let theirs = (0..case.depth).map(|_| word()).collect::<Result<Vec<u64>>>()?;
    let mut ours = vec![vec![1u8; case.bytes]; case.depth];
    let cpu = || host::own_cpu_nanos() + peer.cpu_nanos();
    let mut read = |rounds| -> Result<()> {
        for round in 0..rounds {
            let at = round % case.depth;
            if read_process(process, theirs[at], &mut ours[at])? != case.bytes {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    };
    read(case.rounds.min(WARM))?;
    let (begin, before) = (Instant::now(), cpu());
    read(case.rounds)?;
    let nanos = begin.elapsed().as_nanos() as u64;
    Ok((vec![nanos], cpu() - before))
}

/// Offers buffers to [`attached`], until it has seen enough.
fn offer(case: &Case, address: &str) -> Result<()> {
    let buffers = vec![vec![1u8; case.bytes]; case.depth];
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(&u64::from(std::process::id()).to_le_bytes())?;
    for buffer in &buffers {
        stream.write_all(&(buffer.as_ptr().expose_provenance() as u64).to_le_bytes())?;
    }
    stream.read(&mut [0]).map(|_| ())
}

pub fn serve(case: &Case, address: &str) -> Result<()> {
    if case.medium == "shm" {
        return offer(case, address);
    }
    let mut stream = Stream::new(TcpStream::connect(address)?, &case.wait)?;
    if case.depth > 1 {
        let mut buffers = vec![vec![1u8; case.bytes]; case.depth];
        for rounds in [case.rounds.min(WARM), case.rounds] {
            for round in 0..rounds {
                stream.read(&mut buffers[round % case.depth])?;
            }
            stream.write(&[0; 8])?;
        }
        return stream.read(&mut buffers[0][..1]).or(Ok(()));
    }
    let (out, mut into) = (vec![1u8; case.bytes], vec![1u8; case.bytes]);
    loop {
        stream.read(&mut into)?;
        stream.write(&out)?;
    }
}

/// The part of a processor, in percent, that a thread takes which does nothing but wait for 10 ms again and
/// again for a descriptor that says nothing.
pub fn wait_in_vain(seconds: f64) -> Result<f64> {
    let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
    let pause = rustix::time::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    let used = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let (begin, before) = (Instant::now(), used());
    while begin.elapsed().as_secs_f64() < seconds {
        rustix::event::poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(&pause))?;
    }
    Ok(100.0 * (used() - before) / begin.elapsed().as_secs_f64())
}

/// A socket and a way of waiting for it.
pub(crate) struct Stream {
    socket: TcpStream,
    epoll: Option<std::os::fd::OwnedFd>,
    sleeps: bool,
}

impl Stream {
    pub fn new(socket: TcpStream, wait: &str) -> Result<Stream> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(wait != "block")?;
        let epoll = match wait {
            "epoll" => {
                let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
                let data = epoll::EventData::new_u64(0);
                epoll::add(&set, &socket, data, epoll::EventFlags::IN)?;
                Some(set)
            }
            _ => None,
        };
        Ok(Stream { socket, epoll, sleeps: wait != "spin" })
    }

    pub fn read(&mut self, mut bytes: &mut [u8]) -> Result<()> {
        while !bytes.is_empty() {
            match self.socket.read(bytes) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => bytes = &mut bytes[read..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.pause()?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn pause(&self) -> Result<()> {
        if let Some(set) = &self.epoll {
            let none = epoll::Event {
                flags: epoll::EventFlags::empty(),
                data: epoll::EventData::new_u64(0),
            };
            epoll::wait(set, &mut [none][..], None).map_err(Error::from)?;
        }
        Ok(())
    }

    /// Writes and reads at once: neither side waits for the other one's reading.
    pub fn swap(&mut self, out: &[u8], into: &mut [u8]) -> Result<()> {
        use rustix::net::{RecvFlags, SendFlags, recv, send};
        let (mut sent, mut got) = (0, 0);
        while sent < out.len() || got < into.len() {
            let before = (sent, got);
            if sent < out.len() {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                match send(&self.socket, &out[sent..], flags) {
                    Ok(bytes) => sent += bytes,
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if got < into.len() {
                match recv(&self.socket, &mut into[got..], RecvFlags::DONTWAIT) {
                    Ok((0, _)) => return Err(ErrorKind::UnexpectedEof.into()),
                    Ok((bytes, _)) => got += bytes,
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if before == (sent, got) && self.sleeps {
                let room = if sent < out.len() { PollFlags::OUT } else { PollFlags::empty() };
                let mut ready = [PollFd::new(&self.socket, PollFlags::IN | room)];
                rustix::event::poll(&mut ready, None).map_err(Error::from)?;
            }
        }
        Ok(())
    }

    pub fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            match self.socket.write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock && self.epoll.is_some() => {
                    let mut room = [PollFd::new(&self.socket, PollFlags::OUT)];
                    rustix::event::poll(&mut room, None).map_err(Error::from)?;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Two threads that spin on one word: the least that any message between cores can cost.
fn cache_line(rounds: usize) -> Vec<u64> {
    let words = Arc::new([const { Padded(AtomicU64::new(0)) }; 2]);
    let other = words.clone();
    let rounds = rounds as u64;
    let thread = std::thread::spawn(move || {
        let mut set = rustix::thread::CpuSet::new();
        set.set(1);
        // On one core alone the figure says so itself.
        let _ = rustix::thread::sched_setaffinity(None, &set);
        for round in 1..=rounds {
            while other[0].0.load(Ordering::Acquire) != round {
                std::hint::spin_loop();
            }
            other[1].0.store(round, Ordering::Release);
        }
    });
    let mut samples = Vec::with_capacity(rounds as usize);
    for round in 1..=rounds {
        let begin = Instant::now();
        words[0].0.store(round, Ordering::Release);
        while words[1].0.load(Ordering::Acquire) != round {
            std::hint::spin_loop();
        }
        samples.push(begin.elapsed().as_nanos() as u64);
    }
    let _ = thread.join();
    samples
}

#[repr(align(128))]
struct Padded(AtomicU64);
