//! The system's random source, read 4 KiB at a time: one system call for 512 tokens.

use std::io;

use crate::engine::Chance;

const BUFFER_BYTES: usize = 4096;

/// The seed of the key table's hash.
pub(super) fn seed() -> io::Result<[u64; 2]> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::from)?;
    let mut words = words(&bytes);
    Ok([
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    ])
}

/// An endless supply of salts.
pub(super) fn salts() -> Chance {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut used = BUFFER_BYTES;
    Box::new(move || {
        if used == BUFFER_BYTES {
            // The process ends here, because tokens that can be guessed would be worse than none.
            getrandom::fill(&mut buffer).expect("the system has no random numbers");
            used = 0;
        }
        let salt = words(&buffer[used..used + 8]).next().unwrap_or_default();
        buffer[used..used + 8].fill(0); // a salt that is in use need not stay in memory here
        used += 8;
        salt
    })
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|chunk| u64::from_ne_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn salts_do_not_repeat_across_refills() {
        let mut salts = salts();
        let seen: BTreeSet<u64> = (0..2_000).map(|_| salts()).collect();
        assert_eq!(seen.len(), 2_000);
        assert!(!seen.contains(&0));
        assert_ne!(seed().unwrap(), seed().unwrap());
    }
}
