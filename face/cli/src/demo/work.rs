//! The demo's work with files: it copies a tree, reads it back and compares. The work is the same on a mount,
//! in a process of its own, and through the library.

use std::time::{Duration, Instant};

use ropewalk_base::task::{Either, race};
use ropewalk_base::world::World;
use serde::{Deserialize, Serialize};

use crate::copy::{Copy, End, Job, Moved, lost_line};
use crate::remote::join;

/// The interval between reports of progress.
const TICK: Duration = Duration::from_millis(100);
/// The phases, in order.
const PHASES: [&str; 2] = ["copy in", "read back, verify"];

/// The messages of the work on its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum News {
    /// The cluster was not empty: the copy goes into this directory below its root.
    Into { name: String },
    /// The source was listed.
    Listed { entries: u64, bytes: u64 },
    /// A phase of so many bytes begins.
    Begin { phase: String, bytes: u64 },
    /// So many bytes of the phase are done.
    At { bytes: u64 },
    /// A phase is over.
    Done { phase: String, files: u64, bytes: u64, nanos: u64 },
    /// A property that could not be kept.
    Lost { what: String },
    /// It failed; nothing follows.
    Failed { why: String },
}

/// Copies `source` below `root`, and compares the copy with it.
pub async fn work<A: End, B: End>(
    copy: &Copy<A, B>,
    world: &World,
    source: &[u8],
    root: &[u8],
    tell: &dyn Fn(News),
) -> anyhow::Result<()> {
    let target = match free(&copy.to, root).await? {
        Some(name) => {
            tell(News::Into { name: name.clone() });
            join(root, name.as_bytes())
        }
        None => root.to_vec(),
    };
    let plan = copy.plan(&[Job { from: source.to_vec(), to: target }]).await?;
    let Moved { bytes, .. } = plan.moved();
    tell(News::Listed { entries: plan.entries(), bytes });
    for (number, phase) in PHASES.iter().enumerate() {
        let phase = (*phase).to_string();
        tell(News::Begin { phase: phase.clone(), bytes });
        copy.bar.set_position(0);
        let begin = Instant::now();
        let step =
            async { if number == 0 { copy.run(&plan).await } else { copy.compare(&plan).await } };
        let tick = async {
            loop {
                world.sleep(TICK).await;
                tell(News::At { bytes: copy.bar.position() });
            }
        };
        let Either::Left(moved) = race(step, tick).await;
        let Moved { files, bytes } = moved?;
        let nanos = begin.elapsed().as_nanos() as u64;
        tell(News::Done { phase, files, bytes, nanos });
    }
    if let Some(what) = lost_line(&copy.lost()) {
        tell(News::Lost { what });
    }
    Ok(())
}

/// A name below `root` that is free, if something is there already.
async fn free<E: End>(end: &E, root: &[u8]) -> anyhow::Result<Option<String>> {
    let there = end.list(root).await?;
    // A name that cannot be told might be any.
    if let Some(error) = there.failures.into_iter().next() {
        return Err(error);
    }
    let there = there.entries;
    if there.is_empty() {
        return Ok(None);
    }
    let taken = |name: &String| there.iter().any(|(other, _)| other == name.as_bytes());
    Ok((2u32..).map(|number| format!("run-{number}")).find(|name| !taken(name)))
}
