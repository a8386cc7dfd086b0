//! Whether objects are there and whole, for `check`.
//!
//! Invariant: one request reads little more than [`READ_BYTES_MAX`], and lets others run in between.

use ropewalk_base::task::yield_now;
use ropewalk_store::objects::{ObjectError, ObjectId, ReadOutcome};
use ropewalk_wire::fs::data::{Condition, DataReply, EXAMINED_MAX, ObjectName};
use ropewalk_wire::fs::value::Errno;

use crate::failure::Failure;
use crate::server::Inner;

/// Bytes after which a request is answered with the results so far.
const READ_BYTES_MAX: u64 = 32 << 20;
/// Bytes that are read before other tasks run.
const CHUNK_BYTES: u64 = 256 << 10;
/// Objects that are looked at before other tasks run.
const BETWEEN_YIELDS: usize = 16;

impl Inner {
    /// Looks at some objects; with `read` at every block of them.
    pub(crate) async fn examine(
        &self,
        objects: &[ObjectName],
        read: bool,
    ) -> Result<DataReply<'static>, Failure> {
        if objects.is_empty() || objects.len() > EXAMINED_MAX {
            return Err(Errno::EINVAL.into());
        }
        let (mut conditions, mut bytes) = (Vec::with_capacity(objects.len()), 0);
        for (number, name) in objects.iter().enumerate() {
            let ObjectName { inode, generation, stripe } = *name;
            let object = ObjectId { inode, generation, stripe };
            let (condition, took) = match self.store.info(object) {
                Ok(Some(info)) if read => self.read_through(object, info.bytes, info.end).await,
                Ok(Some(info)) => (Condition::Present { bytes: info.bytes }, 0),
                Ok(None) => (Condition::Absent, 0),
                Err(error) => (self.condition_of(&error), 0),
            };
            conditions.push(condition);
            bytes += took;
            if bytes >= READ_BYTES_MAX {
                break;
            }
            if number % BETWEEN_YIELDS == BETWEEN_YIELDS - 1 {
                yield_now().await;
            }
        }
        self.activities.examined(bytes);
        Ok(DataReply::Examined { conditions })
    }

    /// Reads an object of `written` bytes that ends at `end`; the store compares every block with its
    /// checksum. Returns the condition found, and the number of bytes read.
    async fn read_through(&self, object: ObjectId, written: u64, end: u64) -> (Condition, u64) {
        let mut at = 0;
        while at < end {
            let len = (end - at).min(CHUNK_BYTES);
            let mut bytes = self.scratch.take();
            bytes.resize(len as usize, 0);
            let read = self.store.read(object, at, &mut bytes, &mut Vec::new());
            self.scratch.replace(bytes);
            match read {
                Ok(ReadOutcome::Present { .. }) => at += len,
                Ok(ReadOutcome::Absent) => return (Condition::Absent, at),
                Err(error) => return (self.condition_of(&error), at),
            }
            yield_now().await;
        }
        (Condition::Present { bytes: written }, at)
    }

    /// The object's condition according to an error of the store. The log has its name.
    fn condition_of(&self, error: &ObjectError) -> Condition {
        self.failed("examine", error);
        match error {
            ObjectError::Header { .. } | ObjectError::Older { .. } => Condition::Damaged,
            ObjectError::Gone { .. } => Condition::Absent,
            ObjectError::Corrupt { block, .. } => Condition::Corrupt { block: *block },
            _ => Condition::Unreadable,
        }
    }
}
