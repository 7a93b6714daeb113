//! Rows of `must_not_happen.rs`: byte ranges.

use super::Cover::{Impossible, Script, Test};
use super::Row;

#[rustfmt::skip] // as there
pub(crate) const TABLE: &[Row] = &[
    // What others have learnt after the design
    (146, "bytes come free between the refusal of a request and its place in the queue, and it sleeps for ever", &[
        Impossible("to look and to join the queue are one step of one thread"),
        Script("range_wait.txt", "A wait ends when the bytes are unlocked, not a moment before."),
        Script("range_wait.txt", "Then those whom the unlock itself has freed are not forgotten."),
        Script("range_limits.txt", "Nobody behind one that is refused is forgotten."),
        Test("ranges_are_granted_as_the_model_grants_them"),
    ]),
    (147, "two passes over one queue grant the same waiter twice", &[
        Impossible("one thread, one pass; and to grant a byte twice stops the process"),
        Test("ranges_are_granted_as_the_model_grants_them"),
        Test("a_crowd_of_readers_comes_in_a_part_at_a_time"),
    ]),
    (148, "a cancel that races a grant leaves a lock that nobody knows of", &[
        Script("range_wait.txt", "A grant and a cancel at the same moment: the first of them decides."),
        Script("range_wait.txt", "Cancelling has one of three ends."),
        Script("range_wait.txt", "To unlock is also to cancel a wait for exactly these bytes, whatever its mode."),
    ]),
    (149, "a grant that cannot be delivered frees the bytes and wakes nobody", &[
        Script("range_wait.txt", "Nobody who has hung up is granted anything, in the very moment it comes free either."),
        Script("range_wait.txt", "Those behind one who hung up move on at once, though it has not been served to its end."),
        Script("range_wait.txt", "A grant that may not have been read stays an attached client's, and goes with a connection that is its own."),
    ]),
    (150, "a waiter is not woken because the holder came in another way or ended otherwise than by unlocking", &[
        Script("range_wait.txt", "Locks of a client that is away end with its time."),
        Script("range_wait.txt", "Locks of a client that is detached end at once, whatever name it had for their owner."),
        Script("range_wait.txt", "A lock that an operator breaks frees its bytes."),
        Script("range_wait.txt", "A downgrade lets those in that wait to share."),
        Script("range_wait.txt", "So was one whose time is over."),
        Script("range_wait.txt", "So was one that leaves, or is reset."),
        Script("range_wait.txt", "A cancelled wait was in others' way."),
        Script("range_limits.txt", "A refused wait was in others' way."),
        Impossible("nobody waits for pending bytes: whoever wants some is told `error_grace`, so the end of the grace period keeps nobody asleep"),
        Test("the_policy_strict_refuses_free_bytes_too_and_an_operator_ends_the_period"),
        Impossible("an owner is not released by itself: it unlocks, or its client goes, and both are above"),
        Impossible("a resource is not deleted: it is nothing but its locks and who waits for some"),
        Impossible("limits do not change while the daemon runs"),
    ]),
    (151, "two tables that do not see each other, or a test that looks elsewhere than a lock", &[
        Impossible("there is one table of ranges, and one function finds what is in the way"),
        Script("range.txt", "A resource has nothing to do with a lock of the same name."),
        Test("ranges_are_granted_as_the_model_grants_them"),
    ]),
    (152, "what keeps ranges over a restart is written and tested, and the daemon does not use it", &[
        Test("what_gateways_held_is_kept_for_them_exactly_and_nobody_else_gets_it"),
    ]),
    (153, "no grace period after a kill, because nobody was expected", &[
        Test("what_gateways_held_is_kept_for_them_exactly_and_nobody_else_gets_it"),
        Test("after_a_crash_of_an_asynchronous_daemon_the_policy_is_strict_by_itself"),
    ]),
    (154, "a client that cannot be reached within the grace period loses what is kept for it", &[
        Test("a_short_time_to_live_does_not_cut_the_grace_period_short"),
        Test("a_time_to_live_beyond_the_grace_period_keeps_the_bytes_for_all_of_it"),
    ]),
    (155, "changes of one range are kept in another order than they were decided in", &[
        Impossible("the record is made in the step that decides, as for all others"),
        Test("what_ended_before_the_restart_cannot_be_had_back"),
    ]),
    (156, "parts of a split lock overwrite each other where they are kept, or a changed mode is not kept", &[
        Impossible("parts have no names: a record says how certain bytes are locked from then on"),
        Test("what_gateways_held_is_kept_for_them_exactly_and_nobody_else_gets_it"),
    ]),
    (157, "what was kept is not brought back because a field was empty when it was written", &[
        Test("what_gateways_held_is_kept_for_them_exactly_and_nobody_else_gets_it"),
    ]),
    (158, "names of client and owner are joined, and one client's are taken for another's", &[
        Script("range_owner.txt", "A client and an owner are two words, however they are joined."),
    ]),
    (159, "a lock to the end wraps around, is in nobody's way and cannot be unlocked", &[
        Script("range.txt", "A length that ends a byte before the end stays bounded; one more is to the end."),
        Script("range.txt", "Ranges to the end: merged, split, and told with a length of 0."),
        Test("the_kernel_grants_refuses_and_keeps_the_same"),
    ]),
    (160, "the end of a range overflows, and parts are made up or dropped", &[
        Script("range.txt", "The last byte there can be: a single one is told as to the end, one more does not exist."),
        Test("few_bytes_and_both_ends"),
    ]),
    (161, "an owner that locks again, overlapping and otherwise, keeps what it had beside it", &[
        Script("range.txt", "An upgrade of a part is one of that part only, and so is a downgrade."),
        Script("range.txt", "Split and merged again, as a list."),
        Test("ranges_are_granted_as_the_model_grants_them"),
    ]),
    (162, "an upgrade of a part is one of the whole", &[
        Script("range.txt", "An upgrade of a part is one of that part only, and so is a downgrade."),
    ]),
    (163, "the first range that a client has back counts for all", &[
        Test("what_gateways_held_is_kept_for_them_exactly_and_nobody_else_gets_it"),
    ]),
    (164, "somebody has back what it never held, or after the time for that", &[
        Script("range.txt", "There is nothing to have back where nothing was lost."),
        Test("what_ended_before_the_restart_cannot_be_had_back"),
        Test("what_was_not_had_back_in_time_cannot_be_had_back_after_another_restart"),
    ]),
    (165, "a client that is back in time loses its ranges to the timer of its absence", &[
        Script("range_owner.txt", "An attached client keeps its ranges when its connection goes, and has them when it is back."),
        Script("range_owner.txt", "With a time of 0 the ranges of a client go with its last connection."),
    ]),
    (166, "a client is known by where it connects from", &[
        Script("range_owner.txt", "Any connection of a client may unlock what another has locked."),
    ]),
    (167, "somebody says another's name and unlocks or cancels what is not its own", &[
        Script("range_owner.txt", "An owner of the same name in another client is somebody else."),
        Script("range_owner.txt", "Who does not know the secret has none of it."),
        Script("range_wait.txt", "Nobody cancels or unlocks what another client waits for."),
        Script("range.txt", "Unlocking the middle leaves both sides; unlocking nothing is fine."),
    ]),
    (168, "a notice of a crash that comes twice releases ranges again", &[
        Impossible("the end of a connection is noticed here, once, and nobody reports it"),
    ]),
    (169, "ranges of a client that crashed are held for ever", &[
        Script("range.txt", "Locks go with their connection, all of them."),
        Script("range_wait.txt", "Locks of a client that is away end with its time."),
        Test("a_client_with_very_many_ranges_and_waits_departs_a_part_at_a_time"),
    ]),
    (170, "the grace period of one part is ended by another, or begins while clients are served", &[
        Impossible("there is one grace period, and it begins before anybody is served"),
        Test("a_restart_within_the_grace_period_begins_a_new_one"),
    ]),
    (171, "a new lock is granted before those that were held are restored", &[
        Impossible("clients are served when everything is restored"),
        Test("what_gateways_held_is_kept_for_them_exactly_and_nobody_else_gets_it"),
    ]),
    (172, "whoever leaves before its answer takes the record of a range with it", &[
        Impossible("a record is made with the decision, whoever hears of it"),
    ]),
    (173, "locks of a deleted resource are restored for ever", &[
        Impossible("a resource is nothing but its locks and who waits for some"),
        Script("range.txt", "A thousand locks and unlocks leave nothing behind."),
    ]),
    (174, "somebody waits while it keeps the one who would release from doing so", &[
        Impossible("nobody waits inside a decision: who waits is a place in a queue"),
    ]),
    (175, "whoever asks again stands in the queue twice", &[
        Script("range_limits.txt", "Whoever asks again takes no second place, also where there is no room."),
        Script("range_wait.txt", "Who asks again on another connection waits in the place of the first, who is told that it is over."),
        Test("a_place_that_is_passed_on_takes_its_search_along"),
    ]),
    (176, "an answer is remembered in another step than its change, and told wrongly again", &[
        Impossible("no answers about ranges are remembered: to ask again for what one has changes nothing"),
        Script("range.txt", "One's own locks are never in the way."),
    ]),
    (177, "ranges, waits and names of owners without limit", &[
        Script("range_limits.txt", "Of one resource: counted as they are kept."),
        Script("range_limits.txt", "Of one client: over all of its owners, resources and connections."),
        Script("range_limits.txt", "Of all."),
        Script("range_limits.txt", "A hundred, where the operator has not said otherwise."),
        Script("range_owner.txt", "A name has up to 256 bytes, and no blanks."),
        Script("range_wait.txt", "A minute, unless the operator says otherwise."),
        Test("a_crowd_that_wants_the_same_bytes_has_them_one_by_one_and_no_unlock_takes_long"),
        Test("a_chain_of_those_who_are_behind_each_other_comes_to_its_end"),
    ]),
    (178, "locks that are stacked or empty lose or gain bytes", &[
        Impossible("nothing is stacked, and no range is empty"),
        Script("range_requests.txt", "There is one flavour. Who asks for another is not given it."),
    ]),
    (179, "a client that leaves fails others' waits before it has released what they wait for", &[
        Script("range_wait.txt", "A holder and the first of its queue leave together: the next one has the bytes."),
        Script("range_owner.txt", "Detached connections go on for themselves; what they wait for as the client is refused."),
    ]),
    (180, "the grace period ends when there is nothing left to keep that in", &[
        Impossible("its timer is one of the loop, which ends before the store does"),
    ]),
    (181, "the same state is answered differently the second time", &[
        Script("range.txt", "Of several in the way the one that begins first is told, and then the oldest."),
        Script("range.txt", "An upgrade that fails leaves the shared lock as it was."),
    ]),

    // What the design warned of
    (182, "what is restored is held for ever, or not in anybody's way", &[
        Test("what_gateways_held_is_kept_for_them_exactly_and_nobody_else_gets_it"),
        Test("what_was_not_had_back_in_time_cannot_be_had_back_after_another_restart"),
    ]),
    (183, "two at once find the same bytes free", &[
        Impossible("to look and to lock are one step of one thread"),
    ]),
    (184, "a deadlock is reported because of a wait that is over, or none because of what was not looked at", &[
        Script("range_deadlock.txt", "Nothing is left of a wait that is over, so nobody is refused for it."),
        Script("range_deadlock.txt", "One that hung up at this moment is not waited for."),
        Script("range_deadlock.txt", "Whoever waits for the named lock last is told if it has asked for that."),
        Script("range_deadlock.txt", "A second connection of a client that waits takes what the circle needs: whoever it keeps waiting is told."),
        Test("circles_through_ranges_and_keys_are_found_as_the_model_finds_them"),
    ]),
    (185, "the grace period never ends", &[
        Test("without_anything_to_have_back_there_is_no_grace_period"),
        Test("the_policy_strict_refuses_free_bytes_too_and_an_operator_ends_the_period"),
    ]),
    (186, "a split leaves an overlap or a gap", &[
        Test("nothing_that_can_happen_to_five_bytes_leaves_a_gap_or_an_overlap"),
        Test("ranges_are_granted_as_the_model_grants_them"),
    ]),
    (187, "something is left of resources that nobody uses", &[
        Script("range.txt", "A thousand locks and unlocks leave nothing behind."),
        Test("ranges_are_granted_as_the_model_grants_them"),
    ]),

    // What the order of the queue must not do
    (188, "the order of a queue, which nobody holds, keeps somebody waiting for itself", &[
        Script("range_deadlock.txt", "The order of the queue gives way to one that would wait for itself because of it, at once."),
        Script("range_deadlock.txt", "It gives way also if the circle is closed later, by a wait for a named lock."),
        Script("range_deadlock.txt", "Also if it stood behind a holder before it stood behind the queue alone."),
        Test("nobody_behind_others_is_overlooked_because_there_are_many"),
        Test("a_long_circle_is_broken_by_letting_one_pass"),
    ]),
    (189, "whoever waits to write is overtaken by readers without end", &[
        Script("range_wait.txt", "Whoever waits to write is not overtaken by readers that come later and wait."),
        Script("range_deadlock.txt", "It does not give way for one who is not behind anybody because it has some of the bytes."),
    ]),
];
