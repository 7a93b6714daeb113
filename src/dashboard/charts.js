// Live charts: what the figures were in the last minutes, drawn by uPlot.
//
// The history lives in memory and is bounded. Where the page did not look, or the server was gone, the
// charts have a gap.

import { element, say } from "./dom.js";
import { bytes, figure, micros, rate } from "./format.js";

const POINTS_MAX = 960;
// Charts begin with what there is, so that they are never nearly empty.
const WINDOW_S_MIN = 30;
// Two events further apart than this have a gap between them.
const GAP_S = 3.5;
const HEIGHT_PX = 132;

const at =
  (...path) =>
  (stats) =>
    path.reduce((value, name) => value?.[name], stats) ?? null;
const ifCounted = (name, percentile) => (stats) => (stats[name]?.count > 0 ? stats[name][percentile] : null);

/** What is drawn. A series is a figure as it is, or (`total`) the growth of a total per second. */
const CHARTS = [
  {
    id: "rates",
    title: "Grants and their ends",
    note: "per second",
    format: rate,
    least: 4,
    series: [
      { name: "Granted", ink: "a", total: at("totals", "grants"), fill: true },
      { name: "Released", ink: "b", total: at("totals", "releases") },
      { name: "Expired", ink: "c", total: at("totals", "expiries") },
    ],
  },
  {
    id: "held",
    title: "Held and waiting",
    note: "at the moment",
    format: figure,
    least: 4,
    series: [
      { name: "Held", ink: "a", value: at("held"), fill: true },
      { name: "Waiting", ink: "d", value: at("waiting") },
    ],
  },
  {
    id: "latency",
    title: "Time to answer",
    note: "without time in a queue",
    format: micros,
    least: 50,
    series: [
      { name: "p50", ink: "b", value: ifCounted("op_latency_us", "p50") },
      { name: "p99", ink: "a", value: ifCounted("op_latency_us", "p99"), fill: true },
    ],
  },
  {
    id: "turn",
    title: "Turns of the loop",
    note: "how long others wait for theirs",
    format: micros,
    least: 50,
    series: [
      { name: "p99", ink: "a", value: ifCounted("turn_us", "p99"), fill: true },
      { name: "max", ink: "c", value: ifCounted("turn_us", "max") },
    ],
  },
  {
    id: "memory",
    title: "Memory",
    note: "what clients make the daemon keep",
    format: bytes,
    steps: Array.from({ length: 40 }, (_, power) => 2 ** power),
    least: 1 << 20,
    series: [
      { name: "In use", ink: "a", value: at("totals", "memory_bytes"), fill: true },
      { name: "Bound", ink: "c", value: (stats) => stats.totals?.memory_max_bytes || null, beyond: true },
    ],
  },
  {
    id: "connections",
    title: "Connections",
    note: "open, this page included",
    format: figure,
    least: 4,
    series: [{ name: "Open", ink: "a", value: at("connections"), fill: true }],
  },
];

/** The figures of the last minutes, kept while other views are shown. */
class History {
  times = [];
  columns = new Map();
  last = null;

  constructor() {
    for (const chart of CHARTS) {
      for (const series of chart.series) this.columns.set(series, []);
    }
  }

  add(stats, now_s) {
    const { last } = this;
    const isSameLife = last !== null && last.stats.epoch === stats.epoch;
    const apart_s = isSameLife ? (stats.uptime_ms - last.stats.uptime_ms) / 1000 : 0;
    if (last !== null && now_s - last.now_s > GAP_S) this.push(last.now_s + 1, () => null);
    this.push(now_s, ({ value, total }) => {
      if (value) return value(stats);
      const grown = isSameLife && apart_s > 0.05 ? total(stats) - total(last.stats) : null;
      return grown === null || grown < 0 ? null : grown / apart_s;
    });
    this.last = { stats, now_s };
  }

  push(time, valueOf) {
    this.times.push(time);
    for (const [series, column] of this.columns) column.push(valueOf(series));
    if (this.times.length > POINTS_MAX) {
      for (const column of [this.times, ...this.columns.values()]) column.shift();
    }
  }
}

const history = new History();

/** Takes in a document of figures, whether charts are shown or not. */
export function remember(stats) {
  history.add(stats, Date.now() / 1000);
}

