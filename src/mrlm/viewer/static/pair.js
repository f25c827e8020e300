// Two episodes of one task side by side: what differs in their completions, rewards, components.

import { episode, meta, turnsOf } from "viewer/data.js"
import { diff } from "viewer/diff.js"
import { count, el, grid, num, signed, taskBox } from "viewer/dom.js"

/** Whether two turns have the same token ids for the same text. */
function sameTokens(a, b) {
  if (!a.words || !b.words) return false
  const of = turn => meta.tokenizers?.get(turn.vocabulary)
  return a.vocabulary === b.vocabulary || (of(a) !== undefined && of(a) === of(b))
}

const wordsOf = turn => turn.text.match(/\s+|[\p{L}\p{M}\p{N}_]+|[^\s\p{L}\p{M}\p{N}_]/gu) ?? []

/** Both completions with masks of what only one of them has. */
function compared(a, b) {
  const tokens = sameTokens(a, b),
    parts = tokens ? [a.words, b.words] : [wordsOf(a), wordsOf(b)],
    masks = tokens ? diff(a.ids, b.ids) : diff(...parts),
    same = masks[0].filter(x => !x).length
  return { parts, masks, same, unit: tokens ? "token" : "word" }
}

/** A completion as text; runs of parts that only it has are marked. */
function marked(parts, mask, kind) {
  const box = el("div.tokens.diff")
  for (let i = 0; i < parts.length;) {
    let end = i
    while (end < parts.length && mask[end] === mask[i]) end++
    const text = parts.slice(i, end).join("")
    box.append(
      mask[i]
        ? el("mark." + kind, null, text.replaceAll("\n", "↵\n") || "·")
        : el("span", null, text),
    )
    i = end
  }
  return box
}

const heading = (side, turn, told) =>
  el(
    "header",
    null,
    el("b", null, `${turn.agent} in ${side}`),
    el(
      "span.dim",
      null,
      [
        `${count(turn.length)} tokens`,
        told,
        turn.finish_reason === "length" && "cut",
        `version ${turn.version ?? "–"}`,
      ]
        .filter(Boolean)
        .join(" · "),
    ),
  )

const received = turn => turn.read.map(m => m.content).join("\n")

function article(side, turn, other, found) {
  const k = side === "A" ? 0 : 1,
    kind = k ? "come" : "gone",
    tint = { style: { "--tint": k ? "var(--blue)" : "var(--orange)" } }
  const told = found
    ? `${count(found.same)} of ${count(found.parts[k].length)} ${found.unit}s are the same`
    : `only in ${side}`
  const parts = found?.parts[k] ?? [turn.text]
  return el(
    "article.turn",
    tint,
    heading(side, turn, told),
    other &&
      received(turn) !== received(other) &&
      el(
        "details",
        null,
        el("summary", null, `What ${turn.agent} read (differs)`),
        el("p.message", null, received(turn)),
      ),
    marked(parts, found?.masks[k] ?? [1], kind),
  )
}

/** The turns of both episodes: a row per turn of an agent, in the order of the first. */
function turns(first, second) {
  const key = turn => `${turn.place}/${turn.agent}`,
    a = new Map(first.map(turn => [key(turn), turn])),
    b = new Map(second.map(turn => [key(turn), turn]))
  return [...new Set([...a.keys(), ...b.keys()])].map(name => {
    const [x, y] = [a.get(name), b.get(name)],
      found = x && y ? compared(x, y) : null
    return [x ? article("A", x, y, found) : el("div"), y ? article("B", y, x, found) : el("div")]
  })
}

/** Rewards, components and lengths of both, and their differences. */
function numbers(rows, all) {
  const agents = [...new Set(rows.flatMap(row => Object.keys(row.agents ?? {})))],
    lines = [["reward", rows.map(row => row.reward)]]
  for (const name of agents) {
    const rewards = rows.map(row => row.agents?.[name]?.reward)
    if (agents.length > 1) lines.push([`${name} reward`, rewards])
  }
  for (const name of new Set(rows.flatMap(row => Object.keys(row.metrics ?? {}))))
    lines.push([name, rows.map(row => row.metrics?.[name])])
  lines.push(["tokens", all.map(turns => turns.reduce((n, turn) => n + turn.length, 0))])
  const known = value => value !== null && value !== undefined
  return grid(
    "table.numbers",
    ["", "A", "B", "B − A"],
    lines.map(([name, [a, b]]) =>
      el(
        "tr",
        null,
        el("th", { scope: "row" }, name),
        el("td.num", null, num(a)),
        el("td.num", null, num(b)),
        el("td.num", null, known(a) && known(b) ? (a === b ? "=" : signed(b - a)) : "–"),
      ),
    ),
  )
}

/** A task of both evaluations. */
export async function pairOf({ a, b }) {
  const rows = await Promise.all([episode(a), episode(b)]),
    all = rows.map(row => turnsOf(row, true)),
    tasks = rows.map(row => JSON.stringify([row.task?.prompt, row.task?.answer]))
  return [
    tasks[0] !== tasks[1] &&
      el("p.note", null, "The task has the same id in both, but not the same prompt or answer."),
    taskBox(rows[0].task),
    el(
      "div.scroll.fit",
      { tabindex: 0, role: "region", "aria-label": "Numbers" },
      numbers(rows, all),
    ),
    el("div.sides", null, turns(...all)),
  ]
}
