//! What the decoder must make of every frame of the protocol: locks and the connection itself. The
//! other primitives are in `primitive_tests`.
//!
//! Frames are written as text, with `|` for LF, so that a row can be read.

use super::command::*;
use super::line::*;
use super::verbs::Verb;
use crate::base::{Fence, Millis, Token};
use crate::engine::types::{
    Attach, Mode, RANGE_OWNER_BYTES_MAX, RangeAsk, RangeCursor, RangeRequest, RangesOf, Request,
    Secret, Sharing, Span,
};

const HEX: &str = "000000000000002a9f8e7d6c5b4a3921";
const TOKEN: Option<Token> = Some(Token {
    fence: Fence(42),
    salt: 0x9f8e_7d6c_5b4a_3921,
});
const LOCK: Mode = Mode::Slot { limit: 1 };

/// The frame must be whole and mean `want`.
#[track_caller]
pub(super) fn check(frame: &str, want: Command<'_>) {
    let bytes = frame.replace('|', "\n").into_bytes();
    let mut scratch = Vec::new();
    let Decoded::Frame(got) = decode(&bytes, &mut scratch) else {
        panic!("{frame:?} is no frame");
    };
    assert_eq!(got.command, Ok(want), "{frame:?}");
    assert_eq!(got.used, bytes.len(), "{frame:?}");
}

#[track_caller]
pub(super) fn check_engine(frame: &str, want: Request<'_>) {
    check(frame, Command::Engine(want));
}

/// The frame must be whole, break the rule `want`, and leave what follows it alone.
#[track_caller]
pub(super) fn check_malformed(frame: &str, code: u8, want: Malformed) {
    let bytes = [frame.replace('|', "\n").as_bytes(), b"next"].concat();
    let mut scratch = Vec::new();
    let Decoded::Frame(got) = decode(&bytes, &mut scratch) else {
        panic!("{frame:?} is no frame");
    };
    assert_eq!(got.command, Err(want), "{frame:?}");
    assert_eq!(want.code(), code, "{frame:?}");
    assert_eq!(&bytes[got.used..], b"next", "{frame:?}");
    let letters = frame.split('|').next().unwrap();
    assert_eq!(got.verb, Verb::parse(letters.as_bytes()), "{frame:?}");
}

fn acquire(mode: Mode, wait_ms: u64, lease_ms: Option<u64>) -> Request<'static> {
    Request::Acquire {
        key: b"k",
        mode,
        wait: Millis(wait_ms),
        lease: lease_ms.map(Millis),
    }
}

fn enqueue(mode: Mode, lease_ms: Option<u64>) -> Request<'static> {
    Request::Enqueue {
        key: b"k",
        mode,
        lease: lease_ms.map(Millis),
    }
}

