//! The process that uses the demo's mount: this program, started again.
//!
//! The servers and the mount are in the process that started it. Were they in one with whoever uses
//! the mount, a killed demo would never end: its threads would wait, past all killing, for answers of
//! their own process, which keeps the mount's device open as long as they wait.
//!
//! Invariants: the child ends when its standard input does, thus with whoever started it; signals of
//! the terminal are for that one alone. News come over its standard output, one JSON object a line.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, bail};
use ropewalk_base::pool::Pool;
use ropewalk_net::reactor::Reactor;
use ropewalk_net::threads;
use ropewalk_store::HostDisk;

use super::work::{News, work};
use crate::copy;
use crate::mounted::again;
use crate::report::{complain, print};
use crate::stop::Stop;

/// Says to this program that it is the child.
const WORK: &str = "ROPEWALK_DEMO_WORK";
/// Threads for files: as many steps are on their way at a time.
const THREADS: usize = 8;
/// Memory for pieces of files.
const POOL_BYTES: usize = 512 << 20;
/// The interval at which the parent checks whether it shall end.
const LOOK: Duration = Duration::from_millis(50);

/// Does the work on a mount in a process of its own, and passes its news on. `except`: entries of the source
/// that are not copied.
pub fn work_beside(
    source: &Path,
    mount: &Path,
    except: &[&Path],
    stop: &Stop,
    hear: &dyn Fn(News),
) -> anyhow::Result<()> {
    let mut command = again();
    command.env(WORK, "1").arg(source).arg(mount).args(except).process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start the process that copies")?;
    let mut leash = child.stdin.take();
    let lines = lines(child.stdout.take().context("the process that copies has no output")?)?;
    let mut failed = None;
    loop {
        if stop.is_asked() {
            leash = None;
        }
        match lines.recv_timeout(LOOK) {
            Ok(line) => match serde_json::from_str(&line)
                .context("the process that copies sent an invalid message")?
            {
                News::Failed { why } => failed = Some(why),
                news => hear(news),
            },
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    drop(leash);
    let status = child.wait()?;
    stop.check()?;
    match failed {
        Some(why) => bail!("{why}"),
        None if status.success() => Ok(()),
        None => bail!("the process that copies ended ({status})"),
    }
}

fn lines(output: ChildStdout) -> anyhow::Result<Receiver<String>> {
    let (sender, receiver) = channel();
    threads::start("news", move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    })?;
    Ok(receiver)
}

/// Does the work and ends, if this process was started for that.
pub fn work_if_child() {
    if std::env::var_os(WORK).is_none() {
        return;
    }
    let outcome = serve(std::env::args_os().skip(1).collect());
    if let Err(error) = &outcome {
        tell(&News::Failed { why: format!("{error:#}") });
    }
    std::process::exit(i32::from(outcome.is_err()));
}

/// Whether the other end still listens.
fn tell(news: &News) -> bool {
    let line = serde_json::to_string(news).expect("news are numbers and text");
    print(format!("{line}\n").as_bytes()).is_ok()
}

fn serve(arguments: Vec<OsString>) -> anyhow::Result<()> {
    let [source, mount, except @ ..] = &*arguments else { bail!("no source and mount") };
    let stop = Stop::default();
    let leash = stop.clone();
    threads::start("leash", move || {
        // Nothing is ever sent: the end is all there is to read.
        if let Err(error) = std::io::stdin().read_to_end(&mut Vec::new()) {
            complain!("ropewalk: {error}");
        }
        leash.ask();
    })?;
    let reactor = Reactor::new().context("cannot create an event loop")?;
    let world = reactor.world(HostDisk::shared(), THREADS)?;
    let (from, to) = (copy::Host::new(&world), copy::Host::new(&world));
    let keep = copy::Keep { attributes: true, umask: 0 };
    let mut copy = copy::Copy::new(from, to, &Pool::with_budget(POOL_BYTES), keep, true);
    copy.except = except.iter().map(|path| path.as_bytes().to_vec()).collect();
    copy.stop = stop.clone();
    let tell = |news: News| {
        if !tell(&news) {
            stop.ask();
        }
    };
    reactor.block_on(work(&copy, &world, source.as_bytes(), mount.as_bytes(), &tell))
}
