//! The dashboard and the alert rules, made from the table of metrics: what isn't in the table can't be on a panel, and a
//! label that a metric doesn't have can't be grouped by.
//!
//! Both stand, as they are made here, in `charts/basalt/files`; a test tells when they have to be written anew.

mod alerts;
mod panels;
mod query;

pub use alerts::alerts;
pub use panels::dashboard;
pub use query::Query;

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// `BASALT_WRITE_BOARDS=1 cargo test -p api-telemetry board` writes them.
    fn is_as_generated(name: &str, value: &serde_json::Value) {
        let path = Path::new("../../charts/basalt/files").join(name);
        let text = format!("{value:#}\n");
        if std::env::var_os("BASALT_WRITE_BOARDS").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(there == text, "{} is old: BASALT_WRITE_BOARDS=1 cargo test -p api-telemetry board", path.display());
    }

    #[test]
    fn the_charts_dashboard_is_the_one_that_the_table_gives() {
        is_as_generated("dashboard.json", &dashboard());
    }

    #[test]
    fn the_charts_alert_rules_are_those_that_the_table_gives() {
        is_as_generated("alerts.json", &alerts());
    }
}
