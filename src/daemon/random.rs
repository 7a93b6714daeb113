//! The system's random source: the two secrets of a run are read here, at its start.

use std::io;

/// 128 bits that nobody can guess.
pub(super) fn secret() -> io::Result<[u64; 2]> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::from)?;
    let bits = u128::from_ne_bytes(bytes);
    Ok([bits as u64, (bits >> 64) as u64])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_secrets_are_the_same() {
        let secrets = [secret().unwrap(), secret().unwrap()];
        let words: std::collections::BTreeSet<u64> = secrets.into_iter().flatten().collect();
        assert_eq!(words.len(), 4);
    }
}
