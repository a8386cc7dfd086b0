//! Several requests at a time from one thread, by `fio`: the kernel's asynchronous interface needs
//! code of a kind that this crate does not have.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::counters::Watched;
use crate::work_files::SMALL;
use crate::worker::Work;

/// Whether it is there.
pub fn installed() -> bool {
    Command::new("fio").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// `count` requests of 4 KiB at random places of the file `small`, past the page cache.
pub fn random(
    folder: &Path,
    what: &str,
    file_bytes: u64,
    depth: u64,
    count: u64,
    serving: &Watched,
) -> anyhow::Result<Work> {
    let before = serving.begin()?;
    let output = Command::new("fio")
        .args(["--name=small", "--ioengine=libaio", "--direct=1", "--bs=4k", "--thread"])
        .args(["--output-format=json", "--norandommap", "--randrepeat=0", "--end_fsync=0"])
        .arg(format!("--filename={}", folder.join("small").display()))
        .arg(format!("--rw=rand{what}"))
        .arg(format!("--size={file_bytes}"))
        .arg(format!("--iodepth={depth}"))
        .arg(format!("--io_size={}", count * SMALL as u64))
        .output()
        .context("cannot run fio")?;
    if !output.status.success() {
        bail!("fio: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let mut work = parse(&String::from_utf8_lossy(&output.stdout), what)?;
    work.lanes = depth;
    work.add(&serving.end(&before)?);
    Ok(work)
}

/// Parses fio's report of its one job.
fn parse(text: &str, what: &str) -> anyhow::Result<Work> {
    // Lines of warning may come first.
    let begin = text.find('{').context("fio printed nothing")?;
    let all: Value = serde_json::from_str(&text[begin..]).context("fio's JSON is not JSON")?;
    let (job, mut work) = (&all["jobs"][0], Work::default());
    let part = &job[what];
    work.operations = part["total_ios"].as_u64().context("fio did not tell 'total_ios'")?;
    work.bytes = part["io_bytes"].as_u64().context("fio did not tell 'io_bytes'")?;
    let runtime = part["runtime"].as_u64().context("fio did not tell 'runtime'")?;
    let rate = part["iops"].as_f64().unwrap_or(0.0);
    // Its run time is in milliseconds: the rate is told more exactly.
    work.end_nanos = match rate > 0.0 {
        true => (work.operations as f64 / rate * 1e9) as u64,
        false => runtime * 1_000_000,
    };
    let used = job["usr_cpu"].as_f64().unwrap_or(0.0) + job["sys_cpu"].as_f64().unwrap_or(0.0);
    work.cpu_nanos = (used / 100.0 * work.end_nanos as f64) as u64;
    // Percentiles instead of all times: each stands for the operations between it and the last.
    let mut done = 0;
    let percentiles = part["clat_ns"]["percentile"].as_object();
    let mut known: Vec<(f64, u64)> = percentiles
        .into_iter()
        .flatten()
        .filter_map(|(name, nanos)| Some((name.parse().ok()?, nanos.as_u64()?)))
        .collect();
    known.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (percentile, nanos) in known {
        let upto = (percentile / 100.0 * 10_000.0) as u64;
        (done..upto).for_each(|_| work.times.note(nanos));
        done = upto.max(done);
    }
    Ok(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fio_tells_is_understood_or_refused() {
        let text = r#"note: x
            {"jobs":[{"usr_cpu":10.0,"sys_cpu":15.0,"read":{"io_bytes":4096000,"total_ios":1000,
            "runtime":500,"iops":2000.0,"clat_ns":{"percentile":{"50.000000":100,"99.000000":900,
            "99.990000":5000}}}}]}"#;
        let work = parse(text, "read").unwrap();
        assert_eq!((work.operations, work.bytes, work.end_nanos), (1000, 4_096_000, 500_000_000));
        assert_eq!(work.cpu_nanos, 125_000_000);
        let (median, tail) = (work.times.quantile(0.5), work.times.quantile(0.99));
        assert!((100..110).contains(&median) && (900..930).contains(&tail), "{median} {tail}");
        assert!(parse(text, "write").is_err() && parse("nothing", "read").is_err());
    }
}
