// Two stages over each other: their metrics on one x, and the settings that differ.

import { chart, cursor, folded } from "viewer/charts.js"
import { count, el, grid } from "viewer/dom.js"

const HEAD = /^(reward\/mean|completion_length\/mean|(entropy|approx_kl|grad_norm)(\/.+)?)$/

/** Metrics of two stages over each other. */
export function curves(stages) {
  const names = [...new Set(stages.flatMap(s => [...s.metrics.keys()]))].filter(
    name =>
      !["step", "time"].includes(name) &&
      stages.some(s => s.metrics.get(name)?.some(v => v !== null)),
  )
  const steps = stages.map(s => s.metrics.get("step") ?? []),
    x = [...new Set(steps.flat())].sort((a, b) => a - b),
    shared = cursor()
  if (!x.length) return null
  const places = steps.map(some => new Map(some.map((step, k) => [step, k])))
  const draw = (name, kind) => {
    const series = stages.map((s, k) => ({
      name: "AB"[k],
      colour: ["var(--orange)", "var(--blue)"][k],
      y: x.map(step => s.metrics.get(name)?.[places[k].get(step)] ?? null),
      points: name.startsWith("eval/"),
    }))
    return chart({ title: name, x, series, shared, kind, height: kind ? 226 : 96 })
  }
  const first = names.includes("eval/reward/mean") ? "eval/reward/mean" : "reward/mean",
    head = names.filter(name => HEAD.test(name) && name !== first),
    rest = names.filter(name => name !== first && !head.includes(name))
  return el(
    "section",
    null,
    el("h2", null, "Curves"),
    el(
      "div.charts",
      null,
      names.includes(first) && draw(first, "main"),
      head.map(name => draw(name)),
    ),
    rest.length > 0 && folded(`All ${names.length} metrics`, rest, draw),
  )
}

function flat(value, name = "", found = new Map()) {
  const nested = value !== null && typeof value === "object" && Object.keys(value).length > 0
  if (!nested) return found.set(name, value === undefined ? undefined : JSON.stringify(value))
  for (const [key, each] of Object.entries(value)) flat(each, name ? `${name}.${key}` : key, found)
  return found
}

/** The settings that differ, key by key. */
export function settings(stages) {
  const [a, b] = stages.map(s => flat(s.config)),
    differ = [...new Set([...a.keys(), ...b.keys()])].filter(key => a.get(key) !== b.get(key))
  if (!stages.every(s => s.config_text))
    return el("p.dim", null, "The settings of one of them are not recorded.")
  return el(
    "section",
    null,
    el(
      "h2",
      null,
      differ.length ? `${count(differ.length)} settings differ` : "All settings are the same",
    ),
    differ.length > 0 &&
      grid(
        "table.settings",
        ["setting", "A", "B"],
        differ.map(key =>
          el(
            "tr",
            null,
            el("th", { scope: "row" }, key),
            [a, b].map(one => el("td", null, one.get(key) ?? "–")),
          ),
        ),
      ),
  )
}
