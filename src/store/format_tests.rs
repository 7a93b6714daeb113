//! Tests of `format.rs`.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::base::Nanos;

const SALT: u32 = 0x5eed_cafe;
const CLOCKS: Clocks = Clocks {
    now: Nanos(2_000_000_000),
    wall_ms: 1_800_000_000_000,
};

fn header() -> Header {
    Header {
        kind: FileKind::Segment,
        number: 8,
        life: Life {
            epoch: 3,
            begun_ms: 1_800_000_000_000,
            durability: Durability::Async,
            follows_loss: true,
            salt: SALT,
        },
    }
}

fn records() -> Vec<Record> {
    let key = || Key::from(&b"job"[..]);
    let token = Token {
        fence: Fence(7),
        salt: 0xfeed,
    };
    let grant = |mode, name: Option<&str>, request: &[u8]| Record::Granted {
        key: key(),
        mode,
        token,
        lease: Millis(33_000),
        client: 9,
        name: name.map(Into::into),
        request: request.into(),
    };
    let stored = |ends| Record::Stored {
        key: key(),
        value: (&b"value"[..]).into(),
        ends,
    };
    let ranged = |names: [&[u8]; 3], (start, last), mode| Record::Ranged {
        resource: names[0].into(),
        client: names[1].into(),
        owner: names[2].into(),
        range: ByteRange::between(start, last).unwrap(),
        mode,
        grant: RangeGrant {
            id: 7,
            since: u64::MAX,
            epoch: 3,
        },
    };
    vec![
        grant(Mode::Slot { limit: 5 }, None, b""),
        grant(Mode::Read, Some(""), b""),
        grant(Mode::Write, Some("näme"), b""),
        grant(Mode::Lead, None, b""),
        grant(Mode::Slot { limit: 1 }, Some("me"), b"id"),
        grant(Mode::Read, None, &[0xff; 128]),
        Record::Lengthened {
            key: key(),
            fence: Fence(7),
            lease: Millis(66_000),
        },
        Record::Owned {
            key: Key::from(&[0xff; 256][..]),
            fence: Fence(7),
            client: Key::from("gw/näme".as_bytes()),
        },
        Record::Owned {
            key: key(),
            fence: Fence(u64::MAX),
            client: Key::from(&[b'x'; 256][..]),
        },
        Record::Ended {
            key: Key::from(&[0xff; 256][..]),
            fence: Fence(7),
        },
        Record::Counted {
            key: key(),
            value: i64::MIN,
        },
        stored(None),
        stored(Some(Nanos(5_000_000_000))),
        Record::Deleted { key: key() },
        Record::Pushed {
            key: key(),
            end: End::Left,
            value: (&b""[..]).into(),
        },
        Record::Popped {
            key: key(),
            end: End::Right,
        },
        Record::Fences {
            upto: Fence(1 << 52),
        },
        Record::Client {
            id: Key::from("gw/näme".as_bytes()),
            ttl: Millis(90_000),
            secret: SecretHash {
                salt: [7; 16],
                hash: [9; 32],
            },
        },
        Record::ClientGone {
            id: Key::from(&[b'x'; 256][..]),
        },
        ranged([b"file", b"gw/1", b"me"], (0, 0), Some(Sharing::Shared)),
        ranged([b"file", "gw/näme".as_bytes(), b""], (0, u64::MAX), None),
        // No one of the three can be taken for a part of another.
        ranged(
            [&[0xff; 256], &[b'x'; 256], &[0; 256]],
            (u64::MAX, u64::MAX),
            Some(Sharing::Exclusive),
        ),
        ranged(
            [b"f", b"", b"c"],
            ((1 << 63) - 1, 1 << 63),
            Some(Sharing::Shared),
        ),
    ]
}

fn frame_of(record: &Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    push_record(&mut bytes, SALT, 42, record, || CLOCKS);
    bytes
}

#[test]
fn every_record_is_read_as_it_was_written() {
    for record in records() {
        let bytes = frame_of(&record);
        let frame = Frame::decode(&bytes, SALT).unwrap();
        assert_eq!(frame.number, 42);
        let entry = frame.entry().unwrap();
        assert_eq!(entry.record(CLOCKS), Some(record));
    }
}

#[test]
fn no_changed_byte_and_no_cut_goes_unnoticed() {
    for record in records() {
        let bytes = frame_of(&record);
        assert_eq!(Frame::decode(&bytes, SALT + 1), None, "another directory's");
        for at in 0..bytes.len() {
            assert_eq!(Frame::decode(&bytes[..at], SALT), None);
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            assert_eq!(Frame::decode(&changed, SALT), None, "byte {at}");
        }
    }
}

#[test]
fn content_of_any_length_is_refused_rather_than_misread() {
    for kind in 0..=255 {
        for length in 0..64 {
            for fill in [0, 1, 0xff] {
                let content = vec![fill; length];
                let frame = Frame {
                    number: 1,
                    kind,
                    content: &content,
                };
                let _ = frame.entry(); // whatever it is, no panic
            }
        }
    }
}

#[test]
fn a_header_is_read_as_it_was_written_and_never_otherwise() {
    let bytes = header().encode();
    assert_eq!(Header::decode(&bytes), Ok(header()));
    for at in 0..HEADER_BYTES {
        let mut changed = bytes;
        changed[at] ^= 4;
        assert!(
            matches!(Header::decode(&changed), Err(BadHeader::Damaged(_))),
            "byte {at}"
        );
        assert!(Header::decode(&bytes[..at]).is_err());
    }
}

