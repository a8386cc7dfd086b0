//! `ropewalk.toml(5)` and `mount.ropewalk(8)`.

use super::roff::Page;
use crate::commands::mount::{DEFAULTS, FSTAB};
use crate::commands::mount_helper::{FLAGS, SYNOPSIS};
use crate::commands::mount_options::OPTIONS;
use crate::config::keys::{ABOUT, SECTIONS, described};

/// `ropewalk.toml(5)`.
pub fn config(date: &str) -> String {
    let mut page = Page::new("ropewalk.toml", 5, date, "configuration of a Ropewalk cluster");
    page.section("DESCRIPTION");
    page.text(ABOUT);
    page.text("The form of the file is TOML. Times are numbers of seconds, such as 3 or 0.5.");
    page.section("KEYS");
    for section in SECTIONS {
        match section.header {
            "" => page.part("Before the first section"),
            header => page.part(header),
        }
        page.text(section.about);
        for key in section.keys {
            page.term(&format!("{} = {}", key.name, key.form.word()), &described(key));
        }
    }
    page.section("FILES");
    page.term("/etc/ropewalk/ropewalk.toml", "The file that the systemd units use.");
    page.section("EXAMPLES");
    page.text("Two data servers on the disks of one host:");
    page.text(EXAMPLE);
    page.see_also(&["ropewalk(1)", "mount.ropewalk(8)"]);
    page.finish()
}

const EXAMPLE: &str = "  directory = \"/var/lib/ropewalk\"
  [[data]]
  server = 0
  directory = \"/disk0/ropewalk\"
  [[data]]
  server = 1
  directory = \"/disk1/ropewalk\"";

/// `mount.ropewalk(8)`.
pub fn helper(date: &str) -> String {
    let mut page = Page::new("mount.ropewalk", 8, date, "mount a Ropewalk cluster");
    page.section("SYNOPSIS");
    let lines: Vec<String> = SYNOPSIS.iter().map(|line| format!("  {line}")).collect();
    page.text(&lines.join("\n"));
    page.section("DESCRIPTION");
    page.text(
        "mount(8) calls this program for the type ropewalk. It returns when the cluster is mounted, \
         and serves the mount in the background until it is unmounted. It is the program ropewalk \
         under another name; 'ropewalk mount' does the same.\n\
         ADDRESS is the metadata server's address, as 'ropewalk up' or 'ropewalk serve' printed it.",
    );
    page.section("OPTIONS");
    for (flag, about) in FLAGS {
        page.term(flag, about);
    }
    page.part("Mount options");
    for option in OPTIONS {
        let value = if option.value.is_empty() { "" } else { "=" };
        page.term(&format!("{}{value}{}", option.name, option.value), option.about);
    }
    page.text(DEFAULTS);
    page.text("Options for mount(8) itself, such as _netdev, nofail and x-systemd.automount, are accepted.");
    page.section("EXAMPLES");
    page.text("A line of /etc/fstab:");
    page.text(&format!("  {FSTAB}"));
    page.text("The same without a line there:");
    page.text("  mount -t ropewalk -o ro,noexec tcp://node1:7700 /mnt");
    page.section("NOTES");
    page.text(
        "The log of a mount by systemd goes to the journal: 'journalctl -u mnt.mount' shows that of \
         /mnt. If the process of a mount was killed, the next mount of the directory replaces it.",
    );
    page.see_also(&["ropewalk(1)", "ropewalk.toml(5)", "mount(8)", "fstab(5)", "systemd.mount(5)"]);
    page.finish()
}
