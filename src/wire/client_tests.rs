//! Both directions against each other: what a client spells is what the daemon reads, and what the
//! daemon spells is what a client reads.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::answer::{Answer, Welcome, WireFence, push_push, push_reply};
use super::client::*;
use super::codec::Codec;
use super::command::{Command, Hello, Malformed};
use super::line::{Decoded, decode};
use super::verbs::{LINE_BYTES_MAX, TABLE, VALUE_BYTES_MAX, Verb};
use crate::base::{Fence, Millis, Token};
use crate::engine::types::{Change, End, Event, Mode, Popped, Push, Refusal, Reply, Request};
use crate::key::Key;

// ---- what is sent ----

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
const COMMANDS: usize = 30;

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
        let end = if flag { End::Left } else { End::Right };
        Command::Engine(match self.which {
            0 => return Command::Auth { secret: one },
            1 => {
                let fence = (count & 1 == 0).then_some(flag);
                let name = (count & 2 == 0).then_some(one);
                return Command::Hello(Hello { fence, name });
            }
            2 => return Command::Ping,
            3 => return Command::Stats,
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
            9 => Request::Renew { key, token, lease },
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

fn token() -> impl Strategy<Value = Token> {
    (1..Fence::LIMIT, any::<u64>()).prop_map(|(fence, salt)| Token {
        fence: Fence(fence),
        salt,
    })
}

fn bytes(pattern: &'static str) -> impl Strategy<Value = Vec<u8>> + Clone {
    pattern.prop_map(String::into_bytes)
}

/// Spans that can be said, of all sizes.
fn span(least: u64) -> impl Strategy<Value = Millis> + Clone {
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
    for key in [&b""[..], b"a b"] {
        let why = Unspellable::Malformed(Malformed::BadKey);
        assert_eq!(refused(fetch(key)), why);
    }
    assert_eq!(
        refused(fetch(b"")).to_string(),
        "the key is empty, holds a blank, or is a channel with a wildcard"
    );
}

// ---- what comes back ----

fn value() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_filter("no line end", |byte| !b"\r\n".contains(byte));
    prop::collection::vec(byte, 1..20)
}

/// A reply, a verb it may answer, and what its reader has to make of it; documents aside.
fn reply() -> impl Strategy<Value = (Reply, Verb, bool)> {
    use Refusal::*;
    let refusals = vec![
        NotHolder,
        TypeMismatch,
        LimitMismatch,
        MaxLocks,
        MaxWaiters,
        NotEnqueued,
        AlreadyEnqueued,
        LeaseExpired,
        Draining,
        MaxKeys,
        ListFull,
        CountMismatch,
        Overflow,
        RangeTooLong,
        BadPattern,
        MaxSubscriptions,
    ];
    let grant = |token, lease| Reply::Granted { token, lease };
    let reply = prop_oneof![
        (token(), span(1)).prop_map(move |(token, lease)| (grant(token, lease), Verb::Lock)),
        (token(), span(1))
            .prop_map(|(token, lease)| (Reply::Acquired { token, lease }, Verb::SemEnqueue)),
        (token(), span(1)).prop_map(|(token, lease)| {
            let fence = token.fence;
            (Reply::Renewed { lease, fence }, Verb::WriteRenew)
        }),
        Just((Reply::Queued, Verb::Enqueue)),
        Just((Reply::Done, Verb::Release)),
        Just((Reply::Done, Verb::Kcas)),
        any::<i64>().prop_map(|number| (Reply::Number(number), Verb::Incr)),
        any::<i64>().prop_map(|number| (Reply::Number(number), Verb::Pos)),
        value().prop_map(|value| (Reply::Value(value.into()), Verb::Kget)),
        value().prop_map(|value| {
            let popped = Popped {
                key: Key::from(&b"q"[..]),
                end: End::Left,
                value: value.into(),
            };
            (Reply::Popped(popped), Verb::Blpop)
        }),
        Just((Reply::Nothing, Verb::Kget)),
        Just((Reply::Conflict, Verb::Kcas)),
        Just((Reply::TimedOut, Verb::Bwait)),
        prop::sample::select(refusals).prop_map(|why| (Reply::Refused(why), Verb::Lock)),
    ];
    (reply, any::<bool>()).prop_map(|((reply, verb), with_fence)| (reply, verb, with_fence))
}

fn expected(reply: &Reply, with_fence: bool) -> Option<Told<'_>> {
    let grant = |token: Token, lease| Grant {
        token,
        lease,
        fence: with_fence.then_some(token.fence),
    };
    Some(match reply {
        &Reply::Granted { token, lease } => Told::Granted(grant(token, lease)),
        &Reply::Acquired { token, lease } => Told::Acquired(grant(token, lease)),
        Reply::Queued => Told::Queued,
        &Reply::Renewed { lease, fence } => Told::Renewed {
            lease,
            fence: with_fence.then_some(fence),
        },
        Reply::Done => Told::Done,
        Reply::Number(number) => Told::Number(*number),
        Reply::Value(value) => Told::Value(value),
        Reply::Popped(popped) => Told::Value(&popped.value),
        Reply::Nothing => Told::Nothing,
        Reply::Conflict => Told::Conflict,
        Reply::TimedOut => Told::TimedOut,
        // A document and a word, which have tests of their own.
        Reply::Values(_) | Reply::Refused(_) => return None,
    })
}

