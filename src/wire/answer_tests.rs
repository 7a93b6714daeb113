//! How every reply and every push is spelled.

use proptest::prelude::*;

use super::answer::*;
use crate::base::{Fence, Millis, Token};
use crate::engine::types::{
    ByteRange, Change, End, Event, GraceState, HeldRange, Loss, Popped, Push, Refusal, Reply,
    Sharing, Value,
};
use crate::key::Key;
use crate::wire::args;

const TOKEN: Token = Token {
    fence: Fence(42),
    salt: 0x9f8e_7d6c_5b4a_3921,
};

fn spelled(reply: &Reply, with_fence: bool) -> String {
    let mut out = b"before\n".to_vec();
    push_reply(&mut out, reply, with_fence, || with_fence);
    let text = String::from_utf8(out).unwrap();
    text.strip_prefix("before\n").unwrap().to_owned()
}

#[test]
fn grants_and_renewals_are_spelled_as_the_contract_says() {
    let lease = Millis::from_secs(33);
    let odd = Millis(1_500);
    let fence = Fence(42);
    for (reply, plain, fenced) in [
        (
            Reply::Granted {
                token: TOKEN,
                lease,
            },
            "ok 000000000000002a9f8e7d6c5b4a3921 33\n",
            "ok 000000000000002a9f8e7d6c5b4a3921 33 42\n",
        ),
        (
            Reply::Acquired {
                token: TOKEN,
                lease: odd,
            },
            "acquired 000000000000002a9f8e7d6c5b4a3921 1500ms\n",
            "acquired 000000000000002a9f8e7d6c5b4a3921 1500ms 42\n",
        ),
        (Reply::Renewed { lease, fence }, "ok 33\n", "ok 33 42\n"),
        (
            Reply::Renewed { lease: odd, fence },
            "ok 1500ms\n",
            "ok 1500ms 42\n",
        ),
    ] {
        assert_eq!(spelled(&reply, false), plain);
        assert_eq!(spelled(&reply, true), fenced);
    }
}

fn attached(epoch: u64, is_new: bool) -> Reply {
    Reply::Attached {
        epoch,
        is_new,
        reclaim: None,
    }
}

#[test]
fn other_answers_never_carry_a_fence() {
    for (reply, line) in [
        (Reply::Queued, "queued\n"),
        (Reply::Done, "ok\n"),
        (Reply::Number(0), "ok 0\n"),
        (Reply::Number(u32::MAX.into()), "ok 4294967295\n"),
        (Reply::Number(-5), "ok -5\n"),
        (Reply::Number(i64::MIN), "ok -9223372036854775808\n"),
        (Reply::Nothing, "nil\n"),
        (Reply::Conflict, "cas_conflict\n"),
        (Reply::TimedOut, "timeout\n"),
        (Reply::Refused(Refusal::NotHolder), "error\n"),
        (
            Reply::Refused(Refusal::TypeMismatch),
            "error_type_mismatch\n",
        ),
        (
            Reply::Refused(Refusal::LimitMismatch),
            "error_limit_mismatch\n",
        ),
        (Reply::Refused(Refusal::MaxLocks), "error_max_locks\n"),
        (Reply::Refused(Refusal::MaxWaiters), "error_max_waiters\n"),
        (Reply::Refused(Refusal::NotEnqueued), "error_not_enqueued\n"),
        (
            Reply::Refused(Refusal::AlreadyEnqueued),
            "error_already_enqueued\n",
        ),
        (
            Reply::Refused(Refusal::LeaseExpired),
            "error_lease_expired\n",
        ),
        (Reply::Refused(Refusal::Draining), "error_draining\n"),
        (Reply::Refused(Refusal::MaxKeys), "error_max_keys\n"),
        (Reply::Refused(Refusal::Memory), "error_memory\n"),
        (Reply::Refused(Refusal::Storage), "error_storage\n"),
        (Reply::Refused(Refusal::Reclaim), "error_reclaim\n"),
        (Reply::Refused(Refusal::NoGrace), "error_no_grace\n"),
        (Reply::Refused(Refusal::Deadlock), "error_deadlock\n"),
        (Reply::Refused(Refusal::ListFull), "error_list_full\n"),
        (Reply::Refused(Refusal::WrongSecret), "error_auth\n"),
        (Reply::Refused(Refusal::MaxClients), "error_limit\n"),
        (Reply::Refused(Refusal::AdapterFull), "error_max_clients\n"),
        (Reply::Refused(Refusal::OtherClient), "error\n"),
        (Reply::Refused(Refusal::UnknownClient), "error\n"),
        (Reply::Refused(Refusal::Detached), "error\n"),
        (Reply::Refused(Refusal::BadRange), "error_range\n"),
        (Reply::Refused(Refusal::Busy), "error_busy\n"),
        (
            Reply::Refused(Refusal::MaxRangesOfResource),
            "error_limit\n",
        ),
        (Reply::Refused(Refusal::MaxRangesOfClient), "error_limit\n"),
        (Reply::Refused(Refusal::MaxRanges), "error_limit\n"),
        (Reply::RangeFree, "ok free\n"),
        (Reply::Cancelled, "ok cancelled\n"),
        (Reply::AlreadyGranted, "ok granted\n"),
        (Reply::Grace(GraceState::default()), "ok 0 0 0\n"),
        (
            Reply::Grace(GraceState {
                left: Millis(89_999),
                expected: u32::MAX,
                done: 7,
            }),
            "ok 89999 4294967295 7\n",
        ),
        (attached(u64::MAX, true), "ok 18446744073709551615 new\n"),
        (attached(7, false), "ok 7 resumed\n"),
        (
            Reply::Refused(Refusal::CountMismatch),
            "error_barrier_count_mismatch\n",
        ),
        (Reply::Refused(Refusal::Overflow), "error\n"),
        (Reply::Refused(Refusal::RangeTooLong), "error\n"),
        (Reply::Refused(Refusal::BadPattern), "error\n"),
        (Reply::Refused(Refusal::MaxSubscriptions), "error\n"),
    ] {
        assert_eq!(spelled(&reply, false), line);
        assert_eq!(spelled(&reply, true), line);
        assert!(line.len() <= REPLY_BYTES_MAX, "{line}");
    }
}

