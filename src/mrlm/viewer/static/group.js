// The page of a group: its siblings side by side, from the first token at which they diverge.

import { cross, crossed } from "viewer/cross.js"
import { episode, isEval, list, siblings, turnsOf } from "viewer/data.js"
import { colour, count, el, link, num, shade, signed, taskBox } from "viewer/dom.js"
import { marks } from "viewer/table.js"
import { branches, tree } from "viewer/tree.js"

const mean = values => values.reduce((a, b) => a + b, 0) / values.length
const present = value => value !== null && value !== undefined && Number.isFinite(value)

/** A number over a bar from zero; bars of a row have one scale. */
function bar(value, all) {
  if (!present(value)) return el("div.cell", null, "–")
  const low = Math.min(0, ...all.filter(present)),
    high = Math.max(0, ...all.filter(present)),
    wide = high - low || 1
  const from = (Math.min(0, value) - low) / wide,
    size = Math.abs(value) / wide
  return el(
    "div.cell.bar",
    null,
    el("span.num", null, num(value)),
    el(
      "div.track",
      null,
      el("i" + (value < 0 ? ".minus" : ""), {
        style: { left: 100 * from + "%", width: 100 * size + "%" },
      }),
    ),
  )
}

/** The parts of an agent's completions: tokens where they are known, else words. */
function parts(turns) {
  const found = []
  turns.forEach((turn, k) => {
    if (k) found.push("\n‖ ")
    found.push(...(turn.words ?? turn.text.match(/\s*\S+|\s+/g) ?? []))
  })
  return found
}

function parting(all) {
  let k = 0
  while (all.every(parts => k < parts.length && parts[k] === all[0][k])) k++
  return k
}

const weighted = turns => {
  const known = turns.filter(turn => present(turn.advantage)),
    size = known.reduce((n, turn) => n + (turn.tokens || 1), 0)
  return size
    ? known.reduce((sum, turn) => sum + turn.advantage * (turn.tokens || 1), 0) / size
    : null
}

function row(name, cells, kind = "") {
  const words = name.split(/(?<=[_/])/).flatMap((part, k) => (k ? [el("wbr"), part] : [part]))
  return [el("div.label" + (kind && "." + kind), null, words), ...cells]
}

function ofAgent(name, columns) {
  const turns = columns.map(({ turns }) => turns.filter(turn => turn.agent === name)),
    all = turns.map(parts),
    at = parting(all)
  const advantages = turns.map(weighted),
    most = Math.max(...advantages.filter(present).map(Math.abs), 1e-9)
  const lengths = turns.map(some => some.reduce((n, turn) => n + turn.length, 0)),
    rewards = columns.map(c => c.row.agents[name]?.reward)
  const components = [...new Set(turns.flat().flatMap(turn => Object.keys(turn.components ?? {})))]
  const sums = components.map(key => [
    key,
    turns.map(some => {
      const known = some.map(turn => turn.components?.[key]).filter(present)
      return known.length ? known.reduce((a, b) => a + b) : null
    }),
  ])
  const unit = turns.flat().every(turn => turn.words) ? "token" : "word",
    same = all.every(parts => parts.length === at)
  const first = new Map() // text -> the first sibling that has it
  const text = all.map((parts, k) => {
    const whole = parts.join("")
    const twin = first.get(whole)
    if (twin !== undefined) return el("div.cell.text.dim", null, `same as #${twin}`)
    first.set(whole, k)
    if (parts.length === at) return el("div.cell.text.dim", null, "ends here")
    return el(
      "div.cell.text",
      { tabindex: 0 },
      el(
        "mark",
        { title: `${unit} ${at + 1}: the first that differs` },
        parts[at].replaceAll("\n", "↵\n"),
      ),
      parts.slice(at + 1).join(""),
    )
  })
  const prefix = all[0]?.slice(0, at).join("") ?? ""
  return [
    el(
      "div.span",
      { style: { "--tint": colour(list.agents.indexOf(name)) } },
      el("b", null, name),
      columns.length === 1
        ? " "
        : same
          ? " all siblings are the same: "
          : at
            ? ` the first ${at > 1 ? `${count(at)} ${unit}s are` : `${unit} is`} the same: `
            : ` they diverge at the first ${unit}`,
      prefix && el("span.prefix", null, prefix.length > 300 ? "…" + prefix.slice(-300) : prefix),
    ),
    rewards.some((r, k) => r !== columns[k].row.reward) &&
      row(
        "reward",
        rewards.map(r => bar(r, rewards)),
      ),
    advantages.some(present) &&
      row(
        "advantage",
        advantages.map(a =>
          el(
            "div.cell.num.paint" + (shade(a / most) && "." + shade(a / most)),
            null,
            present(a) ? signed(a) : "–",
          ),
        ),
      ),
    sums
      .filter(([, values]) => new Set(values).size > 1)
      .map(([key, values]) =>
        row(
          key,
          values.map(v => bar(v, values)),
        ),
      ),
    row(
      "tokens",
      lengths.map(n => bar(n, lengths)),
    ),
    !same && row("text", text),
  ]
}

export async function groupPage(code) {
  const all = siblings(code)
  if (!all.length)
    return [el("p", null, "This group is not in the file. ", link("/", "All episodes"))]
  const shown = all.slice(0, 64)
  const columns = await Promise.all(
    shown.map(async i => {
      const row = await episode(i)
      return { i, row, turns: turnsOf(row, isEval(i)) }
    }),
  )
  const c = list.columns,
    rewards = columns.map(({ row }) => row.reward),
    known = rewards.filter(present),
    agents = [...new Set(columns.flatMap(({ row }) => Object.keys(row.agents ?? {})))]
  const middle = known.length ? mean(known) : null,
    spread = known.length ? Math.sqrt(mean(known.map(r => (r - middle) ** 2))) : null
  const first = columns[0].row
  return [
    el(
      "h1",
      null,
      `Group of ${all.length} ${isEval(all[0]) ? "evaluation " : ""}episode${all.length > 1 ? "s" : ""}`,
    ),
    el(
      "p.dim",
      null,
      `step ${c.step[all[0]]} · ${first.environment} · task ${first.task_id} · reward ${num(middle)} ± ${num(spread)}`,
      spread === 0 &&
        all.length > 1 &&
        ` · equal rewards${columns.every(({ turns }) => turns.some(t => t.advantage === 0) && turns.every(t => !t.advantage)) ? ": no advantage within the group" : ""}`,
      all.length > shown.length && ` · the first ${shown.length} are shown`,
    ),
    taskBox(first.task),
    branches(columns) && tree(columns, all.length > shown.length),
    crossed(columns) && cross(columns),
    (branches(columns) || crossed(columns)) && el("h2", null, "Episodes"),
    el(
      "div.scroll",
      { tabindex: 0, role: "region", "aria-label": "Siblings" },
      el(
        "div.siblings",
        { style: { "--n": columns.length } },
        row(
          "",
          columns.map(({ i, row }, k) =>
            el(
              "div.cell.head",
              null,
              link("/episode/" + i, `#${k}`),
              row.path?.length > 1 ? el("span.dim", null, " ", row.path.join("/")) : "",
              marks(i).map(name => el("span.badge.warn", null, name)),
            ),
          ),
        ),
        row(
          "team reward",
          rewards.map(r => bar(r, rewards)),
        ),
        agents.map(name => ofAgent(name, columns)),
      ),
    ),
  ]
}
