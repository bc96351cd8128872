//! How much memory there is.

use octavo_types::Bytes;

/// Bytes that programs could use without swapping; `None` where the system does not say.
pub(crate) fn available() -> Option<Bytes> {
    parse(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse(meminfo: &str) -> Option<Bytes> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes(kib * 1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_where_the_system_says_it() {
        let text = "MemTotal:       24661868 kB\nMemAvailable:   1000 kB\n";
        assert_eq!(parse(text), Some(Bytes(1_024_000)));
        assert_eq!(parse("MemTotal: 1 kB"), None);
        assert_eq!(parse("MemAvailable: many"), None);
    }
}
