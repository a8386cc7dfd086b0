//! The machine's messages as frames.
//!
//! Rules have numbers there that never change: new ones follow at the end.

use ropewalk_wire::frame::{
    Body, LoadAnswerBody, LoadBody, MigrateBody, PATHS_ALTERNATE, PATHS_ARMING, PATHS_DRAINED,
    PATHS_MIGRATED, PATHS_RAISED, PATHS_REPLACES, WithdrawBody,
};

use super::load::ArmingId;
use super::message::{Drain, Message};
use super::migrate::Move;
use super::path::{PathId, Side};
use super::state::Rule;

/// By number, from 1 on.
const RULES: [Rule; 23] = [
    Rule::NoConnection,
    Rule::NotYet,
    Rule::NoPath,
    Rule::NotSending,
    Rule::Loading,
    Rule::Loaded,
    Rule::NotArmed,
    Rule::NotLoading,
    Rule::NoAlternate,
    Rule::AlternateFailed,
    Rule::LastPath,
    Rule::NoSpare,
    Rule::NotDrained,
    Rule::Stale,
    Rule::Crossed,
    Rule::UnknownPath,
    Rule::IsPrimary,
    Rule::IsDrained,
    Rule::SameFailureDomain,
    Rule::NoRoute,
    Rule::Mtu,
    Rule::Family,
    Rule::WeightRange,
];

impl Side {
    /// Its number in a frame.
    pub(crate) fn to_wire(self) -> u8 {
        u8::from(self == Side::Higher)
    }

    fn from_wire(number: u8) -> Option<Side> {
        match number {
            0 => Some(Side::Lower),
            1 => Some(Side::Higher),
            _ => None,
        }
    }
}

impl ArmingId {
    /// The arming that a frame names.
    pub(crate) fn from_wire(by: u8, number: u32) -> Option<ArmingId> {
        Some(ArmingId { by: Side::from_wire(by)?, number })
    }
}

impl Message {
    pub(crate) fn to_body(self) -> Body {
        match self {
            Message::Load { arming, path, newest, replaces } => {
                let alternate = newest.and_then(|newest| newest.alternate);
                let flags = flag(newest.is_some(), PATHS_MIGRATED)
                    | flag(alternate.is_some(), PATHS_ALTERNATE)
                    | flag(replaces, PATHS_REPLACES);
                Body::Load(LoadBody {
                    arming: arming.number.into(),
                    path: path.0.into(),
                    counter: newest.map_or(0, |newest| newest.counter).into(),
                    primary: newest.map_or(0, |newest| newest.primary.0).into(),
                    alternate: alternate.map_or(0, |path| path.0).into(),
                    arming_by: arming.by.to_wire(),
                    decided_by: newest.map_or(0, |newest| newest.by.to_wire()),
                    flags,
                    reserved: 0,
                })
            }
            Message::Loaded { arming } => answer(arming, 0),
            Message::Refused { arming, rule } => {
                let number = RULES.iter().position(|other| *other == rule);
                answer(arming, number.map_or(u8::MAX, |at| at as u8 + 1))
            }
            Message::Migrate(migration) => Body::Migrate(MigrateBody {
                counter: migration.counter.into(),
                primary: migration.primary.0.into(),
                alternate: migration.alternate.map_or(0, |path| path.0).into(),
                decided_by: migration.by.to_wire(),
                flags: flag(migration.alternate.is_some(), PATHS_ALTERNATE),
                reserved: 0.into(),
            }),
            Message::Withdraw { arming, drain } => {
                let is_raised = drain.is_some_and(|drain| !drain.is_drained);
                Body::Withdraw(WithdrawBody {
                    arming: arming.map_or(0, |arming| arming.number).into(),
                    path: drain.map_or(0, |drain| drain.path.0).into(),
                    arming_by: arming.map_or(0, |arming| arming.by.to_wire()),
                    flags: flag(arming.is_some(), PATHS_ARMING)
                        | flag(drain.is_some() && !is_raised, PATHS_DRAINED)
                        | flag(is_raised, PATHS_RAISED),
                    order: drain.map_or(0, |drain| drain.order).into(),
                })
            }
        }
    }

    /// `None` if a frame says what no machine does.
    pub(crate) fn of_load(body: &LoadBody) -> Option<Message> {
        let arming = ArmingId::from_wire(body.arming_by, body.arming.get())?;
        let migrated = body.flags & PATHS_MIGRATED != 0;
        let newest = Move {
            counter: body.counter.get(),
            by: Side::from_wire(body.decided_by)?,
            primary: PathId(body.primary.get()),
            alternate: alternate(body.flags, body.alternate.get()),
        };
        let newest = migrated.then_some(newest);
        let replaces = body.flags & PATHS_REPLACES != 0;
        Some(Message::Load { arming, path: PathId(body.path.get()), newest, replaces })
    }