fn pushes() -> impl Strategy<Value = Push> {
    use Event::*;
    let name = || bytes("[!-~]{1,30}");
    let key = || name().prop_map(|name| Key::from(&name[..]));
    let events = vec![
        Acquire, Release, Incr, Decr, Cset, Kset, Kdel, Kcas, Lpush, Rpush, Lpop, Rpop, Blpop,
        Brpop, Elect, Resign,
    ];
    let changes = vec![Change::Elected, Change::Resigned, Change::Failover];
    prop_oneof![
        (key(), 1..Fence::LIMIT).prop_map(|(key, fence)| Push::Lost {
            key,
            fence: Fence(fence)
        }),
        (name(), value()).prop_map(|(channel, payload)| Push::Signal {
            channel: channel.into(),
            payload: payload.into(),
        }),
        (key(), prop::sample::select(events)).prop_map(|(key, event)| Push::Watch { event, key }),
        (key(), prop::sample::select(changes))
            .prop_map(|(key, change)| Push::Leader { change, key }),
    ]
}

/// The one line in these bytes.
#[track_caller]
fn line(bytes: &[u8]) -> &[u8] {
    let (line, used) = split_line(bytes).expect("a line");
    assert_eq!(used, bytes.len(), "more than one line");
    line
}

proptest! {
    #[test]
    fn a_reply_reads_back_as_what_it_was((reply, verb, with_fence) in reply()) {
        let mut out = Vec::new();
        push_reply(&mut out, &reply, with_fence);
        let line = line(&out);
        prop_assert_eq!(Line::read(line), Some(Line::Answer(line)));
        let told = Told::read(verb, line);
        match expected(&reply, with_fence) {
            Some(expected) => prop_assert_eq!(told, Some(expected)),
            None => prop_assert_eq!(told, Some(Told::Refused(line))),
        }
        if let Some(Told::Granted(grant) | Told::Acquired(grant)) = told {
            prop_assert_eq!(Grant::read(line), Some(grant));
        }
    }

    #[test]
    fn a_push_reads_back_as_what_it_was(push in pushes()) {
        let mut out = Vec::new();
        push_push(&mut out, &push);
        let news = match &push {
            Push::Lost { key, fence } => News::Lost { key: key.as_bytes(), fence: *fence },
            Push::Signal { channel, payload } => News::Signal { channel, payload },
            Push::Watch { event, key } => News::Watch { event: *event, key: key.as_bytes() },
            Push::Leader { change, key } => News::Leader { change: *change, key: key.as_bytes() },
        };
        prop_assert_eq!(Line::read(line(&out)), Some(Line::Push(news)));
    }

    #[test]
    fn a_part_of_a_list_reads_back_as_a_document(values in prop::collection::vec(value(), 0..5)) {
        let mut out = Vec::new();
        let reply = Reply::Values(values.iter().map(|value| value[..].into()).collect());
        push_reply(&mut out, &reply, false);
        let Some(Told::Json(json)) = Told::read(Verb::Lrange, line(&out)) else {
            panic!("{}", out.escape_ascii());
        };
        let read: Vec<String> = serde_json::from_slice(json).unwrap();
        let values = values.iter().map(|value| String::from_utf8_lossy(value));
        prop_assert_eq!(read, values.collect::<Vec<_>>());
    }

    #[test]
    fn no_line_is_too_odd_to_be_looked_at(
        start in prop::sample::select(vec!["", "ok ", "acquired ", "lost ", "watch ", "sig ", "error"]),
        rest: Vec<u8>,
    ) {
        let line = [start.as_bytes(), &rest].concat();
        let _ = Line::read(&line);
        for row in &TABLE {
            let _ = Told::read(row.verb, &line);
        }
    }
}

