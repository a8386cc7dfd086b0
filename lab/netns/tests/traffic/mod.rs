//! Numbered messages from one host to another, over UDP or in raw frames, and what became of them.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use ropewalk_netns::Host;
use ropewalk_rail_ether::bare::{OFFLOAD_HEADER_BYTES, all_frames, frames_of};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// EtherTypes from here on, which nobody else uses: each traffic has its own.
const ETHERTYPES: u16 = 0xb000;
const ETHERNET_BYTES: usize = 14;
/// Whoever waits for messages waits so long after the last one. The kernel hands frames over at once; a wire's thread may
/// have to wait for a processor.
const QUIET: Duration = Duration::from_millis(120);
/// Bytes that wait in a socket: the receiving thread may have to wait for a processor, too.
const QUEUE_BYTES: usize = 8 << 20;
/// Nothing that is to come takes longer.
const LIMIT: Duration = Duration::from_secs(10);

/// Sockets at both hosts.
pub struct Traffic {
    way: Way,
    next: u32,
}

enum Way {
    Udp { from: UdpSocket, to: UdpSocket },
    Raw { from: OwnedFd, to: OwnedFd, header: [u8; ETHERNET_BYTES], prefix: usize },
}

/// What became of a burst.
#[derive(Default)]
pub struct Report {
    pub sent: usize,
    /// Sends that failed.
    pub refused: Vec<io::Error>,
    /// Numbers in the order in which they came, counted from the first of the burst, and how long each took.
    pub came: Vec<(usize, Duration)>,
    /// Messages that were not as they had been sent.
    pub wrong: usize,
    /// From the first send to the last arrival.
    pub took: Duration,
}

impl Report {
    /// How many did not come at all, right or wrong.
    pub fn lost(&self) -> usize {
        self.missing().len().saturating_sub(self.wrong)
    }

    /// The numbers that did not come as they were sent.
    pub fn missing(&self) -> Vec<usize> {
        let mut is_there = vec![false; self.sent];
        self.came.iter().for_each(|(number, _)| is_there[*number] = true);
        (0..self.sent).filter(|number| !is_there[*number]).collect()
    }

    /// How many came again.
    pub fn repeated(&self) -> usize {
        self.came.len() + self.missing().len() - self.sent
    }

    /// How many came after a later one.
    pub fn overtaken(&self) -> usize {
        let mut highest = 0;
        let late = |(number, _): &&(usize, Duration)| {
            highest = highest.max(*number);
            *number < highest
        };
        self.came.iter().filter(late).count()
    }

    /// The time that half of them took at most.
    pub fn median(&self) -> Duration {
        let mut times: Vec<Duration> = self.came.iter().map(|(_, time)| *time).collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    }
}

impl Traffic {
    /// Datagrams to the far host's address on the rail.
    pub fn udp(near: Host<'_>, far: Host<'_>, rail: usize) -> Traffic {
        Traffic::udp_between(near, near.address(rail), far, far.address(rail))
    }

    /// The same over IPv6.
    pub fn udp6(near: Host<'_>, far: Host<'_>, rail: usize) -> Traffic {
        let addresses = [near, far].map(|host| host.address6(rail).into());
        Traffic::udp_between(near, addresses[0], far, addresses[1])
    }

    fn udp_between(near: Host<'_>, from: IpAddr, far: Host<'_>, to: IpAddr) -> Traffic {
        let from = near.within(|| UdpSocket::bind((from, 0))).expect("its address");
        let to = far.within(|| UdpSocket::bind((to, 0))).expect("its address");
        from.connect(to.local_addr().expect("it is bound")).expect("there is a route");
        to.set_nonblocking(true).expect("sockets can be");
        set_socket_recv_buffer_size_force(&to, QUEUE_BYTES).expect("root may");
        Traffic { way: Way::Udp { from, to }, next: 0 }
    }

    /// Frames to the far host's interface, received by a socket for their EtherType.
    pub fn raw(near: Host<'_>, far: Host<'_>, rail: usize) -> Traffic {
        let ethertype = ethertype();
        let to = far.within(|| frames_of(&far.interface(rail), ethertype)).expect("it is up");
        Traffic::raw_to(near, far, rail, ethertype, (to, 0))
    }

    /// The same, received by a socket for all frames. Filters of the receiving host do not concern it.
    pub fn raw_tap(near: Host<'_>, far: Host<'_>, rail: usize) -> Traffic {
        let to = far.within(|| all_frames(&far.interface(rail))).expect("it is up");
        Traffic::raw_to(near, far, rail, ethertype(), (to, OFFLOAD_HEADER_BYTES))
    }

