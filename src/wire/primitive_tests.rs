//! What the decoder must make of elections, counters, values, lists, barriers, signals and watches.
//!
//! Frames are written as in `line_tests`, `|` standing for LF.

use super::answer::LIST_FORM;
use super::command::*;
use super::line_tests::{check_engine, check_malformed};
use super::verbs::{TABLE, VALUE_BYTES_MAX};
use crate::base::{Fence, Millis, Token};
use crate::engine::types::{End, Mode, Request};

const HEX: &str = "000000000000002a9f8e7d6c5b4a3921";
const K: &[u8] = b"k";

#[test]
fn elections_are_locks_with_a_leader() {
    let elect = |wait, lease: Option<u64>| Request::Acquire {
        key: K,
        mode: Mode::Lead,
        wait: Millis(wait),
        lease: lease.map(Millis),
    };
    check_engine("elect|k|30|", elect(30_000, None));
    check_engine("elect|k|0 250ms|", elect(0, Some(250)));
    let token = Some(Token {
        fence: Fence(42),
        salt: 0x9f8e_7d6c_5b4a_3921,
    });
    check_engine(
        &format!("resign|k| {HEX} |"),
        Request::Resign { key: K, token },
    );
    let token = None;
    check_engine("resign|k|to ken|", Request::Resign { key: K, token });
    check_engine("observe|k||", Request::Observe { key: K });
    check_engine("unobserve|k||", Request::Unobserve { key: K });
    // Leaders are observed by name, so a star is one.
    check_engine("observe|fo*||", Request::Observe { key: b"fo*" });
}

#[test]
fn counters_take_any_number_that_fits() {
    let add = |delta, down| Request::Add {
        key: K,
        delta,
        down,
    };
    for (arg, n) in [
        ("1", 1),
        ("0", 0),
        (" -5 ", -5),
        ("+007", 7),
        ("9223372036854775807", i64::MAX),
        ("-9223372036854775807", -i64::MAX),
    ] {
        check_engine(&format!("incr|k|{arg}|"), add(n, false));
        check_engine(&format!("decr|k|{arg}|"), add(-n, true));
        check_engine(
            &format!("cset|k|{arg}|"),
            Request::SetCount { key: K, value: n },
        );
    }
    let least = "-9223372036854775808";
    check_engine(&format!("incr|k|{least}|"), add(i64::MIN, false));
    let set = Request::SetCount {
        key: K,
        value: i64::MIN,
    };
    check_engine(&format!("cset|k|{least}|"), set);
    check_engine("get|k||", Request::Count { key: K });
}

#[test]
fn only_a_tab_ends_a_value() {
    for (arg, value, ttl) in [
        ("v", "v", 0),
        ("hello world\t60", "hello world", 60_000),
        ("v\t0", "v", 0),
        ("v\t0ms", "v", 0),
        ("v\t250ms", "v", 250),
        ("v\t+05", "v", 5_000),
        ("v\t9223372036", "v", Millis::MAX.0),
        // A number at the end is no time to live.
        ("42", "42", 0),
        ("a 42", "a 42", 0),
        ("42\t7", "42", 7_000),
        ("250ms", "250ms", 0),
        // As it came, blanks and all.
        (" v ", " v ", 0),
        (" ", " ", 0),
        (" v \t5", " v ", 5_000),
        ("\x0b\0\x7f", "\x0b\0\x7f", 0),
        ("clé 🔒", "clé 🔒", 0),
        ("a\rb\r", "ab", 0),
    ] {
        let (value, ttl) = (value.as_bytes(), Millis(ttl));
        let put = Request::Put { key: K, value, ttl };
        check_engine(&format!("kset|k|{arg}|"), put);
        check_engine(
            &format!("kcas|k|old\t{}|", with_ttl(arg)),
            Request::Swap {
                key: K,
                old: b"old",
                new: value,
                ttl,
            },
        );
    }
    for (arg, old, new) in [
        ("\tv1\t", "", "v1"),
        (" \t \t", " ", " "),
        ("a 1\tb 2\t0", "a 1", "b 2"),
    ] {
        let (old, new, ttl) = (old.as_bytes(), new.as_bytes(), Millis::ZERO);
        let swap = Request::Swap {
            key: K,
            old,
            new,
            ttl,
        };
        check_engine(&format!("kcas|k|{arg}|"), swap);
    }
    check_engine("kget|k||", Request::Fetch { key: K });
    check_engine("kdel|k||", Request::Delete { key: K });
}

/// `kcas` always has a tab before the time to live.
fn with_ttl(arg: &str) -> String {
    if arg.contains('\t') {
        return arg.to_owned();
    }
    format!("{arg}\t")
}

