//! Both directions against each other: what a client spells is what the daemon reads. What the
//! daemon spells and a client reads is in `client_answer_tests`.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::answer::LIST_FORM;
use super::client::*;
use super::command::{Command, Hello, Malformed};
use super::line::{Decoded, decode};
use super::verbs::{LINE_BYTES_MAX, TABLE, VALUE_BYTES_MAX, Verb};
use crate::base::{Fence, Millis, Token};
use crate::engine::types::{
    Attach, End, Mode, RangeAsk, RangeCursor, RangeRequest, RangesOf, Request, Secret, Sharing,
    Span,
};

/// What commands are made of.
#[derive(Clone, Debug)]
struct Parts {
    which: usize,
    key: Vec<u8>,
    one: Vec<u8>,
    two: Vec<u8>,
    numbers: (i64, i64),
    count: u32,
    span: Millis,
    lease: Option<Millis>,
    token: Option<Token>,
    mode: Mode,
    flag: bool,
}

/// How many commands there are to choose from.
const COMMANDS: usize = 43;

impl Parts {
    fn command(&self) -> Command<'_> {
        let Self {
            ref key,
            ref one,
            ref two,
            numbers: (first, second),
            count,
            span,
            lease,
            token,
            mode,
            flag,
            ..
        } = *self;
        let (key, one, two) = (&key[..], &one[..], &two[..]);
        let id = str::from_utf8(key).unwrap_or("id");
        let end = if flag { End::Left } else { End::Right };
        let sharing = if flag {
            Sharing::Shared
        } else {
            Sharing::Exclusive
        };
        let span_of_bytes = Span {
            start: first.cast_unsigned(),
            len: second.cast_unsigned(),
        };
        let range = |ask| {
            Command::Range(RangeRequest {
                resource: key,
                owner: if count & 1 == 0 { b"" } else { one },
                ask,
            })
        };
        Command::Engine(match self.which {
            0 => return Command::Auth { secret: one },
            1 => {
                let fence = (count & 1 == 0).then_some(flag);
                let name = (count & 2 == 0).then_some(one);
                let deadlock = (count & 4 == 0).then_some(flag);
                let keep = (count & 8 == 0).then_some(flag);
                return Command::Hello(Hello {
                    fence,
                    deadlock,
                    keep,
                    name,
                });
            }
            2 => return Command::Ping,
            3 if flag => return Command::Stats,
            3 => return Command::Waits,
            4 => return Command::Who { key },
            5 => Request::Acquire {
                key,
                mode,
                wait: span,
                lease,
            },
            6 => Request::Enqueue { key, mode, lease },
            7 => Request::Wait { key, wait: span },
            8 => Request::Release { key, token },
            9 if flag => Request::Renew { key, token, lease },
            9 => Request::Reclaim { key, token, lease },
            10 => Request::Position { key },
            11 => Request::Resign { key, token },
            12 if flag => Request::Observe { key },
            12 => Request::Unobserve { key },
            13 => Request::Add {
                key,
                delta: first,
                down: flag,
            },
            14 => Request::Count { key },
            15 => Request::SetCount { key, value: first },
            16 => Request::Put {
                key,
                value: one,
                ttl: span,
            },
            17 => Request::Fetch { key },
            18 => Request::Delete { key },
            19 => Request::Swap {
                key,
                old: one,
                new: two,
                ttl: span,
            },
            20 => Request::Push {
                key,
                value: one,
                end,
            },
            21 => Request::Pop { key, end },
            22 => Request::AwaitPop {
                key,
                end,
                wait: span,
            },
            23 => Request::Length { key },
            24 => Request::Range {
                key,
                start: first,
                stop: second,
                form: LIST_FORM,
            },
            25 => Request::Meet {
                key,
                count,
                wait: span,
            },
            26 => Request::Listen {
                pattern: key,
                group: one,
            },
            27 => Request::Unlisten {
                pattern: key,
                group: one,
            },
            28 => Request::Signal {
                channel: key,
                payload: one,
            },
            29 if flag => Request::Watch { pattern: key },
            29 => Request::Unwatch { pattern: key },
            30 => {
                return Command::Attach(Attach {
                    adapter: None,
                    id,
                    ttl: span,
                    secret: Secret(one),
                });
            }
            31 => {
                let secret = Secret(one);
                return Command::Detach { id, secret };
            }
            32 => {
                let fence = flag.then_some(Fence(count.into()));
                return Command::Break { key, fence };
            }
            33 => {
                return range(RangeAsk::Lock {
                    mode: sharing,
                    span: span_of_bytes,
                    wait: span,
                });
            }
            34 => {
                return range(RangeAsk::Unlock {
                    span: span_of_bytes,
                });
            }
            35 => {
                return range(RangeAsk::Test {
                    mode: sharing,
                    span: span_of_bytes,
                });
            }
            36 => {
                return range(RangeAsk::Cancel {
                    mode: sharing,
                    span: span_of_bytes,
                });
            }
            37 => {
                return range(RangeAsk::Reclaim {
                    mode: sharing,
                    span: span_of_bytes,
                });
            }
            38 => {
                let span = flag.then_some(span_of_bytes);
                return Command::BreakRanges {
                    resource: key,
                    span,
                };
            }
            39 if flag => return Command::RangeList { resource: key },
            39 => return Command::ReclaimDone { id },
            40 => return Command::Grace { ends: flag },
            41 => return Command::BreakRangesOf { client: key },
            42 => {
                let owner = (count & 1 == 0 && !one.is_empty()).then_some(one);
                let of = match flag {
                    true => RangesOf {
                        client: Some(key),
                        owner,
                    },
                    false => RangesOf {
                        client: None,
                        owner: Some(key),
                    },
                };
                let (slot, start) = (count, span_of_bytes.start);
                let after = RangeCursor { slot, start };
                return Command::RangeListOf { of, after };
            }
            _ => unreachable!("{COMMANDS} commands"),
        })
    }
}

