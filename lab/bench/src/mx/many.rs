//! Several endpoints of one process, each with a thread, that take part at once.

use std::thread;
use std::time::Instant;

use anyhow::{anyhow, bail};

use crate::mx::ours::Ours;
use crate::mx::side::{Role, Side, say};

/// The separator between the addresses of endpoints.
const BETWEEN: char = ' ';

/// One side.
pub struct Many(Vec<Ours>);

impl Many {
    pub fn open(role: &Role) -> anyhow::Result<Many> {
        Ok(Many((0..role.endpoints).map(|_| Ours::open(role)).collect::<Result<_, _>>()?))
    }

    /// Lets each of them do its part; `count` is a number of messages of all of them.
    fn each<T: Send>(
        &mut self,
        count: usize,
        act: impl Fn(&mut Ours, usize) -> anyhow::Result<T> + Sync,
    ) -> anyhow::Result<Vec<T>> {
        let (act, part) = (&act, count.div_ceil(self.0.len().max(1)));
        thread::scope(|scope| {
            let threads: Vec<_> =
                self.0.iter_mut().map(|one| scope.spawn(move || act(one, part))).collect();
            let ended = threads.into_iter().map(|it| it.join());
            ended.map(|it| it.map_err(|_| anyhow!("a thread panicked"))?).collect()
        })
    }
}

impl Side for Many {
    fn url(&self) -> String {
        let all: Vec<String> = self.0.iter().map(Side::url).collect();
        all.join(&BETWEEN.to_string())
    }

    /// Each one has one of the others.
    fn meet(&mut self, other: &str) -> anyhow::Result<()> {
        let others: Vec<&str> = other.split(BETWEEN).collect();
        anyhow::ensure!(others.len() == self.0.len(), "the other side has more, or fewer");
        self.0.iter_mut().zip(others).try_for_each(|(one, other)| one.meet(other))
    }

    fn ping(&mut self, _bytes: usize, _rounds: usize) -> anyhow::Result<Option<Vec<u64>>> {
        bail!("round trips are one endpoint's")
    }

    fn pong(&mut self, _bytes: usize, _rounds: usize) -> anyhow::Result<()> {
        bail!("round trips are one endpoint's")
    }

    fn pour(&mut self, bytes: usize, count: usize) -> anyhow::Result<u64> {
        let begin = Instant::now();
        self.each(count, |one, count| one.pour_once(bytes, count))?;
        Ok(begin.elapsed().as_nanos() as u64)
    }

    fn drink(&mut self, bytes: usize, count: usize) -> anyhow::Result<u64> {
        let part = count.div_ceil(self.0.len().max(1));
        for one in &mut self.0 {
            one.expect(bytes, part)?;
        }
        say("ready")?;
        self.each(count, |one, count| one.drink_once(count))?;
        Ok(0)
    }

    fn exchange(&mut self, _bytes: usize, _rounds: usize) -> anyhow::Result<u64> {
        bail!("exchanges are one endpoint's")
    }
}
