//! Objects one after the other, for `check`.

use ropewalk_base::task::yield_now;
use ropewalk_store::objects::{Listing, ObjectError, ObjectId};
use ropewalk_wire::fs::data::{DataReply, ObjectInfo};
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::head::REPLY_BYTES_MAX;
use ropewalk_wire::fs::value::Errno;

use crate::failure::Failure;
use crate::server::Inner;

/// Bytes of one object in a reply at most: three numbers of up to 10 bytes, two of up to 5, and a mark.
const ENTRY_BYTES: usize = 41;
/// Bytes of a reply beside its objects, with some to spare.
const FRAME_BYTES: usize = 64;
/// Objects that are looked at before other tasks run.
const BETWEEN_YIELDS: usize = 16;

impl Inner {
    /// Objects after `after`, as many as `bytes_max` bytes of reply hold. Damaged ones are logged
    /// and left out: they are not what their names say.
    pub(crate) async fn list(
        &self,
        after: Option<(u64, u32, u32)>,
        bytes_max: u32,
    ) -> Result<DataReply<'static>, Failure> {
        let bytes = (bytes_max as usize).min(REPLY_BYTES_MAX).saturating_sub(FRAME_BYTES);
        let count = bytes / ENTRY_BYTES;
        if count == 0 {
            return Err(Errno::EINVAL.into());
        }
        let after = after.map(|(inode, generation, stripe)| ObjectId { inode, generation, stripe });
        let listing = self.store.list(after).map_err(|error| self.failed("list", &error))?;
        let (objects, end) = self.collect(listing, count).await?;
        Ok(DataReply::Objects { objects, end })
    }

    async fn collect(
        &self,
        listing: Listing,
        count: usize,
    ) -> Result<(Vec<ObjectInfo>, bool), Failure> {
        let mut objects = Vec::new();
        for (number, info) in listing.enumerate() {
            if objects.len() == count {
                return Ok((objects, false));
            }
            match info {
                Ok(info) => {
                    let ObjectId { inode, generation, stripe } = info.object;
                    let group = info.group.get().map(Group::from_number);
                    objects.push(ObjectInfo {
                        inode,
                        generation,
                        stripe,
                        bytes: info.bytes,
                        group,
                    });
                }
                Err(error @ (ObjectError::Header { .. } | ObjectError::Older { .. })) => {
                    self.failed("list", &error);
                }
                Err(error) => return Err(self.failed("list", &error)),
            }
            if number % BETWEEN_YIELDS == BETWEEN_YIELDS - 1 {
                yield_now().await;
            }
        }
        Ok((objects, true))
    }
}