#[test]
fn what_the_server_says_itself_reads_back() {
    let codec = Codec::line(WireFence::Always);
    let spelled = |answer| {
        let mut out = Vec::new();
        codec.encode(&mut out, answer);
        out
    };
    for (answer, told) in [
        (Answer::Ok, Told::Done),
        (Answer::Error, Told::Refused(b"error")),
        (Answer::ErrorAuth, Told::Refused(b"error_auth")),
    ] {
        let out = spelled(answer);
        assert_eq!(Told::read(Verb::Auth, line(&out)), Some(told));
    }
    for name in [None, Some("me=you")] {
        let (version, epoch) = ("1.2.3-rc.1", u64::MAX);
        let welcome = Welcome {
            version,
            epoch,
            name,
        };
        let out = spelled(Answer::Hello(welcome));
        let told = Told::Hello {
            version,
            epoch,
            fence: true,
            name,
        };
        assert_eq!(Told::read(Verb::Hello, line(&out)), Some(told));
    }
    let body = br#"{"a b":1}"#;
    let out = spelled(Answer::Json(&|out| out.extend_from_slice(body)));
    assert_eq!(
        Told::read(Verb::Stats, line(&out)),
        Some(Told::Json(&body[..]))
    );
}

#[test]
fn what_no_daemon_says_is_not_read() {
    const HEX: &str = "000000000000002a9f8e7d6c5b4a3921";
    for (verb, line) in [
        (Verb::Lock, "ok"),
        (Verb::Lock, "ok 33"),
        (Verb::Lock, "ok {} 33 43"),
        (Verb::Lock, "ok {} 33 42 1"),
        (Verb::Lock, "ok {} 33 "),
        (Verb::Lock, "ok {} 1000ms"),
        (Verb::Lock, "ok {} 033"),
        (Verb::Lock, "ok {} +33"),
        (Verb::Lock, "ok {} 33s"),
        (Verb::Lock, "ok {} -33"),
        (Verb::Lock, "ok {} 9223372037"),
        (Verb::Lock, "ok  {} 33"),
        (Verb::Lock, "ok 000000000000002A9F8E7D6C5B4A3921 33"),
        (Verb::Lock, "ok 00000000-0000-002a-9f8e-7d6c5b4a3921 33"),
        (Verb::Lock, "acquired {} 33"),
        (Verb::Enqueue, "ok {} 33"),
        (Verb::Renew, "ok {} 33"),
        (Verb::Release, "ok 1"),
        (Verb::Release, "okay"),
        (Verb::Release, "Ok"),
        (Verb::Release, ""),
        (Verb::Incr, "ok +1"),
        (Verb::Incr, "ok 1 "),
        (Verb::Incr, "ok 9223372036854775808"),
        (Verb::Incr, "ok -0"),
        (Verb::Kget, "ok "),
        (Verb::Kget, "ok"),
        (Verb::Ping, "errors"),
        (Verb::Ping, "error "),
        (Verb::Ping, "error_"),
        (Verb::Ping, "error_no such"),
        (Verb::Hello, "ok latchd/1"),
        (Verb::Hello, "ok other/1 epoch=1"),
        (Verb::Hello, "ok latchd/1 epoch=one"),
    ] {
        let line = line.replace("{}", HEX);
        assert_eq!(Told::read(verb, line.as_bytes()), None, "{line:?}");
    }
    for line in [
        "sig channel",
        "watch kset",
        "watch ksets k",
        "leader elect k",
        "lost k 7",
        "lost k seven expired",
        "lost k 7 sold",
        "lost k 7 8 expired",
    ] {
        assert_eq!(Line::read(line.as_bytes()), None, "{line:?}");
    }
    assert_eq!(split_line(b"ok"), None);
    assert_eq!(split_line(b"ok\nni"), Some((&b"ok"[..], 3)));
}

#[test]
fn a_client_reads_what_a_later_daemon_adds() {
    let line = b"ok latchd/9.0.0 epoch=7 fence=1 keep=1 name=me";
    let told = Told::Hello {
        version: "9.0.0",
        epoch: 7,
        fence: true,
        name: Some("me"),
    };
    assert_eq!(Told::read(Verb::Hello, line), Some(told));
    let word = b"error_never_heard_of";
    assert_eq!(Told::read(Verb::Lock, word), Some(Told::Refused(word)));
}
