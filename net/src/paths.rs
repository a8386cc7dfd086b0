//! How many paths a session may have, and by which interfaces this process calls.

use std::collections::HashSet;
use std::sync::OnceLock;
use std::time::Duration;

use ropewalk_rail::Rail;

use crate::modules::{self, ModuleError};
use crate::notice;

/// The variable of the environment that says how many, where the program does not: 1 for one.
pub const PATHS_VARIABLE: &str = "ROPEWALK_PATHS";

/// The variable of the environment that names the interfaces by which a process calls, with commas between: each is a path
/// of its own. Without it they are those by which the kernel's routes lead to the addresses of the peer.
pub const INTERFACES_VARIABLE: &str = "ROPEWALK_INTERFACES";

/// The variable of the environment that says for how many seconds a session that could have several paths waits for one where
/// none is left, where the program does not. Then operations fail.
pub const WAIT_VARIABLE: &str = "ROPEWALK_PATH_WAIT";
/// The longest wait that is taken, in seconds.
const WAIT_SECONDS_MAX: f64 = 86400.0;

/// At most, where the user does not say how many.
const USUAL: usize = 8;
/// At most, whatever the user says.
const MOST: usize = 64;

/// Paths of a session, at most. `wanted`: as in `Config::paths_max`. Where the user says nothing there are several if rails
/// are bound to different interfaces or source addresses, so that one of them may fail alone; otherwise one.
pub(crate) fn most<'a>(wanted: usize, rails: impl Iterator<Item = &'a dyn Rail>) -> usize {
    let wanted = if wanted == 0 { from_environment() } else { wanted };
    if wanted > 0 {
        return wanted.min(MOST);
    }
    let between_hosts = rails.filter(|rail| {
        let it = rail.capabilities();
        !it.same_host_only && !it.foreign
    });
    let bound: HashSet<String> = between_hosts.filter_map(|it| it.bound_to()).collect();
    if bound.len() > 1 { USUAL } else { 1 }
}

/// The interfaces that the environment names; of no use without peers, so it is asked for when one is called. An error where
/// this host has no interface of one of these names. Once all of them were there they stay named, also while one is gone.
pub fn interfaces() -> Result<&'static [String], ModuleError> {
    static NAMED: OnceLock<Vec<String>> = OnceLock::new();
    if let Some(named) = NAMED.get() {
        return Ok(named);
    }
    let text = read(INTERFACES_VARIABLE);
    let is_empty = text.as_ref().is_some_and(|text| text.replace(',', "").trim().is_empty());
    let text = text.unwrap_or_default();
    let named = named(&text, || ropewalk_rail_ether::interfaces().into_iter().map(|it| it.name))?;
    Ok(NAMED.get_or_init(|| {
        if is_empty {
            notice::tell(&format!(
                "{INTERFACES_VARIABLE}='{text}' names no interface: it counts as if it was not set"
            ));
        }
        named
    }))
}

/// The names in a text with commas between. `there`: those of the interfaces of this host, asked for where one is named.
fn named<I: Iterator<Item = String>>(
    text: &str,
    there: impl FnOnce() -> I,
) -> Result<Vec<String>, ModuleError> {
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    let named: Vec<String> = names.map(str::to_string).collect();
    if named.is_empty() {
        return Ok(named);
    }
    let there: Vec<String> = there().collect();
    match named.iter().find(|name| !there.contains(name)) {
        Some(wrong) => Err(ModuleError::NotThere {
            variable: INTERFACES_VARIABLE,
            name: wrong.clone(),
            there: there.join(", "),
        }),
        None => Ok(named),
    }
}

/// How many paths the environment allows; 0 where it says nothing, or no number.
fn from_environment() -> usize {
    static SAID: OnceLock<usize> = OnceLock::new();
    *SAID.get_or_init(|| {
        let Some(text) = read(PATHS_VARIABLE) else { return 0 };
        let (allowed, complaint) = allowed(&text);
        if let Some(complaint) = complaint {
            notice::tell(&complaint);
        }
        allowed
    })
}

/// How many paths a text allows, 0 where it says nothing that makes sense; and what is wrong with it.
fn allowed(text: &str) -> (usize, Option<String>) {
    let said = format!("{PATHS_VARIABLE}='{text}'");
    match text.trim().parse::<usize>() {
        Ok(number) if (1..=MOST).contains(&number) => (number, None),
        Ok(number) if number > MOST => {
            (MOST, Some(format!("{said} is more than a session can have: {MOST} counts")))
        }
        _ => {
            let range = format!("is no number of paths from 1 to {MOST}");
            (0, Some(format!("{said} {range}, like 2: it counts as if it was not set")))
        }
    }
}

/// How long the environment has a session wait for a path; `None` where it says nothing, or nothing that makes sense.
pub(crate) fn wait() -> Option<Duration> {
    static SAID: OnceLock<Option<Duration>> = OnceLock::new();
    *SAID.get_or_init(|| {
        let text = read(WAIT_VARIABLE)?;
        let seconds = text.trim().parse().ok().filter(|it| (0.0..=WAIT_SECONDS_MAX).contains(it));
        if seconds.is_none() {
            notice::tell(&format!(
                "{WAIT_VARIABLE}='{text}' is no number of seconds from 0 to 86400: it counts as if it \
                 was not set"
            ));
        }
        seconds.map(Duration::from_secs_f64)
    })
}

/// A variable of the environment, which a program whose effective user is not its caller's ignores.
fn read(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|_| modules::is_own_environment())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_paths_that_makes_no_sense_is_told_with_what_counts() {
        assert_eq!(allowed(" 2 "), (2, None));
        assert_eq!(allowed("64"), (64, None));
        for wrong in ["x", "0", "-1", ""] {
            let (paths, complaint) = allowed(wrong);
            assert_eq!(paths, 0);
            let complaint = complaint.expect("it is told");
            assert!(complaint.contains("from 1 to 64") && complaint.contains("counts as if"));
        }
        let (paths, complaint) = allowed("99");
        assert_eq!((paths, complaint.unwrap().contains("64 counts")), (64, true));
    }

    #[test]
    fn a_wrong_name_of_an_interface_is_named_with_those_that_there_are() {
        let there = || ["lo", "eth0", "eth1"].into_iter().map(str::to_string);
        assert_eq!(named(" eth0,, eth1 ,", there).unwrap(), ["eth0", "eth1"]);
        let error = named("eth0,eth9", there).unwrap_err().to_string();
        assert_eq!(
            error,
            "ROPEWALK_INTERFACES names 'eth9', and this host has no such interface: it has lo, eth0, eth1"
        );
        let nobody = || -> std::iter::Empty<String> { panic!("nobody asked for one") };
        assert_eq!(named(" , ", nobody).unwrap(), Vec::<String>::new());
    }
}
