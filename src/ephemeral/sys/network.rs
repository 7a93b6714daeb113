//! Whether a directory lies where locks and file names cannot be relied on.
//!
//! Network file systems emulate `flock`, or keep it to one machine, and what they know of a path may be
//! seconds old; so the comparison that makes a removed lock file harmless can be wrong there.

use std::io;
use std::os::fd::BorrowedFd;

/// Network file systems by the number that `statfs` gives them. FUSE can be anything.
const NETWORK: [(u32, &str); 10] = [
    (0x6969, "nfs"),
    (0x517b, "smb"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb2"),
    (FUSE, "fuse"),
    (0x00c3_6400, "ceph"),
    (0x5346_414f, "afs"),
    (0x7375_7245, "coda"),
    (0x564c, "ncp"),
    (0x0bd0_0bd0, "lustre"),
];

const FUSE: u32 = 0x6573_5546;

/// The type of the file system that the directory is on, if it is one of a network.
pub(super) fn network_file_system(dir: BorrowedFd<'_>) -> io::Result<Option<String>> {
    let number = rustix::fs::fstatfs(dir)?.f_type as u32;
    if !NETWORK.iter().any(|(known, _)| *known == number) {
        return Ok(None); // the usual case, decided without reading a table of all mounts
    }
    let device = rustix::fs::fstat(dir)?.st_dev;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    Ok(named_type(number, &mounts, device).map(str::to_owned))
}

/// What a file system is called that has this number and lies on this device, if it is one of a network.
fn named_type(number: u32, mounts: &str, device: u64) -> Option<&str> {
    let (_, name) = NETWORK.iter().find(|(known, _)| *known == number)?;
    let name = mounted_type(mounts, device).unwrap_or(name);
    // FUSE on a disk: one machine has it.
    (name != "fuseblk").then_some(name)
}

/// The type of what is mounted from a device, as `/proc/self/mountinfo` tells it:
/// `36 35 0:52 / /home rw,noatime shared:1 - fuse.sshfs host:/home rw`.
fn mounted_type(mounts: &str, device: u64) -> Option<&str> {
    let number = format!(
        "{}:{}",
        rustix::fs::major(device),
        rustix::fs::minor(device)
    );
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        if fields.nth(2)? != number {
            return None;
        }
        fields.skip_while(|field| *field != "-").nth(1)
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn the_table_of_mounts_tells_what_a_device_is() {
        let mounts = "22 1 253:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                      23 22 0:52 / /a\\040b rw,noatime - fuse.sshfs host:/home rw\n\
                      half a line\n\
                      24 22 0:53\n\
                      25 22 8:17 /x /mnt ro shared:2 master:1 - fuseblk /dev/sdb1 ro\n";
        let device = rustix::fs::makedev;
        assert_eq!(mounted_type(mounts, device(253, 0)), Some("ext4"));
        assert_eq!(mounted_type(mounts, device(0, 52)), Some("fuse.sshfs"));
        assert_eq!(mounted_type(mounts, device(8, 17)), Some("fuseblk"));
        assert_eq!(mounted_type(mounts, device(0, 53)), None);
        assert_eq!(mounted_type(mounts, device(9, 9)), None);
        assert_eq!(mounted_type("", device(253, 0)), None);
    }

    #[test]
    fn a_network_is_known_by_its_number_and_called_what_it_is_mounted_as() {
        let device = rustix::fs::makedev;
        let mounts = "23 22 0:52 / /a rw,noatime - fuse.sshfs host:/home rw\n\
                      24 22 0:53 / /b rw - nfs4 host:/srv rw\n\
                      25 22 8:17 / /c rw - fuseblk /dev/sdb1 rw\n";
        for (number, device, named) in [
            (FUSE, device(0, 52), Some("fuse.sshfs")),
            (0x6969, device(0, 53), Some("nfs4")),
            (FUSE, device(8, 17), None),
            (0xff53_4d42, device(9, 9), Some("cifs")),
            (FUSE, device(9, 9), Some("fuse")),
            (0xef53, device(0, 53), None), // ext4, whatever is mounted there
        ] {
            assert_eq!(named_type(number, mounts, device), named, "{number:x}");
        }
    }

    #[test]
    fn a_local_directory_is_not_on_a_network() {
        let dir = std::fs::File::open("/proc/self").unwrap();
        assert_eq!(network_file_system(dir.as_fd()).unwrap(), None);
    }
}
