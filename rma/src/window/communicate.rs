//! Operations of a window: put, get, and the accumulates, each also with a request.

use std::sync::Arc;

use ropewalk_base::memory::{Element, Operator, Update};

use super::{Inner, Window};
use crate::epochs::{Call, Rule};
use crate::error::{BadArgument, Error};
use crate::operation::{Destination, Operation, Source, Target, Verb};
use crate::ticket::Ticket;
use crate::types::{Class, Datatype};

/// Addresses in a window are at most so far from its begin.
const FAR: i128 = 1 << 56;

/// An operation that may be waited for alone. It has to be, or its epoch has to end: dropping it forgets it.
///
/// When it is done, the origin's memory may be used again, and results are here; the target may not have the data yet.
pub struct Request {
    window: Arc<Inner>,
    ticket: Arc<Ticket>,
    rank: Option<u32>,
    /// Its number in the checking mode.
    checked: Option<u64>,
}

impl Request {
    /// Whether it is done. Makes progress, and does not wait.
    ///
    /// # Errors
    /// The target refused the operation, or is lost; told once.
    pub fn test(&self) -> Result<bool, Error> {
        if let Some(rank) = self.rank.filter(|_| !self.ticket.is_done()) {
            self.window.way.push(rank)?;
        }
        if !self.ticket.is_done() {
            return Ok(false);
        }
        self.tell();
        self.ticket.take_error().map_or(Ok(true), Err)
    }

    /// Waits until it is done.
    ///
    /// # Errors
    /// As [`Self::test`].
    pub fn wait(self) -> Result<(), Error> {
        // One that is done needs no window, which may have been freed.
        if let Some(rank) = self.rank.filter(|_| !self.ticket.is_done()) {
            self.window.way.wait_for(rank, &self.ticket)?;
        }
        self.tell();
        self.ticket.take_error().map_or(Ok(()), Err)
    }
}

impl Request {
    /// Tells the checking mode that it is done.
    fn tell(&self) {
        if let Some(number) = self.checked {
            self.window.checked(|checks| checks.complete_one(number));
        }
    }
}

/// How the caller learns of the end: at the synchronisation, or by a request as well.
type Asked<'a> = Option<&'a Arc<Ticket>>;
/// The number of an operation in the checking mode.
type Checked = Option<u64>;

impl Window {
    /// Copies data to a target.
    ///
    /// # Errors
    /// There is no epoch for the rank; both sides have not as many bytes; or data lie outside of their memory here. What
    /// lies outside of the target's window is told at the next synchronisation that waits for the target, at the latest by the
    /// free: a complete does not wait.
    pub fn put(&self, source: Source<'_>, target: Target<'_>) -> Result<(), Error> {
        self.inner.put(source, target, None).map(drop)
    }

