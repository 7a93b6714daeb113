//! Rows of `must_not_happen.rs`: mistakes of clients, and what the client of this library does instead.

use super::Cover::{Impossible, Test};
use super::Row;

#[rustfmt::skip] // as there
pub(crate) const TABLE: &[Row] = &[
    (111, "renewal and release race on one socket; two renewers of one lock", &[
        Test("leases_are_renewed_while_guards_live"),
        Test("a_dropped_guard_has_let_go_when_the_drop_is_over"),
        Impossible("one thread renews all guards of a client, and whoever lets go takes the guard's connection from it first"),
    ]),
    (112, "connection left open after a timeout, a refused secret, a cancelled acquire", &[
        Test("the_next_in_the_queue_gets_it_and_a_wait_ends"),
        Test("the_secret_is_shown_and_a_wrong_one_refused"),
        Test("whoever_is_ended_while_it_waits_leaves_the_queue"),
    ]),
    (113, "cancelling closes a connection whose acquire has just succeeded", &[
        Test("a_lost_answer_is_reported_though_who_is_lost_too"),
        Impossible("nobody else ends an acquire: it returns, with a guard or without"),
    ]),
    (114, "release hangs on a server that does not answer", &[
        Test("a_server_that_hangs_is_held_against_the_own_clock"),
        Test("whoever_never_answers_is_down"),
    ]),
    (115, "callback that releases deadlocks, or is called twice", &[
        Test("what_is_broken_is_lost_at_once"),
        Test("a_release_drops_callbacks_without_a_lock"),
        Test("a_callback_that_panics_takes_none_of_the_others_with_it"),
    ]),
    (116, "token or leadership still readable after it was lost", &[
        Test("is_held_is_never_true_while_somebody_else_holds"),
        Test("a_broken_connection_is_a_lost_lock"),
        Test("a_break_that_only_the_server_sees_is_a_doubt"),
    ]),
    (117, "line end in a key, a value or a secret injects a command", &[Test("nothing_can_be_smuggled_in")]),
    (118, "wait below a second cut to 0; bad lease silently replaced", &[
        Test("very_long_and_very_short_times_are_times"),
    ]),
    (119, "renewal not before the lease is over", &[
        Test("leases_are_renewed_while_guards_live"),
        Test("a_lease_that_began_during_a_long_wait_is_counted_from_a_renewal"),
    ]),
    (120, "character split between two packets; several lines in one packet", &[
        Test("no_bytes_make_a_client_panic"),
        Test("long_answers_are_read"),
    ]),
    (121, "answer that nobody waits for shifts all later ones", &[
        Test("whoever_says_something_else_is_garbage"),
        Test("answers_that_make_no_sense_are_garbage"),
    ]),
    (122, "longest line a client reads is shorter than `stats`", &[Test("long_answers_are_read")]),
    (123, "signals dropped unseen", &[
        Test("signals_and_watches_come_in_order_and_end_with_a_timeout"),
        Test("a_subscription_that_broke_says_so_once_and_is_made_again"),
    ]),
];