fn parts(
    key: impl Strategy<Value = Vec<u8>>,
    value: impl Strategy<Value = Vec<u8>> + Clone,
    span: impl Strategy<Value = Millis> + Clone,
    count: impl Strategy<Value = u32> + Clone,
    lease: impl Strategy<Value = Option<Millis>>,
    numbers: impl Strategy<Value = (i64, i64)>,
) -> impl Strategy<Value = Parts> {
    let mode = (0..5_u8, count.clone()).prop_map(|(which, limit)| match which {
        0 => Mode::Slot { limit: 1 },
        1 => Mode::Slot { limit },
        2 => Mode::Read,
        3 => Mode::Write,
        _ => Mode::Lead,
    });
    let tail = (mode, prop::option::of(token()), any::<bool>());
    let values = (key, value.clone(), value);
    (0..COMMANDS, values, numbers, count, span, lease, tail).prop_map(
        |(which, (key, one, two), numbers, count, span, lease, (mode, token, flag))| Parts {
            which,
            key,
            one,
            two,
            numbers,
            count,
            span,
            lease,
            token,
            mode,
            flag,
        },
    )
}

pub(super) fn token() -> impl Strategy<Value = Token> {
    (1..Fence::LIMIT, any::<u64>()).prop_map(|(fence, salt)| Token {
        fence: Fence(fence),
        salt,
    })
}

pub(super) fn bytes(pattern: &'static str) -> impl Strategy<Value = Vec<u8>> + Clone {
    pattern.prop_map(String::into_bytes)
}

/// Spans that can be said, of all sizes.
pub(super) fn span(least: u64) -> impl Strategy<Value = Millis> + Clone {
    prop_oneof![
        (least..10_000).prop_map(Millis),
        (1..100_u64).prop_map(Millis::from_secs),
        (least..=Millis::MAX.0).prop_map(Millis),
    ]
}

/// Parts of which every command can be said, but for those that have no words.
fn tame() -> impl Strategy<Value = Parts> {
    let numbers = (i64::MIN + 1..=i64::MAX, any::<i64>());
    let lease = prop::option::of(span(1));
    parts(
        bytes("[a-z.:]{1,12}"),
        bytes("[!-~]{1,20}"),
        span(0),
        1..=u32::MAX,
        lease,
        numbers,
    )
}