#[test]
fn every_verb_means_what_the_contract_says() {
    let sem = Mode::Slot { limit: 3 };
    for (letters, mode) in [("l", LOCK), ("rl", Mode::Read), ("wl", Mode::Write)] {
        check_engine(&format!("{letters}|k|10|"), acquire(mode, 10_000, None));
        check_engine(
            &format!("{letters}|k|10 60|"),
            acquire(mode, 10_000, Some(60_000)),
        );
    }
    check_engine("sl|k|0 3|", acquire(sem, 0, None));
    check_engine("sl|k|10 3 60|", acquire(sem, 10_000, Some(60_000)));
    for (letters, mode) in [("e", LOCK), ("re", Mode::Read), ("we", Mode::Write)] {
        check_engine(&format!("{letters}|k||"), enqueue(mode, None));
        check_engine(&format!("{letters}|k|10|"), enqueue(mode, Some(10_000)));
    }
    check_engine("se|k|3|", enqueue(sem, None));
    check_engine("se|k|3 60|", enqueue(sem, Some(60_000)));
    for letters in ["w", "sw", "rw", "ww"] {
        let wait = Millis(5_000);
        check_engine(
            &format!("{letters}|k|5|"),
            Request::Wait { key: b"k", wait },
        );
    }
    for letters in ["r", "sr", "rr", "wr"] {
        let request = Request::Release {
            key: b"k",
            token: TOKEN,
        };
        check_engine(&format!("{letters}|k|{HEX}|"), request);
    }
    for letters in ["n", "sn", "rn", "wn"] {
        for (arg, lease) in [("", None), (" 60", Some(Millis(60_000)))] {
            let request = Request::Renew {
                key: b"k",
                token: TOKEN,
                lease,
            };
            check_engine(&format!("{letters}|k|{HEX}{arg}|"), request);
        }
    }
    check("auth|_|s3cret|", Command::Auth { secret: b"s3cret" });
    check("stats|_|_|", Command::Stats);
    check("ping|_||", Command::Ping);
    check("barrier|_||", Command::Ping);
    check("who|k||", Command::Who { key: b"k" });
    let attach = |ttl| {
        Command::Attach(Attach {
            adapter: None,
            id: "gw/1",
            ttl: Millis(ttl),
            secret: Secret(b"s3cret"),
        })
    };
    check("attach|gw/1|10 s3cret|", attach(10_000));
    check("attach|gw/1|0ms  s3cret |", attach(0));
    let (id, secret) = ("gw/1", Secret(b"s3cret"));
    check("detach|gw/1| s3cret|", Command::Detach { id, secret });
    let break_of = |fence: Option<u64>| Command::Break {
        key: b"k",
        fence: fence.map(Fence),
    };
    check("break|k|42|", break_of(Some(42)));
    check("break|k|*|", break_of(None));
    check("waits|||", Command::Waits);
    check_engine("pos|k||", Request::Position { key: b"k" });
}

#[test]
fn legal_edge_cases_are_legal() {
    check_engine("l|k|+10 007|", acquire(LOCK, 10_000, Some(7_000)));
    check_engine("l|k|  10   60 |", acquire(LOCK, 10_000, Some(60_000)));
    check_engine("l|k|\t10\x0b60\x0c|", acquire(LOCK, 10_000, Some(60_000)));
    check_engine("l|k|-0|", acquire(LOCK, 0, None));
    check_engine("l|k|250ms 1500ms|", acquire(LOCK, 250, Some(1_500)));
    check_engine(
        "l|k|9223372036 9223372036|",
        acquire(LOCK, Millis::MAX.0, Some(Millis::MAX.0)),
    );
    check_engine(
        "sl|k|1 4294967295|",
        acquire(Mode::Slot { limit: u32::MAX }, 1_000, None),
    );
    check_engine("e|k|  |", enqueue(LOCK, None));
    check_engine("e|k| 30 |", enqueue(LOCK, Some(30_000)));
    check_engine(
        "w|k| 5 |",
        Request::Wait {
            key: b"k",
            wait: Millis(5_000),
        },
    );

    let held = Request::Release {
        key: b"k",
        token: TOKEN,
    };
    check_engine(&format!("r|k| {HEX}\t|"), held);
    check_engine("r|k|00000000-0000-002a-9f8e-7d6c5b4a3921|", held);
    let never_granted = Request::Release {
        key: b"k",
        token: None,
    };
    check_engine("r|k| tok |", never_granted);
    check_engine(&format!("r|k|{HEX} {HEX}|"), never_granted);
    check_engine(&format!("r|k|{}|", HEX.to_uppercase()), never_granted);
    let lease = Some(Millis(9_000));
    check_engine(
        "n|k| tok  9 |",
        Request::Renew {
            key: b"k",
            token: None,
            lease,
        },
    );

    check_engine("pos|k|what ever|", Request::Position { key: b"k" });
    check("who|k|1 2 3|", Command::Who { key: b"k" });
    for key in ["", " ", "a b", "_"] {
        check(&format!("stats|{key}|x y|"), Command::Stats);
        check(&format!("ping|{key}|x y|"), Command::Ping);
        check(&format!("barrier|{key}|x y|"), Command::Ping);
        check(
            &format!("auth|{key}| a b |"),
            Command::Auth { secret: b"a b" },
        );
        check(&format!("hello|{key}||"), Command::Hello(Hello::default()));
    }
    check("auth|_||", Command::Auth { secret: b"" });
    // Only a command line can look foreign: a key may be called anything.
    check_engine("pos|Host:||", Request::Position { key: b"Host:" });
}

