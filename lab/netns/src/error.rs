//! What goes wrong when a network is built or a fault is injected.

use std::io;

/// See the [crate's documentation](crate).
pub type Result<T> = std::result::Result<T, Error>;

/// Why a network cannot be built, or a fault cannot be injected or mended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This process may not make network namespaces.
    #[error(
        "network namespaces cannot be made ({said}): run as root with the capabilities CAP_SYS_ADMIN \
         and CAP_NET_ADMIN (in a container, start it with --privileged)"
    )]
    NotAllowed { said: String },
    /// A program is not installed.
    #[error("the program {program} is missing: install the Debian package {package}")]
    Missing { program: &'static str, package: &'static str },
    /// A program refused a command; the kernel may lack the feature.
    #[error("{program} refused '{line}' in the namespace {namespace}: {said}")]
    Refused { program: &'static str, line: String, namespace: String, said: String },
    /// A system call failed.
    #[error("{what}: {source}")]
    System { what: String, source: io::Error },
    /// No such network can be built.
    #[error("such a network cannot be built: {0}")]
    Config(String),
    /// A host or a rail that the network does not have.
    #[error("the network has no rail {rail} at host {host}")]
    NoCable { host: usize, rail: usize },
    /// The fault cannot occur in this network.
    #[error("{fault} cannot be injected: {why}")]
    Unsuited { fault: String, why: &'static str },
    /// Another fault at the same place excludes this one.
    #[error("rail {rail} of host {host} has another fault that excludes this one: mend that first")]
    Busy { host: usize, rail: usize },
}

impl Error {
    /// Whether this machine lacks a right or a program, so that a test has to be skipped.
    pub fn is_lack(&self) -> bool {
        matches!(self, Error::NotAllowed { .. } | Error::Missing { .. })
    }

    pub(crate) fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::System { what: what.into(), source: source.into() }
    }
}