#[test]
fn lists_take_values_as_they_come() {
    for (letter, end) in [("l", End::Left), ("r", End::Right)] {
        for value in ["v", "a b", " a\tb\t5 ", " ", "\t", "42"] {
            let push = Request::Push {
                key: K,
                value: value.as_bytes(),
                end,
            };
            check_engine(&format!("{letter}push|k|{value}|"), push);
        }
        check_engine(&format!("{letter}pop|k||"), Request::Pop { key: K, end });
        for (arg, wait) in [("5", 5_000), (" 0 ", 0), ("250ms", 250)] {
            let wait = Millis(wait);
            check_engine(
                &format!("b{letter}pop|k|{arg}|"),
                Request::AwaitPop { key: K, end, wait },
            );
        }
    }
    check_engine("llen|k||", Request::Length { key: K });
    for (arg, start, stop) in [
        ("0 -1", 0, -1),
        ("  +2\t007 ", 2, 7),
        (
            "-9223372036854775808 9223372036854775807",
            i64::MIN,
            i64::MAX,
        ),
    ] {
        let key = K;
        check_engine(
            &format!("lrange|k|{arg}|"),
            Request::Range {
                key,
                start,
                stop,
                form: LIST_FORM,
            },
        );
    }
}

#[test]
fn barriers_take_a_count_and_a_wait() {
    for (arg, count, wait) in [
        ("2 30", 2, 30_000),
        ("1 0", 1, 0),
        (" 4294967295  250ms ", u32::MAX, 250),
    ] {
        let wait = Millis(wait);
        check_engine(
            &format!("bwait|k|{arg}|"),
            Request::Meet {
                key: K,
                count,
                wait,
            },
        );
    }
}

#[test]
fn a_listener_names_a_pattern_and_a_sender_a_channel() {
    for (arg, group) in [("", ""), ("  ", ""), ("workers", "workers"), (" w ", "w")] {
        let group = group.as_bytes();
        let pattern = b"evt.*";
        check_engine(
            &format!("listen|evt.*|{arg}|"),
            Request::Listen { pattern, group },
        );
        check_engine(
            &format!("unlisten|evt.*|{arg}|"),
            Request::Unlisten { pattern, group },
        );
    }
    // Where wildcards may stand is for the engine to say.
    for pattern in ["a.>.b", "fo*", ">", "."] {
        let watched = pattern.as_bytes();
        check_engine(
            &format!("watch|{pattern}||"),
            Request::Watch { pattern: watched },
        );
        check_engine(
            &format!("unwatch|{pattern}||"),
            Request::Unwatch { pattern: watched },
        );
        let group = b"";
        check_engine(
            &format!("listen|{pattern}||"),
            Request::Listen {
                pattern: watched,
                group,
            },
        );
    }
    for payload in ["hi there", " x", "x\t", "*", "\0"] {
        let (channel, payload) = (b"evt.x", payload.as_bytes());
        let text = str::from_utf8(payload).unwrap();
        check_engine(
            &format!("signal|evt.x|{text}|"),
            Request::Signal { channel, payload },
        );
    }
}

#[test]
fn verbs_without_an_argument_ignore_one() {
    for (letters, request) in [
        ("get", Request::Count { key: K }),
        ("kget", Request::Fetch { key: K }),
        ("kdel", Request::Delete { key: K }),
        (
            "lpop",
            Request::Pop {
                key: K,
                end: End::Left,
            },
        ),
        (
            "rpop",
            Request::Pop {
                key: K,
                end: End::Right,
            },
        ),
        ("llen", Request::Length { key: K }),
        ("watch", Request::Watch { pattern: K }),
        ("unwatch", Request::Unwatch { pattern: K }),
        ("observe", Request::Observe { key: K }),
        ("unobserve", Request::Unobserve { key: K }),
    ] {
        for arg in ["", "_", "what ever", "\t\t", "-1"] {
            check_engine(&format!("{letters}|k|{arg}|"), request);
        }
    }
}

#[test]
fn a_payload_is_as_long_as_its_recipients_can_read() {
    for channel in ["c", "evt.x", &"c".repeat(256)] {
        let fits = VALUE_BYTES_MAX - 5 - channel.len();
        let payload = "p".repeat(fits);
        check_engine(
            &format!("signal|{channel}|{payload}|"),
            Request::Signal {
                channel: channel.as_bytes(),
                payload: payload.as_bytes(),
            },
        );
        let frame = format!("signal|{channel}|{payload}p|");
        check_malformed(&frame, 8, Malformed::ArgumentShape);
    }
    let value = "v".repeat(VALUE_BYTES_MAX);
    let push = Request::Push {
        key: K,
        value: value.as_bytes(),
        end: End::Right,
    };
    check_engine(&format!("rpush|k|{value}|"), push);
}

