//! Counts the records in what a peer sends: each is opened on its own, so each has a price.
//!
//! Looks at the five bytes before each record and at nothing else; whether a record is any good is
//! for the session to find out. Only the very first one is judged here, because a peer that does not
//! speak TLS is to be told apart from one that does it badly.

/// What stands before a record: its kind, its version, its length.
const HEADER_BYTES: usize = 5;

/// The kind of the first record of a connection, and the first half of its version, in every version.
const HANDSHAKE: u8 = 22;
const MAJOR_VERSION: u8 = 3;

/// How far a peer's records have come.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// The header of the next record, as far as it is there.
    header: [u8; HEADER_BYTES],
    header_bytes: u8,
    /// How many bytes of the present record are still to come.
    left: u16,
    has_begun: bool,
}

impl Records {
    /// More has come; says how many records begin in it, or `None` if these are the first bytes and no
    /// TLS.
    pub(super) fn note(&mut self, mut bytes: &[u8]) -> Option<u32> {
        if !self.has_begun && !self.may_be_tls(bytes) {
            return None;
        }
        let mut count = 0;
        while !bytes.is_empty() {
            if self.left > 0 {
                let taken = bytes.len().min(usize::from(self.left));
                self.left -= taken as u16;
                bytes = &bytes[taken..];
                continue;
            }
            count += u32::from(self.header_bytes == 0);
            self.header[usize::from(self.header_bytes)] = bytes[0];
            self.header_bytes += 1;
            bytes = &bytes[1..];
            if usize::from(self.header_bytes) == HEADER_BYTES {
                let [.., high, low] = self.header;
                self.left = u16::from_be_bytes([high, low]);
                self.header_bytes = 0;
                self.has_begun = true;
            }
        }
        Some(count)
    }

    /// Whether a connection may begin like this.
    fn may_be_tls(&self, bytes: &[u8]) -> bool {
        let before = usize::from(self.header_bytes);
        let wanted = [HANDSHAKE, MAJOR_VERSION];
        let rest = wanted.get(before..).unwrap_or_default();
        rest.iter().zip(bytes).all(|(wanted, byte)| wanted == byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, length: u16) -> Vec<u8> {
        let [high, low] = length.to_be_bytes();
        let mut record = vec![kind, 3, 3, high, low];
        record.resize(HEADER_BYTES + usize::from(length), 7);
        record
    }

    #[test]
    fn records_are_counted_however_they_are_cut() {
        let all = [
            record(22, 300),
            record(23, 0),
            record(23, 1),
            record(23, 70),
        ]
        .concat();
        for size in 1..all.len() {
            let mut records = Records::default();
            let counts = all.chunks(size).map(|chunk| records.note(chunk).unwrap());
            assert_eq!(counts.sum::<u32>(), 4, "{size} bytes at a time");
        }
    }

    #[test]
    fn only_the_first_bytes_have_to_be_a_hello() {
        for plain in [
            &b"l\nk\n"[..],
            b"GET / HTTP/1.1",
            b"\x16GET",
            b"\x80\x2e\x01",
            b"\0",
        ] {
            assert_eq!(Records::default().note(plain), None, "{plain:?}");
        }
        let mut in_two = Records::default();
        assert_eq!(in_two.note(b"\x16"), Some(1));
        assert_eq!(in_two.note(b"x"), None);
        let mut records = Records::default();
        assert_eq!(records.note(&record(22, 2)), Some(1));
        assert_eq!(records.note(b"whatever"), Some(1), "the session refuses it");
    }
}
