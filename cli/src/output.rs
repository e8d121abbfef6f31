//! Results as a table for people or as JSON for programs.

use anyhow::{Context, Result};
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

/// How results are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// For programs. Keys stay as they are; new ones may come.
    Json,
}

/// Prints `value` as JSON, or the text that `table` makes of it.
pub(crate) fn print<T: Serialize + ?Sized>(format: Format, value: &T, table: impl FnOnce(&T) -> String) -> Result<()> {
    match format {
        Format::Table => println!("{}", table(value)),
        Format::Json => println!("{}", serde_json::to_string_pretty(value).context("could not write JSON")?),
    }
    Ok(())
}

/// A table with a heading and as many columns as that.
pub(crate) fn table<const N: usize>(heading: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(heading);
    for row in rows {
        table.add_row(row);
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}
