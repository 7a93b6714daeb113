//! The same locks in latchd's segments and in the Linux kernel: what the one grants or refuses, the
//! other does, and both end with the same segments.
//!
//! The kernel's locks are those of open file descriptions (`F_OFD_SETLK`), one description for each
//! owner. It names bytes up to 2^63-1, we up to 2^64-1, so the last few bytes of both are compared.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot lock has to fail")]

use std::fs::{self, File};
use std::os::fd::AsRawFd;

use latchd::segments::{ByteRange, Grant, Segment, Segments, Sharing};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

const OWNERS: usize = 3;

/// How many sequences of requests are compared, and how long each is.
const SEQUENCES: u64 = 4_000;
const REQUESTS: u32 = 25;

/// Bytes at the start and at the end that ranges begin and end with.
const EDGE: u64 = 12;

/// A file, opened once for each owner.
struct Kernel {
    file: tempfile::NamedTempFile,
    owners: Vec<File>,
}

impl Kernel {
    fn new() -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = |_| File::options().read(true).write(true).open(file.path());
        let owners = (0..OWNERS).map(|owner| open(owner).unwrap()).collect();
        Self { file, owners }
    }

    /// Whether it was granted; an unlock always is.
    fn set(&self, owner: usize, range: ByteRange, mode: Option<Sharing>) -> bool {
        let lock = flock(range, mode);
        match fcntl(&self.owners[owner], FcntlArg::F_OFD_SETLK(&lock)) {
            Ok(_) => true,
            Err(Errno::EAGAIN) => false,
            Err(error) => panic!("{range:?} {mode:?}: {error}"),
        }
    }

    /// One of the locks that are in the way.
    fn test(&self, owner: usize, range: ByteRange, mode: Sharing) -> Option<(ByteRange, Sharing)> {
        let mut lock = flock(range, Some(mode));
        fcntl(&self.owners[owner], FcntlArg::F_OFD_GETLK(&mut lock)).unwrap();
        let mode = match i32::from(lock.l_type) {
            libc::F_UNLCK => return None,
            libc::F_RDLCK => Sharing::Shared,
            _ => Sharing::Exclusive,
        };
        let start = ours(lock.l_start as u64);
        let last = match lock.l_len {
            0 => u64::MAX,
            len => ours((lock.l_start + len - 1) as u64),
        };
        Some((ByteRange::between(start, last).unwrap(), mode))
    }

    /// All that an owner has: the kernel lists it beside each descriptor.
    fn segments_of(&self, owner: usize) -> Vec<(ByteRange, Sharing)> {
        let path = format!("/proc/self/fdinfo/{}", self.owners[owner].as_raw_fd());
        let text = fs::read_to_string(path).unwrap();
        // lock:	1: OFDLCK  ADVISORY  WRITE -1 00:2a:12 0 EOF
        let lines = text.lines().filter(|line| line.starts_with("lock:"));
        let mut found: Vec<_> = lines
            .map(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                let [.., mode, _, _, start, last] = words[..] else {
                    panic!("{line}");
                };
                let mode = match mode {
                    "READ" => Sharing::Shared,
                    "WRITE" => Sharing::Exclusive,
                    _ => panic!("{line}"),
                };
                let last = match last {
                    "EOF" => u64::MAX,
                    last => ours(last.parse().unwrap()),
                };
                let start = ours(start.parse().unwrap());
                (ByteRange::between(start, last).unwrap(), mode)
            })
            .collect();
        found.sort_by_key(|(range, _)| range.start());
        found
    }

    fn forget_all(&self) {
        for owner in 0..OWNERS {
            assert!(self.set(owner, ByteRange::ALL, None));
        }
        assert!(self.file.path().exists());
    }
}

/// The last byte that the kernel can name.
const KERNEL_LAST: u64 = i64::MAX as u64;

/// Our number for a byte of the kernel's: the last ones are the last ones.
fn ours(byte: u64) -> u64 {
    if byte > KERNEL_LAST - 2 * EDGE {
        u64::MAX - (KERNEL_LAST - byte)
    } else {
        byte
    }
}

fn kernels(byte: u64) -> i64 {
    let byte = if byte > u64::MAX - 2 * EDGE {
        KERNEL_LAST - (u64::MAX - byte)
    } else {
        byte
    };
    byte as i64
}

fn flock(range: ByteRange, mode: Option<Sharing>) -> libc::flock {
    let l_type = match mode {
        None => libc::F_UNLCK,
        Some(Sharing::Shared) => libc::F_RDLCK,
        Some(Sharing::Exclusive) => libc::F_WRLCK,
    };
    let (start, last) = (kernels(range.start()), kernels(range.last()));
    libc::flock {
        l_type: l_type as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: if last == i64::MAX {
            0
        } else {
            last - start + 1
        },
        l_pid: 0,
    }
}

fn range(chance: &mut fastrand::Rng) -> ByteRange {
    let mut byte = || match chance.u8(..4) {
        0 => u64::MAX - chance.u64(..EDGE),
        _ => chance.u64(..EDGE),
    };
    let (one, other) = (byte(), byte());
    ByteRange::between(one.min(other), one.max(other)).unwrap()
}

fn of_owner(segments: &Segments, owner: usize) -> Vec<(ByteRange, Sharing)> {
    let pair = |segment: Segment| (segment.range, segment.mode);
    segments.of_owner(owner as u32).map(pair).collect()
}

#[test]
fn the_kernel_grants_refuses_and_keeps_the_same() {
    let kernel = Kernel::new();
    let (mut granted, mut refused) = (0, 0);
    for seed in 0..SEQUENCES {
        let mut chance = fastrand::Rng::with_seed(seed);
        let mut segments = Segments::new();
        kernel.forget_all();
        for since in 0..REQUESTS {
            let (owner, range) = (chance.usize(..OWNERS), range(&mut chance));
            let told = format!("seed {seed}, request {since}: {owner} {range:?}");
            if chance.u8(..4) == 0 {
                assert!(kernel.set(owner, range, None), "{told}");
                segments.unlock(owner as u32, range, 2 * u64::from(since));
            } else {
                let shared = chance.u8(..3) > 0;
                let mode = if shared {
                    Sharing::Shared
                } else {
                    Sharing::Exclusive
                };
                let conflicts = segments.conflicts(owner as u32, range, mode);
                let conflicts: Vec<_> = conflicts.map(|(_, it)| (it.range, it.mode)).collect();
                match kernel.test(owner, range, mode) {
                    None => assert_eq!(conflicts, [], "{told} {mode:?}"),
                    Some(found) => assert!(
                        conflicts.contains(&found),
                        "{told} {mode:?}: the kernel found {found:?}, we {conflicts:?}"
                    ),
                }
                let free = conflicts.is_empty();
                assert_eq!(
                    kernel.set(owner, range, Some(mode)),
                    free,
                    "{told} {mode:?}"
                );
                if free {
                    let grant = Grant {
                        id: 2 * u64::from(since),
                        since: since.into(),
                        ..Grant::default()
                    };
                    segments.set(owner as u32, range, mode, grant);
                    granted += 1;
                } else {
                    refused += 1;
                }
            }
            segments.check();
            assert_eq!(
                kernel.segments_of(owner),
                of_owner(&segments, owner),
                "{told}"
            );
        }
        for owner in 0..OWNERS {
            assert_eq!(
                kernel.segments_of(owner),
                of_owner(&segments, owner),
                "seed {seed}"
            );
        }
    }
    assert!(granted > 10_000 && refused > 10_000, "{granted} {refused}");
}