#[test]
fn keys_are_byte_strings() {
    for key in [
        &b"\0"[..],
        b"\x01\x7f",
        b"\xff\xfe",
        b"\x0b\x0c",
        "clé🔒".as_bytes(),
    ] {
        let frame = [b"pos\n", key, b"\n\n"].concat();
        let mut scratch = Vec::new();
        let Decoded::Frame(got) = decode(&frame, &mut scratch) else {
            panic!("{key:?} is no frame");
        };
        assert_eq!(got.command, Ok(Command::Engine(Request::Position { key })));
    }
}

#[test]
fn hello_takes_each_option_once() {
    let fence = |on| Hello {
        fence: Some(on),
        ..Hello::default()
    };
    check("hello|_|fence=1|", Command::Hello(fence(true)));
    check("hello|_| fence=0 |", Command::Hello(fence(false)));
    let deadlock = |on| Hello {
        deadlock: Some(on),
        ..Hello::default()
    };
    check("hello|_|deadlock=1|", Command::Hello(deadlock(true)));
    check("hello|_|deadlock=0|", Command::Hello(deadlock(false)));
    let keep = |on| Hello {
        keep: Some(on),
        ..Hello::default()
    };
    check("hello|_|keep=1|", Command::Hello(keep(true)));
    check("hello|_|keep=0|", Command::Hello(keep(false)));
    let both = Hello {
        fence: Some(true),
        name: Some(b"web-1/\"x\""),
        ..Hello::default()
    };
    check("hello|_|name=web-1/\"x\"  fence=1|", Command::Hello(both));
    let long = "n".repeat(NAME_BYTES_MAX);
    let named = Hello {
        name: Some(long.as_bytes()),
        ..Hello::default()
    };
    check(&format!("hello|_|name={long}|"), Command::Hello(named));
}

fn range<'a>(owner: &'a str, ask: RangeAsk) -> Command<'a> {
    Command::Range(RangeRequest {
        resource: b"f",
        owner: owner.as_bytes(),
        ask,
    })
}

#[test]
fn the_verbs_of_byte_ranges_mean_what_they_say() {
    use Sharing::{Exclusive, Shared};
    let span = Span { start: 5, len: 10 };
    let lock = |mode, span, ms| RangeAsk::Lock {
        mode,
        span,
        wait: Millis(ms),
    };
    check("rangelock|f|sh 5 10 0|", range("", lock(Shared, span, 0)));
    check(
        "rangelock|f| ex\t05  010 250ms bob |",
        range("bob", lock(Exclusive, span, 250)),
    );
    let last = Span {
        start: u64::MAX,
        len: u64::MAX,
    };
    check(
        "rangelock|f|ex 18446744073709551615 18446744073709551615 1s é#\"|",
        range("é#\"", lock(Exclusive, last, 1_000)),
    );
    check("rangeunlock|f|5 10|", range("", RangeAsk::Unlock { span }));
    check(
        "rangeunlock|f|5 10 20|",
        range("20", RangeAsk::Unlock { span }),
    );
    for (letters, ask) in [
        ("rangetest", RangeAsk::Test { mode: Shared, span }),
        ("rangecancel", RangeAsk::Cancel { mode: Shared, span }),
        ("rangereclaim", RangeAsk::Reclaim { mode: Shared, span }),
    ] {
        check(&format!("{letters}|f|sh 5 10|"), range("", ask));
        check(&format!("{letters}|f|sh 5 10 bob|"), range("bob", ask));
    }
    check(
        "rangelist|f|what ever|",
        Command::RangeList { resource: b"f" },
    );
    let done = Command::ReclaimDone { id: "gw/1" };
    check("reclaimdone|gw/1|what ever|", done);
    check("grace|||", Command::Grace { ends: false });
    check("grace|_| end |", Command::Grace { ends: true });
    let broken = |span| Command::BreakRanges {
        resource: b"f",
        span,
    };
    check("break|f|range *|", broken(None));
    check("break|f| range  5 10 |", broken(Some(span)));
    let broken = Command::BreakRangesOf { client: b"gw/1" };
    check("break|gw/1|range client|", broken);
    let list = |client, owner, (slot, start)| Command::RangeListOf {
        of: RangesOf { client, owner },
        after: RangeCursor { slot, start },
    };
    let (gw, bob) = (Some(&b"gw/1"[..]), Some(&b"bob"[..]));
    check("rangelist|gw/1|client|", list(gw, None, (0, 0)));
    check("rangelist|gw/1|client 7.5|", list(gw, None, (7, 5)));
    check("rangelist|gw/1| client  0.0 bob |", list(gw, bob, (0, 0)));
    let last = (u32::MAX, u64::MAX);
    check(
        "rangelist|bob|owner 4294967295.18446744073709551615|",
        list(None, bob, last),
    );
}

