//! The comparison as a picture: bars by hand, readable on light and dark.

use crate::contest::Table;

const WIDTH: usize = 760;
const BAR: usize = 18;
const LEFT: usize = 110;
/// The longest bar; its figure is written behind it.
const BAR_MAX: f64 = 430.0;

const STYLE: &str = "\
  <style>
    text { font: 13px system-ui, sans-serif; fill: #24292f }
    .work { font-weight: 600 }
    .us { fill: #0969da } .them { fill: #8c959f }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 }
      .us { fill: #58a6ff } .them { fill: #6e7681 }
    }
  </style>
";

/// One group of bars for each work, the longest as wide as the picture allows.
pub(crate) fn draw(table: &Table) -> String {
    let mut body = String::new();
    let mut y = 30;
    for row in &table.rows {
        body.push_str(&format!(
            "  <text class=\"work\" x=\"10\" y=\"{y}\">{}</text>\n",
            escaped(row.job.name())
        ));
        y += 10;
        let values: Vec<Option<f64>> = (0..table.names.len()).map(|at| row.value(at)).collect();
        let most = values.iter().flatten().copied().fold(0.0, f64::max);
        for (at, name) in table.names.iter().enumerate() {
            let Some(value) = values[at] else { continue };
            let width = (value / most.max(1e-9) * BAR_MAX).max(1.0);
            let class = if at == 0 { "us" } else { "them" };
            let text = y + BAR - 5;
            body.push_str(&format!(
                "  <text x=\"{}\" y=\"{text}\" text-anchor=\"end\">{}</text>\n\
                 \x20 <rect class=\"{class}\" x=\"{LEFT}\" y=\"{y}\" width=\"{width:.0}\" height=\"{}\" rx=\"2\"/>\n\
                 \x20 <text x=\"{:.0}\" y=\"{text}\">{}</text>\n",
                LEFT - 8,
                escaped(name),
                BAR - 3,
                LEFT as f64 + width + 6.0,
                escaped(&row.shown(at).unwrap_or_default())
            ));
            y += BAR;
        }
        if !row.job.figure().more_is_better() {
            body.push_str(&format!(
                "  <text x=\"{LEFT}\" y=\"{}\">a shorter bar is better here</text>\n",
                y + BAR - 5
            ));
            y += BAR;
        }
        y += 28;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{y}\" \
         viewBox=\"0 0 {WIDTH} {y}\" role=\"img\" aria-label=\"latchd beside others\">\n\
         {STYLE}{body}</svg>\n"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
