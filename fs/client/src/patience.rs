//! The time for which an operation is begun again if its lease or epoch changed under it.
//!
//! Each change is somebody else's success, so there is progress; but one client's turn may take long
//! to come beside a busy one. A count of tries alone would turn that into an error of a healthy file.

use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_base::world::World;

/// Tries without a pause.
const TRIES_AT_ONCE: u32 = 16;
/// Between two tries after these.
const PAUSE: Duration = Duration::from_millis(1);

/// Tries of one operation.
pub(crate) struct Patience {
    world: World,
    until: Time,
    tries: u32,
}

impl Patience {
    /// For an operation that begins now and may take so long.
    pub fn new(world: &World, limit: Duration) -> Patience {
        Patience { world: world.clone(), until: world.now() + limit, tries: 0 }
    }

    /// Whether to try (again).
    pub async fn lasts(&mut self) -> bool {
        self.tries += 1;
        if self.tries <= TRIES_AT_ONCE {
            return true;
        }
        self.world.sleep(PAUSE).await;
        self.world.now() < self.until
    }
}
