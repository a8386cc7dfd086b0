//! The endpoints of this process that are shown.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ropewalk_base::ids::EndpointId;
use ropewalk_net::Endpoint;
use ropewalk_net::path_status::{PathStatus, PathView, WeakEndpoint};

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

/// Of each path of an endpoint, by its peer and number: the host at the other end when somebody asked last.
static REMOTES: Mutex<BTreeMap<EndpointId, Remotes>> = Mutex::new(BTreeMap::new());

type Remotes = BTreeMap<(EndpointId, u32), String>;

/// Gives paths that have lost their links the hosts at their other ends, as they were seen before.
pub fn remember(endpoint: EndpointId, paths: &mut [PathView]) {
    let mut all = REMOTES.lock().unwrap_or_else(PoisonError::into_inner);
    let before = all.remove(&endpoint).unwrap_or_default();
    let mut now = Remotes::new();
    for view in paths.iter_mut().filter(|view| view.status.path != PathStatus::NEVER) {
        let key = (view.peer.endpoint, view.status.path);
        view.remote = view.remote.take().or_else(|| before.get(&key).cloned());
        now.extend(view.remote.clone().map(|remote| (key, remote)));
    }
    let open: Vec<EndpointId> =
        open().iter().map(|(endpoint, _)| endpoint.identity().endpoint).collect();
    all.retain(|endpoint, _| open.contains(endpoint));
    all.insert(endpoint, now);
}
