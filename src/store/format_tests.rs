//! Tests of `format.rs`.

use super::*;
use crate::base::Nanos;
use crate::key::Key;

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

#[test]
fn a_later_version_is_named() {
    let mut bytes = header().encode();
    bytes[8] = 3;
    let checksum = crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(Header::decode(&bytes), Err(BadHeader::TooNew(3)));
}
