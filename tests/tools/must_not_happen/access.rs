//! Rows of `must_not_happen.rs`: who may do what, and locks that outlive a connection.

use super::Cover::{Script, Test};
use super::Row;

#[rustfmt::skip] // as there
pub(crate) const TABLE: &[Row] = &[
    (190, "somebody who may look changes something, or sees or changes names that it may not", &[
        Script("access.txt", "And nothing else."),
        Script("access.txt", "With prefixes only names under them: keys, channels, resources, and the ids of clients."),
        Script("access.txt", "What shows everything is not for those who may see a part."),
        Script("access.txt", "A pattern lies under a prefix if everything that matches it does."),
        Test("each_verb_needs_what_the_contract_says"),
        Test("what_a_token_must_give_is_said"),
        Test("a_role_and_its_prefixes_decide"),
    ]),
    (191, "whoever has the token of a lock releases or renews it, though it may not change the key", &[
        Script("access.txt", "And nothing else."),
        Script("access.txt", "With prefixes only names under them: keys, channels, resources, and the ids of clients."),
    ]),
    (192, "somebody is let in by what a peer says of itself, or by a user's number over TCP", &[
        Test("a_user_of_the_machine_needs_no_token_and_nobody_else_is_let_in_by_that"),
        Test("a_user_of_the_machine_is_let_in_over_a_unix_socket_and_only_there"),
        Test("over_http_a_user_of_the_machine_needs_no_token_either"),
    ]),
    (193, "new tokens throw out who is connected, or give it more than it had", &[
        Test("new_tokens_are_asked_of_newcomers_and_touch_nobody_who_is_there"),
    ]),
    (194, "what is refused or done by operators leaves no trace, floods the log, or shows a token", &[
        Test("what_operators_do_is_told_with_who_and_from_where"),
        Test("what_is_forbidden_is_told_once_a_second_however_often_it_is_tried"),
        Test("what_is_wrong_is_said_with_its_line_and_without_its_text"),
        Test("no_token_is_shown"),
    ]),
    (195, "what was to outlive its connection is released with it; or what nobody knows of is held for its lease", &[
        Script("keep.txt", "A lock stays until its lease ends, to the millisecond."),
        Script("keep.txt", "Only what is granted after it was said, and before it was taken back."),
        Script("keep.txt", "A wait ends with its connection, whatever it said."),
        Script("keep.txt", "A place in the queue, too; and one that was granted and never told of is released: nobody knows its token."),
        Script("keep.txt", "After a restart it is there, for its whole lease, for whoever has the token."),
        Test("engine_does_what_the_model_does"),
        Test("a_server_that_does_not_keep_what_it_says_is_noticed"),
        Test("who_leaves_very_much_that_outlives_it_is_looked_at_in_slices"),
    ]),
];
