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
    /// Read every object that a file needs, and compare each block with its checksum; read all metadata
    /// of files, links and directories, too.
    #[arg(long)]
    read: bool,
    /// Have garbage removed: objects called orphan or stale.
    #[arg(long)]
    repair: bool,
    /// Wait this long after each page of some hundred files or objects, to leave the servers to others.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 0)]
    pause: u64,
    /// How long a server has for each answer.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    patience: Duration,
    /// One JSON object a line: each finding when it is found, the summary last.
    #[arg(long)]
    json: bool,
}

const REMEDIES: &str = "\
What is found, and what to do:
  orphan      An object without an inode. Garbage: --repair removes it.
  stale       An object of a generation that was thrown away. Garbage: --repair
              removes it.
  unrecorded  An object of which its file does not know, while nobody has the
              file open: a client died before it told of it, or its write
              failed (a full disk). Its bytes do not count as written. Copy the
              file and remove the old one.
  newer       An object that is newer than its inode: the metadata were put back
              to an earlier state. Nothing of it is lost, but nobody can say to
              what it belongs.
  misplaced   An object on a server where nobody looks for it: data directories
              were mixed up.
  absent      Bytes that were written are gone; reading them gives EIO. Bring
              the disk of this server back, or restore the file from elsewhere.
  damaged     Another file lies under the object's name; do as for absent.
  corrupt     A block does not match its checksum (found with --read); reading
              it gives EIO, writing it whole heals it. Restore the file from
              elsewhere, and look after the disk.
  unreadable  The server's disk does not give the object; its log says why.
  metadata    The metadata server cannot read the inode, or (found with --read)
              what it has: a small file's bytes, a link's target, attributes, a
              directory's entries. Using that gives EIO; the server's log names
              the place. Restore it from elsewhere, and look after the disk.
              Where several inodes are named, 'ropewalk ls' of their directories
              tells which files they are: those that give EIO.

The cluster may be in use meanwhile: whatever looks wrong is asked for again, and counts when \
it is certain.

Exit status: 0 nothing is wrong, 1 something was found, 2 not everything could be compared.";

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
    say!("compared {inodes} inodes with {objects} objects, of which files need {needed}")?;
    if summary.unsettled > 0 {
        say!("{} objects kept changing, and were not judged", summary.unsettled)?;
    }
    for (server, why) in &summary.unreached {
        say!("data server {server} was not compared to the end: {why}")?;
    }
    let found: Vec<String> =
        summary.found.iter().map(|(name, count)| format!("{count} {name}")).collect();
    match found.is_empty() {
        true if summary.unreached.is_empty() => say!("nothing is wrong")?,
        true => say!("nothing wrong was found elsewhere")?,
        false => {
            say!("found: {}; 'ropewalk check --help' says what to do", found.join(", "))?;
        }
    }
    if summary.discarded > 0 {
        say!("{} pieces of garbage are being removed", summary.discarded)?;
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