/// There is one flavour, the default. Who asks for another is refused, wherever it says so.
#[test]
fn only_the_posix_flavour_is_served() {
    let span = Span { start: 5, len: 10 };
    let unlock = RangeAsk::Unlock { span };
    check("rangeunlock|f|5 10 flavor=posix|", range("", unlock));
    check("rangeunlock|f|5 10 bob flavor=posix|", range("bob", unlock));
    for rest in [
        "flavor=stacking",
        "bob flavor=stacking",
        "flavor=stacking bob",
        "flavor=posix bob",
        "flavor=posix flavor=posix",
        "flavor=posix flavor=stacking",
        "bob flavor=posix flavor=posix",
        "bob flavor=",
        "flavor=",
        "flavor=Posix",
        "bob flavour=posix",
    ] {
        for start in [
            "rangeunlock|f|5 10",
            "rangelock|f|sh 5 10 1",
            "rangetest|f|sh 5 10",
        ] {
            let frame = format!("{start} {rest}|");
            check_malformed(&frame, 8, Malformed::ArgumentShape);
        }
    }
}

#[test]
fn an_owner_is_as_long_as_it_may_be_and_no_longer() {
    let span = Span { start: 5, len: 10 };
    let long = "o".repeat(RANGE_OWNER_BYTES_MAX);
    let unlock = RangeAsk::Unlock { span };
    check(&format!("rangeunlock|f|5 10 {long}|"), range(&long, unlock));
    let most = "18446744073709551615";
    let ask = RangeAsk::Lock {
        mode: Sharing::Shared,
        span: Span {
            start: u64::MAX,
            len: u64::MAX,
        },
        wait: Millis::MAX,
    };
    check(
        &format!("rangelock|f|sh {most} {most} 9223372036000ms {long} flavor=posix|"),
        range(&long, ask),
    );
    let frame = format!("rangeunlock|f|5 10 {long}o|");
    check_malformed(&frame, 8, Malformed::ArgumentShape);
}

