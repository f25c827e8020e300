// The page of a comparison: two evaluations of a run or of two runs, task by task.

import { list, meta, onGrowth } from "viewer/data.js"
import { count, el, go, grid, link, num, signed } from "viewer/dom.js"
import {
  byTasks,
  comparison,
  evaluations,
  judged,
  matched,
  outcomes,
  sideOf,
  signTest,
  usual,
} from "viewer/matching.js"
import { curves, settings } from "viewer/overlay.js"
import { pairOf } from "viewer/pair.js"

const MOST = 500 // rows of the list of tasks

const nameOf = side =>
  [side.stage, side.step === null ? "no evaluations" : `step ${side.step}`]
    .filter(Boolean)
    .join(", ")

const share = (n, of) => (of ? `${count(n)} of ${count(of)} (${num((100 * n) / of, 0)} %)` : "–")

/** What the numbers say: how many tasks, rewards, how many flipped each way, and the sign test. */
function verdict({ pairs, alone }, rule) {
  const told = pairs.filter(p => p.flip !== null),
    up = told.filter(p => p.flip > 0).length,
    down = told.filter(p => p.flip < 0).length,
    [better, worse, tasks] = byTasks(told),
    repeated = tasks < told.length
  const rewards = [0, 1].map(k => {
    const known = pairs.map(p => list.columns.reward[k ? p.b : p.a]).filter(r => r !== null)
    return known.length ? known.reduce((a, b) => a + b) / known.length : null
  })
  const change = rule === "change",
    passes = k => told.filter(p => p.passed[k]).length
  const rows = [
    ["In both", `${count(pairs.length)} ${repeated ? "episodes" : "tasks"}`],
    ["Mean reward", `${num(rewards[0])} → ${num(rewards[1])} (${signed(rewards[1] - rewards[0])})`],
    ...(change
      ? []
      : [
          ["Passed in A", share(passes(0), told.length)],
          ["Passed in B", share(passes(1), told.length)],
        ]),
    [change ? "Higher in B" : "Passed in B only", count(up)],
    [change ? "Higher in A" : "Passed in A only", count(down)],
    ["Sign test", `p = ${num(signTest(better, worse))}`],
  ]
  const notes = [
    `Exact two-sided sign test over ${repeated ? `tasks (${better} better, ${worse} worse)` : "the tasks that flipped"}: the probability of a split at least as uneven if neither is better.`,
    pairs.length > told.length &&
      `${count(pairs.length - told.length)} left out: an error, or nothing to judge by.`,
    alone.some(Boolean) && `Only in A: ${count(alone[0])}; only in B: ${count(alone[1])}.`,
  ]
  return [
    el(
      "dl.facts.verdict",
      null,
      rows.map(([name, value]) => el("div", null, el("dt", null, name), el("dd", null, value))),
    ),
    el("p.dim", null, notes.filter(Boolean).join(" ")),
  ]
}

const word = (value, rule) =>
  rule === "change" || value === null ? "" : value ? "passed" : "failed"

/** The tasks as a list of links. */
function tasks(pairs, rule, address, open) {
  const { codes, columns: c } = list,
    several = new Set(pairs.map(p => c.environment[p.a])).size > 1,
    repeated = pairs.some(p => p.place)
  return grid(
    "table.flips",
    ["task", "A", "B", "change"],
    pairs.slice(0, MOST).map(p => {
      const [x, y] = [c.reward[p.a], c.reward[p.b]],
        cell = (value, k) =>
          el(
            "td",
            null,
            el("span.num", null, num(value)),
            " ",
            el("span.dim", null, word(p.passed[k], rule)),
          )
      return el(
        "tr" + (p.flip > 0 ? ".up" : p.flip < 0 ? ".down" : ""),
        { "aria-current": p.a === open?.a ? "true" : null },
        el(
          "td",
          null,
          link(
            address(p),
            several && codes.environment[c.environment[p.a]] + " ",
            codes.task[c.task[p.a]] || "(no id)",
            repeated && ` #${p.place}`,
          ),
        ),
        cell(x, 0),
        cell(y, 1),
        el("td.num", null, x === null || y === null ? "–" : x === y ? "=" : signed(y - x)),
      )
    }),
  )
}

