//! What the kernel says about this process, read when it is asked for.

use crate::metric::{Metric, Sample};
use crate::table;
use std::fs;

/// The value of a metric about the process; empty when it is about something else, or the kernel doesn't say.
pub(crate) fn samples(metric: &Metric) -> Vec<Sample> {
    let is = |other: &Metric| std::ptr::eq(metric, other);
    let value = if is(&table::PROCESS_RESIDENT_BYTES.metric) {
        resident_bytes()
    } else if is(&table::PROCESS_CPU_SECONDS_TOTAL.metric) {
        cpu_seconds()
    } else if is(&table::PROCESS_OPEN_FILES.metric) {
        open_files()
    } else {
        None
    };
    value.map(|value| Sample { labels: Vec::new(), value }).into_iter().collect()
}

fn resident_bytes() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}

/// User and system time, of threads that have ended too.
fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name may hold spaces and brackets: the fields begin after the last bracket, utime and stime are 14 and 15.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    // Linux has shown 100 ticks a second to user space on every architecture of ours, whatever the kernel's own rate.
    Some(ticks / 100.0)
}

fn open_files() -> Option<f64> {
    Some(fs::read_dir("/proc/self/fd").ok()?.count() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_time_and_files() {
        let value = |metric| samples(metric)[0].value;
        assert!(value(&table::PROCESS_RESIDENT_BYTES.metric) > 100_000.0);
        assert!(value(&table::PROCESS_CPU_SECONDS_TOTAL.metric) >= 0.0);
        assert!(value(&table::PROCESS_OPEN_FILES.metric) >= 1.0);
    }
}
