//! The references: bare sockets, and a bare cache line between two threads.
//!
//! What a message layer adds can be judged only beside what the medium costs by itself, measured by
//! the same code at the same moment.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, epoll};

use crate::net::{Case, Peer};

pub fn measure(case: &Case) -> Result<Vec<u64>> {
    if case.medium == "shm" {
        return Ok(cache_line(case.rounds));
    }
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let _peer = Peer::start(case, &listener.local_addr()?.to_string())?;
    let mut stream = Stream::new(listener.accept()?.0, &case.wait)?;
    let mut buffer = vec![1u8; case.bytes];
    if case.depth > 1 {
        let begin = Instant::now();
        for _ in 0..case.rounds {
            stream.write(&buffer)?;
        }
        stream.read(&mut buffer[..8])?;
        return Ok(vec![begin.elapsed().as_nanos() as u64]);
    }
    let warm = case.rounds / 10 + 5;
    let mut samples = Vec::with_capacity(case.rounds);
    for round in 0..case.rounds + warm {
        let begin = Instant::now();
        stream.write(&buffer)?;
        stream.read(&mut buffer)?;
        if round >= warm {
            samples.push(begin.elapsed().as_nanos() as u64);
        }
    }
    Ok(samples)
}

pub fn serve(case: &Case, address: &str) -> Result<()> {
    let mut stream = Stream::new(TcpStream::connect(address)?, &case.wait)?;
    let mut buffer = vec![1u8; case.bytes];
    if case.depth > 1 {
        for _ in 0..case.rounds {
            stream.read(&mut buffer)?;
        }
        stream.write(&buffer[..8])?;
        return stream.read(&mut buffer[..1]).or(Ok(()));
    }
    loop {
        stream.read(&mut buffer)?;
        stream.write(&buffer)?;
    }
}

/// A socket and a way of waiting for it.
struct Stream {
    socket: TcpStream,
    epoll: Option<std::os::fd::OwnedFd>,
}

impl Stream {
    fn new(socket: TcpStream, wait: &str) -> Result<Stream> {
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
        Ok(Stream { socket, epoll })
    }

    fn read(&mut self, mut bytes: &mut [u8]) -> Result<()> {
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

    fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
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