let held // the control whose change made the page: it keeps the focus

/** The controls: both evaluations, the rule, which tasks are listed. */
function controls(state, known, change) {
  const { sides, rule, rules, all } = state,
    bare = meta.stages
      .filter(s => !known.some(e => e.stage === s.name))
      .map(s => sideOf(s.name, known))
  const side = k =>
    el(
      "label.side" + (k ? ".come" : ".gone"),
      null,
      el("b", null, "AB"[k]),
      el(
        "select",
        {
          "aria-label": `Evaluation ${"AB"[k]}`,
          onchange: event => change({ ["ab"[k]]: event.target.value }),
        },
        [...known, ...bare].map(e =>
          el("option", { value: e.address, selected: e.address === sides[k].address }, nameOf(e)),
        ),
      ),
    )
  const least = rule.match(/^reward>=(.+)$/)?.[1]
  const made = el(
    "div.tools.choose",
    null,
    side(0),
    el(
      "button",
      {
        "aria-label": "Exchange A and B",
        title: "exchange A and B",
        onclick: () => change({ a: sides[1].address, b: sides[0].address }),
      },
      "⇄",
    ),
    side(1),
    el(
      "label",
      null,
      "Judged by ",
      el(
        "select",
        {
          "aria-label": "What a flip is",
          onchange: event => change({ by: event.target.value }),
        },
        [...rules.keys()].map(name =>
          el("option", { value: name, selected: name === rule }, `${name} = 1`),
        ),
        el(
          "option",
          { value: `reward>=${least ?? 1}`, selected: least !== undefined },
          "reward of at least",
        ),
        el("option", { value: "change", selected: rule === "change" }, "higher or lower reward"),
      ),
    ),
    least !== undefined &&
      el("input", {
        type: "number",
        step: "any",
        value: least,
        "aria-label": "Least reward that passes",
        onchange: event => change({ by: `reward>=${Number(event.target.value)}` }),
      }),
    el(
      "label",
      null,
      el("input", {
        type: "checkbox",
        checked: all,
        "aria-label": "List all tasks",
        onchange: event => change({ all: event.target.checked ? "1" : "" }),
      }),
      " all tasks",
    ),
  )
  made.addEventListener("change", event => (held = event.target.ariaLabel), true)
  made.addEventListener("click", event => (held = event.target.ariaLabel), true)
  if (held) made.querySelector(`[aria-label="${held}"]`)?.setAttribute("data-focus", "")
  held = undefined
  return made
}

/** The opened task with its neighbours in the list. */
async function opened(pair, shown, address) {
  const at = shown.findIndex(p => p.a === pair.a && p.b === pair.b),
    near = [
      ["previous in the list", shown[at - 1]],
      ["next in the list", shown[at + 1]],
    ].filter(([, p]) => at >= 0 && p)
  return el(
    "section.opened",
    null,
    el(
      "h2",
      null,
      `Task ${list.codes.task[list.columns.task[pair.a]]}${pair.place ? ` #${pair.place}` : ""}`,
    ),
    el(
      "p.links",
      null,
      link("/episode/" + pair.a, "episode in A"),
      link("/episode/" + pair.b, "episode in B"),
      near.map(([name, p]) => link(address(p), name)),
      link(address(null), "close"),
    ),
    await pairOf(pair),
  )
}

