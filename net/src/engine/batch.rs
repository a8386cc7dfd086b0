//! The batch: frames that rails may keep, to send them together with frames that follow them.
//!
//! Invariant: whatever rails keep leaves by the end of the drain in which it was kept, or, if every frame of it is
//! patient, in the next pass.

/// Patient frames in a batch, at most.
const PATIENT_FRAMES_MAX: u32 = 32;

pub(crate) struct FrameBatch {
    /// A rail may keep frames.
    kept: bool,
    /// The number of frames that may wait for the next pass; `None` if one of the batch must not wait.
    patient: Option<u32>,
}

impl FrameBatch {
    pub fn new() -> FrameBatch {
        FrameBatch { kept: false, patient: Some(0) }
    }

    /// Whether no rail keeps anything.
    #[inline]
    pub fn is_empty(&self) -> bool {
        !self.kept
    }

    /// A frame goes to its rail. `followed`: the rail may keep it. `patient`: it may wait for the next pass.
    #[inline]
    pub fn add(&mut self, followed: bool, patient: bool) {
        self.kept |= followed;
        self.patient = self.patient.filter(|_| patient).map(|count| count + 1);
    }

    /// An order goes to its rail, which may keep it until the end of this drain.
    pub fn add_urgent(&mut self) {
        self.kept = true;
        self.patient = None;
    }

    /// After the last order of a drain: whether rails must send what they keep. `is_asleep`: nobody makes the
    /// next pass before something arrives.
    #[inline]
    pub fn is_due(&mut self, is_asleep: bool) -> bool {
        if !self.kept {
            self.patient = Some(0);
            return false;
        }
        is_asleep || self.patient.is_none_or(|count| count >= PATIENT_FRAMES_MAX)
    }

    /// Rails are told to send what they keep.
    pub fn clear(&mut self) {
        *self = FrameBatch::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patient_frames_wait_for_a_pass_until_they_are_many() {
        let mut batch = FrameBatch::new();
        for _ in 1..PATIENT_FRAMES_MAX {
            batch.add(true, true);
            assert!(!batch.is_empty() && !batch.is_due(false));
        }
        assert!(batch.is_due(true), "a sleeper makes no pass");
        batch.add(true, true);
        assert!(batch.is_due(false));
        batch.clear();
        assert!(batch.is_empty() && !batch.is_due(true));
    }

    #[test]
    fn one_urgent_frame_takes_the_patient_ones_along() {
        let mut batch = FrameBatch::new();
        batch.add(true, true);
        batch.add(false, false);
        assert!(batch.is_due(false));
        batch.clear();
        batch.add(true, true);
        batch.add_urgent();
        assert!(batch.is_due(false));
    }

    #[test]
    fn frames_that_left_at_once_leave_no_batch() {
        let mut batch = FrameBatch::new();
        batch.add(false, false);
        assert!(batch.is_empty() && !batch.is_due(false));
        batch.add(true, true);
        assert!(!batch.is_due(false), "the frame before it is gone");
    }
}