fn held(mode: Sharing, range: (u64, u64), client: &str, owner: &str) -> Reply {
    Reply::RangeHeld(Box::new(HeldRange {
        mode,
        range: ByteRange::new(range.0, range.1).unwrap(),
        client: client.into(),
        owner: Key::from(owner.as_bytes()),
        pending: false,
    }))
}

#[test]
fn a_range_in_the_way_is_told_with_its_client_and_its_owner() {
    for (reply, line) in [
        (
            held(Sharing::Shared, (0, 100), "gw/1", "bob"),
            "ok held sh 0 100 gw/1 bob\n",
        ),
        (
            held(Sharing::Exclusive, (7, 0), "#12", ""),
            "ok held ex 7 0 #12\n",
        ),
        (
            held(Sharing::Exclusive, ((1 << 53) + 1, (1 << 63) + 1), "#1", ""),
            "ok held ex 9007199254740993 9223372036854775809 #1\n",
        ),
        // Up to the last byte there can be, which is to the end.
        (
            held(Sharing::Shared, (u64::MAX, 1), "#1", "o"),
            "ok held sh 18446744073709551615 0 #1 o\n",
        ),
    ] {
        assert_eq!(spelled(&reply, false), line);
        assert_eq!(spelled(&reply, true), line);
    }
}

#[test]
fn only_who_said_hello_hears_how_long_the_grace_period_lasts() {
    let in_grace = Reply::InGrace(Millis(1_500));
    let resumed = Reply::Attached {
        epoch: 7,
        is_new: false,
        reclaim: Some(Millis(1_500)),
    };
    for (introduced, line, attached) in [
        (false, "error_grace\n", "ok 7 resumed\n"),
        (true, "error_grace 1500\n", "ok 7 resumed 1500\n"),
    ] {
        for with_fence in [false, true] {
            for (reply, line) in [(&in_grace, line), (&resumed, attached)] {
                let mut out = Vec::new();
                push_reply(&mut out, reply, introduced, || with_fence);
                assert_eq!(out, line.as_bytes());
            }
        }
    }
}

fn value(bytes: &[u8]) -> Value {
    bytes.into()
}

#[test]
fn a_value_is_told_byte_by_byte() {
    for (bytes, line) in [
        (&b"v"[..], &b"ok v\n"[..]),
        (b"a b", b"ok a b\n"),
        (b" \ta ", b"ok  \ta \n"),
        (b"a\xff\0", b"ok a\xff\0\n"),
    ] {
        let popped = Popped {
            key: Key::from(&b"q"[..]),
            end: End::Left,
            value: value(bytes),
        };
        for reply in [Reply::Value(value(bytes)), Reply::Popped(popped)] {
            let mut out = Vec::new();
            push_reply(&mut out, &reply, true, || true);
            assert_eq!(out, line);
        }
    }
}