#[test]
fn malformed_frames_of_these_verbs_are_consumed_and_named() {
    use Malformed::*;
    for (frame, code, want) in [
        ("elect|k||", 8, ArgumentShape),
        ("elect|k|1 2 3|", 8, ArgumentShape),
        ("elect|k|x|", 4, BadNumber),
        ("elect|k|-1|", 4, NegativeTimeout),
        ("elect|k|5 0|", 9, LeaseNotPositive),
        ("resign|k||", 7, EmptyToken),
        ("resign|k| \t |", 7, EmptyToken),
        ("incr|k||", 8, ArgumentShape),
        ("incr|k|  |", 8, ArgumentShape),
        ("decr|k||", 8, ArgumentShape),
        ("cset|k||", 8, ArgumentShape),
        ("incr|k|x|", 4, BadNumber),
        ("incr|k|1 2|", 4, BadNumber),
        ("incr|k|1.5|", 4, BadNumber),
        ("incr|k|0x10|", 4, BadNumber),
        ("incr|k|5ms|", 4, BadNumber),
        ("cset|k|5ms|", 4, BadNumber),
        ("incr|k|9223372036854775808|", 4, BadNumber),
        ("decr|k|9223372036854775808|", 4, BadNumber),
        ("cset|k|9223372036854775808|", 4, BadNumber),
        ("incr|k|-9223372036854775809|", 4, BadNumber),
        ("decr|k|-9223372036854775808|", 4, BadNumber),
        ("kset|k||", 8, ArgumentShape),
        ("kset|k|\t|", 8, ArgumentShape),
        ("kset|k|\t0|", 8, ArgumentShape),
        ("kset|k|\t5|", 8, ArgumentShape),
        ("kset|k|\tx|", 8, ArgumentShape),
        ("kset|k|a\tb\t5|", 8, ArgumentShape),
        ("kset|k|a\t5\t|", 8, ArgumentShape),
        ("kset|k|v\t|", 4, BadNumber),
        ("kset|k|v\t-1|", 4, BadNumber),
        ("kset|k|v\t-1ms|", 4, BadNumber),
        ("kset|k|v\t 5|", 4, BadNumber),
        ("kset|k|v\t5 |", 4, BadNumber),
        ("kset|k|v\tms|", 4, BadNumber),
        ("kset|k|v\t5m|", 4, BadNumber),
        ("kset|k|v\tb|", 4, BadNumber),
        ("kset|k|v\t9223372037|", 4, BadNumber),
        ("kset|k|v\t9223372036854775808|", 4, BadNumber),
        ("kcas|k||", 8, ArgumentShape),
        ("kcas|k|v|", 8, ArgumentShape),
        ("kcas|k|a\tb|", 8, ArgumentShape),
        ("kcas|k|a\t\t0|", 8, ArgumentShape),
        ("kcas|k|\t\t|", 8, ArgumentShape),
        ("kcas|k|a\tb\t5\t|", 8, ArgumentShape),
        ("kcas|k|a\tb\tx|", 4, BadNumber),
        ("kcas|k|a\tb\t-1|", 4, BadNumber),
        ("kcas|k|a\tb\t 5|", 4, BadNumber),
        ("kcas|k|a\tb\t9223372037|", 4, BadNumber),
        ("lpush|k||", 8, ArgumentShape),
        ("rpush|k||", 8, ArgumentShape),
        ("lrange|k||", 8, ArgumentShape),
        ("lrange|k|0|", 8, ArgumentShape),
        ("lrange|k|0 1 2|", 8, ArgumentShape),
        ("lrange|k|0 x|", 4, BadNumber),
        ("lrange|k|1.5 2|", 4, BadNumber),
        ("lrange|k|0 9223372036854775808|", 4, BadNumber),
        ("blpop|k||", 8, ArgumentShape),
        ("brpop|k|  |", 8, ArgumentShape),
        ("blpop|k|x|", 4, BadNumber),
        ("blpop|k|1 2|", 4, BadNumber),
        ("blpop|k|-1|", 4, NegativeTimeout),
        ("brpop|k|9223372037|", 4, BadNumber),
        ("bwait|k||", 8, ArgumentShape),
        ("bwait|k|3|", 8, ArgumentShape),
        ("bwait|k|3 5 1|", 8, ArgumentShape),
        ("bwait|k|0 5|", 13, LimitNotPositive),
        ("bwait|k|-1 5|", 13, LimitNotPositive),
        ("bwait|k|0 x|", 13, LimitNotPositive),
        ("bwait|k|4294967296 5|", 4, BadNumber),
        ("bwait|k|x 5|", 4, BadNumber),
        ("bwait|k|3ms 5|", 4, BadNumber),
        ("bwait|k|3 x|", 4, BadNumber),
        ("bwait|k|3 -1|", 4, NegativeTimeout),
        ("signal|c||", 8, ArgumentShape),
        ("signal|c| \t\x0b\x0c|", 8, ArgumentShape),
        ("signal|c|\r|", 8, ArgumentShape),
        ("signal|a.*|x|", 5, BadKey),
        ("signal|a>|x|", 5, BadKey),
        ("signal|>|x|", 5, BadKey),
        ("signal|a*b|x|", 5, BadKey),
    ] {
        check_malformed(frame, code, want);
    }
    for row in TABLE.iter().filter(|row| !row.ignores_key) {
        for key in ["", " ", "a b", "a\tb", "\r"] {
            check_malformed(&format!("{}|{key}|1|", row.letters), 5, BadKey);
        }
    }
}
