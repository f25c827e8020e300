// The page of an episode: a lane per agent, a row per moment in which agents acted.

import { badges, boundsOf, clippedOf } from "viewer/badges.js"
import { boardPanel } from "viewer/board.js"
import { sameTask } from "viewer/compare.js"
import { curves } from "viewer/curves.js"
import { PAINTS, episode, isEval, list, meta, siblings, turnsOf } from "viewer/data.js"
import { colour, count, el, link, num, signed } from "viewer/dom.js"
import { playBar } from "viewer/play.js"
import { arrowsOf, environmentBox, lastBox, leftOver, readings, received } from "viewer/reading.js"
import { numbersOf, paintable, promptBox, textBox, tokenBox } from "viewer/tokens.js"
import { decisive, turnEffect, whyBox } from "viewer/why.js"

function cell(turn, state) {
  const box = turn.words ? tokenBox(turn, state) : textBox(turn, state),
    components = Object.entries(turn.components ?? {})
  state.boxes.push(box)
  const saw = el(
    "details",
    null,
    el(
      "summary",
      null,
      `What ${turn.agent} saw`,
      turn.prompt &&
        el(
          "span.dim",
          null,
          `, ${count(turn.prompt.length)} tokens, ${count(turn.prompt.length - turn.shared)} new`,
        ),
    ),
  )
  saw.addEventListener("toggle", () => {
    if (saw.children.length === 1) saw.append(el("div", null, promptBox(turn)))
  })
  const facts = [
    `${count(turn.length)} token${turn.length === 1 ? "" : "s"}`,
    `version ${turn.version ?? "–"}`,
    turn.reward !== undefined &&
      turn.reward !== null &&
      `reward ${num(turn.reward)}${components.length ? ` (${components.map(([name, value]) => `${name} ${num(value)}`).join(", ")})` : ""}`,
    Number.isFinite(turn.advantage) &&
      turn.advantage !== null &&
      `advantage ${signed(turn.advantage)}`,
  ]
  turn.box = el(
    "article.turn",
    {
      style: { "--tint": colour(list.agents.indexOf(turn.agent)) },
      "aria-label": `turn of ${turn.agent}`,
    },
    el(
      "header",
      null,
      el("b", null, turn.agent),
      el("span.dim", null, facts.filter(Boolean).join(" · ")),
      decisive(turn, state.why),
      badges(turn, state.frozen(turn.policy)),
    ),
    turn.heard.some(({ said }) => !said) && el("div.read", null, received(turn)),
    box,
    turn.calls.length > 0 && el("pre.calls", null, JSON.stringify(turn.calls, null, 1)),
    turn.why && el("p.why", null, turn.why),
    turnEffect(turn, state.why),
    saw,
    playBar(state.number, state.row, turn),
  )
  return turn.box
}

function legend(state) {
  const range = state.ranges.get(state.by)
  if (!range) return [el("span.dim", null, "no numbers of tokens are recorded for this episode")]
  const paint = PAINTS[state.by],
    [low, high] = paint.signed ? [-range.size, range.size] : [range.low, range.high]
  return [
    el("span.num", null, num(low)),
    el("span.scale" + (paint.signed ? ".both" : "")),
    el("span.num", null, num(high)),
    el("span.dim", null, paint.about),
  ]
}

function controls(state, lanes, several, clips) {
  const key = el("span.legend")
  const change = by => {
    state.by = by
    key.replaceChildren(...legend(state))
    state.boxes.forEach(box => box.repaint())
  }
  const choice = el(
    "select",
    { "aria-label": "Paint tokens by", onchange: event => change(event.target.value) },
    Object.keys(PAINTS).map(name =>
      el(
        "option",
        { value: name, disabled: !state.ranges.has(name), selected: name === state.by },
        name,
      ),
    ),
    el("option", { value: "", selected: !state.by }, "nothing"),
  )
  key.append(...legend(state))
  const flat =
    several &&
    el(
      "button",
      {
        "aria-pressed": "false",
        title: "one turn below the other, in the order in which they were taken",
        onclick: () => flat.setAttribute("aria-pressed", String(lanes.classList.toggle("flat"))),
      },
      "in one column",
    )
  return el(
    "div.tools.paints",
    null,
    el("label", null, "Paint by ", choice),
    key,
    clips && el("span.t.k", null, "clipped"),
    el("span.t.x", null, "not trained"),
    el("span.c", null, "read, never trained"),
    flat,
  )
}

