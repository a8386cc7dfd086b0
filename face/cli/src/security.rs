//! The keys of this process: every endpoint that it opens proves itself by them; and how payloads are protected.
//!
//! The key file is named by --key-file or the mount option keyfile=, else by $ROPEWALK_KEY_FILE, else by the config file. A process that runs for long looks
//! for another version of it now and then, so that keys can be changed without a restart.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use anyhow::Context;
use ropewalk_net::auth::Guard;
use ropewalk_net::security::{Security, read_key_file};
use ropewalk_net::{PayloadMode, PayloadModes, threads};

use crate::report::complain;

/// The variable of the environment that names a key file.
const KEY_FILE: &str = "ROPEWALK_KEY_FILE";
/// Between two looks at the key file.
const LOOK: Duration = Duration::from_secs(2);

/// The file that was named, if one was: the first word counts.
static NAMED: Mutex<Option<PathBuf>> = Mutex::new(None);
/// How payloads are protected, if that was said: the first word counts.
static PAYLOAD: Mutex<Option<PayloadModes>> = Mutex::new(None);
static SECURITY: OnceLock<Security> = OnceLock::new();

/// Names the key file of this process, unless one was named before.
pub fn name_file(path: Option<PathBuf>) {
    let mut named = NAMED.lock().expect("replaced whole");
    *named = named.take().or(path);
}

/// Names the key file of this process, whatever was named before.
pub fn prefer_file(path: PathBuf) {
    *NAMED.lock().expect("replaced whole") = Some(path);
}

/// The key file of this process, if one was named.
pub fn named_file() -> Option<PathBuf> {
    NAMED.lock().expect("replaced whole").clone()
}

/// Names the key file of the environment, unless one was named before.
pub fn name_file_of_environment() {
    let said = std::env::var_os(KEY_FILE).filter(|text| !text.is_empty());
    name_file(said.map(PathBuf::from));
}

/// Says how payloads are protected, unless it was said before.
pub fn name_payload(modes: Option<PayloadModes>) {
    let mut named = PAYLOAD.lock().expect("replaced whole");
    *named = named.take().or(modes);
}

/// How the endpoints of this process protect payloads.
pub fn payload() -> PayloadModes {
    PAYLOAD.lock().expect("replaced whole").clone().unwrap_or_default()
}

/// Whether nobody on the way can change what is read and written over a network.
pub fn is_protected(scheme: &str) -> bool {
    is_keyed() && payload().asked(scheme).is_none_or(|mode| mode > PayloadMode::Crc)
}

/// Whether peers have to prove themselves.
pub fn is_keyed() -> bool {
    NAMED.lock().expect("replaced whole").is_some()
}

/// Who may talk to the endpoints of this process. The key file is read at the first call.
pub fn of_process() -> anyhow::Result<Security> {
    if let Some(security) = SECURITY.get() {
        return Ok(security.clone());
    }
    let named = NAMED.lock().expect("replaced whole").clone();
    let Some(path) = named else { return Ok(SECURITY.get_or_init(|| Security::None).clone()) };
    let path = std::path::absolute(&path)
        .with_context(|| format!("the key file {} cannot be found", path.display()))?;
    let security = Security::from_file(&path)?;
    let chosen = SECURITY.get_or_init(|| security);
    if let Security::Keys(guard) = chosen {
        let guard = guard.clone();
        threads::start("keys", move || watch(&path, &guard))?;
    }
    Ok(chosen.clone())
}

/// Tells of peers that were refused. Takes other keys as soon as the file has them. One that cannot be used changes nothing, and is told of once.
fn watch(path: &Path, guard: &Arc<Guard>) {
    let state = |path: &Path| {
        let found = path.metadata().ok()?;
        Some((found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
    };
    let (mut known, mut told) = (state(path), 0);
    loop {
        std::thread::sleep(LOOK);
        let (refused, why) = guard.refused();
        if let (Some(why), true) = (why, refused > told) {
            complain!("ropewalk: {} peers were not let in: {why}", refused - told);
            told = refused;
        }
        let found = state(path);
        if found == known {
            continue;
        }
        known = found;
        match read_key_file(path) {
            Ok(ring) if ring.opens() => guard.replace(ring),
            Ok(_) => complain!(
                "ropewalk: the key file {} is for signing alone: the former keys still count",
                path.display()
            ),
            Err(error) => complain!("ropewalk: {error}; the former keys still count"),
        }
    }
}
