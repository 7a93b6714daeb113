//! The comparison as a picture: bars by hand, on a background of its own, for light and dark.
//!
//! Behind every other server's bar stands first what the first one's figure is divided by its own,
//! then the figure itself. The same is said in words for who cannot see it.

use crate::comparison::Table;
use crate::report::format::ratio;

const WIDTH: usize = 760;
const MARGIN: usize = 24;
/// Height of one bar with the space below it.
const BAR: usize = 20;
/// Where bars begin; names stand before it.
const LEFT: usize = 118;
/// The longest bar; its label is written behind it.
const BAR_MAX: f64 = 430.0;

const STYLE: &str = "\
  <style>
    text { font: 13px system-ui, 'DejaVu Sans', sans-serif; fill: #24292f }
    .head { font-size: 17px; font-weight: 600 }
    .work, .ratio { font-weight: 600 }
    .quiet { fill: #57606a }
    .page { fill: #ffffff; stroke: #d0d7de }
    .us { fill: #0969da } .them { fill: #a0a9b3 }
    .ceiling { fill: #eaeef2; stroke: #a0a9b3 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 }
      .quiet { fill: #9198a1 }
      .page { fill: #0d1117; stroke: #30363d }
      .us { fill: #4493f8 } .them { fill: #656c76 }
      .ceiling { fill: #212830; stroke: #656c76 }
    }
  </style>
";

const LEGEND: [&str; 3] = [
    "Bold: the first one's figure divided by this one's, median of the rounds; bars are as long as that says.",
    "redis releases with a script that compares first, redis-del with DEL; dflockd is the one in Python.",
    "The ceiling only moves the same bytes: what any lock server could reach on this machine.",
];

/// One group of bars for each work, the longest as wide as the picture allows.
pub(crate) fn draw(table: &Table) -> String {
    let (mut body, mut words) = (String::new(), String::new());
    let mut text = |class: &str, x: usize, y: usize, text: &str| {
        let line = format!("  <text class=\"{class}\" x=\"{x}\" y=\"{y}\">{text}</text>\n");
        body.push_str(&line);
    };
    let title = format!("{} beside other servers", escaped(&table.names[0]));
    text("head", MARGIN, 38, &title);
    for (at, line) in LEGEND.iter().enumerate() {
        text("quiet", MARGIN, 60 + 18 * at, line);
    }
    let mut y = 76 + 18 * LEGEND.len();
    for row in &table.rows {
        let heading = row.job.heading();
        words.push_str(&format!("{heading}:"));
        body.push_str(&format!(
            "  <text class=\"work\" x=\"{MARGIN}\" y=\"{y}\">{heading}</text>\n"
        ));
        y += 9;
        // As long as the ratios say, so that bar and label agree however uneven the rounds were.
        let lengths = (0..table.names.len()).map(|at| row.ratio(at).map(|it| 1.0 / it));
        let lengths: Vec<Option<f64>> = lengths.collect();
        let most = lengths.iter().flatten().copied().fold(0.0, f64::max);
        for (at, name) in table.names.iter().enumerate() {
            let (Some(length), Some(shown)) = (lengths[at], row.shown(at)) else {
                continue;
            };
            let name = escaped(name);
            let times = match at {
                0 => String::new(),
                _ => format!("{} ×", ratio(1.0 / length)),
            };
            words.push_str(&format!(" {name} {shown} {times};"));
            body.push_str(&bar(&name, &shown, &times, length / most, y));
            y += BAR;
        }
        words.push('\n');
        y += 30;
    }
    let height = y - 14;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"title desc\">\n\
         \x20 <title id=\"title\">{title}</title>\n\
         \x20 <desc id=\"desc\">{}\n{words}</desc>\n\
         {STYLE}\
         \x20 <rect class=\"page\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"6\"/>\n\
         {body}</svg>\n",
        LEGEND.join(" "),
        WIDTH - 1,
        height - 1
    )
}

/// One bar, this much of the longest.
fn bar(name: &str, shown: &str, times: &str, part: f64, y: usize) -> String {
    let class = match name {
        // Only the first is not compared with anybody.
        _ if times.is_empty() => "us",
        "ceiling" => "ceiling",
        _ => "them",
    };
    let width = (part * BAR_MAX).max(1.0);
    let (base, end) = (y + BAR - 6, LEFT as f64 + width + 8.0);
    let ratio = match times {
        "" => String::new(),
        times => format!("<tspan class=\"ratio\">{times}</tspan> "),
    };
    let quiet = if times.is_empty() { "ratio" } else { "quiet" };
    format!(
        "  <text x=\"{}\" y=\"{base}\" text-anchor=\"end\">{name}</text>\n\
         \x20 <rect class=\"{class}\" x=\"{LEFT}\" y=\"{}\" width=\"{width:.0}\" height=\"{}\" rx=\"2\"/>\n\
         \x20 <text x=\"{end:.0}\" y=\"{base}\">{ratio}<tspan class=\"{quiet}\">{shown}</tspan></text>\n",
        LEFT - 8,
        y + 2,
        BAR - 5,
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
