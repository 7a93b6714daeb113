//! One token, compared in constant time and in no other way. Never shown.

use constant_time_eq::constant_time_eq;

/// What somebody has to show.
#[derive(Clone)]
pub(super) struct Secret(Box<[u8]>);

impl Secret {
    pub(super) fn new(secret: &[u8]) -> Self {
        Self(secret.into())
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether what was shown, if anything was, is this. Always costs one comparison.
    pub(super) fn is(&self, shown: Option<&[u8]>) -> bool {
        let secret = &*self.0;
        // Of equal length whatever was shown; `constant_time_eq` answers at once on unequal lengths.
        let guess = shown
            .filter(|shown| shown.len() == secret.len())
            .unwrap_or(secret);
        let equal = constant_time_eq(guess, secret);
        equal && shown.is_some_and(|shown| shown.len() == secret.len())
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.is(Some(&other.0))
    }
}

impl Eq for Secret {}
