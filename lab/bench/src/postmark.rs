//! PostMark: small files that are made, read, appended to and removed, as a mail server does.
//!
//! The program itself reports whole seconds; its phases are timed by the lines that it prints as they begin.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::counters::Watched;
use crate::host;
use crate::lab::Lab;
use crate::series::Figure;
use crate::stage::{Stage, row};
use crate::worker::Work;

/// The names of all rows.
pub const ROWS: [&str; 2] = ["mount.postmark.standard", "mount.postmark.large"];

/// A run that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(300);

/// Files, transactions, and the range of sizes.
#[derive(Clone, Copy)]
struct Load {
    files: u64,
    transactions: u64,
    sizes: (u64, u64),
}

/// Measures both loads where the program is installed.
pub fn measure(lab: &mut Lab<'_>, stage: &Stage<'_>) {
    if !lab.any_wanted(&ROWS) {
        return;
    }
    if Command::new("postmark").stdin(Stdio::null()).output().is_err() {
        eprintln!("PostMark is missing (Debian: apt install postmark)");
        return;
    }
    let standard = Load {
        files: lab.options.amount(1000, 500),
        transactions: lab.options.amount(5000, 2000),
        // The defaults of the program.
        sizes: (500, 10_000),
    };
    let large = Load {
        files: lab.options.amount(100, 40),
        transactions: lab.options.amount(500, 100),
        sizes: (64 << 10, 256 << 10),
    };
    for (name, load) in ROWS.into_iter().zip([standard, large]) {
        if !lab.options.wanted(name) {
            continue;
        }
        let act =
            |folder: &Path, serving: &Watched, _: usize| Ok(vec![run(folder, load, serving)?]);
        let mut row = row(name, Figure::Rate, 0, 1, 1);
        row.params = vec![
            ("files", load.files.to_string()),
            ("transactions", load.transactions.to_string()),
            ("bytes_min", load.sizes.0.to_string()),
            ("bytes_max", load.sizes.1.to_string()),
        ];
        lab.alternate(&[row], stage.parties(&act));
    }
}

fn run(folder: &Path, load: Load, serving: &Watched) -> anyhow::Result<Work> {
    let folder = folder.join("postmark");
    std::fs::create_dir_all(&folder)?;
    let mut child = Command::new("postmark")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start PostMark")?;
    let Load { files, transactions, sizes: (low, high) } = load;
    let folder = folder.display();
    let script = format!(
        "set location {folder}\nset number {files}\nset transactions {transactions}\n\
         set size {low} {high}\nset seed 42\nrun\nquit\n"
    );
    child.stdin.take().expect("it was asked for").write_all(script.as_bytes())?;
    let mut output = child.stdout.take().expect("it was asked for");
    let process = child.id();
    let cpu = || {
        serving
            .processes
            .iter()
            .chain([&process])
            .map(|process| host::cpu_nanos(*process))
            .sum::<u64>()
    };
    let (mut said, mut chunk) = (Vec::new(), [0; 4096]);
    let mut phases: Vec<(u64, u64)> = Vec::new();
    let begin = Instant::now();
    loop {
        let len = output.read(&mut chunk)?;
        said.extend_from_slice(&chunk[..len]);
        let text = String::from_utf8_lossy(&said);
        // The transactions lie between these two.
        let mark = ["Performing transactions", "Deleting files"][phases.len().min(1)];
        if phases.len() < 2 && text.contains(mark) {
            phases.push((host::monotonic_nanos(), cpu()));
        }
        if len == 0 {
            break;
        }
        if begin.elapsed() > LIMIT {
            child.kill()?;
            child.wait()?;
            bail!("PostMark took longer than {LIMIT:?}");
        }
    }
    let status = child.wait()?;
    let text = String::from_utf8_lossy(&said);
    let ([(begin, before), (end, after)], true) = (&phases[..], status.success()) else {
        bail!("PostMark failed ({status}): {}", text.trim());
    };
    if text.contains("Error") {
        bail!("PostMark: {}", text.trim());
    }
    let mut work = Work {
        begin_nanos: *begin,
        end_nanos: *end,
        operations: transactions,
        lanes: 1,
        cpu_nanos: after - before,
        ..Work::default()
    };
    // It does not tell the time of one transaction: the mean stands for all.
    work.times.note((end - begin) / transactions);
    Ok(work)
}
