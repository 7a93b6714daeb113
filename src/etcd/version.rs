//! Which versions of etcd are good enough.

use std::fmt;

/// The oldest version that is used: the one that was tested. Older ones have known defects.
pub const VERSION_MIN: Version = Version {
    major: 3,
    minor: 5,
    patch: 30,
};

/// A version of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The first number.
    pub major: u32,
    /// The second.
    pub minor: u32,
    /// The third.
    pub patch: u32,
}

impl Version {
    /// Reads `3.5.30`, also with something behind a dash or a plus.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let plain = text.split(['-', '+']).next()?;
        let mut numbers = plain.split('.').map(|it| {
            let is_number = !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| it.parse::<u32>().ok()).flatten()
        });
        let version = Self {
            major: numbers.next()??,
            minor: numbers.next()??,
            patch: numbers.next()??,
        };
        numbers.next().is_none().then_some(version)
    }

    /// Whether it may be used. A later minor version is, although only this one was tested.
    #[must_use]
    pub fn is_good(self) -> bool {
        self.major == VERSION_MIN.major && self >= VERSION_MIN
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_and_other_words_are_refused() {
        let is_good = |text| Version::parse(text).map(Version::is_good);
        for text in ["3.5.30", "3.5.31-rc.1", "3.6.0", "3.10.2+git"] {
            assert_eq!(is_good(text), Some(true), "{text}");
        }
        for text in ["3.5.29", "3.4.99", "2.9.9", "4.0.0"] {
            assert_eq!(is_good(text), Some(false), "{text}");
        }
        for text in ["", "3.5", "3.5.x", "3.5.30.1", "v3.5.30", "3.5.+5", "3..5"] {
            assert_eq!(is_good(text), None, "{text}");
        }
    }
}
