//! The names that are there after all, as a session sees them that remembers nothing.

use std::collections::BTreeSet;

use anyhow::Context;
use ropewalk_client::Errno;

use crate::order::Order;
use crate::survive::names::name_of;
use crate::work_library::{Session, failed};

/// The names that are there, compared with those that have to be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Names that were looked for.
    pub names: u64,
    /// Those that are missing, and those that nobody made, or that were removed.
    pub lost: u64,
    pub extra: u64,
    /// One of either.
    pub example: String,
}

impl Found {
    /// Compares the names of a folder with those that this number of creates leaves.
    fn compare(&mut self, folder: &str, creates: u64, there: &BTreeSet<String>) {
        let wanted: BTreeSet<String> = (0..creates).filter_map(name_of).collect();
        self.names += wanted.len() as u64;
        self.lost += wanted.difference(there).count() as u64;
        self.extra += there.difference(&wanted).count() as u64;
        if let Some(name) =
            wanted.symmetric_difference(there).next().filter(|_| self.example.is_empty())
        {
            self.example = format!("{folder}/{name}");
        }
    }

    fn encode(&self) -> String {
        let Found { names, lost, extra, example } = self;
        format!("checked {names} {lost} {extra} {example}")
    }

    /// Takes the answer of a process apart.
    pub fn decode(answer: &str) -> Option<Found> {
        let mut words = answer.strip_prefix("checked ")?.split(' ');
        let mut number = || words.next()?.parse().ok();
        let (names, lost, extra) = (number()?, number()?, number()?);
        Some(Found { names, lost, extra, example: words.next()?.to_string() })
    }
}

/// The order to look at these folders, each with the number of its creates.
pub fn order(address: &str, folders: &[(String, u64)]) -> Order {
    let texts: Vec<String> =
        folders.iter().map(|(path, count)| format!("{path}={count}")).collect();
    Order::new("survive check").with("address", address).with("folders", texts.join(","))
}

/// Looks at all folders of an order, and says what it found.
pub fn check(session: &Session, order: &Order) -> anyhow::Result<()> {
    let mut found = Found::default();
    for text in order.text("folders")?.split(',') {
        let (folder, count) = text.split_once('=').context("a folder has a count")?;
        let names = session.reactor.block_on(list(session, &format!("{folder}/f")));
        let names = match names {
            Err(Errno::ENOENT) => BTreeSet::new(),
            names => names.map_err(|errno| failed("list what is there", errno))?,
        };
        found.compare(folder, count.parse()?, &names);
    }
    println!("{}", found.encode());
    Ok(())
}

/// The names of a directory, each of which stands for an inode that is there.
async fn list(session: &Session, path: &str) -> Result<BTreeSet<String>, Errno> {
    let Session { client, caller, .. } = session;
    let directory = client.resolve(caller, path.as_bytes(), true).await?.inode;
    let (mut names, mut cookie) = (BTreeSet::new(), 0);
    loop {
        let (entries, is_end) = client.read_directory(caller, directory, cookie, true).await?;
        cookie = entries.last().map_or(cookie, |last| last.cookie);
        let is_there = |entry: &ropewalk_client::Listed| {
            entry.attributes.is_none_or(|attributes| attributes.link_count == 1)
        };
        let there = entries.iter().filter(|entry| is_there(entry));
        names.extend(there.map(|entry| String::from_utf8_lossy(&entry.name).into_owned()));
        if is_end {
            return Ok(names);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_name_and_one_too_many_are_found() {
        let all = || (0..8).filter_map(name_of).collect::<BTreeSet<String>>();
        let mut found = Found::default();
        found.compare("/a", 8, &all());
        assert_eq!(found, Found { names: 7, ..Found::default() });
        let mut names = all();
        names.remove("f6");
        names.insert("f1".into());
        found.compare("/b", 8, &names);
        assert_eq!((found.names, found.lost, found.extra), (14, 1, 1));
        assert_eq!(found.example, "/b/f1");
        assert_eq!(Found::decode(&found.encode()), Some(found));
        assert_eq!(Found::decode(&Found::default().encode()), Some(Found::default()));
        assert_eq!(Found::decode("checked 1"), None);
    }
}