/** The line at the foot of the page with the numbers of the token under pointer or cursor. */
function reader(lanes) {
  const line = el("div.reader", { role: "status", hidden: true })
  let marked
  const tell = node => {
    marked?.classList.remove("at")
    marked = node
    line.hidden = !node
    if (!node) return
    node.classList.add("at")
    line.replaceChildren(
      ...numbersOf(node.parentNode.turn, node.at).map(([name, value]) =>
        el("span", null, el("span.dim", null, name), " ", el("b", null, value)),
      ),
    )
  }
  lanes.addEventListener("pointerover", event =>
    tell(event.target.at === undefined ? null : event.target),
  )
  lanes.addEventListener("pointerleave", () => tell(null))
  lanes.addEventListener("focusin", event => {
    if (event.target.turn?.words) {
      event.target.draw()
      tell(event.target.firstChild)
    }
  })
  lanes.addEventListener("focusout", () => tell(null))
  lanes.addEventListener("keydown", event => {
    const box = event.target,
      by = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key]
    if (!by || !box.turn?.words) return
    event.preventDefault()
    const at = Math.max(
      0,
      Math.min(box.children.length - 1, (marked?.parentNode === box ? marked.at : 0) + by),
    )
    tell(box.children[at])
    box.children[at].scrollIntoView({ block: "nearest" })
  })
  return line
}

const stageOf = i =>
  meta.stages.find(s => s.name === list.codes.stage[list.columns.stage[i]]) ?? meta.stages[0]

/** Whether a policy is trained by no learner: by its settings, or since it is a past player. */
function frozenBy(i) {
  const { policies } = stageOf(i).config
  return name => {
    const own = Object.entries(policies ?? {}).find(([key]) => key === name)?.[1]
    return own ? own.trainable === false || Boolean(own.endpoint) : String(name).includes("@")
  }
}

/** agent -> its messages after its last turn. */
const tailOf = (row, turns) =>
  Object.entries(row.agents ?? {})
    .map(([name, { messages }]) => {
      const end = Math.max(
        -1,
        ...turns.filter(t => t.agent === name && t.at !== null).map(t => t.at),
      )
      return [name, messages.slice(end + 1)]
    })
    .filter(([, rest]) => rest.length)

/** The lanes: what the environment said, then the agents; a row per moment in which agents acted. */
function lanesOf(row, turns, state, last) {
  const agents = Object.keys(row.agents ?? {}),
    steps = row.step_rewards ?? []
  readings(turns)
  const moments = []
  for (const turn of turns) {
    const before = moments.at(-1)?.[0]
    turn.opensStep = before?.step !== turn.step
    if (before && before.step === turn.step && before.order === turn.order)
      moments.at(-1).push(turn)
    else moments.push([turn])
  }
  const boxes = moments.map(some => environmentBox(some, steps)),
    speaks = boxes.some(Boolean) || last !== null,
    first = speaks ? 3 : 2
  const lanes = el(
    "div.lanes" + (speaks ? ".speaks" : ""),
    { style: { "--n": agents.length } },
    el("div.when"),
    speaks && el("div.lane.environment", null, el("b", null, "environment")),
    agents.map(name =>
      el(
        "div.lane",
        { style: { "--tint": colour(list.agents.indexOf(name)) } },
        el("b", null, name),
        el(
          "span.dim",
          null,
          ` policy ${row.agents[name].policy ?? "–"} · reward ${num(row.agents[name].reward)}`,
        ),
      ),
    ),
  )
  const put = (box, line, column) => {
    box.style.setProperty("grid-row", String(line))
    box.style.setProperty("grid-column", String(column))
    lanes.append(box)
  }
  moments.forEach((some, k) => {
    const [{ step, opensStep }] = some
    put(el("div.when", { title: `joint step ${step + 1}` }, opensStep ? step + 1 : ""), k + 2, 1)
    if (boxes[k]) put(boxes[k], k + 2, 2)
    for (const turn of some) put(cell(turn, state), k + 2, agents.indexOf(turn.agent) + first)
  })
  if (last) put(last, moments.length + 2, 2)
  const side = () => !lanes.classList.contains("flat") && innerWidth > 600
  curves(lanes, arrowsOf(turns), side)
  return lanes
}

