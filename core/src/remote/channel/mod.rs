//! The one-sided channel: operations on the peer's memory have numbers, and the peer tells up to which one all are applied.
//!
//! * [`pieces`]: the operations that a put is made of; [`issued`]: ours, until the peer has told of them;
//! * [`updates`]: elements leave, and their values before come back; [`whole`]: where they lie;
//! * [`taken`]: the peer's, over their [`numbers`]; [`puts`]: their bytes arrive; [`jobs`]: elements arrive and are
//!   combined, tokens wait for what they follow; [`answers`]: what elements were;
//! * [`immediates`]: puts with immediate data, on both sides;
//! * [`layouts`]: datatypes of strided puts, gets and updates, known by numbers;
//! * [`marks`]: what is applied is told, and heard.
//!
//! The frames of operations are frames of the session, which brings each of them once: as spans, or over a link that loses
//! nothing. So numbers name operations and say what is applied, and nothing is sent again for lack of them. Reads have
//! none, and neither has what a rail writes by itself: the peer's core never hears of it.
//!
//! Invariant: numbers have no gap. An origin that gives an operation up before all its frames were made says so
//! ([`GiveUpBody`]).
//!
//! [`GiveUpBody`]: ropewalk_wire::frame::GiveUpBody

mod answers;
mod immediates;
mod issued;
mod jobs;
mod layouts;
mod marks;
mod numbers;
mod pieces;
mod puts;
mod taken;
mod updates;
mod whole;

pub use jobs::Task;
pub(crate) use jobs::{Jobs, Stored, UpdateFrame};
pub(crate) use marks::Marks;
pub(crate) use numbers::NUMBERS_MAX;
pub(crate) use pieces::Pieces;
pub(crate) use puts::{PutFrame, PutStream};
pub(crate) use taken::{Held, TOKENS_MAX};

use std::collections::VecDeque;

use ropewalk_base::verb::Strided;

use crate::api::OperationId;

use answers::Answer;
use issued::Issued;
use layouts::{Learned, Taught};
use taken::Taken;
use updates::Updates;

/// A session's operations with numbers, once there was one.
#[derive(Debug, Default)]
pub(crate) struct OneSided {
    pub issued: Issued,
    pub taken: Taken,
    /// Of which frames are still to be made.
    pub updates: Updates,
    /// Layouts of datatypes: ours at the peer, and those of the peer.
    pub taught: Taught,
    pub learned: Learned,
    /// Where elements of the peer's go that are on their way here, by the numbers of their operations.
    pub strided: Vec<(u64, Strided)>,
    /// Puts of ours with immediate data, in the order of their posts, until the data leaves.
    pub immediates: VecDeque<OperationId>,
    /// Of the peer's updates: they leave as soon as there is a path.
    pub answers: VecDeque<Answer>,
    /// Locks that we have or want of the peer, and requests of the peer for locks of ours.
    pub locks: u32,
    pub lent_locks: u32,
    /// Requests of the peer whose ends came before they did.
    pub locks_ended: VecDeque<u64>,
}
