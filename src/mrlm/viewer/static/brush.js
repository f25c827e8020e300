// A histogram that is brushed: by dragging, or by arrow keys (with Shift to extend the range).

import { count, el } from "viewer/dom.js"

const MOST = 24

const written = value => String(+value.toPrecision(12))
const shown = value => written(value).replace("-", "−")

/** Edges of at most 26 bins, at round numbers. */
export function edges(low, high, whole) {
  if (!(high >= low)) return []
  const rough = Math.max((high - low) / MOST, whole ? 1 : 1e-9 * Math.max(1, Math.abs(high))),
    size = 10 ** Math.floor(Math.log10(rough))
  const step = [1, 2, 5, 10].find(k => k * size >= rough * (1 - 1e-9)) * size
  const found = [],
    mark = k => Number(written(k * step))
  let k = Math.floor(low / step + 1e-9)
  while (mark(k) > low) k--
  do found.push(mark(k++))
  while (found.length < 2 || found.at(-1) <= high)
  return found
}

/** The number of values between each two edges; the last edge is above all. */
export function bins(values, marks) {
  const found = new Array(Math.max(0, marks.length - 1)).fill(0)
  const step = marks[1] - marks[0]
  for (const v of values) {
    let k = Math.max(0, Math.min(found.length - 1, Math.floor((v - marks[0]) / step)))
    while (k && v < marks[k]) k--
    while (k < found.length - 1 && v >= marks[k + 1]) k++
    if (found.length) found[k]++
  }
  return found
}

const NUMBER = "-?\\d+\\.?\\d*(?:e[-+]?\\d+)?"
const pattern = name => new RegExp(`\\s*\\b${name}>=(${NUMBER}) ${name}<(${NUMBER})`, "i")

/** The range that a filter has for a field as a brush writes it, or null. */
export function rangeOf(query, name) {
  const hit = query.match(pattern(name))
  return hit && [Number(hit[1]), Number(hit[2])]
}

/** The filter without that range. */
export const without = (query, name) => query.replace(pattern(name), "").trim()

/** The filter with a range. */
export function withRange(query, name, range) {
  const rest = without(query, name)
  if (!range) return rest
  const own = `${name}>=${written(range[0])} ${name}<${written(range[1])}`
  const other = /(^|\s)or(\s|$)/i.test(rest) && !/^\([^()]*\)( [a-z]+(>=|<)\S+)*$/i.test(rest)
  return rest ? `${other ? `(${rest})` : rest} ${own}` : own
}

/** A histogram; `set(range)` is called with the edges of a new range, or null. */
export function brush(name, set) {
  const bars = el("div.bars"),
    told = el("span.dim"),
    low = el("span"),
    high = el("span")
  const box = el(
    "div.brush",
    {
      tabindex: 0,
      role: "group",
      "aria-label": `Episodes by ${name}: arrow keys choose a bar, with Shift a range, Escape all`,
    },
    el("div.brushed", null, el("b", null, name), " ", told),
    bars,
    el("div.ends.dim", null, low, high),
  )
  let marks = [],
    from = null,
    to = null,
    held = false
  const paint = () => {
    const [a, b] = from === null ? [-1, -1] : [Math.min(from, to), Math.max(from, to)]
    ;[...bars.children].forEach((bar, k) => bar.classList.toggle("in", k >= a && k <= b))
    bars.classList.toggle("some", from !== null)
  }
  const apply = () =>
    set(from === null ? null : [marks[Math.min(from, to)], marks[Math.max(from, to) + 1]])
  const under = event => {
    const { left, width } = bars.getBoundingClientRect()
    const k = Math.floor(((event.clientX - left) / width) * bars.children.length)
    return Math.max(0, Math.min(bars.children.length - 1, k))
  }
  bars.addEventListener("pointerdown", event => {
    if (!bars.children.length || event.button) return
    event.preventDefault()
    box.focus({ preventScroll: true })
    const [a, b] = [Math.min(from, to), Math.max(from, to)],
      k = under(event)
    if (from !== null && a === b && a === k) {
      from = to = null // a second click on the only bar of a range shows all again
      paint()
      return apply()
    }
    held = true
    bars.setPointerCapture(event.pointerId)
    from = to = k
    paint()
  })
  bars.addEventListener("pointermove", event => {
    if (!held) return
    to = under(event)
    paint()
  })
  const release = () => {
    const was = held
    held = false
    if (was) apply()
  }
  bars.addEventListener("pointerup", release)
  bars.addEventListener("pointercancel", release)
  box.addEventListener("keydown", event => {
    const n = bars.children.length,
      by = { ArrowRight: 1, ArrowLeft: -1 }[event.key]
    if (event.key === "Escape" && from !== null) from = to = null
    else if (by && n) {
      const next = k => Math.max(0, Math.min(n - 1, k + by))
      if (from === null) from = to = by > 0 ? 0 : n - 1
      else if (event.shiftKey) to = next(to)
      else from = to = next(to)
    } else return
    event.preventDefault()
    paint()
    apply()
  })
  /** Draws the values of all episodes that the rest of the filter finds. */
  const draw = (values, range) => {
    if (held) return // bars under the pointer stay; its release draws them again
    let least = Infinity,
      most = -Infinity,
      whole = true
    for (const v of values) {
      if (v < least) least = v
      if (v > most) most = v
      whole &&= Number.isInteger(v)
    }
    marks = edges(least, most, whole)
    const found = bins(values, marks),
      tallest = Math.max(1, ...found),
      single = whole && marks[1] - marks[0] === 1 // each bar is one number
    const stated = k =>
      single ? shown(marks[k]) : `${shown(marks[k])} to below ${shown(marks[k + 1])}`
    bars.replaceChildren(
      ...found.map((n, k) =>
        el(
          "i",
          {
            title: `${count(n)} episodes, ${name} ${stated(k)}`,
          },
          el("u", { style: { height: n ? Math.max(6, 100 * Math.sqrt(n / tallest)) + "%" : "0" } }),
        ),
      ),
    )
    from = to = null
    if (range && marks.length > 1) {
      const inside = found
        .map((_, k) => k)
        .filter(k => marks[k + 1] > range[0] && marks[k] < range[1])
      if (inside.length) [from, to] = [inside[0], inside.at(-1)]
    }
    paint()
    low.textContent = marks.length ? shown(marks[0]) : ""
    high.textContent = marks.length ? shown(marks.at(single ? -2 : -1)) : ""
    told.textContent = range
      ? whole && range[1] - range[0] === 1
        ? shown(range[0])
        : `${shown(range[0])} to below ${shown(range[1])}`
      : marks.length
        ? ""
        : "no values"
    box.hidden = marks.length < 3 && !range // all are the same
  }
  return { box, draw }
}
