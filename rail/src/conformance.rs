//! The conformance suite: one set of tests that every [`Rail`] must pass for the capabilities that it claims.
//!
//! A rail's tests write a [`Fixture`] and one line:
//!
//! ```ignore
//! ropewalk_rail::conformance!(over_loopback, LoopbackFixture::new());
//! ```
//!
//! which makes a module with one `#[test]` for each property; [`run_all`] runs the same properties
//! in a row. Properties of native access run where the capabilities claim it, and those of
//! descriptors where there is one.
//!
//! Invariants:
//! * a property panics with its name, the wait it gave up and the last events of each side;
//! * the [`recorder::Recorder`] checks the standing promises of [`Report`](crate::Report) in every
//!   property: one outcome for each pending order, none after `link_down`, nothing after the last
//!   word about a link, no reference to a buffer after its outcome (it is overwritten at once);
//! * the suite reads no clock of its own: all waiting goes through the fixture, so that rails in
//!   virtual time are judged by the same code.
//!
//! It must not know any medium: everything that cannot be expressed through [`Rail`] is asked of the fixture.

use std::time::Duration;

use ropewalk_base::time::Time;

use crate::Rail;

pub mod frames;
pub mod letting_go;
pub mod links;
pub mod native;
pub mod order;
pub mod recorder;
pub mod scene;
pub mod waiting;

/// Makes the rails under test and plays their surroundings.
pub trait Fixture {
    /// A fresh rail that peers can reach; not attached yet. All rails of one fixture reach each other.
    fn rail(&mut self) -> Box<dyn Rail>;

    /// An address of the right form behind which nobody answers.
    fn nowhere(&mut self) -> String;

    /// Now, on the clock that the rails are polled with.
    fn now(&self) -> Time;

    /// Lets time pass between two rounds of polling: virtual time has to advance here, real time
    /// may yield the processor. `busy` tells whether any rail made progress in the last round.
    fn step(&mut self, busy: bool) {
        let _ = busy;
    }

    /// The address under which the others reach `rail`.
    fn address(&mut self, rail: &dyn Rail) -> String {
        rail.addresses().into_iter().next().expect("a rail of a fixture can be reached")
    }

    /// Ends a rail as the death of its process would: no farewell. False where the medium cannot
    /// show that to peers; the properties about death are left out then.
    fn kill(&mut self, rail: Box<dyn Rail>) -> bool {
        drop(rail);
        true
    }

    /// Puts bytes that no rail of ours would send on the medium, addressed to `address`. False
    /// where nobody else can write to the medium.
    fn garbage(&mut self, address: &str, bytes: &[u8]) -> bool {
        let _ = (address, bytes);
        false
    }

    /// Whether bytes may go more than once, since frames overtake each other on their way.
    fn repeats(&self) -> bool {
        false
    }

    /// The time limit for any wait of a test, on the fixture's clock.
    fn patience(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// The time for which the suite watches that nothing happens, on the fixture's clock.
    fn quiet(&self) -> Duration {
        Duration::from_millis(20)
    }

    /// Whether a native access goes on only while the target's rail is polled, too. True for rails
    /// whose medium cannot reach the target's memory, so that their own code on the other side does
    /// it; neither the layers above nor the application are asked for help in either case.
    fn native_needs_target_polls(&self) -> bool {
        false
    }

    /// Whether a sleeper may be woken once without work of its own, to check whether an awake neighbour looks at the
    /// medium that they share.
    fn wakes_for_neighbours(&self) -> bool {
        false
    }

    /// Whether a long payload may be seen that has arrived in part.
    fn payloads_arrive_in_parts(&self) -> bool {
        true
    }

    /// Data frames that may lie before an urgent one although their outcome was not reported yet: one
    /// that is under way, and those that a ring holds by reference.
    fn data_frames_ahead(&self) -> usize {
        1
    }
}

/// A property: runs to its end or panics.
pub type Property = fn(&mut dyn Fixture);

/// Names every property once: calls `$callback!` with `$argument` and the list of module and name.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_property {
    ([$($callback:tt)+] $argument:expr) => {
        $($callback)+! { $argument;
            links::connect_and_accept_report_up_on_both_sides,
            links::connect_to_nobody_reports_unreachable,
            links::a_new_link_never_has_an_old_name,
            links::orders_on_a_dead_link_are_refused,
            links::close_flushes_then_both_sides_go_down,
            links::peer_death_fails_pending_orders_and_downs_once,
            links::a_violation_closes_the_link_and_harms_no_other,
            links::links_are_served_in_turn,
            links::garbage_on_the_medium_harms_nobody,
            links::health_tells_what_was_delivered,
            links::an_abandoned_link_ends_at_once_and_harms_no_other,
            frames::frames_of_every_size_arrive_both_ways,
            frames::headers_of_every_length_arrive_whole,
            frames::payloads_scatter_and_gather_over_many_segments,
            frames::a_part_of_a_memory_is_sent_and_no_byte_more,
            frames::a_short_placement_drops_the_rest,
            frames::dropped_payloads_leave_the_link_in_step,
            frames::counters_move_with_the_traffic,
            frames::an_illegal_frame_is_refused,
            order::urgent_frames_overtake_bulk,
            order::thousands_of_frames_queue_and_arrive,
            order::mixed_traffic_arrives_intact_in_order,
            order::frames_that_follow_each_other_arrive_like_others,
            waiting::an_arrival_wakes_an_armed_rail,
            waiting::work_before_arming_is_not_lost,
            waiting::an_idle_rail_sleeps,
            waiting::queued_frames_go_out_in_sleep,
            waiting::what_is_ordered_in_sleep_wakes,
            native::reads_fetch_what_the_region_holds,
            native::writes_land_in_the_region,
            native::lists_gather_and_scatter,
            native::wrong_keys_and_ranges_are_refused,
            native::read_only_regions_refuse_writes,
            native::revoked_regions_are_out_of_reach,
            native::regions_are_revoked_while_their_link_closes,
            letting_go::detached_frames_arrive_as_they_were_ordered,
            letting_go::forgotten_frames_arrive_whole_or_not_at_all,
            letting_go::detached_frames_go_with_their_link,
            letting_go::a_place_is_given_up_while_its_payload_arrives,
            letting_go::a_read_that_was_stopped_never_lands,
            letting_go::what_a_rail_does_not_hold_is_refused,
        }
    };
}

/// The list of all properties, for [`for_each_property`].
#[doc(hidden)]
#[macro_export]
macro_rules! property_list {
    ($argument:expr; $($module:ident :: $name:ident,)+) => {
        &[$((stringify!($name), $module::$name as Property)),+]
    };
}

/// One test for each property, for [`for_each_property`].
#[doc(hidden)]
#[macro_export]
macro_rules! property_tests {
    ($fixture:expr; $($module:ident :: $name:ident,)+) => {
        $(
            #[test]
            fn $name() {
                $crate::conformance::$module::$name(&mut $fixture);
            }
        )+
    };
}

/// Makes a module with one `#[test]` for each property of the suite: name of the module, and an
/// expression that makes a fresh [`Fixture`].
#[macro_export]
macro_rules! conformance {
    ($module:ident, $fixture:expr) => {
        mod $module {
            use super::*;
            $crate::for_each_property! { [$crate::property_tests] $fixture }
        }
    };
}

/// All properties with their names.
pub const ALL: &[(&str, Property)] = for_each_property!([crate::property_list]());

/// Runs every property in a row, each with a fixture of its own.
pub fn run_all<F: Fixture>(mut fixture: impl FnMut() -> F) {
    for (_, property) in ALL {
        property(&mut fixture());
    }
}