/** All charts, in a grid. `draw()` after each document; `stop()` at the end. */
export function chartGrid() {
  const charts = CHARTS.map((what) => new Chart(what));
  const grid = element("div", { class: "charts" }, ...charts.map((chart) => chart.panel));
  let window_s = 300;
  const observer = new ResizeObserver(() => charts.forEach((chart) => chart.fit()));
  observer.observe(grid);
  return {
    grid,
    show(seconds) {
      window_s = seconds;
      this.draw();
    },
    draw: () => charts.forEach((chart) => chart.draw(window_s)),
    stop() {
      observer.disconnect();
      charts.forEach((chart) => chart.plot.destroy());
    },
  };
}

class Chart {
  constructor(what) {
    this.what = what;
    this.legend = what.series.map((series) => ({
      swatch: element("i", { class: `swatch ink-${series.ink}` }),
      value: element("b", { class: "figure" }, "–"),
    }));
    this.place = element("div", { class: "plot" });
    this.axisInk = element("i", { class: "axis-ink", hidden: true });
    const title = element("h3", {}, what.title, element("small", {}, what.note));
    const figures = what.series.map((series, index) => {
      const { swatch, value } = this.legend[index];
      return element("div", {}, element("dt", {}, swatch, series.name), element("dd", {}, value));
    });
    this.panel = element(
      "section",
      { class: "panel chart", id: `chart-${what.id}`, "aria-label": `${what.title}, ${what.note}` },
      title,
      element("dl", { class: "legend" }, ...figures),
      this.place,
      this.axisInk,
    );
    this.plot = this.make();
  }

  make() {
    const { what } = this;
    const ink = (index) => () => getComputedStyle(this.legend[index].swatch).color;
    const series = what.series.map((it, index) => ({
      stroke: ink(index),
      width: 1.5,
      dash: it.beyond ? [4, 4] : undefined,
      fill: it.fill ? () => ink(index)().replace(/^rgb\((.*)\)$/, "rgba($1, 0.10)") : undefined,
      points: { show: false },
      spanGaps: false,
    }));
    const axisInk = () => getComputedStyle(this.axisInk).color;
    const gridInk = () => getComputedStyle(this.axisInk).borderTopColor;
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const axis = { stroke: axisInk, font, ticks: { show: false } };
    const grid = { stroke: gridInk, width: 1 };
    const options = {
      width: 300,
      height: HEIGHT_PX,
      padding: [8, 4, 0, 0],
      legend: { show: false },
      cursor: { sync: { key: "latchd" }, drag: { x: false, y: false }, points: { size: 6 }, y: false },
      scales: { x: { time: true }, y: { range: (_, __, high) => [0, this.top(high)] } },
      series: [{}, ...series],
      axes: [
        { ...axis, grid: { show: false }, space: 70, size: 24, values: (_, times) => times.map(clockTime) },
        {
          ...axis,
          grid,
          incrs: what.steps,
          space: 34,
          size: 58,
          gap: 6,
          values: (_, values) => values.map(what.format),
        },
      ],
      hooks: { setCursor: [() => this.tell()] },
    };
    return new globalThis.uPlot(options, this.data(), this.place);
  }

  data() {
    return [history.times, ...this.what.series.map((series) => history.columns.get(series))];
  }

  /** The upper end of the scale: what is drawn, some air, and a bound once it comes near. */
  top(high) {
    const { series, least } = this.what;
    let top = least;
    const from = this.plot?.scales.x.min ?? 0;
    for (const it of series) {
      if (it.beyond) continue;
      history.columns.get(it).forEach((value, index) => {
        if (value > top && history.times[index] >= from) top = value;
      });
    }
    const isNear = high !== null && high < top * 3;
    return (isNear ? Math.max(top, high) : top) * 1.12;
  }

  fit() {
    const width = this.place.clientWidth;
    if (width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT_PX });
  }

  draw(window_s) {
    const end = history.times.at(-1) ?? Date.now() / 1000;
    this.plot.setData(this.data(), false);
    const begin = Math.min(history.times[0] ?? end, end - WINDOW_S_MIN);
    this.plot.setScale("x", { min: Math.max(begin, end - window_s), max: end });
    this.tell();
  }

  /** The figures above the chart: those under the pointer, otherwise the latest. */
  tell() {
    if (!this.plot) return;
    const under = this.plot.cursor.idx;
    const index = under ?? history.times.length - 1;
    this.what.series.forEach((series, position) => {
      const value = history.columns.get(series)[index];
      const isBoundless = series.beyond && value == null;
      say(this.legend[position].value, isBoundless ? "none" : this.what.format(value));
    });
    this.panel.classList.toggle("is-past", under != null);
  }
}

const clockTime = (seconds) =>
  new Date(seconds * 1000).toLocaleTimeString([], {
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
    hour12: false,
  });
