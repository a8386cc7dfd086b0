//! `check`: whether what the servers keep fits together.

use std::cell::{Cell, RefCell};
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use ropewalk_base::world::World;
use ropewalk_client::operator::Operator;
use ropewalk_client::operator::check::{
    CheckOptions, CheckSummary, Event, Finding, Looked, Problem,
};
use serde_json::{Value, json};

use crate::commands::seconds;
use crate::operate::{Keys, Target};
use crate::report::{Closed, bytes, complain, print_json, say, table};

/// Findings that the table shows; all are counted, and `--json` prints all.
const SHOWN_MAX: usize = 1000;

/// Arguments of `ropewalk check`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = REMEDIES)]
pub struct Check {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    keys: Keys,
    /// Also read all data and compare each block with its checksum, and read all metadata.
    #[arg(long)]
    read: bool,
    /// Remove unused objects: those that are reported as orphan or stale.
    #[arg(long)]
    repair: bool,
    /// Pause this long after every few hundred files or objects, which leaves the servers more time
    /// for clients.
    #[arg(long, value_name = "MILLISECONDS", allow_negative_numbers = true, default_value_t = 0)]
    pause: u64,
    /// Wait this long for each answer of a server.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, default_value = "30", value_parser = seconds)]
    patience: Duration,
    /// Print each finding as a JSON object on its own line, and a summary at the end.
    #[arg(long)]
    json: bool,
}

const REMEDIES: &str = "\
Examples:
  ropewalk check            compares the lists of files and of objects
  ropewalk check --read     also reads all data and verifies its checksums
  ropewalk check --repair   also removes unused objects

The metadata server keeps the inodes of files. Each data server keeps objects; an object holds \
one stripe of a file.

Findings, and what to do:
  orphan      No file owns the object. It only takes space: --repair removes it.
  stale       The object has discarded contents of a file. It only takes space:
              --repair removes it.
  unrecorded  The file does not know that this stripe was written, and nobody
              has the file open: a client died before it reported the write, or
              the write failed (disk full). Readers do not see these bytes.
              Copy the file and remove the old one.
  newer       The object is newer than its inode: somebody restored the metadata
              to an earlier state. No data is lost, but nobody knows which file
              the object belongs to.
  misplaced   The object is on a data server on which no client looks for it:
              its group moved to another server, and these bytes were left:
              'ropewalk server clean' frees them. Clean only if nothing is
              reported as absent, damaged, corrupt or newer. If no group has
              moved, the directories of data servers were swapped: swap them
              back.
  absent      The object is missing; reading its bytes fails with EIO. Bring the
              disk of this server back, or restore the file from a backup.
  damaged     The disk has another object's file in place of this object. Bring
              the right disk back, or restore the file from a backup.
  corrupt     A block does not match its checksum (found with --read); reading
              it fails with EIO until the whole block is overwritten. Restore
              the file from a backup, and check the disk.
  unreadable  The data server cannot read the object from its disk; its log
              gives the reason.
  metadata    The metadata server cannot read the inode, or (found with --read)
              the data in it: the content of a small file, a link's target,
              attributes, directory entries. Using it fails with EIO; the
              server's log names the place. Restore it from a backup, and check
              the disk. If several inodes are named, 'ropewalk ls' of their
              directories shows which files fail with EIO.

The cluster may be in use during the check: the command looks again at everything that seems \
wrong, and reports it only if it is certain.

Exit status: 0 if nothing is wrong, 1 if something was found, 2 if not everything could be \
compared, and also if an option or argument is wrong; a message on stderr gives the reason.";

