//! The endpoints of this process that are shown.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ropewalk_net::Endpoint;
use ropewalk_net::path_status::WeakEndpoint;

struct Shown {
    endpoint: WeakEndpoint,
    /// What it is in its process, for people: `metadata server`.
    role: String,
}

static SHOWN: Mutex<Vec<Shown>> = Mutex::new(Vec::new());

fn all() -> MutexGuard<'static, Vec<Shown>> {
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One more; those that are closed are forgotten.
pub fn add(endpoint: &Endpoint, role: &str) {
    let mut all = all();
    all.retain(|shown| shown.endpoint.upgrade().is_some_and(|it| !it.is_closed()));
    all.push(Shown { endpoint: endpoint.downgrade(), role: role.to_string() });
}

/// Those that are open, with their roles, in the order in which they were shown.
pub fn open() -> Vec<(Endpoint, String)> {
    let all = all();
    let open = all.iter().filter_map(|shown| {
        let endpoint = shown.endpoint.upgrade().filter(|endpoint| !endpoint.is_closed())?;
        Some((endpoint, shown.role.clone()))
    });
    open.collect()
}