    fn raw_to(
        near: Host<'_>,
        far: Host<'_>,
        rail: usize,
        ethertype: u16,
        (to, prefix): (OwnedFd, usize),
    ) -> Traffic {
        let from = near.within(|| frames_of(&near.interface(rail), ethertype)).expect("it is up");
        set_socket_recv_buffer_size_force(&to, QUEUE_BYTES).expect("root may");
        let mut header = [0; ETHERNET_BYTES];
        header[..6].copy_from_slice(&far.station(rail));
        header[6..12].copy_from_slice(&near.station(rail));
        header[12..].copy_from_slice(&ethertype.to_be_bytes());
        Traffic { way: Way::Raw { from, to, header, prefix }, next: 0 }
    }

    /// Sends so many messages of so many bytes, a pause before each, and waits until all came, or none for a while.
    pub fn burst(&mut self, count: usize, bytes: usize, pause: Duration) -> Report {
        let mut report = Report { sent: count, ..Report::default() };
        let begin = Instant::now();
        let mut sent_at: Vec<Instant> = Vec::new();
        let first = self.next;
        for number in 0..count {
            let due = begin + pause * number as u32;
            while Instant::now() < due {
                std::hint::spin_loop();
            }
            sent_at.push(Instant::now());
            if let Err(error) = self.send(&message(self.next, bytes)) {
                report.refused.push(error);
            }
            self.next += 1;
            self.drain(first, &sent_at, &mut report);
        }
        let mut quiet_since = Instant::now();
        while report.wrong < report.missing().len() && quiet_since.elapsed() < QUIET {
            if self.drain(first, &sent_at, &mut report) {
                quiet_since = Instant::now();
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        // Copies may still be on their way.
        self.drain(first, &sent_at, &mut report);
        report
    }

    /// So many messages of 200 bytes, one after the other.
    pub fn few(&mut self, count: usize) -> Report {
        self.burst(count, 200, Duration::from_micros(20))
    }

    /// Sends until all of a burst come in order: addresses have to be resolved, and routes may come back late.
    pub fn until_clean(&mut self) {
        let begin = Instant::now();
        loop {
            let report = self.few(20);
            if report.came.len() == 20 && report.overtaken() == 0 {
                return;
            }
            let came = report.came.len();
            assert!(begin.elapsed() < LIMIT, "{came} of 20 messages, and {:?}", report.refused);
        }
    }

    /// One message, without waiting; whether it could be sent.
    pub fn tell(&mut self) -> bool {
        self.next += 1;
        self.send(&message(self.next, 100)).is_ok()
    }

    /// Messages that have come by now.
    pub fn heard(&mut self) -> usize {
        let mut buffer = [0; 2048];
        std::iter::from_fn(|| self.receive(&mut buffer).transpose()).filter(Result::is_ok).count()
    }

    fn send(&self, message: &[u8]) -> io::Result<()> {
        match &self.way {
            Way::Udp { from, .. } => from.send(message).map(drop),
            Way::Raw { from, header, .. } => {
                let frame = [header, message].concat();
                send(from, &frame, SendFlags::DONTWAIT)?;
                Ok(())
            }
        }
    }

    /// The next message, which is at the buffer's beginning; `None` where none has come.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            let taken = match &self.way {
                Way::Udp { to, .. } => to.recv(buffer),
                Way::Raw { to, .. } => recv(to, &mut *buffer, RecvFlags::DONTWAIT)
                    .map(|(bytes, _)| bytes)
                    .map_err(Into::into),
            };
            let bytes = match taken {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                other => other?,
            };
            let Way::Raw { header, prefix, .. } = &self.way else { return Ok(Some(bytes)) };
            let start = prefix + ETHERNET_BYTES;
            if bytes > start && buffer[prefix + 12..start] == header[12..] {
                buffer.copy_within(start..bytes, 0);
                return Ok(Some(bytes - start));
            }
        }
    }

    /// Takes what has come; whether anything has.
    fn drain(&self, first: u32, sent_at: &[Instant], report: &mut Report) -> bool {
        let mut buffer = [0; 4096];
        let mut any = false;
        // A socket whose interface vanished says so once.
        while let Ok(Some(bytes)) = self.receive(&mut buffer) {
            any = true;
            let number = u32::from_le_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]);
            let place = number.wrapping_sub(first) as usize;
            if buffer[..bytes] != message(number, bytes) {
                report.wrong += 1;
            } else if let Some(sent) = sent_at.get(place) {
                report.came.push((place, sent.elapsed()));
                report.took = sent_at[0].elapsed();
            }
        }
        any
    }
}

/// One that is free.
fn ethertype() -> u16 {
    static COUNT: AtomicU16 = AtomicU16::new(0);
    ETHERTYPES + COUNT.fetch_add(1, Ordering::Relaxed)
}

/// A number, and bytes that follow from it.
fn message(number: u32, bytes: usize) -> Vec<u8> {
    let mut message = number.to_le_bytes().to_vec();
    message.resize_with(bytes.max(4), {
        let mut state = number;
        move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        }
    });
    message
}
