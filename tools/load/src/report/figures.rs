//! Figures over rounds: what was measured, what is wanted, whether it was met.
//!
//! Every round puts its figures here. Those with the same work and name become one [`Figure`], and
//! the median of the rounds counts. Knows nothing of how a figure is measured.

use crate::output::eprint;
use crate::report::format::{NOT_MEASURED, aligned, duration, grouped, ratio};
use crate::report::json::{number, quoted};
use crate::run::ledger::Wrong;
use crate::run::outcome::{Outcome, median};

/// What stands before the name of a figure that was measured without what is shown.
pub(crate) const WITHOUT: &str = "without: ";

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Ratio,
    PerSecond,
    Nanos,
    Bytes,
    Percent,
    Count,
}

impl Unit {
    /// Whether 0 can be what was measured. A ratio, a rate or a size of 0 only says that the time
    /// was too short or the number too small to see anything.
    const fn can_be_zero(self) -> bool {
        match self {
            Self::Ratio | Self::PerSecond | Self::Bytes => false,
            Self::Nanos | Self::Percent | Self::Count => true,
        }
    }

    fn shown(self, value: f64) -> String {
        match self {
            Self::Ratio => ratio(value),
            Self::PerSecond => format!("{}/s", grouped(value)),
            Self::Nanos => duration(value as u64),
            Self::Bytes => format!("{} bytes", grouped(value)),
            Self::Percent => format!("{value:.2} %"),
            Self::Count => grouped(value),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Ratio => "ratio",
            Self::PerSecond => "per_s",
            Self::Nanos => "ns",
            Self::Bytes => "bytes",
            Self::Percent => "percent",
            Self::Count => "count",
        }
    }
}

/// What a figure should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Wanted {
    /// The figure only explains the others.
    Nothing,
    AtLeast(f64),
    AtMost(f64),
    /// Zero, in every round.
    Never,
}

/// One figure, round by round.
struct Figure {
    work: String,
    name: String,
    unit: Unit,
    wanted: Wanted,
    values: Vec<f64>,
}

impl Figure {
    fn least(&self) -> Option<f64> {
        self.values.iter().copied().reduce(f64::min)
    }

    fn median(&self) -> Option<f64> {
        median(self.values.clone())
    }

    fn most(&self) -> Option<f64> {
        self.values.iter().copied().reduce(f64::max)
    }

    /// Whether it is as wanted; `None` if nothing is wanted or nothing was measured.
    fn met(&self) -> Option<bool> {
        match self.wanted {
            Wanted::Nothing => None,
            Wanted::AtLeast(bound) => Some(self.median()? >= bound),
            Wanted::AtMost(bound) => Some(self.median()? <= bound),
            Wanted::Never => Some(self.most()? == 0.0),
        }
    }

    /// Something is wanted of it, and it was not measured.
    fn is_lacking(&self) -> bool {
        self.wanted != Wanted::Nothing && self.values.is_empty()
    }

    /// The median, with the difference in per cent if rounding would hide that it misses its
    /// target.
    fn measured(&self) -> String {
        let Some(middle) = self.median() else {
            return NOT_MEASURED.to_owned();
        };
        let shown = self.unit.shown(middle);
        match self.wanted {
            Wanted::AtLeast(bound) | Wanted::AtMost(bound)
                if self.met() == Some(false) && self.unit.shown(bound) == shown =>
            {
                format!("{shown} ({:+.2} %)", (middle / bound - 1.0) * 100.0)
            }
            _ => shown,
        }
    }

    fn cells(&self) -> Vec<String> {
        let show = |value| self.unit.shown(value);
        let wanted = match self.wanted {
            Wanted::Nothing => String::new(),
            Wanted::AtLeast(bound) => format!("≥ {}", show(bound)),
            Wanted::AtMost(bound) => format!("≤ {}", show(bound)),
            Wanted::Never => "0".to_owned(),
        };
        let spread = match self.least().zip(self.most()) {
            Some((least, most)) => format!("{} to {}", show(least), show(most)),
            None => "-".to_owned(),
        };
        let met = match (self.wanted, self.met()) {
            (Wanted::Nothing, _) => "",
            (_, None) => "-",
            (_, Some(true)) => "yes",
            (_, Some(false)) => "**no**",
        };
        vec![
            self.work.clone(),
            self.name.clone(),
            wanted,
            self.measured(),
            spread,
            met.to_owned(),
        ]
    }