#[test]
fn a_part_of_a_list_is_told_as_json() {
    for (values, line) in [
        (&[][..], "ok []\n"),
        (&[&b"a b"[..]], "ok [\"a b\"]\n"),
        (&[b"1", b"[2]", b","], "ok [\"1\",\"[2]\",\",\"]\n"),
        (&[b"a\"b\\\t\x01"], "ok [\"a\\\"b\\\\\\t\\u0001\"]\n"),
        (
            &[b"a\xffb", b"\xf0\x9f"],
            "ok [\"a\u{fffd}b\",\"\u{fffd}\"]\n",
        ),
        (&["clé<&>".as_bytes()], "ok [\"clé<&>\"]\n"),
    ] {
        let mut text = Vec::new();
        for value in values {
            text.extend_from_slice(if text.is_empty() { b"" } else { b"," });
            (LIST_FORM.push)(&mut text, value);
        }
        assert_eq!(spelled(&Reply::Values(text), true), line);
    }
}

fn pushed(push: &Push) -> String {
    let mut out = Vec::new();
    push_push(&mut out, push);
    out.escape_ascii().to_string()
}

#[test]
fn a_lost_lease_is_told_by_key_and_fence() {
    let push = Push::Lost {
        key: Key::from(&b"my-job"[..]),
        fence: Fence(7),
        why: Loss::Expired,
    };
    assert_eq!(pushed(&push), r"lost my-job 7 expired\n");
    let push = Push::Lost {
        key: Key::from(&b"my-job"[..]),
        fence: Fence(7),
        why: Loss::Broken,
    };
    assert_eq!(pushed(&push), r"lost my-job 7 broken\n");
}

#[test]
fn a_lost_range_is_told_by_its_bytes_and_its_owner() {
    for (len, owner, why, line) in [
        (10, "", Loss::Broken, r"rangelost f 5 10 broken\n"),
        (0, "bob", Loss::Expired, r"rangelost f 5 0 expired bob\n"),
    ] {
        let push = Push::RangeLost {
            resource: Key::from(&b"f"[..]),
            range: ByteRange::new(5, len).unwrap(),
            owner: Key::from(owner.as_bytes()),
            why,
        };
        assert_eq!(pushed(&push), line);
    }
}

#[test]
fn a_signal_is_told_as_it_was_sent() {
    for (payload, line) in [
        (&b"hi there"[..], r"sig evt.x hi there\n"),
        (b" \t x\xff", r"sig evt.x  \t x\xff\n"),
    ] {
        let (channel, payload) = (value(b"evt.x"), value(payload));
        assert_eq!(pushed(&Push::Signal { channel, payload }), line);
    }
}

#[test]
fn a_change_is_told_by_the_word_of_its_verb() {
    for (event, word) in [
        (Event::Acquire, "acquire"),
        (Event::Release, "release"),
        (Event::Incr, "incr"),
        (Event::Decr, "decr"),
        (Event::Cset, "cset"),
        (Event::Kset, "kset"),
        (Event::Kdel, "kdel"),
        (Event::Kcas, "kcas"),
        (Event::Lpush, "lpush"),
        (Event::Rpush, "rpush"),
        (Event::Lpop, "lpop"),
        (Event::Rpop, "rpop"),
        (Event::Blpop, "blpop"),
        (Event::Brpop, "brpop"),
        (Event::Elect, "elect"),
        (Event::Resign, "resign"),
    ] {
        let key = Key::from(&b"k"[..]);
        assert_eq!(
            pushed(&Push::Watch { event, key }),
            format!(r"watch {word} k\n")
        );
    }
    for (change, word) in [
        (Change::Elected, "elected"),
        (Change::Resigned, "resigned"),
        (Change::Failover, "failover"),
    ] {
        let key = Key::from(&b"k"[..]);
        assert_eq!(
            pushed(&Push::Leader { change, key }),
            format!(r"leader {word} k\n")
        );
    }
}

#[test]
fn the_longest_reply_fits_its_bound() {
    let longest = Reply::Acquired {
        token: Token {
            fence: Fence(Fence::LIMIT - 1),
            salt: u64::MAX,
        },
        lease: Millis(Millis::MAX.0 - 1),
    };
    assert_eq!(spelled(&longest, true).len(), REPLY_BYTES_MAX);
}

proptest! {
    #[test]
    fn a_grant_reads_back_as_it_was_written(
        fence in 1..Fence::LIMIT,
        salt: u64,
        lease in 1..=Millis::MAX.0,
    ) {
        let token = Token { fence: Fence(fence), salt };
        let line = spelled(&Reply::Granted { token, lease: Millis(lease) }, true);
        let fields: Vec<&str> = line.trim_end().split(' ').collect();
        prop_assert_eq!(fields.len(), 4);
        prop_assert_eq!(Token::parse(fields[1].as_bytes()), Some(token));
        prop_assert_eq!(args::lease(fields[2].as_bytes()), Ok(Millis(lease)));
        prop_assert_eq!(fields[3].parse(), Ok(fence));
    }
}
