//! Bytes that ours copies for each byte that it sends and receives.

use ropewalk_base::memory::Memory;

use crate::mx::ours::{DATA, Ours, SIGNAL};

impl Ours {
    /// Sends messages, each when the other side says so; what was copied for them here.
    pub fn hand_over(&mut self, bytes: usize, rounds: usize, late: bool) -> anyhow::Result<u64> {
        let mut memory = self.memory(bytes)?;
        let before = self.bytes_copied();
        for _ in 0..rounds {
            self.receive(SIGNAL, Memory::empty())?;
            self.arrival()?;
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
        // All of it is at the other side: nothing is sent any more.
        self.receive(SIGNAL, Memory::empty())?;
        self.arrival()?;
        Ok(self.bytes_copied() - before)
    }

    /// The other side of it: receives are posted before the messages are asked for, or `late`, when they are
    /// known to have come.
    pub fn take_over(&mut self, bytes: usize, rounds: usize, late: bool) -> anyhow::Result<u64> {
        let mut memory = self.room(bytes)?;
        let before = self.bytes_copied();
        for _ in 0..rounds {
            if late {
                // What is sent later is not matched before: the message is here, or announced.
                self.receive(SIGNAL, Memory::empty())?;
                self.signal()?;
                self.arrival()?;
                self.receive(DATA, memory)?;
            } else {
                self.receive(DATA, memory)?;
                self.signal()?;
            }
            memory = self.arrival()?;
        }
        let copied = self.bytes_copied() - before;
        self.signal()?;
        crate::mx::ours::check(memory)?;
        Ok(copied)
    }
}
