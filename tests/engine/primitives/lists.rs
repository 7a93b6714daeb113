//! Parts of lists that are too long for an answer.

use latchd::base::{ConnId, Nanos};
use latchd::engine::Rules;
use latchd::engine::types::{Effects, End, Input, ListForm, Refusal, Reply, Request};
use latchd::wire::answer::LIST_FORM;
use proptest::prelude::*;

use super::{Said, World};

fn joined(form: ListForm, values: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut text = Vec::new();
    for (index, value) in values.iter().enumerate() {
        text.extend_from_slice(if index == 0 { b"" } else { b"," });
        (form.push)(&mut text, value.as_ref());
    }
    text
}

/// The longest line that a client reads, in bytes.
const LINE_MAX: usize = 1 << 20;

/// An engine with a list of these values, and how long the line is that tells all of them.
fn with_list(values: &[Vec<u8>]) -> (World, usize) {
    let mut world = World::new(Rules::default());
    let mut line = b"ok []\n".to_vec();
    for (index, value) in values.iter().enumerate() {
        let (key, end) = (b"q", End::Right);
        world.ask(0, Request::Push { key, value, end });
        line.extend_from_slice(if index == 0 { b"" } else { b"," });
        latchd::wire::json::push_str_escaped(&mut line, value);
    }
    (world, line.len())
}

fn all_of(world: &mut World) -> Said {
    let range = Request::Range {
        key: b"q",
        start: 0,
        stop: -1,
        form: LIST_FORM,
    };
    let heard = world.ask(0, range);
    heard.into_iter().next().unwrap().1
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The engine refuses exactly what would be too long when it is spelled, escapes and all.
    #[test]
    fn a_part_of_a_list_is_refused_before_it_is_spelled(
        bytes in prop_oneof![
            Just(vec![b'v']),
            Just(vec![1]),
            Just(vec![b'"', b'x']),
            Just(b"\xf0\x9f".to_vec()),
            Just(b"\xff".to_vec()),
            Just("clé".as_bytes().to_vec()),
            prop::collection::vec(any::<u8>(), 1..40),
        ],
        // Values of so many bytes, and one more that makes it fit or not.
        length in prop_oneof![Just(1_000), Just(65_536)],
        spare in 0..9_usize,
    ) {
        let value: Vec<u8> = bytes.iter().copied().cycle().take(length).collect();
        let spelled = with_list(std::slice::from_ref(&value)).1 - b"ok []\n".len() + 1;
        let count = (LINE_MAX - 100) / spelled;
        let mut values = vec![value; count];
        let (_, so_far) = with_list(&values);
        // A comma, two quotes, and as many bytes as fit, but for a few more or less.
        let last = (LINE_MAX - so_far + 1 - spare).min(65_536);
        values.push(vec![b'v'; last]);
        let (mut world, line) = with_list(&values);
        let said = all_of(&mut world);
        if line <= LINE_MAX {
            let text = joined(LIST_FORM, &values);
            prop_assert_eq!(said, Said::Reply(Reply::Values(text)));
        } else {
            prop_assert_eq!(said, Said::Reply(Reply::Refused(Refusal::RangeTooLong)));
        }
    }
}

#[test]
fn to_refuse_a_part_of_a_list_costs_no_more_than_to_tell_it() {
    // Very many short values; and what would fit, but for the escapes.
    for (count, value) in [(300_000, vec![b'v']), (15, vec![1; 65_536])] {
        let mut world = World::new(Rules::default());
        for _ in 0..count {
            let (key, end) = (b"q", End::Right);
            let (id, value) = (ConnId { slot: 0, serial: 1 }, &value);
            // Not through the world, which looks at the whole list after each of them.
            let request = Input::Request(id, Request::Push { key, value, end });
            world.engine.apply(Nanos(0), request, &mut Effects::new());
        }
        world.engine.take_work();
        let said = all_of(&mut world);
        assert_eq!(said, Said::Reply(Reply::Refused(Refusal::RangeTooLong)));
        let work = world.engine.take_work();
        // Two for each byte of a line, and of the longest value that can be one too many.
        let most = 2 * (LINE_MAX + 6 * 65_536) as u64;
        assert!(work < most, "{work}");
    }
}
