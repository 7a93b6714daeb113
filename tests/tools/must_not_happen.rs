//! What must never happen, and which test would notice.
//!
//! The list is of mistakes that lock servers and their clients really made. Each row names the
//! conversations and tests that fail if the mistake is made here, or says why it cannot be. This test checks that the list has no gap and that everything it
//! names is really there and really run.

#![allow(clippy::unwrap_used, missing_docs)]

mod access;
mod clients;
mod library;
mod ranges;

use std::fs;
use std::path::Path;

use crate::named_tests::all_tests;

use Cover::{Impossible, Script, Test};

/// What would notice.
enum Cover {
    /// A conversation: file in `tests/scripts` or `tests/engine/records/transcripts`, heading.
    Script(&'static str, &'static str),
    /// A test function, in `src` or `tests`; its name is enough to find it.
    Test(&'static str),
    /// Nothing, and why nothing has to.
    Impossible(&'static str),
}

type Row = (u32, &'static str, &'static [Cover]);

#[rustfmt::skip] // a table is read in columns
const TABLE: &[Row] = &[
    // Grants, queues, fairness
    (1, "newcomer overtakes because a lease just expired", &[
        Script("lease.txt", "A newcomer does not overtake the queue because a lease just ended."),
        Script("rwlock.txt", "A newcomer that would fit does not overtake the queue."),
    ]),
    (2, "expired holder blocks until a sweep", &[
        Script("lease.txt", "A lease that is over blocks nobody, noticed or not."),
        Script("lease.txt", "A lease ends, and the next in the queue has the key at once."),
    ]),
    (3, "waiter whose connection closed receives the lock", &[
        Script("disconnect.txt", "A waiter that goes leaves the queue at once, and is never granted."),
        Script("disconnect.txt", "A waiter that is reset leaves the queue at once."),
        Script("disconnect.txt", "A waiter leaves at the very moment the lock comes free."),
        Test("the_next_client_that_is_still_there_gets_the_lock"),
    ]),
    (4, "grant in the instant of a timeout is lost", &[
        Script("lease.txt", "A lease that ends at the very instant a wait ends, ends first."),
        Script("lease.txt", "A grant that would come after the wait was over is not made."),
        Script("lease.txt", "A waiter whose own wait was over when the key came free is told so."),
    ]),
    (5, "the same race on the success branch", &[
        Script("lease.txt", "A grant that would come after the wait was over is not made."),
        Impossible("a grant and its answer are one step of one thread"),
    ]),
    (6, "enqueue cancelled while promoted strands the grant", &[
        Script("disconnect.txt", "A place is left at the very moment it would be granted, waited for or not."),
        Script("disconnect.txt", "A place that was granted and not waited for counts as held."),
    ]),
    (7, "`w` answers ok with an evicted token", &[
        Script("two_phase.txt", "A wait after the lease is over says so, whoever has the key by then."),
    ]),
    (8, "`l` answers with a token evicted before wake-up", &[
        Script("lease.txt", "A grant is never born dead: its lease runs from when the server made it."),
    ]),
    (9, "skipped dead waiter consumes a fence", &[
        Script("disconnect.txt", "Waiters that have left cost no fence."),
    ]),
    (10, "dead waiter in the queue panics or stops granting", &[
        Script("disconnect.txt", "A waiter that is reset leaves the queue at once."),
        Script("disconnect.txt", "The last waiter goes, and the lock is free for whoever comes."),
    ]),
    (11, "timed-out waiter removed without granting again", &[
        Script("rwlock.txt", "A writer that gives up lets the readers behind it in."),
        Script("semaphore.txt", "A waiter that leaves does not keep the others from free slots."),
    ]),
    (12, "dead writer at the head blocks readers", &[
        Script("rwlock.txt", "A writer that gives up lets the readers behind it in."),
        Script("rwlock.txt", "Writers that leave, several in a row, let the readers behind them in."),
        Script("rwlock.txt", "A writer whose time is over stands in nobody's way, noticed or not."),
    ]),
    (13, "live writer at the head is skipped", &[
        Script("rwlock.txt", "A writer at the head of the queue is not skipped for the readers behind it."),
    ]),
    (14, "lease eviction makes reader and writer hold together", &[
        Script("rwlock.txt", "A lease that ends makes room for a reader or a writer, never for both."),
        Script("rwlock.txt", "The same when the server notices only on the next request."),
    ]),
    (15, "waiter queue memory grows", &[
        Test("a_queue_keeps_nothing_of_the_clients_that_went_through_it"),
        Test("arming_and_cancelling_for_ever_needs_no_more_memory"),
    ]),
    (16, "disconnect reported as timeout", &[
        Script("half_close.txt", "A command that waits when the end comes is cancelled, and not called a timeout."),
    ]),
    (17, "two waits of one session on one waiter", &[
        Script("two_phase.txt", "Two waits for one place, sent together: the first is granted, the second finds no place."),
        Script("two_phase.txt", "One connection, a place and a plain wait for the same key: each is served once."),
    ]),
    (18, "cleanup of a connection twice", &[
        Script("disconnect.txt", "Going twice is going once."),
    ]),
    (19, "200 clients on one key collapse", &[
        Script("limits.txt", "A crowd is served one by one, in order."),
        Test("two_hundred_clients_at_once_never_hold_together"),
        Test("two_hundred_waiters_get_their_turn_in_the_order_they_came"),
    ]),
    (20, "grant during cleanup touches maps without their lock", &[
        Impossible("one thread owns every map; there are no locks to forget"),
        Script("disconnect.txt", "Everything goes at once: locks, slots, read locks, places."),
    ]),

    // Leases, two-phase state
    (21, "renew resurrects", &[
        Script("renew.txt", "A lease that is over cannot be renewed, and the answer says why."),
        Test("a_renewal_that_is_too_late_when_the_daemon_wakes_does_not_bring_the_lock_back"),
    ]),
    (22, "renew of an expired lease does not hand over", &[
        Script("renew.txt", "The same when the server notices only on the renewal, and the next in the queue gets the lock."),
    ]),
    (23, "renew of an expired lease answers plain error", &[
        Script("renew.txt", "A lease that is over cannot be renewed, and the answer says why."),
        Test("a_lapse_is_known_by_token_and_key_until_a_newer_one_takes_its_place"),
    ]),
    (24, "renew remaining off by one", &[
        Script("renew.txt", "A renewal starts the lease again and answers it exactly."),
    ]),
    (25, "e, r, e is already enqueued", &[
        Script("two_phase.txt", "Enqueue, release, enqueue on one connection."),
    ]),
    (26, "e, expiry, e is already enqueued", &[
        Script("two_phase.txt", "Enqueue, lease over, enqueue."),
        Script("two_phase.txt", "An enqueue finds its own lease over, though the server notices only now."),
    ]),
    (27, "granted, never waited, expired: never again", &[
        Script("two_phase.txt", "Queued, granted, never waited for, lease over: the connection may enqueue again."),
    ]),
    (28, "releasing one slot deletes the enqueue of another", &[
        Script("semaphore.txt", "A place in the queue outlives the release of another slot of the same key."),
        Script("semaphore.txt", "A slot taken with `se` is still to be waited for after another slot went."),
    ]),
    (29, "`w` after expiry answers something else", &[
        Script("two_phase.txt", "A wait after the lease is over says so, whoever has the key by then."),
        Script("two_phase.txt", "A lease that was lost before the wait is told once, then all begins anew."),
    ]),
    (30, "`w` on an expired lease leaves the owner behind", &[
        Script("two_phase.txt", "The same when the server notices only on the wait: the next in the queue gets the key."),
        Script("two_phase.txt", "The same for one who was queued, granted, and comes too late."),
    ]),
    (31, "stale `w` extends another owner's lease", &[
        Script("two_phase.txt", "A wait after the lease is over says so, whoever has the key by then."),
    ]),
    (32, "lease not reset when `w` returns", &[
        Script("two_phase.txt", "The wait restarts the lease in full."),
    ]),
    (33, "several slots of one connection: only one released", &[
        Script("semaphore.txt", "One connection may hold several slots, and loses them all when it goes."),
    ]),
    (34, "cleanup stops early when nothing was owned", &[
        Script("disconnect.txt", "A connection that owned nothing still leaves the queue."),
    ]),
    (35, "auto-release off: dead waiters stay", &[
        Script("auto_release_off.txt", "Waiters that go leave the queue at once."),
    ]),
    (36, "owned-token bookkeeping leaks", &[
        Script("gc.txt", "A key taken, waited for, let go and forgotten leaves nothing behind."),
        Test("taking_and_letting_go_leaves_nothing_behind"),
        Test("taking_a_place_and_waiting_for_it_leaves_nothing_behind"),
        Test("waiting_in_vain_leaves_nothing_behind"),
    ]),
    (37, "wrong token keeps an idle key alive", &[
        Script("gc.txt", "What is refused does not count as use."),
    ]),
    (38, "GC deletes a key in creation, or makes max-locks fail", &[
        Script("gc.txt", "A key that is held or waited for stays."),
        Script("gc.txt", "Forgotten keys make room, and no key is refused because of idle ones."),
    ]),
    (39, "connection id 0, or reused ids collide", &[
        Script("disconnect.txt", "A connection that comes after another is somebody else."),
        Script("auto_release_off.txt", "A connection that comes after another does not inherit from it."),
        Script("push.txt", "A connection is not told what the one before it asked for."),
    ]),

    // Limits and accounting
    (40, "max-locks exceeded under concurrency", &[
        Script("limits.txt", "No more keys than allowed, while all are in use."),
        Impossible("looking and adding are one step of one thread"),
    ]),
    (41, "max-locks refuses an existing key", &[
        Script("limits.txt", "A key that exists is never refused because of the limit."),
    ]),
    (42, "max-connections exceeded by concurrent accepts", &[
        Script("limits.txt", "No more connections than allowed: one too many is closed without a word."),
        Test("one_connection_too_many_is_closed_without_a_byte"),
    ]),
    (43, "data race counting across shards", &[
        Impossible("one thread, one table, no shards"),
        Script("stats.txt", "How often what has happened."),
    ]),
    (44, "duplicates inflate the subscription count, spurious un* deflate it", &[
        Script("keys_limits.txt", "Subscribing twice counts once."),
        Script("keys_limits.txt", "Giving up what one never had makes no room."),
    ]),
    (45, "observe bypasses max-subscriptions; duplicate at the cap rejected", &[
        Script("keys_limits.txt", "At the bound, subscribing again to the same is still ok."),
        Script("keys_limits.txt", "`observe` counts like the others, and a refused observer is not told of the leader."),
        Script("keys_limits.txt", "Leading is no subscription."),
    ]),
    (46, "max-keys slot not given back", &[
        Script("keys_limits.txt", "A value that is deleted or over makes room."),
        Script("keys_limits.txt", "Also one whose time is over, though the server has not noticed yet."),
        Script("keys_limits.txt", "A list that is emptied makes room."),
        Script("keys_limits.txt", "A barrier makes room however it ends."),
    ]),
    (47, "connection count drops before cleanup finished", &[
        Script("stats.txt", "Connections come and go, and take what they held with them."),
    ]),
    (48, "accept loop spins on EMFILE", &[
        Test("emfile_does_not_spin_and_recovers"),
    ]),
    (49, "negative gc-max-idle; GC of state in use", &[
        Test("a_bad_value_is_an_error_that_names_option_and_value"),
        Script("gc.txt", "A key that is held or waited for stays."),
        Script("gc.txt", "With --gc-max-idle=0 an idle key goes at the next collection."),
    ]),

    // Framing and protocol
    (50, "257 accepted or 256 refused, with or without CR", &[
        Script("framing.txt", "A key line holds 256 bytes."),
        Script("framing.txt", "A command line holds 256 bytes."),
        Script("framing.txt", "An argument line holds 256 bytes."),
        Test("a_line_is_cut_off_exactly_at_its_limit_with_or_without_lf"),
    ]),
    (51, "unterminated huge line grows memory", &[
        Script("framing.txt", "A megabyte without a line end is not waited for."),
        Script("framing.txt", "CRs do not count, up to 256 of them."),
        Test("an_inbox_takes_what_fits_and_no_more"),
        Test("a_megabyte_without_a_line_end_is_cut_and_not_kept"),
    ]),
    (52, "stream continues desynchronised", &[
        Script("framing.txt", "After a line that is too long nothing more is served."),
        Script("timeouts.txt", "A half-sent line is not waited for."),
    ]),
    (53, "closed after a parse error", &[
        Script("framing.txt", "A command nobody knows takes its three lines with it."),
        Test("malformed_frames_are_consumed_and_named"),
    ]),
    (54, "nil request on an auth read error", &[
        Script("auth.txt", "A malformed frame is a wrong one, and so is a line that is too long."),
        Script("auth.txt", "Half of the secret, then nothing more."),
    ]),
    (55, "`30 junk` accepted as a lease", &[
        Script("framing.txt", "Numbers have to be numbers."),
    ]),
    (56, "spans near 2^63 overflow", &[
        Script("framing.txt", "Waits are not negative, and spans do not overflow."),
        Script("lock.txt", "The longest times do not overflow."),
        Test("time_saturates_instead_of_wrapping"),
    ]),
    (57, "huge configured durations overflow", &[
        Test("a_bad_value_is_an_error_that_names_option_and_value"),
        Test("time_saturates_instead_of_wrapping"),
    ]),
    (58, "key with blank, or empty, accepted", &[
        Script("framing.txt", "A key is not empty and holds no blank."),
    ]),
    (59, "CR reaches payloads or changes tokens", &[
        Script("framing.txt", "CRs vanish wherever they stand."),
        Script("kv.txt", "Blanks and odd bytes are kept as they are; CRs vanish."),
        Script("signal.txt", "The payload is the whole line as it was sent."),
        Test("crs_vanish_wherever_they_stand"),
    ]),
    (60, "timeout taken for a disconnect, without an `error`", &[
        Script("timeouts.txt", "A half-sent line is not waited for."),
        Test("half_a_frame_is_an_error_after_the_read_timeout"),
        Test("a_handshake_that_never_ends_is_ended"),
    ]),
    (61, "answers shared between connections", &[
        Test("what_is_owed_to_many_at_once_is_never_mixed_up"),
        Script("fence.txt", "A waiter is answered in the shape its own connection asked for."),
    ]),
    (62, "`acquired` printed as `ok`", &[
        Script("two_phase.txt", "What was acquired by an enqueue says so, and never merely ok."),
    ]),
    (63, "peer that does not read; write timeout", &[
        Test("a_client_that_does_not_read_is_closed_after_the_write_timeout"),
        Test("without_a_write_timeout_a_client_that_does_not_read_gets_every_answer_in_the_end"),
        Test("a_client_that_always_takes_what_it_was_owed_in_time_may_lag_for_ever"),
        Test("a_trickle_does_not_extend_the_time_to_read"),
    ]),
    (64, "panic in one handler", &[
        Test("no_bytes_make_it_panic"),
        Impossible("there are no handlers to limp on without: a broken invariant stops the process on purpose"),
    ]),
    (65, "IPv6 address mangled", &[
        Test("an_ipv6_address_keeps_its_brackets_and_the_open_door_is_noticed"),
        Test("an_ipv6_address_is_shown_in_brackets"),
    ]),
    (66, "kset value misread as TTL; tabs shift fields; empty value", &[
        Script("kv.txt", "A number is a value like any other; only a tab begins a time to live."),
        Script("kv.txt", "Tabs do not shift fields, and a value is not empty."),
    ]),

    // Auth and config
    (67, "timing reveals what was wrong; secrets compared until the first difference", &[
        Test("the_secret_is_compared_in_constant_time"),
        Test("the_secret_is_compared_nowhere_else"), Test("what_is_shown_is_compared_with_every_token"),
        Script("auth.txt", "Whatever was wrong, the answer and the end come at the same time."),
    ]),
    (68, "auth failure without slowdown, or not logged", &[
        Script("auth.txt", "A client that does not is refused, has to wait a little, and is closed."),
        Test("wrong_secret_is_answered_after_the_delay_at_every_door"),
        Test("a_failure_is_logged_once_and_no_secret_ever"),
    ]),
    (69, "unusable token accepted at startup", &[
        Test("a_token_that_cannot_be_used_stops_the_start"),
        Test("files_that_cannot_be_used_end_with_78_and_the_option"),
        Test("half_a_pair_ends_with_78"),
    ]),
    (70, "environment overrides a flag", &[
        Test("every_option_by_flag_by_variable_and_flag_over_variable"),
        Test("tokens_come_from_the_best_source_only"),
    ]),
    (71, "bad flag exits inside the loader; 0/no/false", &[
        Test("a_bad_value_is_an_error_that_names_option_and_value"),
        Test("an_unknown_option_is_answered_with_the_right_one"),
        Test("switches_in_every_spelling"),
    ]),

    // Counters, values, lists
    (72, "incr/decr wraps around; decr of the smallest number", &[
        Script("counter.txt", "A counter does not wrap around, and a refusal changes nothing."),
        Script("counter.txt", "The smallest number has no negation, so nobody can count down by it."),
    ]),
    (73, "blpop timeout looks like an empty value", &[
        Script("list.txt", "A wait that ends in vain is nil, which no value is."),
    ]),
    (74, "a pop deletes the list under parked poppers", &[
        Script("list.txt", "Looking at a list somebody waits at does not take it from under them."),
    ]),
    (75, "push handed to a dead popper is lost", &[
        Script("list.txt", "A client that left gets no value, and none is lost on it."),
        Script("list.txt", "The same when it leaves at the very moment of the push."),
        Script("list.txt", "The last one who waited leaves, and the next push stays in the list."),
        Test("a_value_handed_to_a_dying_client_goes_to_the_next_that_waits"),
        Test("a_value_that_was_not_told_in_full_goes_back_to_where_it_was"),
        Test("values_popped_for_a_client_that_is_reset_go_back_in_order"),
    ]),
    (76, "empty list left behind", &[
        Script("list.txt", "A list without values and waiters is gone."),
        Script("list.txt", "The last one who waited leaves, and the next push stays in the list."),
    ]),
    (77, "queue use grows memory; order lost", &[
        Script("list.txt", "A list used as a queue keeps its order, however often it is filled and emptied."),
        Test("a_queue_that_is_emptied_as_it_is_filled_keeps_no_memory"),
    ]),
    (78, "expired value visible; value without TTL vanishes", &[
        Script("kv.txt", "A value whose time is over is not seen, though the server has not noticed yet."),
        Script("kv.txt", "For a swap, a value whose time is over is not there."),
        Script("kv.txt", "Without a time to live a value stays, however long nobody asks for it."),
    ]),
    (79, "two winners of one swap", &[
        Script("kv.txt", "Of two clients that saw the same old value, one wins."),
    ]),

    // Barriers
    (80, "a participant leaves, the others hang", &[
        Script("barrier.txt", "The first whose time is over sends everyone away."),
        Script("barrier.txt", "The first who leaves sends everyone away."),
        Script("barrier.txt", "The same if the first to leave is reset, or half-closes."),
    ]),
    (81, "timeout for one participant of a tripped barrier", &[
        Script("barrier.txt", "A complete barrier releases everyone, though somebody's time is over at that very instant."),
        Script("barrier.txt", "The same when the server notices both only later."),
        Script("barrier.txt", "Somebody who left just before is not counted."),
    ]),
    (82, "timeout 0 depends on scheduling; duplicate counts twice", &[
        Script("barrier.txt", "A wait of no time completes the barrier, or ends it."),
        Script("barrier.txt", "One connection is one participant, however often it comes."),
    ]),

    // Signals, watches, elections
    (83, "slow consumer dropped silently, or not disconnected", &[
        Test("a_client_that_does_not_read_is_told_up_to_the_bound_then_closed_and_counted"),
        Test("a_watcher_and_an_observer_that_do_not_read_are_closed_too"),
        Test("a_listener_that_does_not_read_is_closed_and_the_others_hear_everything"),
    ]),
    (84, "closing a slow consumer stalls publishers", &[
        Test("a_listener_that_does_not_read_is_closed_and_the_others_hear_everything"),
        Impossible("there is no lock to hold, and no write waits"),
    ]),
    (85, "marked as told and not told; told twice", &[
        Script("signal.txt", "A listener hears a signal once, however many of its patterns match."),
        Test("a_client_that_does_not_read_is_told_up_to_the_bound_then_closed_and_counted"),
    ]),
    (86, "delivery count includes drops", &[
        Script("signal.txt", "The answer counts those who are told."),
        Test("a_client_that_does_not_read_is_told_up_to_the_bound_then_closed_and_counted"),
    ]),
    (87, "full first member loses the signal; full group is a black hole", &[
        Test("a_group_passes_over_a_full_member_and_survives_when_all_are_full"),
    ]),
    (88, "group delivery suppresses non-group delivery", &[
        Script("signal.txt", "Groups do not take signals from each other, nor from single listeners."),
        Script("signal.txt", "The same group under two patterns is two groups."),
    ]),
    (89, "ghost subscription after disconnect", &[
        Script("signal.txt", "A listener that left is told nothing, whatever it listened to."),
        Test("a_client_that_leaves_with_many_subscriptions_hears_through_none_of_them"),
    ]),
    (90, "bad patterns accepted by listen or watch", &[
        Script("signal.txt", "Patterns that are none."),
        Test("wildcards_are_whole_tokens_and_the_rest_is_last"),
    ]),
    (91, "blank payload or wildcard channel accepted", &[
        Script("signal.txt", "A signal has a payload, and a channel without wildcards."),
    ]),
    (92, "payload that subscribers cannot read", &[
        Script("signal.txt", "A signal is never longer than its readers can read."),
    ]),
    (93, "events named by command letters", &[
        Script("watch.txt", "Sixteen events, by their names and not by the letters of the verbs."),
        Test("a_change_is_told_by_the_word_of_its_verb"),
    ]),
    (94, "no event for implicit release, RW, two-phase, elections", &[
        Script("watch.txt", "A lock lost to its lease is released."),
        Script("watch.txt", "Also if a newcomer finds it over, or its holder does."),
        Script("watch.txt", "A lock lost with its connection is released, once for each key."),
        Script("watch.txt", "Read and write locks, semaphores, places in the queue, elections."),
    ]),
    (95, "pushes to a dead socket; command parked on it stays", &[
        Script("push.txt", "A listener that waits in a command is reset: neither a signal nor a value goes to it."),
        Test("a_push_to_a_dead_peer_ends_what_it_waited_for"),
    ]),
    (96, "pushes in flight interleave with an end", &[
        Script("push.txt", "Many lines at once arrive whole and in order."),
        Script("push.txt", "What was told before the end is read, then the end."),
        Test("pushes_are_whole_lines_in_order_however_slowly_they_are_read"),
    ]),
    (97, "observer lost when leadership changes", &[
        Script("election.txt", "To observe and to lead are two things; neither undoes the other."),
        Script("election.txt", "An observer hears of every later leader, whatever became of those before."),
    ]),
    (98, "observe misses or duplicates the leader", &[
        Script("election.txt", "An observer is told at once if somebody holds the key, in whatever way."),
        Script("election.txt", "A leader whose lease is over is none, though the server notices only now."),
    ]),
    (99, "`resigned` after `failover` or `elected`", &[
        Script("election.txt", "Every observer hears `resigned` before what follows from it."),
    ]),
    (100, "semaphore grants emit `leader failover`", &[
        Script("election.txt", "Semaphores and read-write locks have no leader changes."),
    ]),
    (101, "leader watcher leaks", &[
        Script("election.txt", "A former leader that does not observe is told nothing."),
        Test("every_transcript_is_held_to_over_pipes"),
    ]),
    (102, "resign by another cleans up the caller", &[
        Script("election.txt", "Resigning with another's token ends the other's lead and not one's own."),
    ]),

    // Stats and shutdown
    (103, "stats: null arrays, unowned shown idle, totals", &[
        Script("stats.txt", "Nothing at all: every array is there and empty, never null."),
        Script("stats.txt", "Connections come and go, and take what they held with them."),
        Script("stats.txt", "Idle keys are listed apart; idle read-write locks only counted."),
        Script("stats.txt", "A key that only a place in its queue still needs is in use and has no owner."),
        Script("stats.txt", "When the connections are gone, so are their subscriptions, lists and barriers."),
    ]),
    (104, "shutdown hangs; timeout 0 waits", &[
        Script("drain.txt", "After the shutdown timeout everyone goes."),
        Script("drain.txt", "A timeout of zero waits for the natural end."),
        Test("the_shutdown_timeout_forces_by_itself_and_not_before"),
    ]),
    (105, "parked waits survive shutdown", &[
        Script("drain.txt", "Waits are refused, idle connections go, holders may let go."),
        Script("drain.txt", "Waiters that left before are not answered."),
        Script("drain.txt", "Waits for a value, for others or for the lead are refused."),
        Test("a_thousand_waiters_are_told_and_the_exit_code_is_0"),
    ]),
    (106, "new commands accepted while draining", &[
        Script("drain.txt", "What would be new is refused, what is held is served."),
        Script("drain.txt", "A command that could wait is refused even if it need not; all others are served."),
    ]),

    // Durability and replication
    (107, "fence goes back after a restart, a crash or a step of the clock; two daemons share its file; damage counts as empty", &[
        Test("fences_of_a_later_process_are_higher"),
        Script("restart.txt", "Fences never come back, however much of a block was used, and however often it restarts."),
        Script("restart.txt", "Fences that were reserved and never told are not given out again."),
        Test("the_next_fences_are_reserved_when_half_of_them_are_used"),
        Test("what_was_acknowledged_survives_a_kill_at_any_moment"),
        Test("fences_go_on_also_where_the_clock_is_behind_them"),
        Test("with_async_durability_no_fence_is_given_out_twice"),
        Test("a_directory_that_is_added_later_never_lowers_fences"),
        Test("a_second_daemon_on_the_directory_ends_and_touches_nothing"),
        Test("damage_before_the_end_is_refused_by_name_and_nothing_is_touched"),
    ]),
    (108, "leases do not end on replicas, or replicas differ", &[
        Test("engine_does_what_the_model_does"),
        Test("a_standby_ends_nothing_and_who_takes_over_gives_the_whole_recorded_lease"),
        Test("nothing_goes_wrong_whatever_happens_to_members_and_messages"),
    ]),
    (109, "connection numbers of two nodes collide after a failover", &[
        Script("restart.txt", "Connection numbers begin anew; whoever has one that was used before owns nothing by it."),
        Test("a_connection_with_the_number_of_another_ones_at_the_old_leader_owns_nothing"),
    ]),
    (110, "grant between a replicated enqueue and its wait is lost", &[
        Test("a_grant_that_was_never_fetched_is_held_to_its_lease_by_the_next_leader_and_then_free"),
    ]),

    // Under attack
    (124, "somebody whose hang-up was reported is granted, counted or told; many leavers differ from one", &[
        Script("disconnect.txt", "A waiter leaves at the very moment the lock comes free."),
        Script("disconnect.txt", "A place is left at the very moment it would be granted, waited for or not."),
        Script("barrier.txt", "Somebody who left just before is not counted."),
        Script("signal.txt", "The answer counts those who are told."),
        Script("list.txt", "The same when it leaves at the very moment of the push."),
        Test("a_place_left_in_the_same_turn_as_its_holder_is_never_granted"),
        Test("a_holder_and_a_place_that_leave_together_are_one_release"),
        Test("a_client_that_left_is_neither_granted_nor_counted_while_it_waits_to_be_served"),
        Test("waiters_that_hang_up_together_get_nothing_and_no_turn_is_long"),
        Test("what_a_waiting_client_held_is_not_granted_to_one_who_hung_up_with_it"),
        Test("whoever_comes_after_a_hang_up_does_not_complete_the_barrier"),
    ]),
    (125, "two daemons answer for one key while the first drains", &[
        Test("draining_daemon_keeps_its_port_and_its_socket_and_grants_newcomers_nothing"),
        Test("newcomer_during_a_shutdown_still_has_to_show_the_secret"),
    ]),
    (126, "fences outrun the clock they start from, and go back after a restart", &[
        Test("fences_of_a_later_process_are_higher"),
        Test("a_later_run_starts_above_all_that_an_earlier_one_can_have_granted"),
        Test("grants_that_the_clock_does_not_cover_wait_for_it"),
        Test("a_clock_far_in_the_future_is_a_reason_not_to_start"),
    ]),
    (127, "one request or one turn does as much work as clients like", &[
        Test("a_turn_holds_only_so_many_walks_and_clients_that_had_to_wait_come_first"),
        Test("a_turn_tells_only_so_much_and_then_one_request_at_a_time"),
        Test("one_signal_to_many_groups_of_one_client_is_bounded"),
        Test("very_many_leases_end_on_the_nanosecond_and_in_slices"),
        Test("a_client_that_leaves_with_thousands_of_locks_and_places_is_undone_in_slices"),
        Test("a_crowd_gets_what_the_model_gives_it_however_slowly"),
        Test("a_request_is_put_off_while_a_crowd_of_leases_is_ended"),
        Test("a_wait_does_not_end_before_a_crowd_of_leases_that_were_over_earlier"),
        Test("owners_take_turns_and_yet_the_leases_of_one_key_end_in_their_order"),
        Test("a_crowd_of_lapsed_slots_is_not_ended_in_one_request"),
        Test("very_many_readers_get_in_a_slice_at_a_time_and_nobody_overtakes"),
        Test("thousands_wait_and_each_knows_its_place"),
        Test("to_refuse_a_part_of_a_list_costs_no_more_than_to_tell_it"),
    ]),
    (128, "a crowd's timers or departures make somebody else's lease or lock late", &[
        Test("a_strangers_leases_that_end_make_nobody_elses_lease_late"),
        Test("a_strangers_leases_that_were_renewed_make_nobody_elses_lease_late"),
        Test("a_strangers_values_make_nobody_elses_lease_late"),
        Test("nobody_stands_behind_anothers_crowd"),
        Test("a_leavers_lock_is_not_passed_on_after_those_of_a_crowd"),
        Test("a_client_that_leaves_with_much_does_not_keep_leases_from_ending"),
        Test("a_client_that_hung_up_with_nothing_to_say_does_not_wait_for_those_with_much"),
        Test("a_storm_of_hang_ups_is_spread_over_turns_and_holds_nobody_up"),
    ]),
    (129, "one small request waits behind those who want more than their share", &[
        Test("a_client_that_was_denied_a_walk_is_not_denied_it_again_for_those_that_had_one"),
        Test("clients_that_hung_up_leave_time_for_the_walks_of_others"),
        Script("framing.txt", "More frames at once than one turn reads are answered one by one, and nobody is kept waiting."),
    ]),
    (130, "log that nobody reads, or that cannot be written, stops the daemon", &[
        Test("nobody_reading_the_log_stops_nothing"),
        Test("a_log_that_nobody_reads_loses_lines_and_stops_nobody"),
        Test("a_terminal_that_nobody_reads_stops_nobody"),
        Test("a_log_file_that_may_not_grow_and_other_signals_end_nothing"),
        Test("a_log_file_that_is_full_at_the_start_changes_no_exit_code"),
    ]),
    (131, "what a client sends is kept many times over, or without a limit", &[
        Test("what_a_client_sends_is_kept_about_once"),
        Test("a_client_that_does_not_read_costs_a_bounded_amount_of_memory"),
        Test("slow_listeners_cost_a_bounded_amount_of_memory"),
        Test("a_subscription_keeps_at_most_eight_bytes_for_each_byte_sent"),
        Test("whatever_is_kept_the_bound_is_kept"),
        Test("those_who_wait_count"),
        Test("unread_pushes_go_first"),
        Test("unread_answers_have_a_bound_of_their_own"),
        Test("long_requests_wait_where_there_is_no_memory_for_them"),
        Test("at_the_bound_what_would_grow_is_refused_and_everything_else_is_served"),
        Script("memory.txt", "What would grow is refused."),
    ]),
    (132, "unasked `error` before an idle connection is closed", &[
        Script("timeouts.txt", "Silence ends a connection that owns nothing."),
        Script("auth.txt", "A client that says nothing is closed without a word when its time is over."),
    ]),
    (133, "two daemons race for one stale socket file", &[
        Test("a_live_daemon_is_left_alone"),
        Test("of_many_that_try_together_one_takes_a_dead_socket"),
        Test("of_two_daemons_that_race_for_a_dead_socket_one_serves"),
        Test("a_stopped_daemon_with_a_full_backlog_is_not_waited_for"),
    ]),

    // What survives
    (134, "what survives a restart is written and tested, and the daemon does not use it", &[
        Test("a_server_that_stops_is_not_a_client_that_left"),
        Test("who_has_the_token_has_the_lock_back_and_leaves_it_with_the_connection"),
        Test("what_was_acknowledged_survives_a_kill_at_any_moment"),
    ]),
    (135, "nothing is had back after a kill, because nobody was expected", &[
        Test("what_was_acknowledged_survives_a_kill_at_any_moment"),
        Test("whoever_comes_during_the_start_finds_everything_held"),
        Test("the_epoch_grows_with_every_start_and_a_kill_is_told_of"),
    ]),
    (136, "release and grant are kept in another order than they were decided in", &[
        Test("a_release_and_the_grant_it_makes_possible_are_kept_in_this_order"),
        Script("restart.txt", "A crash between a release and the grant it makes possible leaves one holder or none, never two."),
        Test("engine_does_what_the_model_does"),
    ]),
    (137, "somebody is granted what was held and is not restored yet", &[
        Test("whoever_comes_during_the_start_finds_everything_held"),
        Script("restart.txt", "A renewal binds a restored grant to the connection that sent it, with the same fence."),
    ]),
    (138, "whoever leaves before its answer takes the record with it", &[
        Test("those_who_leave_do_not_make_a_disk_that_is_behind_fall_further_behind"),
        Test("a_popped_value_that_was_never_sent_goes_back_also_on_disk"),
        Test("what_was_acknowledged_survives_a_kill_at_any_moment"),
    ]),
    (139, "leases end, or somebody is granted something, while the daemon stops and nobody may be told", &[
        Test("those_who_hold_something_end_last_when_we_stop_and_hold_on"),
        Test("nobody_is_granted_what_those_waited_for_whom_we_cut_off"),
        Test("a_stop_in_the_middle_of_everything_loses_nothing_either"),
    ]),
];

/// All rows.
fn rows() -> impl Iterator<Item = &'static Row> {
    let more = clients::TABLE
        .iter()
        .chain(ranges::TABLE)
        .chain(access::TABLE)
        .chain(library::TABLE);
    TABLE.iter().chain(more)
}

#[test]
fn the_list_has_no_gap_and_every_row_is_covered() {
    let mut numbers: Vec<u32> = rows().map(|(row, ..)| *row).collect();
    numbers.sort_unstable(); // some stand in files of their own
    let wanted: Vec<u32> = (1..=195).collect();
    assert_eq!(numbers, wanted);
    for (row, what, covers) in rows() {
        assert!(!covers.is_empty(), "{row}: nothing covers {what:?}");
        for cover in *covers {
            if let Impossible(why) = cover {
                assert!(!why.is_empty(), "{row}: no reason");
            }
        }
    }
}

#[test]
fn everything_that_is_named_exists() {
    let tests = all_tests(root());
    let mut missing = Vec::new();
    for (row, _, covers) in rows() {
        for cover in *covers {
            match cover {
                Script(file, heading) => {
                    let folders = ["tests/scripts", "tests/engine/records/transcripts"];
                    let paths = folders.map(|folder| root().join(folder).join(file));
                    let text = paths.map(|it| fs::read_to_string(it).unwrap_or_default());
                    if !text.concat().contains(&format!("\n## {heading}\n")) {
                        missing.push(format!("{row}: {file} has no heading {heading:?}"));
                    }
                }
                Test(name) if !tests.contains(*name) => {
                    missing.push(format!("{row}: no #[test] is called {name}"));
                }
                Test(_) | Impossible(_) => {}
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