#[test]
fn malformed_ranges_are_named() {
    use Malformed::*;
    for (frame, code, want) in [
        ("rangelock||sh 0 1 1|", 5, BadKey),
        ("rangelock|a b|sh 0 1 1|", 5, BadKey),
        ("rangelist|||", 5, BadKey),
        ("reclaimdone|||", 5, BadKey),
        ("reclaimdone|#7||", 5, BadKey),
        ("rangelock|f||", 8, ArgumentShape),
        ("rangelock|f|sh|", 8, ArgumentShape),
        ("rangelock|f|sh 0|", 8, ArgumentShape),
        ("rangelock|f|sh 0 1|", 8, ArgumentShape),
        ("rangelock|f|sh 0 1 1 bob more|", 8, ArgumentShape),
        ("rangelock|f|rw 0 1 1|", 8, ArgumentShape),
        ("rangelock|f|SH 0 1 1|", 8, ArgumentShape),
        ("rangelock|f|0 1 1 bob|", 8, ArgumentShape),
        ("rangelock|f|sh +5 1 1|", 4, BadNumber),
        ("rangelock|f|sh -1 1 1|", 4, BadNumber),
        ("rangelock|f|sh 0 +5 1|", 4, BadNumber),
        ("rangelock|f|sh 0 -1 1|", 4, BadNumber),
        ("rangelock|f|sh 18446744073709551616 1 1|", 4, BadNumber),
        ("rangelock|f|sh 0 18446744073709551616 1|", 4, BadNumber),
        ("rangelock|f|sh 0x1 1 1|", 4, BadNumber),
        ("rangelock|f|sh 1.5 1 1|", 4, BadNumber),
        ("rangelock|f|sh 0 1 x|", 4, BadNumber),
        ("rangelock|f|sh 0 1 -1|", 4, NegativeTimeout),
        ("rangeunlock|f||", 8, ArgumentShape),
        ("rangeunlock|f|0|", 8, ArgumentShape),
        ("rangeunlock|f|0 1 bob more|", 8, ArgumentShape),
        ("rangeunlock|f|sh 0 1|", 4, BadNumber),
        ("rangetest|f||", 8, ArgumentShape),
        ("rangetest|f|0 1|", 8, ArgumentShape),
        ("rangetest|f|xx 0 1|", 8, ArgumentShape),
        ("rangecancel|f|sh 0 1 bob more|", 8, ArgumentShape),
        ("rangereclaim|f|sh 0 18446744073709551616|", 4, BadNumber),
        ("grace|_|now|", 8, ArgumentShape),
        ("grace|_|end end|", 8, ArgumentShape),
        ("break|f|range|", 8, ArgumentShape),
        ("break|f|range 0|", 8, ArgumentShape),
        ("break|f|range * 1|", 4, BadNumber),
        ("break|f|range 0 1 2|", 8, ArgumentShape),
        ("break|f|range +0 1|", 4, BadNumber),
        ("break|f|ranges *|", 4, BadNumber),
    ] {
        check_malformed(frame, code, want);
    }
}

#[test]
fn malformed_frames_are_consumed_and_named() {
    use Malformed::*;
    let long_name = format!("hello|_|name={}|", "n".repeat(NAME_BYTES_MAX + 1));
    for (frame, code, want) in [
        ("foo|k|x|", 3, UnknownCommand),
        ("L|k|1|", 3, UnknownCommand),
        (" l|k|1|", 3, UnknownCommand),
        ("l |k|1|", 3, UnknownCommand),
        ("|||", 3, UnknownCommand),
        ("foo|||", 3, UnknownCommand),
        ("l||10|", 5, BadKey),
        ("l|a b|10|", 5, BadKey),
        ("l|a\tb|10|", 5, BadKey),
        ("l| |x|", 5, BadKey),
        ("who|||", 5, BadKey),
        ("pos|a b||", 5, BadKey),
        ("l|k||", 8, ArgumentShape),
        ("l|k|  |", 8, ArgumentShape),
        ("l|k|1 2 3|", 8, ArgumentShape),
        ("w|k||", 8, ArgumentShape),
        ("w|k|  |", 8, ArgumentShape),
        ("sl|k|10|", 8, ArgumentShape),
        ("sl|k|1 2 3 4|", 8, ArgumentShape),
        ("se|k||", 8, ArgumentShape),
        ("se|k|1 2 3|", 8, ArgumentShape),
        ("n|k||", 8, ArgumentShape),
        ("n|k|tok 1 2|", 8, ArgumentShape),
        ("l|k|x|", 4, BadNumber),
        ("l|k|1.5|", 4, BadNumber),
        ("l|k|1e3|", 4, BadNumber),
        ("l|k|18446744073709551616|", 4, BadNumber),
        ("l|k|10 x|", 4, BadNumber),
        ("l|k|10 ms|", 4, BadNumber),
        ("e|k|30 junk|", 4, BadNumber),
        ("e|k|30 ms|", 4, BadNumber),
        ("w|k|1 2|", 4, BadNumber),
        ("n|k|tok x|", 4, BadNumber),
        ("sl|k|10 x|", 4, BadNumber),
        ("sl|k|10 3ms|", 4, BadNumber),
        ("l|k|-1|", 4, NegativeTimeout),
        ("l|k|-1ms|", 4, NegativeTimeout),
        ("w|k|-1|", 4, NegativeTimeout),
        ("sl|k|-1 0|", 4, NegativeTimeout),
        ("l|k|9223372037|", 4, BadNumber),
        ("l|k|1 9223372037|", 4, BadNumber),
        ("l|k|9223372036001ms|", 4, BadNumber),
        ("l|k|9223372036854775807|", 4, BadNumber),
        ("l|k|10 0|", 9, LeaseNotPositive),
        ("l|k|10 0ms|", 9, LeaseNotPositive),
        ("e|k|0|", 9, LeaseNotPositive),
        ("n|k|tok 0|", 9, LeaseNotPositive),
        ("se|k|3 0|", 9, LeaseNotPositive),
        ("l|k|10 -5|", 4, BadNumber),
        ("e|k|-5|", 4, BadNumber),
        ("r|k||", 7, EmptyToken),
        ("r|k|   |", 7, EmptyToken),
        ("wr|k|\t|", 7, EmptyToken),
        ("sl|k|10 0|", 13, LimitNotPositive),
        ("sl|k|10 0 0|", 13, LimitNotPositive),
        ("se|k|-1|", 13, LimitNotPositive),
        ("se|k|4294967296|", 4, BadNumber),
        ("hello|_|fence|", 8, ArgumentShape),
        ("hello|_|fence=2|", 8, ArgumentShape),
        ("hello|_|fence=|", 8, ArgumentShape),
        ("hello|_|fence=1 fence=1|", 8, ArgumentShape),
        ("hello|_|name=|", 8, ArgumentShape),
        ("hello|_|name=a name=b|", 8, ArgumentShape),
        ("hello|_|name=é|", 8, ArgumentShape),
        ("hello|_|name=a\x07|", 8, ArgumentShape),
        ("hello|_|deadlock=2|", 8, ArgumentShape),
        ("hello|_|keep=2|", 8, ArgumentShape),
        ("hello|_|keep=1 keep=1|", 8, ArgumentShape),
        ("hello|_|FENCE=1|", 8, ArgumentShape),
        (&long_name, 8, ArgumentShape),
    ] {
        check_malformed(frame, code, want);
    }
}

