//! Variables of the environment: ours, Open-MX's, and MX's of the same meaning.

use std::time::Duration;

/// Longest message that is sent before its receiver asks for it.
const EAGER_BYTES_MAX: u64 = ropewalk_base::limits::EAGER_BYTES_SHORT as u64;

/// The resend interval of Open-MX: its limits are counted in resends.
const RESEND: Duration = Duration::from_millis(512);
/// The most resends: half a year of them. A higher number would change nothing.
const RESENDS_MAX: u64 = 1 << 25;

/// Variables of Open-MX and MX about mechanisms that do not exist here. Polling intervals, interrupts,
/// acknowledgements and registered memory take care of themselves.
const MEANINGLESS: [&str; 13] = [
    "OMX_WAITSPIN",
    "OMX_WAITINTR",
    "OMX_CONNECT_POLLALL",
    "OMX_NOTACKED_MAX",
    "MX_IMM_ACK",
    "OMX_RCACHE",
    "MX_RCACHE",
    "OMX_PRCACHE",
    "OMX_PROCESS_BINDING",
    "OMX_MEDIUM_SENDQ",
    "OMX_SHARED_RNDV_THRESHOLD",
    "OMX_ZOMBIE_SEND",
    "MX_ZOMBIE_SEND",
];

/// The meaningless variables that are set.
pub fn meaningless() -> impl Iterator<Item = &'static str> {
    MEANINGLESS.into_iter().filter(|name| text(name).is_some())
}

/// The settings from the environment.
#[derive(Debug, Clone)]
pub struct Options {
    pub verbose: bool,
    /// Errors end the program, if it set no handler.
    pub errors_are_fatal: bool,
    /// Seconds before it ends.
    pub abort_sleep: Duration,
    /// Messages to oneself take the way of all others.
    pub self_disabled: bool,
    /// Messages to processes of this host take the way of all others.
    pub shared_disabled: bool,
    /// Longer messages are announced; `None`: than each network likes best, and at least what MX sends at once.
    pub rendezvous_bytes: Option<u32>,
    /// After so long a peer that does not answer is given up.
    pub give_up_after: Duration,
    /// Endpoints are opened under any number.
    pub any_endpoint: bool,
    pub context_bits: u8,
    pub context_shift: u8,
}

/// A variable, if it is set and not empty.
pub fn text(name: &str) -> Option<String> {
    let text = std::env::var_os(name)?.to_string_lossy().into_owned();
    (!text.is_empty()).then_some(text)
}

/// The first of several names that is set; those of MX count unless they are to be ignored.
fn first(native: &str, mx: Option<&str>) -> Option<String> {
    let ignored = std::env::var_os("OMX_IGNORE_MX_ENV").is_some();
    text(native).or_else(|| text(mx.filter(|_| !ignored)?))
}

fn number(native: &str, mx: Option<&str>) -> Option<u64> {
    first(native, mx)?.trim().parse().ok()
}

/// A switch: set means on, but for 0.
fn switch(native: &str, mx: Option<&str>) -> Option<bool> {
    first(native, mx).map(|text| text.trim() != "0")
}

/// `ms` as Open-MX takes it: in whole resends.
pub fn in_resends(ms: u32) -> Duration {
    RESEND * u32::try_from((u64::from(ms) * 2).div_ceil(1024)).unwrap_or(u32::MAX)
}

impl Options {
    /// Up to how many bytes a message leaves at once over every network.
    pub fn copy_bytes(&self) -> u32 {
        self.rendezvous_bytes.unwrap_or(EAGER_BYTES_MAX as u32)
    }

    /// As the environment says.
    pub fn read() -> Options {
        let resends = number("OMX_RESENDS_MAX", Some("MX_MAX_RETRIES")).unwrap_or(1000);
        let threshold = number("OMX_RNDV_THRESHOLD", None);
        let ids = text("OMX_CTXIDS").unwrap_or_default();
        let (bits, shift) = ids.split_once(',').unwrap_or(("0", "0"));
        let small = |text: &str| text.trim().parse().unwrap_or(0);
        Options {
            verbose: switch("OMX_VERBOSE", Some("MX_VERBOSE")).unwrap_or(false),
            errors_are_fatal: switch("OMX_FATAL_ERRORS", Some("MX_ERRORS_ARE_FATAL"))
                .unwrap_or(true),
            abort_sleep: Duration::from_secs(number("OMX_ABORT_SLEEPS", None).unwrap_or(0)),
            self_disabled: switch("OMX_DISABLE_SELF", Some("MX_DISABLE_SELF")).unwrap_or(false),
            shared_disabled: switch("OMX_DISABLE_SHARED", Some("MX_DISABLE_SHMEM"))
                .unwrap_or(false),
            rendezvous_bytes: threshold.map(|bytes| bytes.clamp(128, EAGER_BYTES_MAX) as u32),
            give_up_after: RESEND * resends.clamp(1, RESENDS_MAX) as u32,
            any_endpoint: switch("OMX_ANY_ENDPOINT", None).unwrap_or(false),
            context_bits: small(bits),
            context_shift: small(shift),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_whole_resends() {
        let of = |ms| in_resends(ms).as_millis();
        assert_eq!([of(0), of(1), of(512), of(513), of(1024)], [0, 512, 512, 1024, 1024]);
    }
}