    /// As [`Message::of_load`]. A number of a rule that is not known refuses, too.
    pub(crate) fn of_answer(body: &LoadAnswerBody) -> Option<Message> {
        let arming = ArmingId::from_wire(body.arming_by, body.arming.get())?;
        let rule = |number: u8| RULES.get(usize::from(number) - 1).copied();
        Some(match body.refused {
            0 => Message::Loaded { arming },
            number => Message::Refused { arming, rule: rule(number).unwrap_or(Rule::NotYet) },
        })
    }

    /// As [`Message::of_load`].
    pub(crate) fn of_migrate(body: &MigrateBody) -> Option<Message> {
        Some(Message::Migrate(Move {
            counter: body.counter.get(),
            by: Side::from_wire(body.decided_by)?,
            primary: PathId(body.primary.get()),
            alternate: alternate(body.flags, body.alternate.get()),
        }))
    }

    /// As [`Message::of_load`].
    pub(crate) fn of_withdraw(body: &WithdrawBody) -> Option<Message> {
        let arming = ArmingId::from_wire(body.arming_by, body.arming.get())?;
        let has = |flag: u8| body.flags & flag != 0;
        let is_drained = has(PATHS_DRAINED);
        let (path, order) = (PathId(body.path.get()), body.order.get());
        let drain = Drain { path, is_drained, order };
        Some(Message::Withdraw {
            arming: has(PATHS_ARMING).then_some(arming),
            drain: (is_drained || has(PATHS_RAISED)).then_some(drain),
        })
    }
}

fn answer(arming: ArmingId, refused: u8) -> Body {
    Body::LoadAnswer(LoadAnswerBody {
        arming: arming.number.into(),
        arming_by: arming.by.to_wire(),
        refused,
        reserved: 0.into(),
    })
}

fn flag(is_set: bool, flag: u8) -> u8 {
    if is_set { flag } else { 0 }
}

fn alternate(flags: u8, name: u32) -> Option<PathId> {
    (flags & PATHS_ALTERNATE != 0).then_some(PathId(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn back(body: &Body) -> Option<Message> {
        match body {
            Body::Load(body) => Message::of_load(body),
            Body::LoadAnswer(body) => Message::of_answer(body),
            Body::Migrate(body) => Message::of_migrate(body),
            Body::Withdraw(body) => Message::of_withdraw(body),
            other => panic!("{other:?} is no message about paths"),
        }
    }

    #[test]
    fn a_message_comes_back_from_its_frame_and_a_frame_of_no_side_is_none() {
        let arming = ArmingId { by: Side::Higher, number: 7 };
        let path = PathId(4);
        let alone = Move { counter: 9, by: Side::Lower, primary: path, alternate: None };
        let with = Move { alternate: Some(PathId(0)), by: Side::Higher, ..alone };
        let refused = RULES.map(|rule| Message::Refused { arming, rule });
        let drained = Drain { path, is_drained: true, order: 0xfffe };
        let others = [
            Message::Load { arming, path, newest: None, replaces: false },
            Message::Load { arming, path, newest: Some(alone), replaces: true },
            Message::Load { arming, path, newest: Some(with), replaces: false },
            Message::Loaded { arming },
            Message::Migrate(alone),
            Message::Migrate(with),
            Message::Withdraw { arming: Some(arming), drain: None },
            Message::Withdraw { arming: None, drain: Some(drained) },
            Message::Withdraw { arming: Some(arming), drain: Some(drained) },
            Message::Withdraw { arming: None, drain: Some(Drain { is_drained: false, ..drained }) },
        ];
        for message in refused.into_iter().chain(others) {
            let body = message.to_body();
            assert_eq!(back(&body), Some(message));
            let bad = match body {
                Body::Load(body) => Body::Load(LoadBody { arming_by: 2, ..body }),
                Body::LoadAnswer(body) => {
                    Body::LoadAnswer(LoadAnswerBody { arming_by: 255, ..body })
                }
                Body::Migrate(body) => Body::Migrate(MigrateBody { decided_by: 2, ..body }),
                Body::Withdraw(body) => Body::Withdraw(WithdrawBody { arming_by: 9, ..body }),
                other => other,
            };
            assert_eq!(back(&bad), None);
        }
        let unknown =
            LoadAnswerBody { arming: 7.into(), arming_by: 1, refused: 200, reserved: 0.into() };
        let refusal = Message::Refused { arming, rule: Rule::NotYet };
        assert_eq!(Message::of_answer(&unknown), Some(refusal));
    }
}
