//! A descriptor of more nodes than may travel, as several ones of fewer.
//!
//! Its data are those of the sections, one after the other, turn by turn.

use std::sync::Arc;

use super::shape::Node;
use super::{Descriptor, Malformed, NODES_MAX};

/// A part of the data of a descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Section {
    /// Neighbours, of no more nodes together than may travel.
    Part(Arc<Descriptor>),
    /// A loop around more nodes than that.
    Loop {
        /// From where the loop's own address counts.
        offset: i64,
        count: u64,
        stride: i64,
        /// The sections of one turn.
        turn: Vec<Section>,
    },
}

impl Descriptor {
    /// Whether it may travel as it is. Of another one the sections travel.
    pub fn may_travel(&self) -> bool {
        self.shape.nodes().len() <= NODES_MAX
    }

    /// The data of one instance, in sections that may travel.
    pub fn sections(&self) -> Vec<Section> {
        cut(self.shape.nodes()).expect("parts of a descriptor are descriptors")
    }
}

fn cut(nodes: &[Node]) -> Result<Vec<Section>, Malformed> {
    let mut sections = Vec::new();
    let mut begin = 0;
    let tell = |sections: &mut Vec<Section>, part: &[Node]| -> Result<(), Malformed> {
        if !part.is_empty() {
            sections.push(Section::Part(Arc::new(Descriptor::made(part, None)?)));
        }
        Ok(())
    };
    let mut at = 0;
    while at < nodes.len() {
        let after = nodes[at].after(at);
        if after - begin > NODES_MAX {
            tell(&mut sections, &nodes[begin..at])?;
            begin = at;
        }
        if let Node::Loop { offset, count, stride, .. } = nodes[at]
            && after - at > NODES_MAX
        {
            let turn = cut(&nodes[at + 1..after])?;
            sections.push(Section::Loop { offset, count, stride, turn });
            begin = after;
        }
        at = after;
    }
    tell(&mut sections, &nodes[begin..])?;
    Ok(sections)
}
