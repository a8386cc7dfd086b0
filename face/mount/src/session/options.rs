//! The options of a mount.

use rustix::mount::MountFlags;

use super::MountError;

/// The other users that may use the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowOther {
    /// All users, if this user may decide so (root may; others may if /etc/fuse.conf says `user_allow_other`);
    /// else only the user who mounts.
    WherePermitted,
    Yes,
    /// Only the user who mounts; not even root.
    No,
}

/// The method of mounting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// By system call where allowed, else by the helper.
    Any,
    SystemCall,
    Helper,
}

/// Options of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// The name in the first column of `df`.
    pub name: String,
    /// The type is `fuse.` and this.
    pub subtype: String,
    pub allow_other: AllowOther,
    /// The kernel checks permissions, by the attributes that it has.
    ///
    /// On by default, since the kernel alone knows all of a caller's rights (supplementary groups,
    /// capabilities, ids of its name space) and asks nobody: without it every step of every path
    /// is either a request or unchecked. Its attributes are as good as the lease behind them.
    pub default_permissions: bool,
    pub read_only: bool,
    /// Set-uid bits have no effect.
    pub nosuid: bool,
    /// Device files have no effect.
    pub nodev: bool,
    pub noexec: bool,
    /// Reading does not change the time of access. On by default, and so shown by /proc/mounts: what
    /// the kernel reads from its page cache it tells nobody, and what it does ask for would cost a
    /// change of metadata for each file that is read.
    pub noatime: bool,
    /// Most bytes of one READ, if fewer are wanted than of a WRITE.
    pub max_read_bytes: Option<u32>,
    /// Mount over files that will be hidden.
    pub hide_files: bool,
    pub method: Method,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            name: "ropewalk".into(),
            subtype: "ropewalk".into(),
            allow_other: AllowOther::WherePermitted,
            default_permissions: true,
            read_only: false,
            nosuid: true,
            nodev: true,
            noexec: false,
            noatime: true,
            max_read_bytes: None,
            hide_files: false,
            method: Method::Any,
        }
    }
}

impl MountOptions {
    pub(super) fn flags(&self) -> MountFlags {
        let bits = [
            (self.read_only, MountFlags::RDONLY),
            (self.nosuid, MountFlags::NOSUID),
            (self.nodev, MountFlags::NODEV),
            (self.noexec, MountFlags::NOEXEC),
            (self.noatime, MountFlags::NOATIME),
        ];
        bits.iter().filter(|(on, _)| *on).fold(MountFlags::empty(), |all, (_, bit)| all | *bit)
    }

    pub(super) fn kind(&self) -> Result<String, MountError> {
        let plain = self.subtype.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        if !plain {
            return Err(MountError::BadOption(self.subtype.clone()));
        }
        Ok(if self.subtype.is_empty() { "fuse".into() } else { format!("fuse.{}", self.subtype) })
    }

    /// The options that the kernel itself reads.
    pub(super) fn kernel_data(&self, device: i32, mode: u32, uid: u32, gid: u32) -> String {
        let mut data = format!("fd={device},rootmode={mode:o},user_id={uid},group_id={gid}");
        if self.default_permissions {
            data.push_str(",default_permissions");
        }
        if self.others_allowed() {
            data.push_str(",allow_other");
        }
        if let Some(bytes) = self.max_read_bytes {
            data.push_str(&format!(",max_read={bytes}"));
        }
        data
    }

    /// The options for the helper, which makes the kernel's from them.
    pub(super) fn helper_data(&self) -> Result<String, MountError> {
        self.kind()?;
        if self.name.contains(['\0', '\n']) {
            return Err(MountError::BadOption(self.name.clone()));
        }
        let name = self.name.replace('\\', "\\\\").replace(',', "\\,");
        let mut data = format!("fsname={name}");
        if !self.subtype.is_empty() {
            data.push_str(&format!(",subtype={}", self.subtype));
        }
        let words = [
            (true, if self.read_only { "ro" } else { "rw" }),
            // The helper sets nosuid and nodev for plain users in any case.
            (self.nosuid, "nosuid"),
            (self.nodev, "nodev"),
            (self.noexec, "noexec"),
            (self.noatime, "noatime"),
            (self.default_permissions, "default_permissions"),
            (self.others_allowed(), "allow_other"),
        ];
        for (_, word) in words.iter().filter(|(on, _)| *on) {
            data.push(',');
            data.push_str(word);
        }
        if let Some(bytes) = self.max_read_bytes {
            data.push_str(&format!(",max_read={bytes}"));
        }
        Ok(data)
    }

    fn others_allowed(&self) -> bool {
        match self.allow_other {
            AllowOther::Yes => true,
            AllowOther::No => false,
            AllowOther::WherePermitted => {
                rustix::process::geteuid().is_root() || others_permitted_to_users()
            }
        }
    }
}

fn others_permitted_to_users() -> bool {
    let text = std::fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    text.lines().any(|line| line.trim() == "user_allow_other")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_passed_on_in_both_languages() {
        let options = MountOptions {
            name: "a,b\\c".into(),
            allow_other: AllowOther::Yes,
            read_only: true,
            max_read_bytes: Some(65536),
            ..MountOptions::default()
        };
        assert_eq!(
            options.kernel_data(5, 0o40755, 3, 4),
            "fd=5,rootmode=40755,user_id=3,group_id=4,default_permissions,allow_other,max_read=65536"
        );
        assert_eq!(
            options.helper_data().unwrap(),
            "fsname=a\\,b\\\\c,subtype=ropewalk,ro,nosuid,nodev,noatime,default_permissions,allow_other,\
             max_read=65536"
        );
        let bad = MountOptions { subtype: "x,suid".into(), ..MountOptions::default() };
        assert!(bad.helper_data().is_err() && bad.kind().is_err());
    }
}
