// Curves as SVG: colours are CSS variables, so that they follow the theme. Charts of a page share
// one x and one cursor.

import { brief, el, num, svg } from "viewer/dom.js"

/** The cursor that the charts of a page share. */
export function cursor() {
  const charts = new Set()
  return {
    charts,
    at: null,
    move(x) {
      this.at = x
      for (const each of charts) each(x)
    },
  }
}

/** Charts that are folded, and drawn when they are opened first. */
export function folded(title, names, draw) {
  const box = el("details", null, el("summary", null, title))
  box.addEventListener("toggle", () => {
    if (box.children.length === 1)
      box.append(
        el(
          "div.charts",
          null,
          names.map(name => draw(name)),
        ),
      )
  })
  return box
}

function ticks(low, high, most) {
  const rough = (high - low) / most,
    size = 10 ** Math.floor(Math.log10(rough))
  const step = [1, 2, 5, 10].find(k => k * size >= rough) * size,
    found = []
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++)
    found.push(k * step)
  return found
}

const short = value =>
  Math.abs(value) >= 10000
    ? num(value / 1000, 1) + "k"
    : Math.abs(value) >= 0.001 || !value
      ? num(Math.abs(value) < 1e-12 ? 0 : value, 3)
      : value.toExponential(0).replace("-", "−")

/** Points for drawing: at most the lowest and the highest of each pixel column. */
function thin(points, width) {
  if (points.length <= 2 * width) return points
  const found = [],
    size = points.length / width
  for (let k = 0; k < width; k++) {
    const some = points.slice(Math.floor(k * size), Math.floor((k + 1) * size))
    const low = some.reduce((a, b) => (b[1] < a[1] ? b : a)),
      high = some.reduce((a, b) => (b[1] > a[1] ? b : a))
    found.push(...(low[0] < high[0] ? [low, high] : [high, low]))
  }
  return found
}

