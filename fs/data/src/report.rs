//! The report of a data server on itself: for `status`, and for metrics.

use ropewalk_wire::fs::status::{DataStatus, Figure, disk_work};
use ropewalk_wire::fs::value::Bytes;

use crate::failure::Failure;
use crate::heartbeat::room_of;
use crate::server::Inner;

impl Inner {
    pub(crate) fn report(&self) -> Result<DataStatus<'static>, Failure> {
        let space = self.store.space().map_err(|error| self.failed("status", &error))?;
        let usage = self.store.usage();
        let counters = self.counters();
        let scrub = self.activities.scrub();
        let figures: [(&str, u64); 8] = [
            ("data_map_epoch", self.groups.borrow().epoch().into()),
            ("data_joined", self.joined.get().into()),
            ("data_turned_away_total", counters.turned_away),
            ("data_scrub_objects_total", scrub.objects.get()),
            ("data_scrub_bytes_total", scrub.bytes.get()),
            ("data_scrub_rounds_total", scrub.rounds.get()),
            ("data_mended_blocks_total", scrub.mended.get()),
            ("data_lost_blocks_total", scrub.lost.get()),
        ];
        let disk = self.world.disk().times();
        Ok(DataStatus {
            server: self.server,
            uptime: self.world.now().since(self.started).as_millis() as u64,
            room: room_of(space),
            objects: usage.objects,
            object_bytes: usage.object_bytes,
            log_bytes: usage.log_bytes,
            corrupt_blocks: usage.corrupt_blocks,
            checksum_errors: counters.checksum_errors,
            under_way: counters.under_way as u32,
            activities: self.activities.list(),
            work: disk.as_ref().into_iter().flat_map(disk_work).collect(),
            figures: figures
                .map(|(name, value)| Figure { name: Bytes(name.as_bytes()), value })
                .into(),
        })
    }
}
