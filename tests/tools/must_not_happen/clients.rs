//! Rows of `must_not_happen.rs`: clients that outlive their connections.

use super::Cover::{Impossible, Script, Test};
use super::Row;

#[rustfmt::skip] // as there
pub(crate) const TABLE: &[Row] = &[
    (140, "whoever comes back in time loses what it holds to a timer that still runs, or to a release that is still under way", &[
        Script("clients.txt", "One that comes back in time stops the clock; what was to end then does not."),
        Script("clients.txt", "It may go and come back over and over."),
        Test("whoever_comes_back_while_it_is_undone_waits_for_that_and_is_new"),
        Test("places_in_queues_end_a_part_at_a_time_and_none_taken_later_is_lost"),
    ]),
    (141, "a client is known by its address, and not known again on another connection", &[
        Script("clients.txt", "A client that is new says so, and one that comes back is resumed."),
        Script("clients.txt", "Several connections of one client hold the same, and the last one to go starts the clock."),
        Script("clients.txt", "A client and its locks are there again, and whoever shows the secret goes on."),
        Test("a_client_has_its_locks_back_after_a_kill_with_its_secret_and_nobody_else_has"),
    ]),
    (142, "somebody says another's name and frees or takes what it holds", &[
        Script("clients.txt", "Who does not know the secret gets nothing, and disturbs nobody."),
        Script("clients.txt", "Each wrong secret is told after 100 ms, and what the connection asks meanwhile waits."),
        Test("only_the_secret_itself_is_known_again"),
        Test("the_secret_is_compared_in_constant_time"),
        Test("an_owner_of_the_same_name_is_somebody_else"),
    ]),
    (143, "a notice of a crash that comes twice, or late, releases again", &[
        Impossible("the end of a connection is noticed here, once, and nobody reports it"),
        Script("clients.txt", "Several connections of one client hold the same, and the last one to go starts the clock."),
        Test("whoever_asked_to_detach_and_left_takes_nothing_back"),
    ]),
    (144, "what a client held that never came back is held for ever, or a request to release everything does nothing", &[
        Script("clients.txt", "Whoever is not back when its time is over has lost everything, and is new."),
        Script("clients.txt", "Its time runs from the moment the daemon serves, and then it departs."),
        Script("clients.txt", "Detaching releases everything at once, and forgets the client."),
        Script("clients.txt", "A client that is away may be detached by whoever knows the secret."),
        Test("a_client_with_a_million_holds_departs_a_part_at_a_time"),
    ]),
    (145, "clients without limit; ids, secrets and what is kept by name without a bound", &[
        Script("clients.txt", "An adapter has only so many clients, with a connection or without."),
        Script("clients.txt", "An id is text that can be seen, and bounded; so is a secret."),
        Test("clients_are_bounded_in_number_and_so_are_adapters"),
        Test("a_client_that_is_away_costs_a_bounded_amount_of_memory_and_none_when_it_is_gone"),
        Test("at_the_bound_on_memory_no_client_is_new"),
    ]),
];
