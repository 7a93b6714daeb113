//! A key: the bytes a client chose as a name, at most 256 of them.
//!
//! Short names are stored inline, so that a million of them need no allocations. The longest inline
//! name is what fits beside the tag in three words.

use std::fmt;

use crate::memory::block_bytes;

/// The longest name that is stored without an allocation.
const INLINE_BYTES_MAX: usize = 22;

/// An owned name.
#[derive(Clone)]
pub struct Key(Repr);

#[derive(Clone)]
enum Repr {
    Inline {
        len: u8,
        bytes: [u8; INLINE_BYTES_MAX],
    },
    Heap(Box<[u8]>),
}

impl Key {
    /// The name's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Repr::Heap(bytes) => bytes,
        }
    }

    /// How much memory a name of this length takes besides the key itself.
    #[must_use]
    pub const fn heap_bytes_of(len: usize) -> usize {
        if len > INLINE_BYTES_MAX {
            block_bytes(len)
        } else {
            0
        }
    }

    /// How much memory this name takes besides the key itself.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        Self::heap_bytes_of(self.as_bytes().len())
    }

    /// Whether the name is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.as_bytes().is_empty()
    }
}

impl From<&[u8]> for Key {
    fn from(name: &[u8]) -> Self {
        if name.len() > INLINE_BYTES_MAX {
            return Self(Repr::Heap(name.into()));
        }
        let mut bytes = [0; INLINE_BYTES_MAX];
        bytes[..name.len()].copy_from_slice(name);
        Self(Repr::Inline {
            len: name.len() as u8,
            bytes,
        })
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Key {}

/// Escaped, so that a key can never forge a log line.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}
