//! Errors as callers in C see them: a code, words for the code, and words for what happened.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};

use ropewalk_rma::conflict::Conflict;
use ropewalk_rma::epochs::Rule;
use ropewalk_rma::types::TypeError;
use ropewalk_rma::{BadArgument, Error, Refusal};

macro_rules! codes {
    ($($name:ident = $number:literal, $words:literal;)*) => {
        $(pub const $name: c_int = $number;)*

        /// All codes, with their names in the header.
        pub const ALL: &[(&str, c_int)] = &[$((concat!("RW_", stringify!($name)), $name)),*];

        /// The words for a code.
        pub fn words(code: c_int) -> &'static CStr {
            match code {
                $($name => const {
                    match CStr::from_bytes_with_nul(concat!($words, "\0").as_bytes()) {
                        Ok(words) => words,
                        Err(_) => panic!("words of a code contain a zero"),
                    }
                },)*
                _ => c"no code of this library",
            }
        }
    };
}

codes! {
    SUCCESS = 0, "success";
    ERR_ARG = 1, "an argument makes no sense";
    ERR_WIN = 2, "no such window, or it was freed";
    ERR_TYPE = 3, "no such datatype, or it cannot be used so";
    ERR_REQUEST = 4, "no such request, or it is over";
    ERR_RANK = 5, "no such rank";
    ERR_DISP = 6, "a displacement or its unit makes no sense";
    ERR_COUNT = 7, "a count makes no sense";
    ERR_OP = 8, "no such operator, or it is not defined for the type";
    ERR_SIZE = 9, "a size makes no sense";
    ERR_INFO = 10, "an info makes no sense";
    ERR_ASSERT = 11, "an assertion that the call does not take";
    ERR_LOCKTYPE = 12, "no such kind of lock";
    ERR_RMA_SYNC = 13, "the call is not legal in this epoch";
    ERR_RMA_RANGE = 14, "the target refused an operation: it lies outside of its window, or the memory is gone";
    ERR_NO_MEM = 15, "memory or another resource is used up";
    ERR_PEER = 16, "a rank is lost";
    ERR_OWNER_DIED = 17, "the last holder of a lock died with it";
    ERR_DISAGREE = 18, "ranks gave different arguments to a collective call, or one gave wrong ones";
    ERR_INIT = 19, "the library was not initialized, or has ended";
    ERR_OTHER = 20, "another error";
    ERR_RMA_SHARED = 21, "ranks do not share the memory of a window";
    ERR_RMA_ATTACH = 22, "memory cannot be attached, or is not attached";
    ERR_RMA_FLAVOR = 23, "the call is for windows of another kind";
    ERR_RMA_CONFLICT = 24, "operations of one epoch get into each other's way (info check)";
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub code: c_int,
    pub words: String,
}

/// A failure with words of its own.
pub fn failure(code: c_int, words: impl Into<String>) -> Failure {
    Failure { code, words: words.into() }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let code = match &error {
            Error::Misuse { rule, .. } => of_rule(*rule),
            Error::Conflict { conflict, .. } => of_conflict(conflict),
            Error::Argument { argument, .. } | Error::Team(argument) => of_argument(argument),
            Error::Refused { refusal, .. } => of_refusal(refusal),
            Error::Lost { .. } | Error::TeamLost { .. } => ERR_PEER,
            Error::Disagree { .. } => ERR_DISAGREE,
            Error::Closed => ERR_INIT,
            Error::Room(_) => ERR_NO_MEM,
            Error::NotShared { .. } => ERR_RMA_SHARED,
            _ => ERR_OTHER,
        };
        Failure { code, words: error.to_string() }
    }
}

impl From<TypeError> for Failure {
    fn from(error: TypeError) -> Failure {
        let code = match error {
            TypeError::Subarray { .. } => ERR_ARG,
            _ => ERR_TYPE,
        };
        failure(code, format!("no datatype can be made of this: {error}"))
    }
}

