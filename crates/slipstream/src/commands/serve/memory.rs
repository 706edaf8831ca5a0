//! How much memory nothing else uses: what Linux says, within what this process's group may have.

use std::fs;
use std::path::Path;

/// Where groups of processes have their limits.
const GROUPS: &str = "/sys/fs/cgroup";

/// Bytes of available memory; `None` where the system does not say.
pub(super) fn available() -> Option<usize> {
    let read = |path: &Path| fs::read_to_string(path).ok();
    let machine = field(&read(Path::new("/proc/meminfo"))?, "MemAvailable:")?.saturating_mul(1024);
    let group = read(Path::new("/proc/self/cgroup")).and_then(|groups| group_of(&groups));
    let folder = Path::new(GROUPS).join(group.unwrap_or_default());
    // A group has no more than those around it.
    let limits = folder.ancestors().take_while(|folder| folder.starts_with(GROUPS));
    let left = limits.filter_map(|folder| {
        left_of(&read(&folder.join("memory.max"))?, &read(&folder.join("memory.stat"))?)
    });
    Some(left.fold(machine, usize::min))
}

/// The number behind a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The path of this process's group, out of `/proc/self/cgroup`; groups of the older kind have none.
fn group_of(text: &str) -> Option<String> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(path.trim().trim_start_matches('/').to_owned())
}

/// What a group's limit leaves over what its processes wrote; files that are only cached make room.
/// `None` for a group without a limit.
fn left_of(max: &str, stat: &str) -> Option<usize> {
    let max: usize = max.trim().parse().ok()?;
    Some(max.saturating_sub(field(stat, "anon ")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_writes_is_read() {
        let meminfo = "MemTotal:       24576000 kB\nMemFree: 100 kB\nMemAvailable:   2048 kB\n";
        assert_eq!(field(meminfo, "MemAvailable:"), Some(2048));
        assert_eq!(field("MemTotal: 1 kB\n", "MemAvailable:"), None);
        assert_eq!(group_of("0::/user.slice/a.service\n").as_deref(), Some("user.slice/a.service"));
        assert_eq!(group_of("0::/\n").as_deref(), Some(""));
        assert_eq!(group_of("12:memory:/docker/x\n"), None);
        assert_eq!(left_of("1000\n", "anon 300\nfile 600\n"), Some(700));
        assert_eq!(left_of("1000\n", "anon 3000\n"), Some(0));
        assert_eq!(left_of("max\n", "anon 300\n"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_says_what_it_has() {
        let bytes = available().expect("Linux says it");
        assert!(bytes > 1 << 20, "{bytes} bytes are not enough to run a test in");
    }
}
