//! One run of a fault: clients create, the active server fails and comes back, and everything is looked for afterwards.

use std::time::Duration;

use anyhow::{Context, ensure};

use crate::host::monotonic_nanos;
use crate::survive::crowd::{Crowd, Record, look};
use crate::survive::gaps;
use crate::survive::ground::Ground;
use crate::survive::names::Kind;
use crate::survive::site::Site;

/// Undisturbed work before a fault, and around the return of the server.
const BEFORE: Duration = Duration::from_millis(1000);
const AROUND: Duration = Duration::from_millis(500);

/// What happens to the active metadata server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `kill -9`; it is started again later.
    Killed,
    /// SIGSTOP; SIGCONT comes when another one serves.
    Stopped,
    /// No packet reaches it or leaves it; mended when another one serves.
    Cut,
    /// SIGSTOP, and SIGCONT so soon that it may serve still, or not any more.
    Paused,
    /// An operator has the standby serve.
    Switched,
}

impl Fault {
    pub const ALL: [Fault; 5] =
        [Fault::Killed, Fault::Stopped, Fault::Cut, Fault::Paused, Fault::Switched];

    pub fn name(self) -> &'static str {
        match self {
            Fault::Killed => "killed",
            Fault::Stopped => "stopped",
            Fault::Cut => "cut",
            Fault::Paused => "paused",
            Fault::Switched => "switched",
        }
    }

    /// The longest gap in ms that runs shall have: the median, and the worst.
    pub fn reach(self) -> (f64, f64) {
        match self {
            Fault::Switched => (200.0, 200.0),
            _ => (1500.0, 4000.0),
        }
    }
}

/// How long a server pauses in this run: from a quarter of a lease to one and a half.
pub fn pause_of(run: usize) -> Duration {
    Duration::from_millis(250 + 250 * (run as u64 % 6))
}

/// What came of a run.
#[derive(Debug, Clone)]
pub struct Trial {
    /// The longest time in ms in which a client got no create acknowledged, and in which none of them did.
    pub gap: f64,
    pub all_gap: f64,
    /// The same of one client before the fault.
    pub control: f64,
    /// The folders of clients, and their creates.
    pub folders: Vec<(String, u64)>,
}

impl Trial {
    /// `at`: the moment of the fault.
    fn new(records: &[Record], at: u64) -> anyhow::Result<Trial> {
        let times: Vec<Vec<u64>> = records.iter().map(|it| it.times(Kind::Create)).collect();
        let gaps: Option<Vec<f64>> =
            times.iter().map(|times| gaps::longest_after(times, at)).collect();
        let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        let before: Vec<f64> = times.iter().map(|it| gaps::longest_before(it, at)).collect();
        let all = gaps::longest_after(&gaps::together(&times), at);
        Ok(Trial {
            gap: most(&gaps.context("a client did nothing after the fault")?),
            all_gap: all.context("nothing was done after the fault")?,
            control: most(&before),
            folders: records.iter().map(|it| (it.folder.clone(), it.creates)).collect(),
        })
    }
}

/// Runs it once, in folders below this one.
pub fn run(
    ground: &Ground,
    site: &mut Site<'_>,
    fault: Fault,
    (folder, run): (&str, usize),
) -> anyhow::Result<Trial> {
    let mut crowd = Crowd::start(ground, site, folder, false)?;
    site.pause(BEFORE)?;
    let victim = site.active()?;
    let at = monotonic_nanos();
    let mend = strike(ground, site, fault, victim, run)?;
    let before = crowd.counts()?;
    crowd.await_progress(site.options(), &before)?;
    site.pause(AROUND)?;
    mend.apply(site, victim)?;
    site.await_standby(1 - site.active()?)?;
    site.pause(AROUND)?;
    let records = crowd.stop()?;
    let trial = Trial::new(&records, at)?;
    let now = site.active()?;
    let stays = matches!(fault, Fault::Paused);
    ensure!(stays || now != victim, "metadata server {victim} is the active one still");
    Ok(trial)
}

/// What undoes a fault.
pub enum Mend {
    Nothing,
    Start,
    Resume,
    Join(Box<ropewalk_netns::Injected>),
}

/// Lets a fault happen to a server.
pub fn strike(
    ground: &Ground,
    site: &mut Site<'_>,
    fault: Fault,
    victim: usize,
    run: usize,
) -> anyhow::Result<Mend> {
    match fault {
        Fault::Killed => {
            site.meta(victim)?.kill();
            Ok(Mend::Start)
        }
        Fault::Stopped => {
            site.meta(victim)?.suspend()?;
            Ok(Mend::Resume)
        }
        Fault::Cut => Ok(Mend::Join(Box::new(ground.cut(victim)?))),
        Fault::Paused => {
            site.meta(victim)?.suspend()?;
            site.pause(pause_of(run))?;
            site.meta(victim)?.resume()?;
            Ok(Mend::Nothing)
        }
        Fault::Switched => {
            site.switch()?;
            Ok(Mend::Nothing)
        }
    }
}

impl Mend {
    /// Has the server come back.
    pub fn apply(self, site: &mut Site<'_>, victim: usize) -> anyhow::Result<()> {
        match self {
            Mend::Nothing => Ok(()),
            Mend::Start => site.start_meta(victim, false),
            Mend::Resume => site.meta(victim)?.resume(),
            Mend::Join(cut) => Ok(cut.mend()?),
        }
    }
}

/// Looks for everything that was acknowledged in these folders: the number of names. Where something is missing, or is
/// there that must not be, the site's directories stay.
pub fn verify(
    ground: &Ground,
    site: &mut Site<'_>,
    folders: &[(String, u64)],
) -> anyhow::Result<u64> {
    let found = look(ground, site, folders)?;
    if found.lost + found.extra > 0 {
        let kept = site.keep();
        anyhow::bail!(
            "{} acknowledged names are missing, and {} are there that must not be, such as {}; the \
             servers' directories stay in {kept}",
            found.lost,
            found.extra,
            found.example
        );
    }
    Ok(found.names)
}
