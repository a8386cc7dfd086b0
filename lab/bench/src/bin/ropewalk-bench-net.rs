//! `ropewalk-bench-net [--quick] [--json] [--progress] [--hold-dma-latency] [--figure FILE.svg]`

use std::process::ExitCode;

use ropewalk_bench::net::{Options, net};
use ropewalk_bench::report;

fn main() -> ExitCode {
    ropewalk_bench::serve_if_child();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| words.iter().any(|word| word == name);
    let options = Options {
        quick: has("--quick"),
        progress: has("--progress"),
        hold_dma_latency: has("--hold-dma-latency"),
    };
    let outcomes = net(options);
    if has("--json") {
        outcomes.iter().for_each(|outcome| println!("{}", outcome.json()));
    } else {
        print!("{}", report::table(&outcomes));
    }
    let figure = words.iter().position(|word| word == "--figure").and_then(|at| words.get(at + 1));
    if let Some(file) = figure
        && let Err(error) = std::fs::write(file, report::figure(&outcomes, "latency"))
    {
        eprintln!("{file}: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
