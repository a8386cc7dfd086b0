//! The programs that configure networks.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Error, Result};

/// A program that this crate starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tool {
    /// Interfaces, addresses, routes and namespaces.
    Ip,
    /// Queue disciplines.
    Tc,
    /// Rules that drop frames.
    Nft,
    /// Starts a program in a namespace.
    Nsenter,
}

impl Tool {
    /// All of them.
    pub const ALL: [Tool; 4] = [Tool::Ip, Tool::Tc, Tool::Nft, Tool::Nsenter];

    /// The program's name.
    pub fn program(self) -> &'static str {
        match self {
            Tool::Ip => "ip",
            Tool::Tc => "tc",
            Tool::Nft => "nft",
            Tool::Nsenter => "nsenter",
        }
    }

    /// The Debian package that has it.
    pub fn package(self) -> &'static str {
        match self {
            Tool::Ip | Tool::Tc => "iproute2",
            Tool::Nft => "nftables",
            Tool::Nsenter => "util-linux",
        }
    }

    /// The place of the program. Fails with [`Error::Missing`].
    pub fn find(self) -> Result<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        // Programs of the administrator are not on everyone's path.
        std::env::split_paths(&path)
            .chain(["/usr/sbin", "/sbin"].map(|folder| Path::new(folder).to_path_buf()))
            .map(|folder| folder.join(self.program()))
            .find(|file| file.is_file())
            .ok_or(Error::Missing { program: self.program(), package: self.package() })
    }

    /// The program, which reads commands from its standard input.
    pub(crate) fn batch(self) -> Result<Command> {
        let mut command = Command::new(self.find()?);
        command.args(if self == Tool::Nft { ["-f", "-"] } else { ["-batch", "-"] });
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        Ok(command)
    }
}

/// Runs `ip` where this process is, and returns what it prints.
pub(crate) fn ip(arguments: &[&str]) -> Result<std::result::Result<String, String>> {
    let output = Command::new(Tool::Ip.find()?)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Error::system("cannot run ip", error))?;
    let text = |bytes| String::from_utf8_lossy(bytes).trim().to_string();
    Ok(if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) })
}
