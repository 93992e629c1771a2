//! Memory of another process.

/// Memory of a process as the kernel counts it, in MiB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resident {
    /// Now.
    pub(crate) now: f64,
    /// At its highest since the process started.
    pub(crate) peak: f64,
    /// The part of `now` that the process wrote.
    pub(crate) anonymous: f64,
    /// The part of `now` that is pages of the executable and of libraries, which the kernel may drop.
    pub(crate) file: f64,
}

impl Resident {
    /// Of the process `pid`.
    pub(crate) fn of(pid: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let mib = |field: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
            line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
        };
        Self { now: mib("VmRSS"), peak: mib("VmHWM"), anonymous: mib("RssAnon"), file: mib("RssFile") }
    }
}

impl std::fmt::Display for Resident {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { now, peak, anonymous, file } = self;
        write!(f, "resident {now:>5.1} MiB ({anonymous:>5.1} its own, {file:>5.1} of files), highest {peak:>5.1}")
    }
}
