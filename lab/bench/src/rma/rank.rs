//! A rank, as its program sees it.

use anyhow::Context;
use ropewalk_rma::{Cells, Team, Window, WindowOptions};

use super::case::{Act, Case, Program, System};
use super::mail::Mail;
use crate::process::next_line;

/// A rank: its part of the windows, and its mail where the case has no window.
pub struct Rank {
    pub case: Case,
    pub rank: u32,
    pub team: Team,
    /// None in what is compared with open windows.
    window: Option<Window>,
    pub mail: Option<Mail>,
}

impl Rank {
    /// Makes the window of the case. All ranks call it.
    ///
    /// # Errors
    /// A rank is lost.
    pub fn new(case: Case, rank: u32, team: &Team, mail: Option<Mail>) -> anyhow::Result<Rank> {
        let options = WindowOptions {
            implementation: case.system.implementation(),
            name: case.name(),
            ..WindowOptions::default()
        };
        let gaps = matches!(case.program, Program::Flush(Act::Strided));
        let bytes = case.bytes.max(64) * if gaps { 2 } else { 1 };
        // Behind the data lie words by which ranks tell each other something.
        let bytes = bytes.next_multiple_of(8) + 8 * 64;
        let has_one = case.system != System::NoWindow;
        let make = || match case.system {
            System::Created => team.create(&Cells::zeroed(bytes), 0..bytes, &options),
            _ => team.allocate(bytes, &options),
        };
        let window = has_one.then(make).transpose()?;
        Ok(Rank { case, rank, team: team.clone(), window, mail })
    }

    /// The window of a program that uses it.
    pub fn window(&self) -> &Window {
        self.window.as_ref().expect("only programs that use none are run without one")
    }

    /// Where word `number` is.
    pub fn word(&self, number: usize) -> u64 {
        (self.window().cells().len() - 8 * 64 + 8 * number) as u64
    }

    pub fn others(&self) -> Vec<u32> {
        (0..self.case.ranks).filter(|it| *it != self.rank).collect()
    }
}

/// Gives this rank's address to all ranks; returns those of all.
pub fn exchange(own: &str) -> anyhow::Result<Vec<String>> {
    println!("address {own}");
    let line = next_line()?.context("the benchmark has ended")?;
    Ok(line.split(' ').map(String::from).collect())
}
