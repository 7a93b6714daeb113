//! How numbers and tables are written for people.

/// What stands where there is no figure.
pub(crate) const NOT_MEASURED: &str = "not measured";

/// A duration as people read it, to three digits or so.
pub(crate) fn duration(ns: u64) -> String {
    let ns = ns as f64;
    match ns {
        _ if ns < 1e4 => format!("{:.1} µs", ns / 1e3),
        _ if ns < 1e6 => format!("{:.0} µs", ns / 1e3),
        _ if ns < 1e9 => format!("{:.1} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

/// A ratio to three digits or so.
pub(crate) fn ratio(value: f64) -> String {
    match value {
        _ if value < 10.0 => format!("{value:.2}"),
        _ if value < 100.0 => format!("{value:.1}"),
        _ => grouped(value),
    }
}

/// A count with its thousands apart.
pub(crate) fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A markdown table whose columns line up; the first row is its head.
pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max();
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|at| width(at).unwrap_or(0))
        .collect();
    let rules = widths.iter().map(|&width| "-".repeat(width)).collect();
    let mut text = String::new();
    for row in rows.iter().take(1).chain([&rules]).chain(&rows[1..]) {
        let cells = row.iter().zip(&widths);
        let cells: Vec<String> = cells
            .map(|(cell, &width)| format!("{cell:<width$}"))
            .collect();
        text.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_for_people() {
        assert_eq!(grouped(1_234_567.4), "1,234,567");
        assert_eq!(grouped(12.0), "12");
        assert_eq!(ratio(0.954), "0.95");
        assert_eq!(ratio(220.04), "220");
        assert_eq!(duration(1_500), "1.5 µs");
        assert_eq!(duration(250_000), "250 µs");
        assert_eq!(duration(2_500_000), "2.5 ms");
    }

    #[test]
    fn a_table_lines_up() {
        let row = |a: &str, b: &str| vec![a.to_owned(), b.to_owned()];
        let text = aligned(&[row("a", "wanted"), row("long", "≥ 1")]);
        let want = "| a    | wanted |\n| ---- | ------ |\n| long | ≥ 1    |\n";
        assert_eq!(text, want);
    }
}
