//! Rows of `ropewalk bench paths` with kernels, and what each of them has to tell.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Whether there can be network namespaces; if not, it says so.
pub fn makes_namespaces() -> bool {
    let made = Command::new("unshare").args(["--net", "ip", "link"]).output();
    let can = made.is_ok_and(|output| output.status.success());
    if !can {
        println!("SKIP: network namespaces cannot be made: run as root, with iproute2");
    }
    can
}

/// Measures rows once; the figures as JSON. Each result is verified by the processes that compute it.
pub fn bench(program: &Path, rows: &[&str], more: &[&str]) -> Vec<Value> {
    let only = rows.iter().flat_map(|row| ["--only", row]);
    let mut command = Command::new(program);
    command.args(["bench", "paths", "--json", "--runs", "1"]).args(only).args(more);
    let output = command.output().expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{rows:?}: {told}");
    let text = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    let lines = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    println!("{told}");
    lines
}

/// Each row is undisturbed, drained and hit by faults, and tells what each of so many faults costs.
pub fn check(figures: &[Value], rows: &[&str], faults: u64) {
    for row in rows {
        let own: Vec<&Value> = figures.iter().filter(|one| one["scenario"] == *row).collect();
        let names: Vec<_> = own.iter().map(|one| one["params"]["fault"].as_str()).collect();
        let wanted = ["none", "drains", "cuts", "switch-drains", "switch"].map(Some);
        assert_eq!(names, wanted, "{row}: {figures:?}");
        for one in own {
            assert_eq!(one["params"]["verified"], true, "{one}");
            let struck = one["params"]["faults"].as_u64().expect("a count");
            let is_undisturbed = one["params"]["fault"] == "none";
            assert_eq!(struck > 0, !is_undisturbed, "{one}");
            assert!(struck <= faults, "{one}");
            println!("{row}, {}: {} s", one["params"]["fault"], one["median"]);
        }
        let cost = format!("{row}.each-fault");
        let costs: Vec<_> = figures.iter().filter(|one| one["scenario"] == cost.as_str()).collect();
        assert_eq!(costs.len(), 2, "{figures:?}");
        for one in costs {
            let (fault, verdict) = (&one["params"]["fault"], &one["params"]["verdict"]);
            println!("{cost}, {fault}: {} ms; {verdict}", one["median"]);
        }
    }
}
