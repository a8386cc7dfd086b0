//! Options of a mount, as mount(8) has them: words with commas between, the later ones over the earlier.
//!
//! Invariants: a word that is not known is an error, unless whoever passes it on said that some may not
//! be ours (`-s` of mount helpers); programs run as others, and devices, only where root asks for it.

use std::time::Duration;

use anyhow::bail;
use ropewalk_mount::MountOptions;

use super::seconds;

/// Words that are for mount(8) and for whoever reads /etc/fstab; it passes some of them on.
const OF_FSTAB: [&str; 14] = [
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "_netdev",
    "nofail",
    "async",
    "loud",
    "silent",
    "nodiratime",
];
/// Words that ask for something that is so in any case.
const ALWAYS: [&str; 2] = ["default_permissions", "noiversion"];
/// Options that the kernel adds to a mount of ours. Without a line in /etc/fstab mount(8) hands them back at a
/// remount.
const OF_KERNEL: [&str; 5] = ["user_id", "group_id", "rootmode", "max_read", "blksize"];

/// An option of a mount, as its users read of it.
pub struct MountOption {
    pub name: &'static str,
    /// The word for its value; empty where it has none.
    pub value: &'static str,
    pub about: &'static str,
}

const fn option(name: &'static str, value: &'static str, about: &'static str) -> MountOption {
    MountOption { name, value, about }
}

/// All options of a mount: for help, manual page, errors and the parser, which takes no other.
pub const OPTIONS: &[MountOption] = &[
    option("ro", "", "Refuse all changes. Such a mount cannot be remounted rw."),
    option("rw", "", "Allow changes (the default)."),
    option("suid", "", "Honour set-user-ID and set-group-ID bits. Only root can use it."),
    option("nosuid", "", "Ignore set-user-ID and set-group-ID bits."),
    option("dev", "", "Let device nodes work. Only root can use it."),
    option("nodev", "", "Let device nodes have no effect."),
    option("exec", "", "Let programs run (the default)."),
    option("noexec", "", "Let no program on the mount run."),
    option("noatime", "", "Never change access times (always on)."),
    option("allow_other", "", "Let other users use a mount of a plain user."),
    option("remount", "", "Change the options of the mount that is there."),
    option(
        "patience",
        "SECONDS",
        "Let an operation wait this long for a server that does not \
        answer, then fail with EIO [default: 60].",
    ),
    option(
        "log",
        "FILE",
        "Write the log of the mount to this file [default: the journal under \
        systemd, else a new file in $TMPDIR].",
    ),
    option(
        "keyfile",
        "FILE",
        "Prove to servers who this node is by the keys of this file \
        [default: $ROPEWALK_KEY_FILE, or that of the config file].",
    ),
];

/// The names of all options, with their values.
pub fn known() -> String {
    let mut names = Vec::new();
    for option in OPTIONS {
        let value = if option.value.is_empty() { "" } else { "=" };
        names.push(format!("{}{value}{}", option.name, option.value));
    }
    names.join(", ")
}

/// The mount options that the words ask for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wishes {
    pub read_only: Option<bool>,
    pub nosuid: Option<bool>,
    pub nodev: Option<bool>,
    pub noexec: Option<bool>,
    pub allow_other: bool,
    pub remount: bool,
    pub patience: Option<Duration>,
    pub log: Option<String>,
    pub key_file: Option<String>,
}

impl Wishes {
    /// Takes lists of words. `sloppy`: words that are not known are passed over.
    pub fn parse<'a>(lists: impl Iterator<Item = &'a str>, sloppy: bool) -> anyhow::Result<Wishes> {
        let mut wishes = Wishes::default();
        let mut of_kernel = None;
        for word in lists.flat_map(|list| list.split(',')).filter(|word| !word.is_empty()) {
            let name = word.split_once('=').map(|(name, _)| name);
            if name.is_some_and(|name| OF_KERNEL.contains(&name)) {
                of_kernel = Some(word);
            } else {
                wishes.take(word, sloppy)?;
            }
        }
        match of_kernel.filter(|_| !wishes.remount && !sloppy) {
            Some(word) => bail!(unknown(word)),
            None => Ok(wishes),
        }
    }

    /// Completes what mount(8) handed to its helper: it drops `suid`, `dev` and `exec`, since they are what
    /// it takes for granted. Only root gets the first two.
    pub fn completed(self, root: bool) -> Wishes {
        let granted = |wish: Option<bool>| wish.or(root.then_some(false));
        Wishes {
            nosuid: granted(self.nosuid),
            nodev: granted(self.nodev),
            noexec: self.noexec.or(Some(false)),
            ..self
        }
    }

    fn take(&mut self, word: &str, sloppy: bool) -> anyhow::Result<()> {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        if !OPTIONS.iter().any(|option| option.name == name) {
            return of_others(word, name, sloppy);
        }
        match (name, value) {
            ("ro", None) => self.read_only = Some(true),
            ("rw", None) => self.read_only = Some(false),
            ("suid", None) => self.nosuid = Some(false),
            ("nosuid", None) => self.nosuid = Some(true),
            ("dev", None) => self.nodev = Some(false),
            ("nodev", None) => self.nodev = Some(true),
            ("exec", None) => self.noexec = Some(false),
            ("noexec", None) => self.noexec = Some(true),
            ("noatime", None) => {}
            ("allow_other", None) => self.allow_other = true,
            ("remount", None) => self.remount = true,
            ("patience", Some(value)) => match seconds(value) {
                Ok(patience) => self.patience = Some(patience),
                Err(cause) => bail!("mount option '{word}': {cause}"),
            },
            ("log", Some(value)) if !value.is_empty() => self.log = Some(value.to_string()),
            ("keyfile", Some(value)) if !value.is_empty() => {
                self.key_file = Some(value.to_string());
            }
            ("patience" | "log" | "keyfile", _) => {
                bail!("mount option '{name}' needs a value: write {name}=VALUE")
            }
            _ if sloppy => {}
            _ => bail!(unknown(word)),
        }
        Ok(())
    }

    /// The options of a new mount. `root`: the user that mounts may let programs run as others.
    pub fn options(&self, root: bool) -> anyhow::Result<MountOptions> {
        for (word, wish) in [("suid", self.nosuid), ("dev", self.nodev)] {
            if wish == Some(false) && !root {
                bail!(
                    "only root can use the mount option '{word}': on the mount of another user \
                     set-user-ID programs and device nodes have no effect"
                );
            }
        }
        let usual = MountOptions::default();
        let allow_other = match self.allow_other {
            true => ropewalk_mount::session::AllowOther::Yes,
            false => usual.allow_other,
        };
        Ok(MountOptions {
            read_only: self.read_only.unwrap_or(usual.read_only),
            nosuid: self.nosuid.unwrap_or(usual.nosuid),
            nodev: self.nodev.unwrap_or(usual.nodev),
            noexec: self.noexec.unwrap_or(usual.noexec),
            allow_other,
            ..usual
        })
    }
}