#[test]
fn crs_vanish_wherever_they_stand() {
    check_engine("l\r|k\r|10\r|", acquire(LOCK, 10_000, None));
    check_engine(
        "\rl|\rk\r\r|1\r0 6\r0|",
        acquire(LOCK, 10_000, Some(60_000)),
    );
    check_engine("l\r|k|10|", acquire(LOCK, 10_000, None));
    check_engine("l|k|10\r|", acquire(LOCK, 10_000, None));
    check(
        "a\ru\rth|\r|se\rcret\r|",
        Command::Auth { secret: b"secret" },
    );
    let (head, tail) = HEX.split_at(16);
    let held = Request::Release {
        key: b"k",
        token: TOKEN,
    };
    check_engine(&format!("r|k|{head}\r{tail}\r|"), held);

    let mut scratch = Vec::new();
    let Decoded::Frame(got) = decode(b"l\n\r\n1\n", &mut scratch) else {
        panic!("no frame");
    };
    assert_eq!(got.command, Err(Malformed::BadKey), "a key of CRs is empty");
}

#[test]
fn a_frame_without_crs_is_borrowed_and_one_with_crs_is_not() {
    for (frame, copied) in [(&b"who\nkey\n\n"[..], false), (b"who\nkey\r\n\r\n", true)] {
        let mut scratch = Vec::new();
        let Decoded::Frame(got) = decode(frame, &mut scratch) else {
            panic!("no frame");
        };
        let Ok(Command::Who { key }) = got.command else {
            panic!("not who");
        };
        assert_eq!(key, b"key");
        assert_eq!(!frame.as_ptr_range().contains(&key.as_ptr()), copied);
        assert_eq!(scratch.capacity() > 0, copied);
    }
}

#[test]
fn a_secret_is_not_printed() {
    let (id, secret) = ("gw/1", Secret(b"s3cret"));
    let ttl = Millis(1);
    let attach = Command::Attach(Attach {
        id,
        ttl,
        secret,
        adapter: None,
    });
    for command in [attach, Command::Detach { id, secret }] {
        let shown = format!("{command:?}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }
    let shown = format!("{:?}", Command::Auth { secret: b"s3cret" });
    assert_eq!(shown, "Auth(6 bytes)");
}
