//! Exports, for those who say which clients may do what.

use ropewalk_wire::fs::encode;
use ropewalk_wire::fs::exports::{ExportOrder, ExportTerms};
use ropewalk_wire::fs::meta::{MetaReply, MetaRequest};
use ropewalk_wire::fs::value::Bytes;

use super::{Operator, OperatorError};

/// Bytes of a page of exports.
const PAGE_BYTES: u32 = 64 * 1024;

/// An export that the cluster has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownExport {
    pub number: u32,
    /// The inode of its root, and a path of it; empty where it has none any more.
    pub inode: u64,
    pub root: Vec<u8>,
    /// Sessions that have it.
    pub sessions: u32,
    pub terms: ExportTerms,
}

impl Operator {
    /// Makes an export, or changes the terms of the one with this name. `root`: the path of its directory; empty to keep
    /// that of an export that is there.
    pub async fn set_export(&self, terms: &ExportTerms, root: &[u8]) -> Result<(), OperatorError> {
        let mut bytes = Vec::new();
        encode(terms, &mut bytes);
        self.change_exports(ExportOrder::Set { terms: Bytes(&bytes), root: Bytes(root) }).await
    }

    /// Takes an export away. Its sessions end. `opens`: also the last export, after which every client has everything.
    pub async fn remove_export(&self, name: &str, opens: bool) -> Result<(), OperatorError> {
        self.change_exports(ExportOrder::Remove { name: Bytes(name.as_bytes()), opens }).await
    }

    async fn change_exports(&self, order: ExportOrder<'_>) -> Result<(), OperatorError> {
        self.ask_meta(&MetaRequest::Export(order), |reply, _| match reply {
            MetaReply::Done => Some(()),
            _ => None,
        })
        .await
    }

    /// All exports, by number.
    pub async fn exports(&self) -> Result<Vec<KnownExport>, OperatorError> {
        let (mut exports, mut from) = (Vec::<KnownExport>::new(), 0);
        loop {
            let order = ExportOrder::List { from, bytes_max: PAGE_BYTES };
            let request = MetaRequest::Export(order);
            let page = self.ask_meta(&request, |reply, _| match reply {
                MetaReply::Exports { exports, end } => {
                    let known = exports.into_iter().map(|it| KnownExport {
                        number: it.number,
                        inode: it.inode,
                        root: it.root.0.to_vec(),
                        sessions: it.sessions,
                        terms: it.terms,
                    });
                    Some((known.collect::<Vec<_>>(), end))
                }
                _ => None,
            });
            let (page, end) = page.await?;
            exports.extend(page);
            match exports.last().and_then(|last| last.number.checked_add(1)) {
                Some(next) if !end => from = next,
                _ => return Ok(exports),
            }
        }
    }
}
