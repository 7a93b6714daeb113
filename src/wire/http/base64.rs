//! Base 64, for values that are no text. Only ever written.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends bytes in the standard alphabet, padded.
pub(super) fn push(out: &mut Vec<u8>, bytes: &[u8]) {
    out.reserve(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let digit = |shift: u32| DIGITS[(bits >> shift) as usize & 63];
        let mut four = [digit(18), digit(12), digit(6), digit(0)];
        four[group.len() + 1..].fill(b'=');
        out.extend_from_slice(&four);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_bytes_are_four_digits() {
        for (bytes, want) in [
            (&b""[..], ""),
            (b"f", "Zg=="),
            (b"fo", "Zm8="),
            (b"foo", "Zm9v"),
            (b"foob", "Zm9vYg=="),
            (b"\xff\xfe\xfd", "//79"),
            (b"\xfb\xff", "+/8="),
            (b"\0\0\0", "AAAA"),
        ] {
            let mut out = Vec::new();
            push(&mut out, bytes);
            assert_eq!(String::from_utf8(out).unwrap(), want);
        }
    }
}