    /// Copies data of a target to here.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn get(&self, destination: Destination<'_>, target: Target<'_>) -> Result<(), Error> {
        self.inner.get(destination, target, None).map(drop)
    }

    /// Combines each element of a target with one of the origin, atomically.
    ///
    /// # Errors
    /// As [`Self::put`]; or the types are not of one predefined type, for which the operator is defined; or elements of the
    /// target overlap.
    pub fn accumulate(
        &self,
        source: Source<'_>,
        target: Target<'_>,
        operator: Operator,
    ) -> Result<(), Error> {
        self.inner.update(Some(source), None, target, operator, None).map(drop)
    }

    /// The same; what the elements were before comes to here. `Operator::Nothing` needs no source, and reads atomically.
    ///
    /// # Errors
    /// As [`Self::accumulate`].
    pub fn get_accumulate(
        &self,
        source: Option<Source<'_>>,
        destination: Destination<'_>,
        target: Target<'_>,
        operator: Operator,
    ) -> Result<(), Error> {
        self.inner.update(source, Some(destination), target, operator, None).map(drop)
    }

    /// The same for one element of a predefined type.
    ///
    /// # Errors
    /// As [`Self::accumulate`], or it is not one.
    pub fn fetch_and_op(
        &self,
        source: Option<Source<'_>>,
        destination: Destination<'_>,
        target: Target<'_>,
        operator: Operator,
    ) -> Result<(), Error> {
        if target.rank.is_some() {
            self.inner.argument(target.single())?;
        }
        self.inner.update(source, Some(destination), target, operator, None).map(drop)
    }

    /// Sets one element of a predefined type to `desired` if it equals `expected`. What it was comes to here. Both are bytes
    /// of this machine's order, as many as the element has.
    ///
    /// # Errors
    /// As [`Self::fetch_and_op`], or elements of this type cannot be compared.
    pub fn compare_and_swap(
        &self,
        expected: &[u8],
        desired: &[u8],
        destination: Destination<'_>,
        target: Target<'_>,
    ) -> Result<(), Error> {
        self.inner.swap(expected, desired, destination, target).map(drop)
    }

    /// A put with a request. Within lock epochs only, as all of these.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn rput(&self, source: Source<'_>, target: Target<'_>) -> Result<Request, Error> {
        self.request(&target, |ticket| self.inner.put(source, target, ticket))
    }

    /// A get with a request.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn rget(&self, destination: Destination<'_>, target: Target<'_>) -> Result<Request, Error> {
        self.request(&target, |ticket| self.inner.get(destination, target, ticket))
    }

    /// An accumulate with a request.
    ///
    /// # Errors
    /// As [`Self::accumulate`].
    pub fn raccumulate(
        &self,
        source: Source<'_>,
        target: Target<'_>,
        operator: Operator,
    ) -> Result<Request, Error> {
        self.request(&target, |ticket| {
            self.inner.update(Some(source), None, target, operator, ticket)
        })
    }

    /// A get_accumulate with a request.
    ///
    /// # Errors
    /// As [`Self::get_accumulate`].
    pub fn rget_accumulate(
        &self,
        source: Option<Source<'_>>,
        destination: Destination<'_>,
        target: Target<'_>,
        operator: Operator,
    ) -> Result<Request, Error> {
        self.request(&target, |ticket| {
            self.inner.update(source, Some(destination), target, operator, ticket)
        })
    }

    fn request(
        &self,
        target: &Target<'_>,
        issue: impl FnOnce(Asked<'_>) -> Result<Checked, Error>,
    ) -> Result<Request, Error> {
        let judged = self.inner.epochs()?.passive(Call::Request, target.rank);
        self.inner.rule(judged)?;
        let ticket = Arc::new(Ticket::new());
        let checked = issue(Some(&ticket))?;
        ticket.end();
        Ok(Request { window: self.inner.clone(), ticket, rank: target.rank, checked })
    }
}

impl Inner {
    fn put(
        &self,
        source: Source<'_>,
        target: Target<'_>,
        asked: Asked<'_>,
    ) -> Result<Checked, Error> {
        self.check_put(&source, &target)?;
        self.operate(&target, Verb::Put(source), asked)
    }

    pub(super) fn check_put(&self, source: &Source<'_>, target: &Target<'_>) -> Result<(), Error> {
        if target.rank.is_some() {
            let (origin, target) = (source.data_bytes(), target.data_bytes());
            let lengths = if origin == target {
                source.check()
            } else {
                Err(BadArgument::Lengths { origin, target })
            };
            self.argument(lengths)?;
        }
        Ok(())
    }

    fn get(
        &self,
        destination: Destination<'_>,
        target: Target<'_>,
        asked: Asked<'_>,
    ) -> Result<Checked, Error> {
        if target.rank.is_some() {
            self.argument(check_result(&destination, &target))?;
        }
        self.operate(&target, Verb::Get(destination), asked)
    }

    fn update(
        &self,
        source: Option<Source<'_>>,
        result: Option<Destination<'_>>,
        target: Target<'_>,
        operator: Operator,
        asked: Asked<'_>,
    ) -> Result<Checked, Error> {
        let judged = judge_update(source.as_ref(), result.as_ref(), &target, operator);
        let judged = if target.rank.is_some() { self.argument(judged)? } else { None };
        let Some((element, update)) = judged else { return self.nothing(&target).map(|()| None) };
        let source = source.unwrap_or(Source::slice(&[], 0, target.datatype));
        self.operate(&target, Verb::Update { update, element, source, result }, asked)
    }

