//! All objects of a data server are read, compared and mended, for those who do not want to wait for the scrub.

use std::time::Duration;

use ropewalk_wire::fs::data::{DataReply, DataRequest, Scrubbed};

use super::{Operator, OperatorError};

impl Operator {
    /// Has a server read all its objects, compare them with their checksums and with other copies, and mend what is damaged. It reads
    /// so many bytes a second at most; 0: as fast as it can. `tell` hears of all so far.
    pub async fn scrub(
        &self,
        server: u32,
        bytes_per_second: u64,
        tell: &dyn Fn(Scrubbed),
    ) -> Result<Scrubbed, OperatorError> {
        let begin = self.world.now();
        let mut all = Scrubbed::default();
        loop {
            let bytes_max = if bytes_per_second == 0 { u64::MAX } else { bytes_per_second / 4 };
            let request = DataRequest::Scrub { after: all.after, bytes_max };
            let read = |reply: DataReply<'_>, _| match reply {
                DataReply::Scrubbed(some) => Some(some),
                _ => None,
            };
            let some = self.ask_data(server, &request, read).await?;
            let Scrubbed { seen, bytes, mended, lost, passed, after } = some;
            all.seen += seen;
            all.bytes += bytes;
            all.mended += mended;
            all.lost += lost;
            all.passed += passed;
            all.after = after;
            tell(all);
            if after.is_none() {
                return Ok(all);
            }
            if bytes_per_second > 0 {
                let millis = all.bytes / (bytes_per_second / 1000).max(1);
                self.world.sleep_until(begin + Duration::from_millis(millis)).await;
            }
        }
    }
}