/// Parts of which some cannot be said at all.
fn wild() -> impl Strategy<Value = Parts> {
    let odd = prop_oneof![
        bytes("[a-c.*> \t\r\n\u{b}]{0,4}"),
        prop::collection::vec(any::<u8>(), 0..4),
        prop::sample::select(vec![
            LINE_BYTES_MAX,
            LINE_BYTES_MAX + 1,
            VALUE_BYTES_MAX + 1
        ])
        .prop_map(|length| vec![b'x'; length]),
    ];
    let any_span = prop_oneof![span(0), any::<u64>().prop_map(Millis)];
    let numbers = any::<(i64, i64)>();
    let numbers = prop_oneof![numbers, Just((i64::MIN, i64::MIN))];
    parts(
        odd.clone(),
        odd,
        any_span.clone(),
        prop_oneof![0..3_u32, any::<u32>()],
        prop::option::of(any_span),
        numbers,
    )
}

/// What the daemon makes of these bytes, which must be one frame.
#[track_caller]
fn check_read(bytes: &[u8], verb: Verb, command: Command<'_>) {
    let mut scratch = Vec::new();
    match decode(bytes, &mut scratch) {
        Decoded::Frame(asked) => {
            assert_eq!(asked.command, Ok(command));
            assert_eq!(asked.verb, Some(verb));
            assert_eq!(asked.used, bytes.len());
        }
        other => panic!("{}: {other:?}", bytes.escape_ascii()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_tame_request_is_spelled_and_decodes_to_what_it_was(parts in tame()) {
        let command = parts.command();
        let mut out = Vec::new();
        match push_request(&mut out, &command) {
            Ok(verb) => check_read(&out, verb, command),
            // Nobody can stand in a queue to lead.
            Err(why) => {
                prop_assert_eq!(why, Unspellable::Ambiguous);
                let leads = Mode::Lead;
                prop_assert!(
                    matches!(command, Command::Engine(Request::Enqueue { mode, .. }) if mode == leads),
                    "{:?}", command
                );
            }
        }
    }

    #[test]
    fn whatever_is_spelled_decodes_to_what_it_was_and_the_rest_leaves_no_trace(parts in wild()) {
        let command = parts.command();
        let mut out = b"before".to_vec();
        match push_request(&mut out, &command) {
            Ok(verb) => check_read(&out[b"before".len()..], verb, command),
            Err(_) => prop_assert_eq!(out, b"before"),
        }
    }
}

#[test]
fn every_verb_can_be_spelled() {
    let mut spelled = BTreeSet::new();
    let modes = [
        Mode::Slot { limit: 1 },
        Mode::Slot { limit: 3 },
        Mode::Read,
        Mode::Write,
        Mode::Lead,
    ];
    for which in 0..COMMANDS {
        for (mode, flag) in modes
            .iter()
            .flat_map(|mode| [(*mode, false), (*mode, true)])
        {
            let parts = Parts {
                which,
                key: b"k".to_vec(),
                one: b"v".to_vec(),
                two: b"w".to_vec(),
                numbers: (1, 2),
                count: 2,
                span: Millis(1_500),
                lease: None,
                token: None,
                mode,
                flag,
            };
            if let Ok(verb) = push_request(&mut Vec::new(), &parts.command()) {
                spelled.insert(verb.row().letters);
            }
        }
    }
    // Others for what already has a verb.
    spelled.extend([
        "sr", "rr", "wr", "sn", "rn", "wn", "sw", "rw", "ww", "barrier",
    ]);
    let all: BTreeSet<&str> = TABLE.iter().map(|row| row.letters).collect();
    assert_eq!(spelled, all);
}

#[test]
fn a_request_is_spelled_as_clients_always_did() {
    let token = Token {
        fence: Fence(42),
        salt: 0x9f8e_7d6c_5b4a_3921,
    };
    let key = &b"k"[..];
    let (wait, lease) = (Millis::from_secs(10), Some(Millis(1_500)));
    let sem = Mode::Slot { limit: 3 };
    let lock = Mode::Slot { limit: 1 };
    let spelled = |request| {
        let mut out = Vec::new();
        push_request(&mut out, &Command::Engine(request)).unwrap();
        String::from_utf8(out).unwrap().replace('\n', "|")
    };
    for (request, frame) in [
        (
            Request::Acquire {
                key,
                mode: lock,
                wait,
                lease: None,
            },
            "l|k|10|",
        ),
        (
            Request::Acquire {
                key,
                mode: sem,
                wait,
                lease,
            },
            "sl|k|10 3 1500ms|",
        ),
        (
            Request::Renew {
                key,
                token: Some(token),
                lease: Some(wait),
            },
            "n|k|000000000000002a9f8e7d6c5b4a3921 10|",
        ),
        (
            Request::Put {
                key,
                value: b"a b",
                ttl: wait,
            },
            "kset|k|a b\t10|",
        ),
        (
            Request::Swap {
                key,
                old: b"",
                new: b"v",
                ttl: Millis::ZERO,
            },
            "kcas|k|\tv\t0|",
        ),
    ] {
        assert_eq!(spelled(request), frame);
    }
    let spelled = |command| {
        let mut out = Vec::new();
        push_request(&mut out, &command).unwrap();
        String::from_utf8(out).unwrap().replace('\n', "|")
    };
    let span = Span {
        start: u64::MAX,
        len: 1,
    };
    let range = |owner, ask| {
        Command::Range(RangeRequest {
            resource: b"f",
            owner,
            ask,
        })
    };
    let mode = Sharing::Exclusive;
    for (command, frame) in [
        (
            range(b"bob", RangeAsk::Lock { mode, span, wait }),
            "rangelock|f|ex 18446744073709551615 1 10 bob|",
        ),
        (
            range(b"", RangeAsk::Unlock { span }),
            "rangeunlock|f|18446744073709551615 1|",
        ),
        (
            range(b"", RangeAsk::Test { mode, span }),
            "rangetest|f|ex 18446744073709551615 1|",
        ),
        (
            Command::BreakRanges {
                resource: b"f",
                span: None,
            },
            "break|f|range *|",
        ),
        (
            Command::BreakRangesOf { client: b"gw/1" },
            "break|gw/1|range client|",
        ),
        (
            Command::RangeListOf {
                of: RangesOf {
                    client: Some(b"gw/1"),
                    owner: Some(b"bob"),
                },
                after: RangeCursor {
                    slot: 7,
                    start: u64::MAX,
                },
            },
            "rangelist|gw/1|client 7.18446744073709551615 bob|",
        ),
        (Command::Grace { ends: true }, "grace|_|end|"),
    ] {
        assert_eq!(spelled(command), frame);
    }
    assert_eq!(frame("l job 10 60"), "l\njob\n10 60\n");
    assert_eq!(frame("kset k a b"), "kset\nk\na b\n");
    assert_eq!(frame("ping"), "ping\n\n\n");
}

#[test]
fn nothing_can_be_smuggled_in() {
    let refused = |command| push_request(&mut Vec::new(), &command).unwrap_err();
    let fetch = |key| Command::Engine(Request::Fetch { key });
    let put = |value| {
        Command::Engine(Request::Put {
            key: b"k",
            value,
            ttl: Millis::ZERO,
        })
    };
    assert_eq!(refused(fetch(b"k\n\nkdel\nk\n")), Unspellable::LineEnd);
    assert_eq!(refused(put(b"v\r")), Unspellable::LineEnd);
    assert_eq!(refused(fetch(&[b'k'; 257])), Unspellable::TooLong);
    assert_eq!(refused(put(&[b'v'; 65_537])), Unspellable::TooLong);
    assert_eq!(refused(put(b"v\t5")), Unspellable::Ambiguous);
    assert_eq!(
        refused(put(b"v\tx")),
        Unspellable::Malformed(Malformed::BadNumber)
    );
    let unlock = |owner| {
        let span = Span { start: 0, len: 0 };
        Command::Range(RangeRequest {
            resource: b"f",
            owner,
            ask: RangeAsk::Unlock { span },
        })
    };
    assert_eq!(refused(unlock(b"flavor=posix")), Unspellable::Ambiguous);
    for owner in [&b"a b"[..], b"flavor=stacking", &[b'o'; 257]] {
        let why = Unspellable::Malformed(Malformed::ArgumentShape);
        assert_eq!(refused(unlock(owner)), why);
    }
    assert_eq!(refused(unlock(b"a\n")), Unspellable::LineEnd);
    assert_eq!(refused(unlock(&[b'o'; 600])), Unspellable::TooLong);
    for key in [&b""[..], b"a b"] {
        let why = Unspellable::Malformed(Malformed::BadKey);
        assert_eq!(refused(fetch(key)), why);
    }
    assert_eq!(
        refused(fetch(b"")).to_string(),
        "the key is empty, holds a blank, or is a channel with a wildcard"
    );
}
