//! Sizes as people write them, in flags, parameters and tables.

/// Binary suffixes count 1024, decimal ones 1000, as Kubernetes has it.
const UNITS: [(&str, u64); 17] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("k", 1_000),
    ("K", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
];

/// Reads `4Gi`, `10G`, `1.5Ti` or `4096` as bytes. The error names the text and shows how a size is written.
pub fn parse(text: &str) -> Result<u64, String> {
    let fail = || format!("`{text}` is not a size: write bytes, or a number with Ki, Mi, Gi, Ti, k, M, G or T, such as 4Gi");
    let text = text.trim();
    let (number, factor) = UNITS
        .iter()
        .find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)))
        .unwrap_or_else(|| (text.strip_suffix('B').unwrap_or(text), 1));
    let number = number.trim_end();
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || whole.len() > 19 || fraction.len() > 9 || !is_digits(whole) || !is_digits(fraction) {
        return Err(fail());
    }
    if number.contains('.') && (fraction.is_empty() || factor == 1) {
        return Err(fail());
    }
    let mut bytes = whole.parse::<u128>().map_err(|_| fail())? * u128::from(factor);
    if !fraction.is_empty() {
        let scale = 10u128.pow(fraction.len() as u32);
        bytes += fraction.parse::<u128>().map_err(|_| fail())? * u128::from(factor) / scale;
    }
    u64::try_from(bytes).map_err(|_| format!("`{text}` is more than a disk can have (16 Ei)"))
}

/// Bytes for people, with three significant figures and a binary suffix.
pub fn show(bytes: u64) -> String {
    let units = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let Some((unit, suffix)) = units.into_iter().find(|(unit, _)| bytes >= *unit) else {
        return format!("{bytes} B");
    };
    let value = bytes as f64 / unit as f64;
    let digits = if value >= 100.0 || bytes.is_multiple_of(unit) {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_kubernetes_reads_them() {
        let cases = [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("4Ki", 4096),
            ("4Gi", 4 << 30),
            ("4 GiB", 4 << 30),
            ("10G", 10_000_000_000),
            ("10GB", 10_000_000_000),
            ("1.5Gi", 3 << 29),
            ("2k", 2000),
            (" 1Ti ", 1 << 40),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_an_example() {
        for text in ["", "Gi", "-1", "4Q", "1.5", "1.Gi", ".5Gi", "1e3", "4GiG", "0x10", "99999999999999999999", "1.2.3Gi", "٣Gi"]
        {
            let error = parse(text).unwrap_err();
            assert!(error.contains("such as 4Gi"), "{text}: {error}");
        }
        assert!(parse("999999999Ti").unwrap_err().contains("more than a disk"));
    }

    #[test]
    fn sizes_print_short() {
        let cases = [(0, "0 B"), (1023, "1023 B"), (4096, "4 KiB"), (3 << 29, "1.50 GiB"), (20_000_000_000, "18.6 GiB")];
        for (bytes, text) in cases {
            assert_eq!(show(bytes), text);
        }
    }
}