/// Compares, prints, and says by its exit status what was found.
pub fn check(arguments: &Check) -> ExitCode {
    match run(arguments) {
        Ok(summary) if summary.problems() > 0 => ExitCode::from(1),
        Ok(summary) if !summary.unreached.is_empty() => ExitCode::from(2),
        Ok(_) => ExitCode::SUCCESS,
        Err(error) if error.is::<Closed>() => ExitCode::SUCCESS,
        Err(error) => {
            complain!("ropewalk: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Check) -> anyhow::Result<CheckSummary> {
    let Check { read, repair, pause, .. } = *arguments;
    let options = CheckOptions { read, repair, pause: Duration::from_millis(pause) };
    let rows = RefCell::new(Vec::new());
    // A repair goes on also where nobody listens any more.
    let untold = Cell::new(None);
    let run = async |_: &World, operator: &Operator| {
        let bar = bar();
        let tell = |event: Event<'_>| match event {
            Event::Found(finding) if arguments.json => {
                let told = bar.suspend(|| print_json(&finding_json(finding)));
                untold.set(untold.take().or(told.err()));
            }
            Event::Found(finding) => {
                let mut rows = rows.borrow_mut();
                if rows.len() < SHOWN_MAX {
                    rows.push(finding_row(finding));
                }
            }
            Event::Begin(Looked { inodes, objects, .. }) => bar.set_length(inodes + objects),
            Event::Progress(Looked { inodes, objects, .. }) => bar.set_position(inodes + objects),
        };
        let summary = operator.check(options, &tell).await?;
        bar.finish_and_clear();
        Ok(summary)
    };
    let summary = arguments.target.run_with(&arguments.keys, arguments.patience, run)?;
    if let Some(error) = untold.take() {
        return Err(error);
    }
    if arguments.json {
        print_json(&summary_json(&summary))?;
    } else {
        print(&summary, rows.into_inner())?;
    }
    Ok(summary)
}

/// Not seen where standard error is no terminal.
fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0).with_message("inodes and objects");
    match ProgressStyle::with_template("{msg:18} [{bar:30}] {pos}/{len} {per_sec} {eta}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn finding_row(finding: &Finding) -> Vec<String> {
    let problem = match finding.problem {
        Problem::Corrupt { block } => format!("corrupt from block {block}"),
        problem => problem.name().to_string(),
    };
    let Finding { inode, generation, stripe, .. } = finding;
    let (server, what, bytes) = match finding.problem {
        Problem::Metadata { inodes } => {
            let what = match inodes {
                1 => format!("inode {inode}"),
                _ => format!("inodes {inode} to {}", inode + (inodes - 1)),
            };
            ("metadata server".to_string(), what, "-".to_string())
        }
        _ => (
            format!("data server {}", finding.server),
            format!("{inode}.{generation}.{stripe}"),
            bytes(finding.bytes),
        ),
    };
    vec![
        problem,
        server,
        what,
        bytes,
        finding.path.as_ref().map_or("-".to_string(), |path| path.escape_ascii().to_string()),
    ]
}

fn print(summary: &CheckSummary, rows: Vec<Vec<String>>) -> anyhow::Result<()> {
    let shown = rows.len() as u64;
    if shown > 0 {
        say!("{}", table(&["problem", "server", "object", "bytes", "path"], rows))?;
    }
    if summary.problems() > shown {
        say!("and {} more; --json prints all of them", summary.problems() - shown)?;
    }
    let Looked { inodes, objects, needed } = summary.looked;
    say!("compared {inodes} inodes with {objects} objects; files use {needed} of these objects")?;
    if summary.unsettled > 0 {
        say!("{} objects kept changing and could not be checked", summary.unsettled)?;
    }
    for (server, why) in &summary.unreached {
        say!("data server {server} could not be checked completely: {why}")?;
    }
    let found: Vec<String> =
        summary.found.iter().map(|(name, count)| format!("{count} {name}")).collect();
    match found.is_empty() {
        true if summary.unreached.is_empty() => say!("no problem was found")?,
        true => say!("no problem was found on the other servers")?,
        false => {
            say!("found: {}; 'ropewalk check --help' explains what to do", found.join(", "))?;
        }
    }
    if summary.discarded > 0 {
        say!("{} unused objects are being removed", summary.discarded)?;
    }
    Ok(())
}

fn finding_json(finding: &Finding) -> Value {
    let Finding { server, inode, generation, stripe, .. } = finding;
    let path = finding.path.as_ref().map(|path| String::from_utf8_lossy(path).into_owned());
    if let Problem::Metadata { inodes } = finding.problem {
        return json!({
            "problem": finding.problem.name(),
            "inode": inode,
            "inodes": inodes,
            "path": path,
        });
    }
    let block = match finding.problem {
        Problem::Corrupt { block } => Some(block),
        _ => None,
    };
    json!({
        "problem": finding.problem.name(),
        "server": server,
        "inode": inode,
        "generation": generation,
        "stripe": stripe,
        "bytes": finding.bytes,
        "block": block,
        "path": path,
    })
}

fn summary_json(summary: &CheckSummary) -> Value {
    let Looked { inodes, objects, needed } = summary.looked;
    json!({
        "summary": {
            "inodes": inodes,
            "objects": objects,
            "needed": needed,
            "found": summary.found,
            "problems": summary.problems(),
            "unsettled": summary.unsettled,
            "discarded": summary.discarded,
            "unreached": summary.unreached,
        }
    })
}