export async function episodePage(i) {
  if (!(i >= 0 && i < list.length))
    return [el("p", null, "This episode is not in this page. ", link("/", "All episodes"))]
  const began = performance.now(),
    row = await episode(i),
    evaluation = isEval(i),
    turns = turnsOf(row, evaluation),
    ranges = paintable(turns)
  const agents = Object.keys(row.agents ?? {}),
    group = list.columns.group[i],
    others = siblings(group),
    task = row.task_id ?? ""
  const state = {
    by: ranges.has("advantage") ? "advantage" : (ranges.keys().next().value ?? ""),
    ranges,
    boxes: [],
    frozen: frozenBy(i),
    number: i,
    row,
    why: row.explained,
  }
  const bounds = boundsOf(stageOf(i).config)
  for (const turn of turns) turn.clipped = clippedOf(turn, bounds)
  const steps = row.step_rewards ?? [],
    tail = tailOf(row, turns)
  const lanes = lanesOf(row, turns, state, lastBox(tail, steps)),
    rest = leftOver(tail)
  const metrics = Object.entries(row.metrics ?? {}).filter(
    ([name]) => !agents.some(agent => name.startsWith(agent + "/")),
  )
  const place = others.indexOf(i),
    near = [
      ["previous", i - 1],
      ["next", i + 1],
    ].filter(([, k]) => k >= 0 && k < list.length)
  const page = [
    el("h1", null, row.id),
    el(
      "p.dim",
      null,
      [`step ${row.step}`, row.environment, `task ${task}`, row.status].filter(Boolean).join(" · "),
      row.greedy && " · greedy",
      row.pruned && " · pruned",
      row.replayed && ` · replay of ${row.replayed.of} (${row.replayed.kind})`,
      " · reward ",
      el("b", null, num(row.reward)),
      steps.length > 1 && ` (by step ${steps.map(r => num(r)).join(", ")})`,
      metrics.map(([name, value]) => ` · ${name} ${num(value)}`),
    ),
    el(
      "p.links",
      null,
      others.length > 1 ? link("/group/" + group, `${others.length} siblings`) : "",
      others.length > 1 && el("span.dim", null, `this is #${place}`),
      link("/?" + new URLSearchParams({ q: `task:"${task}"` }), "all of this task"),
      evaluation && sameTask(i),
      near.map(([name, k]) => link("/episode/" + k, name)),
    ),
    row.error &&
      el(
        "pre.error",
        null,
        typeof row.error === "string" ? row.error : JSON.stringify(row.error, null, 1),
      ),
    row.task?.prompt?.length > 0 &&
      el(
        "details",
        null,
        el("summary", null, "Task"),
        row.task.prompt.map(m => el("p.message", null, el("b", null, m.role), " ", m.content)),
        row.task.answer !== undefined &&
          el("p.message", null, el("b", null, "answer"), " ", JSON.stringify(row.task.answer)),
      ),
    whyBox(row.explained),
    row.boards?.length > 0 && boardPanel(row, turns, lanes),
    controls(
      state,
      lanes,
      agents.length > 1,
      turns.some(turn => turn.clipped.some(Boolean)),
    ),
    lanes,
    rest.length > 0 && el("div.read.tail", null, rest),
    reader(lanes),
  ]
  document.documentElement.dataset.opened = (performance.now() - began).toFixed(1)
  return page
}
