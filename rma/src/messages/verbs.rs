//! Numbers of operations in refusals, and the words for them.

pub(crate) const PUT: u8 = 0;
pub(crate) const GET: u8 = 1;
pub(crate) const ACCUMULATE: u8 = 2;
pub(crate) const GET_ACCUMULATE: u8 = 3;
pub(crate) const SWAP: u8 = 4;
pub(crate) const NOTIFY: u8 = 5;
const VERBS: [&str; 6] =
    ["put", "get", "accumulate", "get_accumulate", "compare_and_swap", "notice"];

/// The word for an operation.
pub(crate) fn verb(number: u8) -> &'static str {
    VERBS.get(usize::from(number)).copied().unwrap_or("call")
}
