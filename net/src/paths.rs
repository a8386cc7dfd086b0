//! How many paths a session may have, and by which interfaces this process calls.

use std::collections::HashSet;
use std::sync::OnceLock;

use ropewalk_rail::Rail;

use crate::modules;

/// The variable of the environment that says how many, where the program does not: 1 for one.
pub const PATHS_VARIABLE: &str = "ROPEWALK_PATHS";

/// The variable of the environment that names the interfaces by which a process calls, with commas between: each is a path
/// of its own. Without it they are those by which the kernel's routes lead to the addresses of the peer.
pub const INTERFACES_VARIABLE: &str = "ROPEWALK_INTERFACES";

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

/// The interfaces that the environment names.
pub fn interfaces() -> &'static [String] {
    static NAMED: OnceLock<Vec<String>> = OnceLock::new();
    NAMED.get_or_init(|| {
        let text = read(INTERFACES_VARIABLE).unwrap_or_default();
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        names.map(str::to_string).collect()
    })
}

/// How many paths the environment allows; 0 where it says nothing, or no number.
fn from_environment() -> usize {
    static SAID: OnceLock<usize> = OnceLock::new();
    *SAID.get_or_init(|| {
        let Some(text) = read(PATHS_VARIABLE) else { return 0 };
        text.trim().parse().unwrap_or_else(|_| {
            eprintln!("ropewalk: {PATHS_VARIABLE}='{text}' is no number of paths, like 2");
            0
        })
    })
}

/// A variable of the environment, which a program whose effective user is not its caller's ignores.
fn read(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|_| modules::is_own_environment())
}