/// A word that is none of ours: passed over, or refused.
fn of_others(word: &str, name: &str, sloppy: bool) -> anyhow::Result<()> {
    match name {
        "atime" | "relatime" | "strictatime" | "lazytime" | "diratime" if name == word => bail!(
            "mount option '{name}' is not supported, since reading never changes access times \
             (noatime): leave it out"
        ),
        _ if OF_FSTAB.contains(&name) || ALWAYS.contains(&word) => Ok(()),
        _ if name.starts_with("x-") || name.starts_with("X-") || name == "comment" => Ok(()),
        _ if sloppy => Ok(()),
        _ => bail!(unknown(word)),
    }
}

fn unknown(word: &str) -> String {
    format!("unknown mount option '{word}'; the known options are {}", known())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wishes(text: &str) -> anyhow::Result<Wishes> {
        Wishes::parse(std::iter::once(text), false)
    }

    #[test]
    fn words_mean_what_they_mean_to_mount_and_the_later_one_counts() {
        let plain = wishes("").unwrap().options(true).unwrap();
        assert_eq!(plain, MountOptions::default());
        assert!(plain.nosuid && plain.nodev && plain.noatime && !plain.noexec);
        let all = wishes("ro,suid,dev,noatime,noexec,allow_other").unwrap().options(true).unwrap();
        assert!(all.read_only && !all.nosuid && !all.nodev && all.noexec);
        let later = wishes("ro,noexec,suid,rw,exec,nosuid").unwrap().options(false).unwrap();
        assert_eq!(later, MountOptions::default());
        let timed =
            wishes("patience=2.5,log=/var/log/x,_netdev,nofail,x-systemd.automount").unwrap();
        assert_eq!(timed.patience, Some(Duration::from_millis(2500)));
        assert_eq!(timed.key_file, None);
        assert_eq!(wishes("keyfile=/k,ro").unwrap().key_file, Some("/k".to_string()));
        assert_eq!(timed.log.as_deref(), Some("/var/log/x"));
    }

    #[test]
    fn what_mount_drops_for_its_helper_is_taken_for_granted() {
        let mount = |text: &str, root| wishes(text).unwrap().completed(root).options(root).unwrap();
        let (open, user) = (mount("rw", true), mount("rw", false));
        assert!(!open.nosuid && !open.nodev && !open.noexec);
        assert!(user.nosuid && user.nodev && !user.noexec);
        let closed = mount("rw,nosuid,nodev,noexec", true);
        assert!(closed.nosuid && closed.nodev && closed.noexec);
        let again = "remount,ro,user_id=0,group_id=0,default_permissions,allow_other";
        assert_eq!(wishes(again).unwrap().read_only, Some(true));
        assert!(wishes("user_id=0").unwrap_err().to_string().contains("mount option 'user_id=0'"));
    }

    #[test]
    fn every_option_that_is_described_is_taken() {
        for option in OPTIONS {
            let value = if option.value.is_empty() { "" } else { "=7" };
            let word = format!("{}{value}", option.name);
            assert!(wishes(&word).is_ok(), "{word}");
            assert!(option.about.ends_with('.'), "{}", option.about);
        }
    }

    #[test]
    fn what_cannot_be_is_said() {
        let said = |text: &str| wishes(text).unwrap_err().to_string();
        assert!(said("ro,sudi").contains("'sudi'; the known options are ro, rw, suid"));
        assert!(said("relatime").contains("'relatime' is not supported"));
        assert!(said("patience").contains("needs a value"));
        assert!(said("keyfile").contains("needs a value"));
        assert!(said("patience=soon").contains("'soon' is not a number of seconds"));
        assert!(said("ro=1").contains("unknown mount option 'ro=1'"));
        assert!(Wishes::parse(["sudi"].into_iter(), true).is_ok());
        for word in ["suid", "dev"] {
            let refused = wishes(word).unwrap().options(false).unwrap_err().to_string();
            assert!(
                refused.contains(&format!("only root can use the mount option '{word}'")),
                "{refused}"
            );
        }
    }
}