const path = points =>
  points.map(([x, y], k) => `${k ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("")

/**
 * A chart.
 *
 * series: [{name, colour, y, low?, high?, points?, area?}], each a value (or null) per x; an area
 * is filled from low to high and has no line.
 */
export function chart({ title, x, series, shared, height = 96, kind = "", pick, about }) {
  const values = series.map(s => el("b"))
  const head = el(
    "figcaption",
    { title: about },
    el("span.name", null, title),
    el(
      "span.keys",
      null,
      series.map((s, k) =>
        el(
          "span.key",
          null,
          s.name && el("i", { style: { background: s.colour } }),
          s.name,
          " ",
          values[k],
        ),
      ),
    ),
  )
  const box = el("div.plot"),
    figure = el("figure.chart" + (kind && "." + kind), null, head, box)
  const rows = series.map(s =>
    x.map((v, i) => [v, s.y[i], i]).filter(([, y]) => y !== null && y !== undefined),
  )
  const x0 = x[0] ?? 0,
    x1 = x[x.length - 1] ?? 1
  const tell = at =>
    rows.forEach((points, k) => {
      const before = at === null ? points[points.length - 1] : points.findLast(([v]) => v <= at)
      values[k].textContent = brief(before?.[1])
    })
  let line,
    place = () => 0
  const draw = width => {
    const left = 40,
      right = 6,
      top = 6,
      bottom = 18,
      wide = Math.max(20, width - left - right),
      tall = height - top - bottom
    const all = rows
      .flatMap((points, k) =>
        points.flatMap(([, y, i]) =>
          series[k].low ? [y, series[k].low[i], series[k].high[i]] : [y],
        ),
      )
      .filter(Number.isFinite)
    let low = Infinity,
      high = -Infinity
    for (const v of all) {
      if (v < low) low = v
      if (v > high) high = v
    }
    if (!all.length) {
      box.replaceChildren(el("span.dim", null, "no values"))
      return
    }
    if (high - low < 1e-12 * Math.max(1, Math.abs(high))) {
      const pad = Math.abs(high) * 0.1 || 1
      low = low < 0 ? low - pad : Math.max(0, low - pad)
      high += pad
    }
    const pad = (high - low) * 0.06
    low -= pad
    high += pad
    const px = v => left + (x1 > x0 ? (v - x0) / (x1 - x0) : 0.5) * wide,
      py = v => top + ((high - v) / (high - low)) * tall
    place = px
    let marks = ticks(low, high, Math.max(2.9, tall / 26))
    if (marks.length < 2) marks = ticks(low, high, 5)
    const steps = x1 > x0 ? ticks(x0, x1, Math.max(2, wide / 80)).filter(Number.isInteger) : [x0]
    const parts = [
      marks.map(v => [
        svg("line", {
          class: v === 0 ? "zero" : "grid",
          x1: left,
          x2: left + wide,
          y1: py(v),
          y2: py(v),
        }),
        svg("text", { x: left - 5, y: py(v) + 3.5, "text-anchor": "end" }, short(v)),
      ]),
      steps.map(v =>
        svg(
          "text",
          { x: px(v), y: height - 4, "text-anchor": px(v) > left + wide - 12 ? "end" : "middle" },
          short(v),
        ),
      ),
    ]
    series.forEach((s, k) => {
      const points = rows[k].map(([v, y]) => [px(v), py(y)])
      if (s.low) {
        const band = rows[k].filter(([, , i]) => Number.isFinite(s.low[i]))
        const edge = [
          ...band.map(([v, , i]) => [px(v), py(s.high[i])]),
          ...band.toReversed().map(([v, , i]) => [px(v), py(s.low[i])]),
        ]
        parts.push(
          svg("path", {
            d: path(edge) + "Z",
            class: s.area ? "area" : "band",
            style: { fill: s.colour, ...(s.area && { stroke: s.colour }) },
          }),
        )
      }
      if (s.area) return
      parts.push(
        svg("path", { d: path(thin(points, wide)), class: "line", style: { stroke: s.colour } }),
      )
      if (s.points || points.length === 1)
        parts.push(
          points.map(([a, b]) =>
            svg("circle", { cx: a, cy: b, r: 2.5, style: { fill: s.colour } }),
          ),
        )
    })
    line = svg("line", { class: "cursor", y1: top, y2: top + tall, visibility: "hidden" })
    const drawing = svg(
      "svg",
      {
        width,
        height,
        role: "img",
        "aria-label": `${title}: ${series.map((s, k) => `${s.name} ${values[k].textContent}`).join(", ")}${about ? `. ${about}` : ""}`,
      },
      parts,
      line,
    )
    const near = event => {
      const at =
        x0 + ((event.clientX - drawing.getBoundingClientRect().left - left) / wide) * (x1 - x0)
      return x.reduce((a, b) => (Math.abs(b - at) < Math.abs(a - at) ? b : a), x[0])
    }
    drawing.addEventListener("pointermove", event => shared.move(near(event)))
    drawing.addEventListener("pointerleave", () => shared.move(null))
    if (pick) drawing.addEventListener("click", event => pick(near(event)))
    box.replaceChildren(drawing)
  }
  const show = at => {
    tell(at)
    if (!line) return
    line.setAttribute("visibility", at === null ? "hidden" : "visible")
    if (at !== null) for (const name of ["x1", "x2"]) line.setAttribute(name, place(at))
  }
  tell(null)
  shared.charts.add(show)
  if (pick) {
    // the same by keyboard
    box.tabIndex = 0
    box.setAttribute(
      "aria-label",
      `${title}: arrow keys move along the steps, Enter lists the episodes of a step`,
    )
    box.addEventListener("keydown", event => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key]
      if (event.key === "Enter" && shared.at !== null) pick(shared.at)
      if (!by) return
      event.preventDefault()
      const k = shared.at === null ? (by > 0 ? -1 : x.length) : x.indexOf(shared.at)
      shared.move(x[Math.max(0, Math.min(x.length - 1, k + by))])
    })
    box.addEventListener("blur", () => shared.move(null))
  }
  let drawn = 0
  new ResizeObserver(() => {
    const width = box.clientWidth
    if (width && width !== drawn) {
      drawn = width
      draw(width)
    }
  }).observe(box)
  return figure
}
