//! Counts the instructions of a function of a test, which no other load on the machine disturbs: the test runs itself again
//! under valgrind.

use std::process::Command;

/// Runs this program's test `test` with `variable` set to `value`, and tells the instructions within `function`. Says why it
/// cannot where it cannot.
pub fn instructions(function: &str, test: &str, variable: &str, value: &str) -> Option<u64> {
    if std::env::var("RUSTFLAGS").is_ok_and(|flags| flags.contains("sanitizer")) {
        println!("SKIP: a sanitizer's program does not run under valgrind");
        return None;
    }
    let this = std::env::current_exe().expect("a test has a file");
    let outcome = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect={function}"))
        .arg(this)
        .args(["--include-ignored", "--exact", test])
        .env(variable, value)
        .output();
    let Ok(outcome) = outcome else {
        println!("SKIP: valgrind is not installed");
        return None;
    };
    let text = String::from_utf8_lossy(&outcome.stderr);
    assert!(outcome.status.success(), "{text}");
    let collected = text.lines().find_map(|line| line.split("Collected : ").nth(1));
    Some(collected.and_then(|number| number.trim().parse().ok()).expect("a count"))
}
