//! Where ranks run.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use thiserror::Error;

/// A place for some ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// This host, as the launcher is there.
    Here,
    /// A network namespace of this host: a name of `ip netns`, the number of a process in it, or a path.
    Namespace(String),
    /// Another host, by its name for the remote shell.
    Host(String),
}

/// Why a place cannot be used.
#[derive(Debug, Error)]
pub enum PlaceError {
    #[error(
        "'{0}' is no network namespace: give a name that 'ip netns list' shows, a process number, or a path"
    )]
    Unknown(String),
    #[error("cannot enter network namespace '{name}': {error}; this needs root, or CAP_SYS_ADMIN")]
    Closed { name: String, error: std::io::Error },
    #[error("'{0}' is no name of a host")]
    Host(String),
}

impl Place {
    /// What begins an agent there: the launcher's program with these words.
    pub(crate) fn command(
        &self,
        program: &Path,
        words: &[&str],
        shell: &[String],
    ) -> Result<Command, PlaceError> {
        let Place::Host(name) = self else {
            let mut command = Command::new(program);
            command.args(words);
            return Ok(command);
        };
        // A host that looked like an option would be one.
        if name.is_empty() || name.starts_with('-') || name.contains(char::is_whitespace) {
            return Err(PlaceError::Host(name.clone()));
        }
        let mut command = Command::new(&shell[0]);
        command.args(&shell[1..]).arg(name);
        // The shell there reads a line.
        let mut line = quoted(&program.to_string_lossy());
        words.iter().for_each(|word| line.extend([" ", word]));
        command.arg(line);
        Ok(command)
    }
}

/// One word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Enters a network namespace with this thread, and with what it starts from now on.
pub(crate) fn enter(name: &str) -> Result<(), PlaceError> {
    let path = match name.parse::<u32>() {
        Ok(process) => PathBuf::from(format!("/proc/{process}/ns/net")),
        Err(_) if name.contains('/') => PathBuf::from(name),
        Err(_) => Path::new("/run/netns").join(name),
    };
    let file = std::fs::File::open(&path).map_err(|_| PlaceError::Unknown(name.to_string()))?;
    let kind = Some(LinkNameSpaceType::Network);
    move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), kind)
        .map_err(|error| PlaceError::Closed { name: name.to_string(), error: error.into() })
}

/// The place of each of so many ranks: neighbours share one.
pub(crate) fn of_ranks(places: usize, ranks: u32) -> Vec<usize> {
    (0..ranks).map(|rank| rank as usize * places / ranks as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_share_a_place_and_no_place_has_two_more_than_another() {
        assert_eq!(of_ranks(1, 3), [0, 0, 0]);
        assert_eq!(of_ranks(2, 4), [0, 0, 1, 1]);
        assert_eq!(of_ranks(3, 4), [0, 0, 1, 2]);
        assert_eq!(of_ranks(4, 2), [0, 2]);
    }

    #[test]
    fn a_host_is_no_option_and_a_program_is_one_word() {
        let shell = ["ssh".to_string(), "-T".to_string()];
        let command = |name: &str| {
            Place::Host(name.to_string()).command(
                Path::new("/a b/it's"),
                &["run", "--agent"],
                &shell,
            )
        };
        assert!(matches!(command("-oProxyCommand=x"), Err(PlaceError::Host(_))));
        let command = command("node1").unwrap();
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        assert_eq!(words, ["-T", "node1", r"'/a b/it'\''s' run --agent"]);
    }

    #[test]
    fn a_namespace_that_is_not_there_is_told_by_its_name() {
        let error = enter("surely-not-there").unwrap_err().to_string();
        assert!(error.contains("'surely-not-there'"), "{error}");
    }
}
