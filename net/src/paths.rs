//! How many paths a session may have.

use std::collections::HashSet;

use ropewalk_rail::Rail;

/// At most, where the user does not say how many.
const USUAL: usize = 8;

/// Paths of a session, at most. `wanted`: as in `Config::paths_max`. Where the user says nothing there are several if rails
/// are bound to different interfaces or source addresses, so that one of them may fail alone; otherwise one.
pub(crate) fn most(wanted: usize, rails: &[Box<dyn Rail>]) -> usize {
    let between_hosts = rails.iter().filter(|rail| {
        let it = rail.capabilities();
        !it.same_host_only && !it.foreign
    });
    match wanted {
        0 if between_hosts.filter_map(|it| it.bound_to()).collect::<HashSet<_>>().len() > 1 => {
            USUAL
        }
        0 => 1,
        wanted => wanted,
    }
}
