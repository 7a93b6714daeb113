//! The other direction: what the daemon spells is what a client reads.

use proptest::prelude::*;

use super::answer::{Answer, LIST_FORM, Welcome, WireFence, push_push, push_reply};
use super::client::*;
use super::client_tests::{bytes, span, token};
use super::codec::LineCodec;
use super::verbs::{TABLE, Verb};
use crate::base::{Fence, Millis, Token};
use crate::engine::types::{
    ByteRange, Change, End, Event, GraceState, HeldRange, Loss, Popped, Push, Refusal, Reply,
    Sharing,
};
use crate::key::Key;
use crate::shard::Shard;

fn value() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_filter("no line end", |byte| !b"\r\n".contains(byte));
    prop::collection::vec(byte, 1..20)
}

fn range() -> impl Strategy<Value = ByteRange> {
    let spans = (any::<u64>(), prop_oneof![0..3_u64, any::<u64>()]);
    spans.prop_filter_map("no such bytes", |(start, len)| ByteRange::new(start, len))
}

fn owner() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![Just(Vec::new()), bytes("[!-~]{1,30}")]
}

fn held() -> impl Strategy<Value = Reply> {
    (any::<bool>(), range(), "#[0-9]{1,4}|[a-z/]{1,9}", owner()).prop_map(
        |(alone, range, client, owner)| {
            let mode = if alone {
                Sharing::Exclusive
            } else {
                Sharing::Shared
            };
            Reply::RangeHeld(Box::new(HeldRange {
                mode,
                range,
                client: client.into(),
                owner: Key::from(&owner[..]),
                pending: false,
            }))
        },
    )
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
        Memory,
        ListFull,
        CountMismatch,
        Overflow,
        RangeTooLong,
        BadPattern,
        MaxSubscriptions,
        WrongSecret,
        MaxClients,
        AdapterFull,
        OtherClient,
        UnknownClient,
        Detached,
        BadRange,
        MaxRangesOfResource,
        MaxRangesOfClient,
        MaxRanges,
        Busy,
        Reclaim,
        NoGrace,
        Deadlock,
        Storage,
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
        (any::<u64>(), any::<bool>(), prop::option::of(span(1))).prop_map(
            |(epoch, is_new, reclaim)| {
                let attached = Reply::Attached {
                    epoch,
                    is_new,
                    reclaim,
                };
                (attached, Verb::Attach)
            }
        ),
        Just((Reply::Done, Verb::RangeLock)),
        Just((Reply::RangeFree, Verb::RangeTest)),
        held().prop_map(|held| (held, Verb::RangeTest)),
        Just((Reply::Cancelled, Verb::RangeCancel)),
        Just((Reply::AlreadyGranted, Verb::RangeCancel)),
        span(0).prop_map(|left| (Reply::InGrace(left), Verb::RangeLock)),
        (span(0), any::<u32>(), any::<u32>()).prop_map(|(left, expected, done)| {
            let grace = GraceState {
                left,
                expected,
                done,
            };
            (Reply::Grace(grace), Verb::Grace)
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
        &Reply::Attached {
            epoch,
            is_new,
            reclaim,
        } => Told::Attached {
            epoch,
            is_new,
            reclaim: reclaim.filter(|_| with_fence),
        },
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
        Reply::RangeFree => Told::RangeFree,
        Reply::RangeHeld(held) => Told::RangeHeld {
            mode: held.mode,
            range: held.range,
            client: held.client.as_bytes(),
            owner: held.owner.as_bytes(),
        },
        Reply::Cancelled => Told::Cancelled,
        Reply::AlreadyGranted => Told::AlreadyGranted,
        // Only to those who said `hello`, as all these do whose answers have a fence.
        &Reply::InGrace(left) => Told::InGrace(with_fence.then_some(left)),
        &Reply::Grace(grace) => Told::Grace(grace),
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
        (key(), 1..Fence::LIMIT, any::<bool>()).prop_map(|(key, fence, broken)| Push::Lost {
            key,
            fence: Fence(fence),
            why: if broken { Loss::Broken } else { Loss::Expired },
        }),
        (key(), range(), owner(), any::<bool>()).prop_map(|(resource, range, owner, broken)| {
            Push::RangeLost {
                resource,
                range,
                owner: Key::from(&owner[..]),
                why: if broken { Loss::Broken } else { Loss::Expired },
            }
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
        push_reply(&mut out, &reply, with_fence, || with_fence);
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
            Push::Lost { key, fence, why } => News::Lost { key: key.as_bytes(), fence: *fence, why: *why },
            Push::RangeLost { resource, range, owner, why } => News::RangeLost {
                resource: resource.as_bytes(),
                range: *range,
                owner: owner.as_bytes(),
                why: *why,
            },
            Push::Signal { channel, payload } => News::Signal { channel, payload },
            Push::Watch { event, key } => News::Watch { event: *event, key: key.as_bytes() },
            Push::Leader { change, key } => News::Leader { change: *change, key: key.as_bytes() },
        };
        let line = line(&out);
        prop_assert_eq!(Line::read(line), Some(Line::Push(news)));
        if let Some(word) = news.word() {
            let mut words = line.split(|&byte| byte == b' ');
            prop_assert!(words.any(|it| it == word.as_bytes()), "{}", word);
        }
    }

    #[test]
    fn a_part_of_a_list_reads_back_as_a_document(values in prop::collection::vec(value(), 0..5)) {
        let mut out = Vec::new();
        let mut text = Vec::new();
        for value in &values {
            text.extend_from_slice(if text.is_empty() { b"" } else { b"," });
            (LIST_FORM.push)(&mut text, value);
        }
        let reply = Reply::Values(text);
        push_reply(&mut out, &reply, false, || false);
        let Some(Told::Json(json)) = Told::read(Verb::Lrange, line(&out)) else {
            panic!("{}", out.escape_ascii());
        };
        let read: Vec<String> = serde_json::from_slice(json).unwrap();
        let values = values.iter().map(|value| String::from_utf8_lossy(value));
        prop_assert_eq!(read, values.collect::<Vec<_>>());
    }

    #[test]
    fn no_line_is_too_odd_to_be_looked_at(
        start in prop::sample::select(vec!["", "ok ", "acquired ", "lost ", "watch ", "sig ", "error", "rangelost ", "ok held ", "error_grace "]),
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
    let codec = LineCodec::new(WireFence::Always);
    let spelled = |answer| {
        let mut out = Vec::new();
        codec.encode(&mut out, answer);
        out
    };
    for (answer, told) in [
        (Answer::Ok, Told::Done),
        (Answer::Error, Told::Refused(b"error")),
        (Answer::ErrorAuth, Told::Refused(b"error_auth")),
        (Answer::ErrorForbidden, Told::Refused(b"error_forbidden")),
        (Answer::NotLeader(None), Told::NotLeader(None)),
        (
            Answer::NotLeader(Some("10.0.0.1:6388")),
            Told::NotLeader(Some(b"10.0.0.1:6388")),
        ),
        (
            Answer::NotLeader(Some("[::1]:6388")),
            Told::NotLeader(Some(b"[::1]:6388")),
        ),
    ] {
        let out = spelled(answer);
        assert_eq!(Told::read(Verb::Auth, line(&out)), Some(told));
    }
    for name in [None, Some("me=you")] {
        let (version, epoch) = ("1.2.3-rc.1", u64::MAX);
        let welcome = Welcome {
            version,
            epoch,
            detects_deadlocks: name.is_some(),
            keeps: name.is_none(),
            shard: name.and(Shard::new(0, 2)), // which this client does not ask about
            cluster_ttl: name.and(Some(Millis(5_000))),
            name,
        };
        let out = spelled(Answer::Hello(welcome));
        let told = Told::Hello {
            version,
            epoch,
            fence: true,
            detects_deadlocks: name.is_some(),
            keeps: name.is_none(),
            cluster_ttl: name.and(Some(Millis(5_000))),
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
        (Verb::RangeLock, "ok 1"),
        (Verb::RangeLock, "ok free"),
        (Verb::RangeLock, "error_grace "),
        (Verb::RangeLock, "error_grace 1s"),
        (Verb::RangeLock, "error_grace 1 2"),
        (Verb::RangeTest, "ok"),
        (Verb::RangeTest, "ok held"),
        (Verb::RangeTest, "ok held sh 0 1"),
        (Verb::RangeTest, "ok held sh 0 1 "),
        (Verb::RangeTest, "ok held sh 0 1 #1 "),
        (Verb::RangeTest, "ok held rw 0 1 #1"),
        (Verb::RangeTest, "ok held sh -1 1 #1"),
        (Verb::RangeTest, "ok held sh +1 1 #1"),
        (Verb::RangeTest, "ok held sh 18446744073709551616 1 #1"),
        (Verb::RangeTest, "ok held sh 18446744073709551615 1 #1"),
        (Verb::RangeTest, "ok held sh 18446744073709551615 2 #1"),
        (Verb::RangeCancel, "ok"),
        (Verb::RangeCancel, "ok free"),
        (Verb::Grace, "ok 1 2"),
        (Verb::Grace, "ok 1 2 3 4"),
        (Verb::Grace, "ok 1 2 4294967296"),
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
        "rangelost f 0 1",
        "rangelost f 0 1 sold",
        "rangelost f 0 1 broken ",
        "rangelost f 0 one broken",
        "rangelost f 1 18446744073709551615 broken",
    ] {
        assert_eq!(Line::read(line.as_bytes()), None, "{line:?}");
    }
    assert_eq!(split_line(b"ok"), None);
    assert_eq!(split_line(b"ok\nni"), Some((&b"ok"[..], 3)));
}

#[test]
fn a_client_reads_what_a_later_daemon_adds() {
    let line = b"ok latchd/9.0.0 epoch=7 fence=1 colour=red name=me";
    let told = Told::Hello {
        version: "9.0.0",
        epoch: 7,
        fence: true,
        detects_deadlocks: false,
        keeps: false,
        cluster_ttl: None,
        name: Some("me"),
    };
    assert_eq!(Told::read(Verb::Hello, line), Some(told));
    let word = b"error_never_heard_of";
    assert_eq!(Told::read(Verb::Lock, word), Some(Told::Refused(word)));
}