    fn json(&self) -> String {
        let (relation, bound) = match self.wanted {
            Wanted::Nothing => ("null", None),
            Wanted::AtLeast(bound) => ("\"at least\"", Some(bound)),
            Wanted::AtMost(bound) => ("\"at most\"", Some(bound)),
            Wanted::Never => ("\"at most\"", Some(0.0)),
        };
        let each: Vec<String> = self.values.iter().map(|&it| number(Some(it))).collect();
        format!(
            "{{\"work\":{},\"figure\":{},\"unit\":\"{}\",\"wanted\":{relation},\"bound\":{},\
             \"median\":{},\"least\":{},\"most\":{},\"rounds\":[{}],\"met\":{}}}",
            quoted(&self.work),
            quoted(&self.name),
            self.unit.name(),
            number(bound),
            number(self.median()),
            number(self.least()),
            number(self.most()),
            each.join(","),
            self.met()
                .map_or_else(|| "null".to_owned(), |it| it.to_string())
        )
    }
}

/// All figures of a plan or a proof.
#[derive(Default)]
pub(crate) struct Figures {
    all: Vec<Figure>,
    work: String,
    pub(crate) wrong: Wrong,
}

impl Figures {
    /// All figures put from now on belong to this work.
    pub(crate) fn about(&mut self, work: impl Into<String>) {
        self.work = work.into();
    }

    /// Adds a figure of this round; `None`, or no number, if it could not be measured; see
    /// [`Unit::can_be_zero`] too.
    pub(crate) fn put(&mut self, name: &str, unit: Unit, value: Option<f64>, wanted: Wanted) {
        let value = value.filter(|it| it.is_finite() && (*it != 0.0 || unit.can_be_zero()));
        let work = &self.work;
        let mut all = self.all.iter_mut();
        let known = all.find(|it| it.work == *work && it.name == name);
        match known {
            Some(figure) => figure.values.extend(value),
            None => self.all.push(Figure {
                work: work.clone(),
                name: name.to_owned(),
                unit,
                wanted,
                values: value.into_iter().collect(),
            }),
        }
    }

    /// Adds a figure of all rounds at once.
    pub(crate) fn put_all(&mut self, name: &str, unit: Unit, values: Vec<f64>, wanted: Wanted) {
        self.put(name, unit, None, wanted);
        for value in values {
            self.put(name, unit, Some(value), wanted);
        }
    }

    /// Adds the wrong answers of a run.
    pub(crate) fn check(&mut self, outcome: &Outcome) {
        self.wrong.merge(&outcome.wrong);
    }

    /// Adds a round of its own: its values stand behind those of the rounds before.
    pub(crate) fn put_round(&mut self, round: Self) {
        for Figure {
            work,
            name,
            unit,
            wanted,
            values,
        } in round.all
        {
            self.about(work);
            self.put_all(&name, unit, values, wanted);
        }
        self.wrong.merge(&round.wrong);
    }

    /// Whether something is wanted that was not measured in any round.
    pub(crate) fn lacks_something(&self) -> bool {
        self.all.iter().any(Figure::is_lacking)
    }

    /// Adds all figures and wrong answers of `other`.
    pub(crate) fn append(&mut self, other: Self) {
        self.all.extend(other.all);
        self.wrong.merge(&other.wrong);
    }

    /// The figures as a Markdown table.
    pub(crate) fn markdown(&self) -> String {
        let head = ["work", "figure", "wanted", "median", "rounds", "met"];
        let mut table = vec![head.map(str::to_owned).to_vec()];
        let mut before = "";
        for figure in &self.all {
            let mut cells = figure.cells();
            if figure.work == before {
                cells[0].clear();
            }
            before = &figure.work;
            table.push(cells);
        }
        aligned(&table)
    }

    /// The figures as a Markdown table in which each stands beside the same one without what is
    /// shown, if there is one with that name and [`WITHOUT`] before it.
    pub(crate) fn side_by_side(&self) -> String {
        let head = [
            "attack", "figure", "wanted", "median", "without", "rounds", "met",
        ];
        let mut table = vec![head.map(str::to_owned).to_vec()];
        let mut before = "";
        for figure in &self.all {
            if figure.name.starts_with(WITHOUT) {
                continue;
            }
            let name = format!("{WITHOUT}{}", figure.name);
            let mut all = self.all.iter();
            let without = all.find(|it| it.work == figure.work && it.name == name);
            let mut cells = figure.cells();
            cells.insert(4, without.map(Figure::measured).unwrap_or_default());
            if figure.work == before {
                cells[0].clear();
            }
            before = &figure.work;
            table.push(cells);
        }
        aligned(&table)
    }

    /// How many figures were as wanted, in one sentence.
    pub(crate) fn verdict(&self) -> String {
        let met: Vec<bool> = self.all.iter().filter_map(Figure::met).collect();
        let (all, good) = (met.len(), met.iter().filter(|&&it| it).count());
        let unknown = self.all.iter().filter(|it| it.is_lacking()).count();
        let unknown = match unknown {
            0 => String::new(),
            count => format!(", {count} not measured"),
        };
        format!(
            "{good} of {all} targets met{unknown}; wrong answers: {}",
            self.wrong.count
        )
    }