    fn swap(
        &self,
        expected: &[u8],
        desired: &[u8],
        result: Destination<'_>,
        target: Target<'_>,
    ) -> Result<Checked, Error> {
        if target.rank.is_none() {
            return self.nothing(&target).map(|()| None);
        }
        let element = self.argument(judge_swap(expected, desired, &result, &target))?;
        let word = |bytes: &[u8]| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            word
        };
        let (expected, desired) = (word(expected), word(desired));
        self.operate(&target, Verb::Swap { element, expected, desired, result }, None)
    }

    /// An operation without data, or on nobody: it needs an epoch, and does nothing.
    fn nothing(&self, target: &Target<'_>) -> Result<(), Error> {
        let judged = self.epochs()?.operate(target.rank);
        self.rule(judged)
    }

    fn operate(
        &self,
        target: &Target<'_>,
        verb: Verb<'_>,
        asked: Asked<'_>,
    ) -> Result<Checked, Error> {
        let Some(operation) = self.judge(target, verb)? else { return Ok(None) };
        let checked = self.check(&operation)?;
        self.way.operate(&operation, asked).map(|()| checked)
    }

    /// Asks the checking mode about an operation.
    pub(super) fn check(&self, operation: &Operation<'_>) -> Result<Checked, Error> {
        let checked = self.checked(|checks| checks.operate(operation)).transpose();
        checked.map_err(|conflict| self.conflict(conflict))
    }

    /// The operation, if it moves data and its target is a rank.
    pub(super) fn judge<'a>(
        &self,
        target: &Target<'a>,
        verb: Verb<'a>,
    ) -> Result<Option<Operation<'a>>, Error> {
        let Target { displacement, count, datatype, .. } = *target;
        let Some(rank) = target.rank.filter(|_| target.data_bytes() > 0) else {
            return self.nothing(target).map(|()| None);
        };
        // A rank that does not exist is refused by the epochs.
        let unit = self.remotes.get(rank as usize).map_or(1, |(_, unit)| *unit);
        let address = i128::from(displacement) * i128::from(unit);
        let address = match address <= FAR {
            true => address as i64,
            false => return self.argument(Err(BadArgument::Displacement(displacement))),
        };
        let operation = Operation { verb, rank, address, count, datatype };
        let judged = self.epochs()?.operate(target.rank);
        if let Err(Rule::NoAccess(_)) = judged
            && let Some(conflict) = self.checked(|checks| checks.succeeds(&operation)).flatten()
        {
            return Err(self.conflict(conflict));
        }
        self.rule(judged)?;
        Ok(Some(operation))
    }
}

fn check_result(result: &Destination<'_>, target: &Target<'_>) -> Result<(), BadArgument> {
    let (result_bytes, target_bytes) = (result.data_bytes(), target.data_bytes());
    if result_bytes != target_bytes {
        return Err(BadArgument::ResultLengths { result: result_bytes, target: target_bytes });
    }
    result.check()
}

/// The element and the update of an accumulate; `None`: it has no data.
fn judge_update(
    source: Option<&Source<'_>>,
    result: Option<&Destination<'_>>,
    target: &Target<'_>,
    operator: Operator,
) -> Result<Option<(Element, Update)>, BadArgument> {
    if let Some(result) = result {
        check_result(result, target)?;
    }
    let is_read = operator == Operator::Nothing;
    match source {
        Some(_) if is_read => {}
        Some(source) => {
            let (origin, target) = (source.data_bytes(), target.data_bytes());
            if origin != target {
                return Err(BadArgument::Lengths { origin, target });
            }
            source.check()?;
        }
        None if is_read => {}
        None => return Err(BadArgument::NoSource(operator)),
    }
    if target.data_bytes() == 0 {
        return Ok(None);
    }
    let Class::One(element) = target.datatype.class() else { return Err(BadArgument::Elements) };
    let is_same = |datatype: &Datatype| datatype.class() == Class::One(element);
    let sources = source.filter(|_| !is_read).is_none_or(|it| is_same(it.datatype));
    if !sources || !result.is_none_or(|it| is_same(it.datatype)) {
        return Err(BadArgument::Elements);
    }
    let update = Update::new(element, operator);
    let update = update.ok_or(BadArgument::Operator { element, operator })?;
    if target.datatype.padded().may_overlap(target.count) {
        return Err(BadArgument::Overlap);
    }
    Ok(Some((element, update)))
}

fn judge_swap(
    expected: &[u8],
    desired: &[u8],
    result: &Destination<'_>,
    target: &Target<'_>,
) -> Result<Element, BadArgument> {
    let element = target.single()?;
    if !element.is_comparable() {
        return Err(BadArgument::NotComparable(element));
    }
    check_result(result, target)?;
    if result.datatype.class() != Class::One(element) {
        return Err(BadArgument::Elements);
    }
    let bytes = element.shape().extent;
    let is_one = expected.len() == bytes && desired.len() == bytes;
    if is_one { Ok(element) } else { Err(BadArgument::NotOne) }
}