/// The bytes themselves, because what is written and read by one hand would agree on any.
#[test]
fn a_range_is_written_as_the_documents_say() {
    let record = Record::Ranged {
        resource: Key::from(&b"re"[..]),
        client: Key::from(&b"gw/1"[..]),
        owner: Key::from(&b"own"[..]),
        range: ByteRange::between(0x0102, u64::MAX - 1).unwrap(),
        mode: Some(Sharing::Exclusive),
        grant: RangeGrant {
            id: 0x0304,
            since: 0x0506,
            epoch: 0x0708,
        },
    };
    let mut wanted = vec![14, 2];
    wanted.extend([2, 1, 0, 0, 0, 0, 0, 0]);
    wanted.extend([0xfe, 255, 255, 255, 255, 255, 255, 255]);
    for low in [[4, 3], [6, 5], [8, 7]] {
        wanted.extend(low);
        wanted.extend([0; 6]);
    }
    wanted.extend([2, 0, 4, 0]);
    wanted.extend(b"regw/1own");
    assert_eq!(&frame_of(&record)[16..], wanted);
}

#[test]
fn an_owner_is_written_as_the_documents_say() {
    let record = Record::Owned {
        key: Key::from(&b"job"[..]),
        fence: Fence(0x0102),
        client: Key::from(&b"gw/1"[..]),
    };
    let mut wanted = vec![13, 2, 1, 0, 0, 0, 0, 0, 0, 3, 0];
    wanted.extend(b"jobgw/1");
    assert_eq!(&frame_of(&record)[16..], wanted);
}

#[test]
fn a_range_that_cannot_be_is_no_record() {
    let content = |mode, start: u64, last: u64, resource_bytes: u8, client: &[u8]| {
        let mut content = vec![mode];
        content.extend(start.to_le_bytes());
        content.extend(last.to_le_bytes());
        content.extend([resource_bytes, 0, client.len() as u8, 0, b'r']);
        content.extend(client);
        content
    };
    let is_record = |content: &[u8]| {
        let kind = 12;
        let number = 1;
        let frame = Frame {
            number,
            kind,
            content,
        };
        frame.entry().is_some()
    };
    assert!(is_record(&content(1, 5, 5, 1, b"c")));
    assert!(!is_record(&content(3, 5, 5, 1, b"c")), "no such mode");
    assert!(!is_record(&content(1, 6, 5, 1, b"c")), "it ends too early");
    assert!(!is_record(&content(1, 5, 5, 9, b"c")), "names are cut");
    assert!(!is_record(&content(1, 5, 5, 1, b"\xff")), "no text");
}

#[test]
fn a_semaphore_without_slots_is_no_record() {
    let granted = |limit| Record::Granted {
        key: Key::from(&b"job"[..]),
        mode: Mode::Slot { limit },
        token: Token {
            fence: Fence(7),
            salt: 8,
        },
        lease: Millis(1_000),
        client: 0,
        name: None,
        request: (&b""[..]).into(),
    };
    let is_record = |limit| {
        let bytes = frame_of(&granted(limit));
        let frame = Frame::decode(&bytes, SALT).unwrap();
        frame.entry().is_some()
    };
    assert!(is_record(1));
    assert!(!is_record(0), "a repair would make room in it for ever");
}

#[test]
fn numbers_that_nothing_reaches_are_damage() {
    for (number, epoch) in [(NUMBER_LIMIT, 1), (1, NUMBER_LIMIT), (u64::MAX, u64::MAX)] {
        let mut header = header();
        (header.number, header.life.epoch) = (number, epoch);
        let decoded = Header::decode(&header.encode());
        assert!(matches!(decoded, Err(BadHeader::Damaged(_))), "{header:?}");
    }
}

#[test]
fn files_of_earlier_versions_follow_no_loss() {
    let mut header = header();
    header.life.follows_loss = false;
    let mut bytes = header.encode();
    bytes[8] = 2;
    let checksum = crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(bytes[14..16], [0, 0], "zeros, as they were");
    assert_eq!(Header::decode(&bytes), Ok(header));
}

#[test]
fn a_later_version_is_named() {
    let mut bytes = header().encode();
    bytes[8] = 6;
    let checksum = crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(Header::decode(&bytes), Err(BadHeader::TooNew(6)));
}

fn name() -> impl Strategy<Value = Key> {
    vec(any::<u8>(), 0..=256).prop_map(|bytes| Key::from(&bytes[..]))
}

fn place() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0..3u64, (u64::MAX - 2)..=u64::MAX]
}

fn ranges() -> impl Strategy<Value = Record> {
    let mode = prop::sample::select(vec![None, Some(Sharing::Shared), Some(Sharing::Exclusive)]);
    let names = (name(), vec(any::<char>(), 0..=64), name());
    (names, place(), place(), mode).prop_map(|((resource, id, owner), one, other, mode)| {
        let id: String = id.into_iter().collect();
        Record::Ranged {
            resource,
            client: Key::from(id.as_bytes()),
            owner,
            range: ByteRange::between(one.min(other), one.max(other)).unwrap(),
            mode,
            grant: RangeGrant {
                id: one >> 1,
                since: other,
                epoch: one,
            },
        }
    })
}

proptest! {
    #[test]
    fn any_range_is_read_as_it_was_written_and_never_otherwise(record in ranges(), bit in 0..8u32) {
        let bytes = frame_of(&record);
        let entry = Frame::decode(&bytes, SALT).and_then(|frame| frame.entry());
        prop_assert_eq!(entry.and_then(|entry| entry.record(CLOCKS)), Some(record));
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1u8 << bit;
            prop_assert_eq!(Frame::decode(&changed, SALT), None, "byte {}", at);
            prop_assert_eq!(Frame::decode(&bytes[..at], SALT), None, "cut at {}", at);
        }
    }
}
