//! Bytes that ours copies for each byte that it sends and receives.

use ropewalk_base::memory::Memory;

use crate::mx::ours::{DATA, Ours, SIGNAL};

/// The bytes copied by so many rounds if each copied as much as the median round. Resends do not count: a round has
/// them if the scheduler suspended a peer for long.
fn usual(mut copied: Vec<u64>) -> u64 {
    copied.sort_unstable();
    copied[copied.len() / 2] * copied.len() as u64
}

impl Ours {
    /// Sends messages, each on a signal of the other side; returns the bytes copied for them here.
    pub fn hand_over(&mut self, bytes: usize, rounds: usize, late: bool) -> anyhow::Result<u64> {
        let mut memory = self.memory(bytes)?;
        let (mut copied, mut before) = (Vec::with_capacity(rounds), 0);
        // The other side asks for one once more than it gets one: all is there then.
        for round in 0..=rounds {
            self.receive(SIGNAL, Memory::empty())?;
            self.arrival()?;
            let now = self.bytes_copied();
            copied.extend((round > 0).then(|| now - before));
            if round == rounds {
                break;
            }
            before = now;
            self.send(DATA, memory)?;
            memory = match late {
                false => self.sent()?,
                true => {
                    self.send(SIGNAL, Memory::empty())?;
                    let both = [self.sent()?, self.sent()?];
                    both.into_iter().max_by_key(Memory::len).expect("there are two")
                }
            };
        }
        Ok(usual(copied))
    }

    /// The other side of it: receives are posted before the messages are asked for, or `late`, when they are
    /// known to have come.
    pub fn take_over(&mut self, bytes: usize, rounds: usize, late: bool) -> anyhow::Result<u64> {
        let mut memory = self.room(bytes)?;
        let mut copied = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let before = self.bytes_copied();
            if late {
                // Matching keeps the order of sends: when the signal is here, the message before it has arrived or is
                // announced.
                self.receive(SIGNAL, Memory::empty())?;
                self.signal()?;
                self.arrival()?;
                self.receive(DATA, memory)?;
            } else {
                self.receive(DATA, memory)?;
                self.signal()?;
            }
            memory = self.arrival()?;
            copied.push(self.bytes_copied() - before);
        }
        self.signal()?;
        crate::mx::ours::check(memory)?;
        Ok(usual(copied))
    }
}