fn of_rule(rule: Rule) -> c_int {
    match rule {
        Rule::Freed => ERR_WIN,
        Rule::NoRank { .. } | Rule::NamedTwice(_) => ERR_RANK,
        Rule::Assertion(_) => ERR_ASSERT,
        _ => ERR_RMA_SYNC,
    }
}

fn of_conflict(conflict: &Conflict) -> c_int {
    match conflict {
        Conflict::Succeeds(_) | Conflict::WritesHere(_) => ERR_ASSERT,
        Conflict::Free { .. } => ERR_RMA_SYNC,
        _ => ERR_RMA_CONFLICT,
    }
}

fn of_argument(argument: &BadArgument) -> c_int {
    match argument {
        BadArgument::Elements
        | BadArgument::Overlap
        | BadArgument::NotOne
        | BadArgument::NotComparable(_) => ERR_TYPE,
        BadArgument::Operator { .. } => ERR_OP,
        BadArgument::Displacement(_) | BadArgument::Unit | BadArgument::DynamicUnit(_) => ERR_DISP,
        BadArgument::Lengths { .. } | BadArgument::ResultLengths { .. } => ERR_COUNT,
        BadArgument::Eager { .. } => ERR_INFO,
        BadArgument::Exchange { .. } => ERR_SIZE,
        BadArgument::Counters { .. } => ERR_INFO,
        BadArgument::Counter { .. } => ERR_ARG,
        BadArgument::NotShared => ERR_RMA_SHARED,
        BadArgument::Attached { .. }
        | BadArgument::NotAttached(_)
        | BadArgument::Regions { .. } => ERR_RMA_ATTACH,
        BadArgument::NotDynamic => ERR_RMA_FLAVOR,
        BadArgument::NoRank { .. } => ERR_RANK,
        _ => ERR_ARG,
    }
}

fn of_refusal(refusal: &Refusal) -> c_int {
    match refusal {
        Refusal::Bounds { .. } | Refusal::Unattached { .. } | Refusal::Window { .. } => {
            ERR_RMA_RANGE
        }
        Refusal::Type { .. } => ERR_TYPE,
        Refusal::Operator { .. } => ERR_OP,
        Refusal::Room { .. } => ERR_NO_MEM,
        Refusal::OwnerDied => ERR_OWNER_DIED,
        _ => ERR_OTHER,
    }
}

thread_local! {
    /// What this thread's last call that failed said.
    static LAST: RefCell<CString> = RefCell::default();
}

/// The code of a call's answer. Its words are kept for the thread.
pub fn code(answer: Result<(), Failure>) -> c_int {
    let Err(Failure { code, words }) = answer else { return SUCCESS };
    let words = words.replace('\0', " ");
    let words = CString::new(words).unwrap_or_default();
    // A thread that is ending has lost the place, and its words.
    let _ = LAST.try_with(|last| last.replace(words));
    code
}

/// The words of this thread's last failure; empty where there was none.
pub fn last() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_number_and_words_of_its_own() {
        for (at, (name, code)) in ALL.iter().enumerate() {
            assert_eq!(*code as usize, at, "{name}: codes have no gaps");
            let same = ALL.iter().filter(|(_, other)| words(*other) == words(*code));
            assert_eq!(same.count(), 1, "{name}");
        }
        assert_eq!(words(-1), words(ALL.len() as c_int));
    }

    #[test]
    fn words_of_a_failure_stay_with_the_thread() {
        let said = || {
            // SAFETY: a text that lives until the thread's next failure.
            unsafe { CStr::from_ptr(last()) }.to_str().unwrap().to_string()
        };
        assert_eq!(code(Err(failure(ERR_ARG, "one\0two"))), ERR_ARG);
        assert_eq!(code(Ok(())), SUCCESS);
        assert_eq!(said(), "one two");
        std::thread::spawn(move || assert_eq!(said(), "")).join().unwrap();
    }
}
