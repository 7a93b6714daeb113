//! The comparison as a picture: bars by hand, on a background of its own, for light and dark.
//!
//! Behind each bar stands its figure, and behind that the ratio to the server that all are compared
//! with. The same is said in words for readers who cannot see it. Only servers that have a figure
//! appear.

use crate::report::chart::{Bar, Chart};
use crate::report::format::{NOT_MEASURED, ratio};

const WIDTH: usize = 760;
const MARGIN: usize = 24;
/// Height of one bar with the space below it.
const BAR: usize = 20;
/// Height of one line of text.
const LINE: usize = 18;
/// Where bars begin; names stand before it.
const LEFT: usize = 118;
/// The longest bar; its label is written behind it.
const BAR_MAX: f64 = 430.0;
/// Longest line of legend and caption: as many letters as fit between the margins.
const LINE_CHARS_MAX: usize = 100;

const STYLE: &str = "\
  <style>
    text { font: 13px system-ui, 'DejaVu Sans', sans-serif; fill: #24292f }
    .head { font-size: 17px; font-weight: 600 }
    .work { font-weight: 600 }
    .quiet { fill: #57606a }
    .page { fill: #ffffff; stroke: #d0d7de }
    .subject { fill: #0969da } .other { fill: #a0a9b3 }
    .ceiling { fill: #eaeef2; stroke: #a0a9b3 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 }
      .quiet { fill: #9198a1 }
      .page { fill: #0d1117; stroke: #30363d }
      .subject { fill: #4493f8 } .other { fill: #656c76 }
      .ceiling { fill: #212830; stroke: #656c76 }
    }
  </style>
";

/// The picture as SVG.
pub(crate) fn draw(chart: &Chart) -> String {
    let title = title(&chart.servers());
    let legend = legend(chart);
    let mut canvas = Canvas::default();
    canvas.text("head", 38, &title);
    canvas.y = 60;
    canvas.lines(&legend);
    canvas.y += 16;
    for group in &chart.groups {
        canvas.text("work", canvas.y, &group.heading);
        canvas.y += 9;
        // As long as the ratios say, so that bar and label agree however uneven the rounds were.
        let length = |it: &Bar| 1.0 / it.ratio.unwrap_or(1.0);
        let most = group.bars.iter().map(length).fold(0.0, f64::max);
        for bar in &group.bars {
            canvas.bar(bar, &chart.subject, length(bar) / most);
        }
        if group.bars.is_empty() {
            canvas.text("quiet", canvas.y + BAR - 6, NOT_MEASURED);
            canvas.y += BAR;
        }
        canvas.y += 30;
    }
    canvas.lines(&chart.caption);
    let height = canvas.y;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"title desc\">\n\
         \x20 <title id=\"title\">{}</title>\n\
         \x20 <desc id=\"desc\">{}</desc>\n\
         {STYLE}\
         \x20 <rect class=\"page\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"6\"/>\n\
         {}</svg>\n",
        escaped(&title),
        escaped(&in_words(chart, &legend)),
        WIDTH - 1,
        height - 1,
        canvas.body
    )
}

/// What is drawn so far, and where the next line or bar goes.
#[derive(Default)]
struct Canvas {
    body: String,
    y: usize,
}

impl Canvas {
    fn text(&mut self, class: &str, y: usize, text: &str) {
        let text = escaped(text);
        let line = format!("  <text class=\"{class}\" x=\"{MARGIN}\" y=\"{y}\">{text}</text>\n");
        self.body.push_str(&line);
    }

    /// Quiet text in lines that fit.
    fn lines(&mut self, text: &str) {
        for line in wrapped(text) {
            self.text("quiet", self.y, &line);
            self.y += LINE;
        }
    }

    /// One bar, this much of the longest.
    fn bar(&mut self, bar: &Bar, subject: &str, part: f64) {
        let class = match bar.server.as_str() {
            _ if bar.ratio.is_none() => "subject",
            "ceiling" => "ceiling",
            _ => "other",
        };
        let times = match times(bar, subject) {
            Some(times) => format!(" <tspan class=\"quiet\">{}</tspan>", escaped(&times)),
            None => String::new(),
        };
        let width = (part * BAR_MAX).max(1.0);
        let (base, end) = (self.y + BAR - 6, LEFT as f64 + width + 8.0);
        self.body.push_str(&format!(
            "  <text x=\"{}\" y=\"{base}\" text-anchor=\"end\">{}</text>\n\
             \x20 <rect class=\"{class}\" x=\"{LEFT}\" y=\"{}\" width=\"{width:.0}\" \
             height=\"{}\" rx=\"2\"/>\n\
             \x20 <text x=\"{end:.0}\" y=\"{base}\">{}{times}</text>\n",
            LEFT - 8,
            escaped(&bar.server),
            self.y + 2,
            BAR - 5,
            escaped(&bar.figure),
        ));
        self.y += BAR;
    }
}

/// How many times another server's figure the subject's is: `(latchd 1.57×)`.
fn times(bar: &Bar, subject: &str) -> Option<String> {
    Some(format!("({subject} {}×)", ratio(bar.ratio?)))
}

fn title(servers: &[&str]) -> String {
    let named = |name: &&str| match *name {
        "ceiling" => "the ceiling".to_owned(),
        name => name.to_owned(),
    };
    match &servers.iter().map(named).collect::<Vec<_>>()[..] {
        [] => "nothing was measured".to_owned(),
        [first] => first.clone(),
        [first, second] => format!("{first} beside {second}"),
        [first, between @ .., last] => format!("{first} beside {} and {last}", between.join(", ")),
    }
}

/// What a reader has to know, of the servers that took part only.
fn legend(chart: &Chart) -> String {
    let servers = chart.servers();
    if servers.len() < 2 {
        return String::new();
    }
    let notes = [
        ("redis", "redis releases with a script that compares first."),
        ("redis-del", "redis-del releases with a plain DEL."),
        ("dflockd", "dflockd is the server in Python."),
        (
            "ceiling",
            "The ceiling only moves the same bytes: what any lock server could reach on this machine.",
        ),
    ];
    let mut text = format!(
        "In brackets: {}'s figure divided by this one, median of the rounds. Bars are as long as \
         that says.",
        chart.subject
    );
    for (_, note) in notes.into_iter().filter(|it| servers.contains(&it.0)) {
        text.push(' ');
        text.push_str(note);
    }
    text
}

/// All that the picture shows, for readers who cannot see it.
fn in_words(chart: &Chart, legend: &str) -> String {
    let mut words = legend.to_owned();
    for group in &chart.groups {
        let bars = group.bars.iter().map(|it| {
            let times = times(it, &chart.subject).map(|it| format!(" {it}"));
            format!("{} {}{}", it.server, it.figure, times.unwrap_or_default())
        });
        let bars = bars.collect::<Vec<_>>().join("; ");
        words.push_str(&format!("\n{}: {bars}.", group.heading));
    }
    format!("{words}\n{}", chart.caption)
}

/// Lines that fit between the margins.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= LINE_CHARS_MAX => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::chart::Group;

    /// The first is what the others are compared with.
    fn chart(bars: &[(&str, &str, f64)]) -> Chart {
        let subject = bars.first().map_or("", |it| it.0).to_owned();
        let bars = bars.iter().enumerate().map(|(at, it)| Bar {
            server: it.0.to_owned(),
            figure: it.1.to_owned(),
            ratio: (at > 0).then_some(it.2),
        });
        Chart {
            subject,
            caption: "2026-11-16; 2 cores, Some CPU, Linux 6.1".to_owned(),
            groups: vec![Group {
                heading: "64 connections, op/s".to_owned(),
                bars: bars.collect(),
            }],
        }
    }

    #[test]
    fn a_figure_stands_with_its_ratio() {
        let svg = draw(&chart(&[
            ("latchd", "260,993", 1.0),
            ("redis", "169,958", 1.57),
            ("dflockd", "61 µs", 229.0),
        ]));
        let label = "169,958 <tspan class=\"quiet\">(latchd 1.57×)</tspan>";
        for says in [
            label,
            ">260,993</text>",
            "latchd 260,993; redis 169,958 (latchd 1.57×); dflockd 61 µs (latchd 229×).",
            "<title id=\"title\">latchd beside redis and dflockd</title>",
            ">2026-11-16; 2 cores, Some CPU, Linux 6.1</text>",
        ] {
            assert!(svg.contains(says), "no {says} in\n{svg}");
        }
    }

    #[test]
    fn only_servers_that_took_part_appear() {
        let svg = draw(&chart(&[("latchd", "2", 1.0), ("redis", "1", 2.0)]));
        for absent in ["redis-del", "dflockd", "ceiling only", "Python"] {
            assert!(!svg.contains(absent), "{absent} in\n{svg}");
        }
        let svg = draw(&chart(&[("redis", "1", 1.0), ("ceiling", "2", 0.5)]));
        assert!(svg.contains("(redis 0.50×)"), "{svg}");
        assert!(!svg.contains("latchd"), "{svg}");
        let nobody = draw(&chart(&[]));
        assert!(nobody.contains(NOT_MEASURED), "{nobody}");
    }

    /// All widths of bars, and where their labels begin.
    fn numbers(svg: &str, before: &str) -> Vec<f64> {
        let found = svg.split(before).skip(1);
        let digits = found.map(|it| it.split('"').next().unwrap());
        digits.map(|it| it.parse().unwrap()).collect()
    }

    #[test]
    fn bars_are_as_long_as_their_ratios_say_and_nothing_overlaps() {
        let svg = draw(&chart(&[
            ("latchd", "2,390,320", 1.0),
            ("redis", "1,195,160", 2.0),
            ("ceiling", "4,780,640", 0.5),
        ]));
        let bars = svg.lines().filter(|it| it.contains("x=\"118\""));
        let widths: Vec<f64> = bars.flat_map(|it| numbers(it, " width=\"")).collect();
        assert_eq!(widths, [215.0, 108.0, BAR_MAX]);
        // One above the other: legend, heading, bars, caption.
        let texts = svg.lines().filter(|it| it.contains("<text"));
        let heights: Vec<f64> = texts.flat_map(|it| numbers(it, " y=\"")).collect();
        assert!(heights.is_sorted(), "{heights:?}");
        let mut rows = heights;
        rows.dedup();
        assert!(
            rows.windows(2).all(|it| it[1] - it[0] >= LINE as f64),
            "{rows:?}"
        );
        // A letter is about seven wide.
        let label = (LEFT as f64) + BAR_MAX + 8.0 + 7.0 * "4,780,640 (latchd 0.50×)".len() as f64;
        assert!(label < WIDTH as f64);
    }

    #[test]
    fn long_text_is_wrapped_and_names_are_escaped() {
        let mut it = chart(&[("latchd", "1", 1.0), ("a<b", "1", 1.0)]);
        it.caption = "word ".repeat(50);
        let svg = draw(&it);
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"), "{svg}");
        let longest = wrapped(&it.caption)
            .iter()
            .map(|it| it.chars().count())
            .max();
        assert!(longest <= Some(LINE_CHARS_MAX));
        assert_eq!(svg.matches("word</text>").count(), 3, "{svg}");
    }
}
