//! The system's random source: the secrets of a run are read here, at its start.

use std::io;

/// Words that nobody can guess.
pub(super) fn secret<const WORDS: usize>() -> io::Result<[u64; WORDS]> {
    let mut bytes = [[0; 8]; WORDS];
    getrandom::fill(bytes.as_flattened_mut()).map_err(io::Error::from)?;
    Ok(bytes.map(u64::from_ne_bytes))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_words_are_the_same() {
        let secrets: [[u64; 4]; 2] = [secret().unwrap(), secret().unwrap()];
        let words: BTreeSet<u64> = secrets.into_iter().flatten().collect();
        assert_eq!(words.len(), 8);
    }
}
