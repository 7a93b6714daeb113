//! Linux: who holds a lock, from the table of locks of the kernel.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::ephemeral::{Holder, Kind};

/// The holders of a lock on the file at the path.
pub(in crate::ephemeral) fn holders(path: &Path) -> io::Result<Vec<Holder>> {
    let file = fs::symlink_metadata(path)?;
    let locks = table_of_locks()?;
    Ok(holders_in(&locks, file.dev(), file.ino()))
}

/// Read in large pieces: what one read gives (some eighty locks) is of one moment.
fn table_of_locks() -> io::Result<String> {
    let mut file = File::open("/proc/locks")?;
    let (mut table, mut piece) = (Vec::new(), vec![0; 64 * 1024]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(String::from_utf8_lossy(&table).into_owned()),
            length => table.extend_from_slice(&piece[..length]),
        }
    }
}

/// The same from the text of `/proc/locks`: `1: FLOCK  ADVISORY  WRITE 1234 fd:00:5678 0 EOF`. Those who
/// wait have an arrow behind the number.
fn holders_in(locks: &str, device: u64, inode: u64) -> Vec<Holder> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let holder = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        if fields.next()? != "FLOCK" {
            return None;
        }
        let kind = match fields.nth(1)? {
            "WRITE" => Kind::Exclusive,
            _ => Kind::Shared,
        };
        let pid = fields.next()?.parse::<u32>().ok().filter(|pid| *pid > 0);
        let mut file = fields.next()?.split(':');
        let its_major = u32::from_str_radix(file.next()?, 16).ok()?;
        let its_minor = u32::from_str_radix(file.next()?, 16).ok()?;
        let its_inode = file.next()?.parse::<u64>().ok()?;
        // Some file systems (btrfs, overlayfs) tell programs of another device, which is no real one.
        let is_same_device = (its_major, its_minor) == (major, minor) || major == 0;
        (is_same_device && its_inode == inode).then_some(Holder { pid, kind })
    };
    locks.lines().filter_map(holder).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_read_from_the_table_of_locks() {
        let locks = "1: FLOCK  ADVISORY  WRITE 1234 fd:00:5678 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 99 fd:00:5678 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 7 fd:00:5678 0 EOF\n\
                     3: FLOCK  ADVISORY  READ 8 fd:00:9 0 EOF\n\
                     4: FLOCK  ADVISORY  READ -1 fd:00:9 0 EOF\n\
                     5: FLOCK\n\
                     6: FLOCK ADVISORY WRITE x y:z:w 0 EOF\n\
                     7: FLOCK  ADVISORY  WRITE 3 00:1a:9 0 EOF\n";
        let device = rustix::fs::makedev(0xfd, 0);
        let pid = Some(1234);
        let kind = Kind::Exclusive;
        assert_eq!(holders_in(locks, device, 5678), [Holder { pid, kind }]);
        let kind = Kind::Shared;
        let pids: Vec<_> = holders_in(locks, device, 9)
            .iter()
            .map(|it| it.pid)
            .collect();
        assert_eq!(pids, [Some(8), None]);
        assert_eq!(holders_in(locks, device, 9)[0].kind, kind);
        assert!(holders_in(locks, device, 56).is_empty());
        let anonymous = rustix::fs::makedev(0, 0x30);
        assert_eq!(holders_in(locks, anonymous, 9).len(), 3);
    }
}