    /// The figures as a JSON array.
    pub(crate) fn json(&self) -> String {
        let all: Vec<String> = self.all.iter().map(Figure::json).collect();
        format!("[{}]", all.join(",\n "))
    }

    /// Prints the wrong answers; returns whether there were none.
    pub(crate) fn complain(&self) -> bool {
        for what in &self.wrong.first {
            eprint(&format!("WRONG: {what}"));
        }
        self.wrong.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(wanted: Wanted, values: &[f64]) -> Option<bool> {
        let mut figures = Figures::default();
        for &value in values {
            figures.put("a", Unit::Count, Some(value), wanted);
        }
        figures.put("a", Unit::Count, None, wanted);
        figures.put("a", Unit::Count, Some(f64::NAN), wanted);
        assert_eq!(figures.all.len(), 1, "rounds are one figure");
        figures.all[0].met()
    }

    #[test]
    fn the_median_is_judged_and_never_means_never() {
        for (wanted, values, met) in [
            (Wanted::AtLeast(0.9), &[0.1, 0.9, 1.0][..], Some(true)),
            (Wanted::AtLeast(0.9), &[0.1, 0.8, 1.0], Some(false)),
            (Wanted::AtMost(2.0), &[1.0, 2.0, 9.0], Some(true)),
            (Wanted::AtMost(2.0), &[1.0, 3.0, 9.0], Some(false)),
            (Wanted::Never, &[0.0, 0.0, 1.0], Some(false)),
            (Wanted::Never, &[0.0], Some(true)),
            (Wanted::Never, &[], None),
            (Wanted::Nothing, &[1.0], None),
        ] {
            assert_eq!(judged(wanted, values), met, "{wanted:?} {values:?}");
        }
    }

    #[test]
    fn what_was_not_measured_is_never_met() {
        for unit in [Unit::Ratio, Unit::PerSecond, Unit::Bytes] {
            let mut figures = Figures::default();
            figures.put("a", unit, Some(0.0), Wanted::AtMost(1.3));
            let figure = &figures.all[0];
            assert_eq!(figure.met(), None, "{unit:?} 0");
            let cells = figure.cells();
            assert_eq!(cells[3..], [NOT_MEASURED, "-", "-"], "{unit:?} 0");
            let json = figure.json();
            let says = "\"median\":null,\"least\":null,\"most\":null,\"rounds\":[],\"met\":null";
            assert!(json.contains(says), "{json}");
            let verdict = figures.verdict();
            assert!(
                verdict.starts_with("0 of 0 targets met, 1 not measured"),
                "{verdict}"
            );
        }
    }

    #[test]
    fn a_round_of_its_own_becomes_one_of_all_rounds() {
        let mut figures = Figures::default();
        for values in [&[3.0][..], &[], &[1.0]] {
            let mut round = Figures::default();
            round.about("flood");
            round.put_all("p99", Unit::Nanos, values.to_vec(), Wanted::AtMost(2.0));
            assert_eq!(round.lacks_something(), values.is_empty());
            round.put("asked", Unit::Count, None, Wanted::Nothing);
            round.wrong.add("two".to_owned());
            figures.put_round(round);
        }
        assert_eq!(figures.all[0].values, [3.0, 1.0]);
        assert_eq!((figures.all.len(), figures.wrong.count), (2, 3));
        assert!(!figures.lacks_something());
    }

    #[test]
    fn a_figure_stands_beside_the_one_without() {
        let mut figures = Figures::default();
        figures.about("flood");
        figures.put("p99", Unit::Nanos, Some(2e6), Wanted::AtMost(1e6));
        figures.put("without: p99", Unit::Nanos, Some(5e5), Wanted::Nothing);
        figures.put("asked", Unit::Count, Some(7.0), Wanted::Nothing);
        let table = figures.side_by_side();
        let rows = table.lines().map(|row| row.split('|').map(str::trim));
        let rows: Vec<Vec<&str>> = rows.map(|row| row.collect()).collect();
        let found = |at: usize| rows[at][1..8].join("|");
        assert_eq!(rows.len(), 4, "{table}");
        assert_eq!(
            found(2),
            "flood|p99|≤ 1.0 ms|2.0 ms|500 µs|2.0 ms to 2.0 ms|**no**"
        );
        assert_eq!(found(3), "|asked||7||7 to 7|");
    }

    #[test]
    fn what_is_just_not_enough_does_not_look_as_if_it_were() {
        let mut figures = Figures::default();
        let wanted = Wanted::AtMost(1.05);
        figures.put("a", Unit::Ratio, Some(1.0517), wanted);
        assert_eq!(figures.all[0].measured(), "1.05 (+0.16 %)");
        figures.put("b", Unit::Ratio, Some(1.049), wanted);
        assert_eq!(figures.all[1].measured(), "1.05");
    }
}
