//! Long runs and replays: `cargo run -p ropewalk-fuzz -- run --seconds 600 meta_request`.
//!
//! Invariant: the inputs come from the seed that is printed, so a run can be repeated.
#![forbid(unsafe_code)]

use std::time::Duration;

use anyhow::{Context, Result, bail};
use ropewalk_fuzz::drive::{self, Until};
use ropewalk_fuzz::targets::{TARGETS, by_name};
use ropewalk_fuzz::{corpus, made};

const USAGE: &str = "\
usage: ropewalk-fuzz list
       ropewalk-fuzz run [--seconds N] [--seed S] [TARGET...]   (default: 60 s for each of all)
       ropewalk-fuzz replay TARGET HEX|FILE
       ropewalk-fuzz renew TARGET...   (keeps valid messages in place of the kept inputs)";

/// Inputs that are kept of each target, as `guided` keeps them.
const RENEWED: usize = 64;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["list"] => {
            for (name, _) in TARGETS {
                println!("{name}");
            }
            Ok(())
        }
        ["run", rest @ ..] => run(rest),
        ["renew", names @ ..] => names.iter().try_for_each(|name| renew(name)),
        ["replay", name, input] => {
            let target = by_name(name).with_context(|| no_target(name))?;
            let bytes = match std::fs::read(input) {
                Ok(bytes) => bytes,
                Err(_) => drive::from_hex(input)
                    .with_context(|| format!("'{input}' is neither a file nor hex digits"))?,
            };
            drive::once(name, target, &bytes);
            println!("{name} stands these {} bytes", bytes.len());
            Ok(())
        }
        _ => bail!("{USAGE}"),
    }
}

/// Kept inputs of an older layout are worth nothing: valid messages take their place. `guided` finds more.
fn renew(name: &str) -> Result<()> {
    let made = made::inputs(name, 1);
    if made.is_empty() {
        bail!("nothing is made for '{name}'");
    }
    let folder = corpus::folder(name);
    std::fs::remove_dir_all(&folder)?;
    std::fs::create_dir(&folder)?;
    for (number, input) in made.iter().take(RENEWED).enumerate() {
        std::fs::write(folder.join(format!("made{number:02}")), input)?;
    }
    Ok(())
}

fn no_target(name: &str) -> String {
    format!("there is no target '{name}'; `ropewalk-fuzz list` names them")
}

fn run(mut words: &[&str]) -> Result<()> {
    let mut seconds = 60;
    // Each long run looks elsewhere, unless a seed is given.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let mut seed = now.as_nanos() as u64;
    let mut names = Vec::new();
    while let [word, rest @ ..] = words {
        words = rest;
        let mut number = || -> Result<u64> {
            let [value, rest @ ..] = words else { bail!("{word} needs a number") };
            words = rest;
            value.parse().with_context(|| format!("{word} needs a number, not '{value}'"))
        };
        match *word {
            "--seconds" => seconds = number()?,
            "--seed" => seed = number()?,
            name => {
                names.push(by_name(name).map(|target| (name, target)).context(no_target(name))?)
            }
        }
    }
    if names.is_empty() {
        names = TARGETS.to_vec();
    }
    println!("seed {seed}");
    for (name, target) in names {
        let until = Until::Elapsed(Duration::from_secs(seconds));
        let inputs = drive::run(name, target, seed, until)?;
        println!("{name}: {inputs} inputs in {seconds} s, none broke it");
    }
    Ok(())
}
