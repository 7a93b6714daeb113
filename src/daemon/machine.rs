//! How much memory there is: the machine's, or less if a control group says so.
//!
//! Read once, at the start, because the bound on memory is half of it unless an operator says
//! otherwise. Where nothing can be read there is no bound.

use std::fs;
use std::path::Path;

/// Bytes of memory that this process may use; `None` if that cannot be found out.
pub(super) fn memory_bytes() -> Option<u64> {
    memory_below(Path::new("/"))
}

fn memory_below(root: &Path) -> Option<u64> {
    let limits = limits_of_groups(root).into_iter();
    limits.chain(memory_of_machine(root)).min()
}

/// `MemTotal:  24682496 kB`
fn memory_of_machine(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let total = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// The limits of our control group and of those it is in. A line of the list of our groups is
/// `0::/path` in version 2 and `4:memory:/path` in version 1. Inside a container the path may be
/// that of the machine, where we cannot see it; our own group is then at the top.
fn limits_of_groups(root: &Path) -> Vec<u64> {
    let list = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut limits = Vec::new();
    for line in list.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (top, files): (_, &[_]) = match controllers {
            "" => ("sys/fs/cgroup", &["memory.max", "memory.high"]),
            _ if controllers.split(',').any(|it| it == "memory") => {
                ("sys/fs/cgroup/memory", &["memory.limit_in_bytes"])
            }
            _ => continue,
        };
        let path = Path::new(path.trim_start_matches('/'));
        for group in path.ancestors() {
            let group = root.join(top).join(group);
            limits.extend(files.iter().filter_map(|file| limit(&group.join(file))));
        }
    }
    limits
}

/// A number, or a word if there is no limit.
fn limit(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of 8 GiB with these files.
    fn memory_with(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        let machine = ("proc/meminfo", "MemTotal:  8388608 kB\nMemFree:  1 kB\n");
        for (path, text) in files.iter().chain([&machine]) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        memory_below(root.path())
    }

    const GIB: u64 = 1 << 30;

    #[test]
    fn without_a_group_it_is_the_machine_s() {
        assert_eq!(memory_with(&[]), Some(8 * GIB));
        let groups = ("proc/self/cgroup", "0::/\n");
        assert_eq!(memory_with(&[groups]), Some(8 * GIB));
        let unlimited = ("sys/fs/cgroup/memory.max", "max\n");
        assert_eq!(memory_with(&[groups, unlimited]), Some(8 * GIB));
    }

    #[test]
    fn the_lowest_limit_of_the_groups_we_are_in_counts() {
        let groups = ("proc/self/cgroup", "0::/system.slice/latchd.service\n");
        let slice = ("sys/fs/cgroup/system.slice/memory.max", "2147483648\n");
        let high = (
            "sys/fs/cgroup/system.slice/latchd.service/memory.high",
            "1073741824\n",
        );
        assert_eq!(memory_with(&[groups, slice]), Some(2 * GIB));
        assert_eq!(memory_with(&[groups, slice, high]), Some(GIB));
        let of_container = ("sys/fs/cgroup/memory.max", "1073741824\n");
        assert_eq!(memory_with(&[groups, of_container]), Some(GIB));
    }

    #[test]
    fn groups_of_version_1_count_too() {
        let groups = (
            "proc/self/cgroup",
            "5:cpu,cpuacct:/\n4:memory:/docker/1\n0::/\n",
        );
        let none = (
            "sys/fs/cgroup/memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        );
        let own = (
            "sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes",
            "1073741824\n",
        );
        assert_eq!(memory_with(&[groups, none]), Some(8 * GIB));
        assert_eq!(memory_with(&[groups, none, own]), Some(GIB));
    }

    #[test]
    fn this_machine_has_some() {
        assert!(memory_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}