export async function comparePage(query) {
  const began = performance.now(),
    known = evaluations(),
    last = known.filter(e => e.stage === known.at(-1)?.stage), // without a choice: its ends
    sides = ["a", "b"].map((name, k) =>
      query.has(name) ? sideOf(query.get(name), known) : last.at(-k),
    )
  if (sides.some(side => !side))
    return [el("p", null, "This evaluation is not in the file. ", link("/", "All episodes"))]
  const found = matched(...sides),
    rules = outcomes(found.pairs),
    asked = query.get("by") ?? "",
    fits = rules.has(asked) || asked === "change" || /^reward>=-?[\d.]+(e-?\d+)?$/.test(asked),
    rule = fits ? asked : usual(rules),
    all = query.get("all") === "1"
  const pairs = judged(found.pairs, rule, rules),
    shown = (all ? [...pairs] : pairs.filter(p => p.flip)).sort(
      (p, q) => (q.flip ?? 0) - (p.flip ?? 0) || p.a - q.a,
    )
  const kept = { ...(asked && { by: rule }), ...(all && { all: "1" }) },
    address = pair => comparison(...sides, { ...kept, pair }),
    change = values => {
      const next = new URLSearchParams(query)
      for (const [name, value] of Object.entries(values)) {
        if (value) next.set(name, value)
        else next.delete(name)
      }
      go("/compare?" + next)
    }
  const { codes, columns: c } = list
  const pair = pairs.find(
    p =>
      query.has("task") &&
      codes.environment[c.environment[p.a]] === query.get("env") &&
      codes.task[c.task[p.a]] === query.get("task") &&
      String(p.place) === (query.get("place") ?? "0"),
  )
  const stages = sides.map(side => meta.stages.find(s => s.name === side.stage)),
    two = stages[0] !== stages[1]
  const none =
    sides.find(side => !side.episodes.length) ?? (found.pairs.length ? null : { stage: "" })
  const page = [
    el("h1", null, "Compare"),
    controls({ sides, rule, rules, all }, known, change),
    none
      ? el(
          "p.note",
          null,
          sides.some(side => !side.episodes.length)
            ? `${none.stage || "This run"} has no evaluations here: evaluation.every plays held-out tasks during training.`
            : "No task is in both: they have other environments, data sets or seeds.",
        )
      : verdict({ ...found, pairs }, rule),
    query.has("task") && !pair && el("p.note", null, `Task ${query.get("task")} is not in both.`),
    pair && (await opened(pair, shown, address)),
    found.pairs.length > 0 &&
      el(
        "section",
        null,
        el(
          "h2",
          null,
          all
            ? `All ${count(shown.length)} tasks`
            : shown.length
              ? `${count(shown.length)} flipped`
              : "No task flipped",
        ),
        shown.length > MOST &&
          el("p.note", null, `The first ${MOST} of ${count(shown.length)} are listed.`),
        shown.length > 0 && tasks(shown, rule, address, pair),
      ),
    two && curves(stages),
    two && settings(stages),
  ]
  document.documentElement.dataset.compared = (performance.now() - began).toFixed(1)
  return page
}

/** Links from the page of a stage; `at` adds one for a step with an evaluation. */
export function compareLinks(stage) {
  const node = el("p.links.compare")
  let chosen
  function draw() {
    const known = evaluations(),
      own = known.filter(e => e.stage === stage.name),
      others = meta.stages.filter(s => s.name !== stage.name).map(s => sideOf(s.name, known)),
      mine = sideOf(stage.name, known)
    const links = [
      (own.length > 1 || others.length > 0) && el("span.dim", null, "Compare"),
      own.length > 1 && link(comparison(own[0], own.at(-1)), "first and last evaluation"),
      ...others.map(other => link(comparison(mine, other), `with ${other.stage}`)),
      chosen,
    ]
    node.replaceChildren(...links.filter(Boolean))
    return own
  }
  const at = step => {
    chosen = undefined
    const own = draw(),
      one = own.find(e => e.step === step),
      other = one === own.at(-1) ? own[0] : own.at(-1)
    if (!one || one === other) return
    const [a, b] = one.step < other.step ? [one, other] : [other, one]
    chosen = link(comparison(a, b), `step ${a.step} with step ${b.step}`)
    node.append(chosen)
  }
  draw()
  onGrowth(node, draw)
  return { node, at }
}

/** A link from an episode of an evaluation to the same task at another checkpoint, or nothing. */
export function sameTask(i) {
  const known = evaluations(),
    own = known.find(e => e.episodes.includes(i)),
    several = known.filter(e => e.stage === own?.stage),
    other = [several[0], several.at(-1), ...known].find(e => {
      return e && e !== own && matched(own, e).pairs.some(p => p.a === i)
    })
  if (!own || !other) return null
  const ordered = known.indexOf(own) < known.indexOf(other) ? [own, other] : [other, own],
    pair = matched(...ordered).pairs.find(p => p.a === i || p.b === i)
  return link(comparison(...ordered, { pair }), "the same task at another checkpoint")
}
