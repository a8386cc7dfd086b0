//! Notices of this library to people: once, where it goes on without something that was wanted.
//!
//! Invariant: a program that has a log gives its function before it opens an endpoint; else notices go to standard error.

use std::sync::OnceLock;

/// Takes a notice.
pub type Sink = fn(&str);

static SINK: OnceLock<Sink> = OnceLock::new();

/// Gives all notices of this process to `sink`; the first one counts.
pub fn give_to(sink: Sink) {
    SINK.get_or_init(|| sink);
}

/// Tells people.
#[cold]
pub fn tell(text: &str) {
    match SINK.get() {
        Some(sink) => sink(text),
        None => eprintln!("ropewalk: {text}"),
    }
}
