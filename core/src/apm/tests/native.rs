//! Devices that migrate by themselves, and devices that refuse.

use std::collections::VecDeque;

use super::*;
use crate::apm::cause::{ArmCause, MoveCause};
use crate::apm::native::{NativeEvent, NativeRefusal, WithDevice};

/// InfiniBand's mechanism as far as a user sees it, or a RoCE device without it.
#[derive(Debug)]
struct FakeDevice {
    refusal: Option<NativeRefusal>,
    state: MigrationState,
    events: VecDeque<NativeEvent>,
    calls: Vec<&'static str>,
}

impl FakeDevice {
    fn able() -> FakeDevice {
        FakeDevice {
            refusal: None,
            state: MigrationState::Migrated,
            events: VecDeque::new(),
            calls: Vec::new(),
        }
    }

    fn roce() -> FakeDevice {
        FakeDevice { refusal: Some(NativeRefusal::Unsupported), ..FakeDevice::able() }
    }

    fn answer(&mut self, call: &'static str) -> Result<(), NativeRefusal> {
        self.calls.push(call);
        self.refusal.map_or(Ok(()), Err)
    }
}

impl NativeMigration for FakeDevice {
    fn specify(&mut self, path: &PathRecord) -> Result<(), NativeRefusal> {
        assert_eq!(path.id, SECOND);
        self.answer("specify")
    }

    fn load(&mut self) -> Result<(), NativeRefusal> {
        self.answer("load")?;
        self.state = MigrationState::Rearm;
        Ok(())
    }

    fn migrate(&mut self) -> Result<(), NativeRefusal> {
        self.answer("migrate")?;
        self.state = MigrationState::Migrated;
        self.events.push_back(NativeEvent::Migrated);
        Ok(())
    }

    fn query(&mut self) -> MigrationState {
        self.state
    }

    fn next_event(&mut self) -> Option<NativeEvent> {
        self.events.pop_front()
    }
}

fn loading(device: FakeDevice) -> WithDevice<FakeDevice> {
    let mut both = WithDevice::new(device, connected(Side::Higher, &[FIRST, SECOND]));
    both.request(Request::Specify(Wanted::default()), By::Event);
    both.request(Request::Load, By::Event);
    both
}

fn armed() -> WithDevice<FakeDevice> {
    let mut both = loading(FakeDevice::able());
    both.device().state = MigrationState::Armed;
    both.poll_device();
    assert_eq!(both.machine().state(), MigrationState::Armed);
    outputs(both.machine());
    both
}

#[test]
fn a_device_loads_and_migrates_without_a_message() {
    let mut both = loading(FakeDevice::able());
    assert!(both.is_native());
    let did = outputs(both.machine());
    assert_eq!(messages(&did), []);
    assert!(!did.iter().any(|output| matches!(output, Output::Prove { .. })));
    both.poll_device();
    assert_eq!(both.machine().state(), MigrationState::Rearm, "the device is not done");
    both.device().state = MigrationState::Armed;
    both.poll_device();
    let told = notices(&outputs(both.machine()));
    assert_eq!(told.first(), Some(&What::Armed { path: SECOND }));
    both.request(Request::Migrate, By::Event);
    both.poll_device();
    let did = outputs(both.machine());
    assert_eq!(messages(&did), []);
    let cause = MoveCause::Manual;
    let migrated = What::Migrated { from: FIRST, to: SECOND, cause, counter: 1 };
    assert_eq!(notices(&did).first(), Some(&migrated));
    assert_eq!(both.machine().roles().primary(), Some(SECOND));
    assert_eq!(both.device().calls, ["specify", "load", "migrate"]);
}

#[test]
fn a_devices_own_migration_is_followed_and_the_same_on_both_sides() {
    let mut both = armed();
    both.device().events.push_back(NativeEvent::Migrated);
    both.poll_device();
    assert_eq!(both.machine().state(), MigrationState::Migrated);
    assert_eq!(both.machine().roles().primary(), Some(SECOND));
    assert_eq!(both.machine().roles().alternate(), Some(FIRST));
    let followed = both.machine().newest();
    let mut other = armed();
    other.request(Request::Migrate, By::Event);
    assert_eq!(
        other.machine().newest(),
        followed,
        "by hand on one side, by the device on the other"
    );
}

#[test]
fn a_refusal_leads_to_our_migration() {
    let mut both = loading(FakeDevice::roce());
    assert!(!both.is_native());
    assert_eq!(both.device().calls, ["specify"], "a device that refused is not asked to load");
    assert_eq!(messages(&outputs(both.machine())).len(), 2, "LOAD on both paths");
    prove(both.machine());
    assert_eq!(both.machine().state(), MigrationState::Armed);
    outputs(both.machine());
    both.request(Request::Migrate, By::Event);
    assert_eq!(messages(&outputs(both.machine())).len(), 1);
    assert_eq!(both.machine().roles().primary(), Some(SECOND));
    assert_eq!(both.device().calls, ["specify"]);
}

#[test]
fn a_device_that_takes_the_path_and_refuses_the_load_leads_to_ours_too() {
    let mut both = WithDevice::new(FakeDevice::able(), connected(Side::Higher, &[FIRST, SECOND]));
    both.request(Request::Specify(Wanted::default()), By::Event);
    both.device().refusal = Some(NativeRefusal::Invalid);
    both.request(Request::Load, By::Event);
    assert!(!both.is_native());
    assert_eq!(messages(&outputs(both.machine())).len(), 2);
}

#[test]
fn a_device_that_fails_later_is_replaced_by_our_migration() {
    for at_migrate in [true, false] {
        let mut both = armed();
        match at_migrate {
            true => {
                both.device().refusal = Some(NativeRefusal::Invalid);
                let ticket = both.request(Request::Migrate, By::Poll);
                let refused = Some(Outcome::Refused(Rule::NotArmed));
                assert_eq!(both.machine().poll(ticket), refused);
            }
            false => {
                both.device().events.push_back(NativeEvent::Failed);
                both.poll_device();
            }
        }
        assert_eq!(both.machine().state(), MigrationState::Migrated);
        let did = outputs(both.machine());
        assert_eq!(messages(&did), []);
        let cause = ArmCause::StandbyBad;
        assert!(notices(&did).contains(&What::ArmFailed { path: SECOND, cause }));
        both.request(Request::Load, By::Event);
        assert!(!both.is_native());
        assert_eq!(messages(&outputs(both.machine())).len(), 2);
    }
}
