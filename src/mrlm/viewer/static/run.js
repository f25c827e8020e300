// The page of a run: who is trained with which weights, its curves, its episodes.

import { alarmLane } from "viewer/alarms.js"
import { chart, cursor, folded } from "viewer/charts.js"
import { compareLinks } from "viewer/compare.js"
import { list, meta, onGrowth } from "viewer/data.js"
import { colour, count, el, go, link, num, svg } from "viewer/dom.js"
import { payoffs, ratings } from "viewer/ratings.js"
import { components, lags, seconds } from "viewer/stacked.js"
import { table } from "viewer/table.js"

const agentsOf = stage => {
  const names = new Set()
  for (const name of stage.metrics.keys()) {
    const hit = name.match(/^reward\/(.+)\/mean$/)
    if (hit && hit[1] !== "total") names.add(hit[1])
  }
  const known = list.agents.filter(name => names.has(name) || !names.size)
  return known.length ? known : list.agents
}

/** The policies of the settings; without any, all agents have one that is called `policy`. */
const policiesOf = config => {
  const named = Object.keys(config.policies ?? {})
  return named.length ? named : ["policy"]
}

/** agent -> policy, by the settings; agents without an own entry have the policy of their name. */
function policyOf(agent, config) {
  const policies = policiesOf(config),
    given = Object.entries(config.agents ?? {}).find(([name]) => name === agent)?.[1]
  return (
    given?.policy ??
    (policies.includes(agent) ? agent : policies.length === 1 ? policies[0] : (policies[0] ?? "–"))
  )
}

/** Agents, their policies and the weights of these, with lines between them. */
function graph(stage, agents) {
  const { config } = stage,
    first = p => {
      const k = agents.findIndex(a => policyOf(a, config) === p)
      return k < 0 ? agents.length : k
    }
  const policies = policiesOf(config).sort((a, b) => first(a) - first(b)),
    model = config.model ?? {}
  const weights = policies.map(name => {
    const own = config.policies?.[name] ?? {},
      lora = own.lora ?? model.lora
    const from = own.endpoint
      ? "endpoint " + (own.endpoint.model ?? "")
      : (own.model ?? model.model_name_or_path ?? "–")
    return {
      name: String(from).split("/").slice(-2).join("/"),
      about: own.endpoint
        ? "behind an API"
        : own.trainable === false
          ? "frozen"
          : lora
            ? `LoRA, rank ${lora.r ?? "–"}`
            : "trained in full",
    }
  })
  const rows = Math.max(agents.length, policies.length, 1),
    high = 34,
    height = rows * high + 20,
    at = (k, n) => 20 + ((k + 0.5) * (rows * high)) / Math.max(1, n)
  const short = text => (text.length > 19 ? text.slice(0, 18) + "…" : text)
  const box = (x, y, text, about, tint) => [
    svg("rect", {
      x,
      y: y - 13,
      width: 128,
      height: 26,
      rx: 4,
      class: "node",
      style: tint && { stroke: tint },
    }),
    svg("text", { x: x + 8, y: about ? y - 1 : y + 4 }, svg("title", null, text), short(text)),
    about && svg("text", { x: x + 8, y: y + 9, class: "small" }, about),
  ]
  const edge = (x1, y1, x2, y2, tint) =>
    svg("path", {
      class: "edge",
      d: `M${x1} ${y1}C${x1 + 22} ${y1} ${x2 - 22} ${y2} ${x2} ${y2}`,
      style: { stroke: tint },
    })
  return svg(
    "svg",
    {
      class: "graph",
      viewBox: `0 0 472 ${height}`,
      role: "img",
      "aria-label": agents
        .map(a => `agent ${a} plays with policy ${policyOf(a, config)}`)
        .join("; "),
    },
    ["Agents", "Policies", "Weights"].map((text, k) =>
      svg("text", { x: 2 + k * 170, y: 11, class: "small" }, text),
    ),
    agents.map((a, k) =>
      edge(
        130,
        at(k, agents.length),
        172,
        at(Math.max(0, policies.indexOf(policyOf(a, config))), policies.length),
        colour(list.agents.indexOf(a)),
      ),
    ),
    policies.map((p, k) =>
      edge(300, at(k, policies.length), 342, at(k, policies.length), "var(--line-strong)"),
    ),
    agents.map((a, k) => box(2, at(k, agents.length), a, "", colour(list.agents.indexOf(a)))),
    policies.map((p, k) => box(172, at(k, policies.length), p)),
    weights.map((w, k) => box(342, at(k, weights.length), w.name, w.about)),
  )
}

function facts(stage) {
  const { config, metrics } = stage,
    training = config.training ?? {},
    own = config[training.algorithm] ?? {},
    time = metrics.get("time") ?? []
  const last = (metrics.get("step") ?? []).at(-1),
    spent = time.length > 1 ? time.at(-1) - time[0] : null
  const rows = [
    ["Algorithm", training.algorithm],
    ["Environments", (config.environments ?? []).map(e => e.name ?? e.env_type).join(", ")],
    ["Workflow", config.workflow?.name],
    [
      "Steps",
      last === undefined
        ? null
        : `${count(last)}${training.num_iterations && training.num_iterations !== last ? ` of ${count(training.num_iterations)}` : ""}`,
    ],
    [
      "Tasks × siblings",
      training.batch_size &&
        (own.group_size
          ? `${training.batch_size} × ${own.group_size}`
          : String(training.batch_size)),
    ],
    ["Learning rate", training.learning_rate],
    ["Seed", training.seed],
    [
      "Time",
      spent &&
        (spent > 5400
          ? `${num(spent / 3600, 1)} h`
          : spent > 90
            ? `${num(spent / 60, 1)} min`
            : `${num(spent, spent < 9.5 ? 1 : 0)} s`),
    ],
  ]
  return el(
    "dl.facts",
    null,
    rows
      .filter(([, value]) => value !== null && value !== undefined && value !== "")
      .map(([name, value]) => el("div", null, el("dt", null, name), el("dd", null, value))),
  )
}

/** What a run has by now: facts, curves, the rule by which its list was chosen. */
function overview(name, pick) {
  const top = el("div.top"),
    choice = el("p.note"),
    curves = el("div.overview"),
    shared = cursor()
  const draw = () => {
    const stage = meta.stages.find(s => s.name === name) ?? meta.stages.at(-1),
      agents = agentsOf(stage),
      { at } = shared,
      open = curves.querySelector("details")?.open,
      focused = [...curves.querySelectorAll(".plot")].indexOf(document.activeElement)
    top.replaceChildren(facts(stage), graph(stage, agents))
    choice.hidden = !meta.choice
    choice.textContent = `This page has ${count(meta.shown)} of ${count(meta.total)} episodes, to stay below its size limit: ${meta.choice}.`
    curves.style.minHeight = curves.offsetHeight + "px" // what is below does not jump
    shared.charts.clear()
    curves.replaceChildren(...[charts(stage, agents, pick, shared)].flat(Infinity).filter(Boolean))
    if (open) {
      const more = curves.querySelector("details")
      more.open = true
      more.dispatchEvent(new Event("toggle")) // filled now, not a moment later
    }
    curves.querySelectorAll(".plot")[focused]?.focus({ preventScroll: true })
    // charts are drawn after the next frame has begun
    requestAnimationFrame(() =>
      requestAnimationFrame(() => {
        if (at !== null) shared.move(at)
        curves.style.minHeight = ""
      }),
    )
  }
  const state = () =>
    JSON.stringify([
      meta.stages.map(s => [
        s.metrics.get("step")?.length,
        s.alarms.length,
        s.phases?.steps.length,
      ]),
      meta.choice,
      meta.total,
    ])
  draw()
  let drawn = state()
  onGrowth(curves, () => {
    const now = state()
    if (now !== drawn) draw()
    drawn = now
  })
  return [top, choice, curves]
}

/** Small charts: a title, and the metric of an agent; the first name that exists is drawn. */
const SMALL = [
  ["Reward by agent", a => [`reward/${a}/mean`]],
  ["Completion length", a => [`completion_length/${a}/mean`], "completion_length/mean"],
  ["Entropy", a => [`entropy/${a}`], "entropy"],
  ["Distinct completions", a => [`distinct_completions/${a}`], "distinct_completions"],
  ["Approx. KL", a => [`approx_kl/${a}`], "approx_kl"],
  ["KL to reference", a => [`kl/${a}`], "kl"],
  ["Clip fraction", a => [`clip_fraction/${a}`], "clip_fraction"],
  ["Explained variance", a => [`explained_variance/${a}`], "explained_variance"],
  ["Gradient norm", a => [`grad_norm/${a}`], "grad_norm"],
  ["Gradient share", a => [`gradient_share/${a}`]],
  ["Advantage spread", a => [`advantage/${a}/std`]],
  ["Zero-advantage share", a => [`advantage/${a}/zero`]],
  ["Zero-variance groups", () => [], "frac_zero_variance"],
  ["Lag", () => [], "lag/mean"],
  ["Share of tokens", a => [`tokens/${a}/share`]],
]

function charts(stage, agents, find, shared) {
  const { metrics } = stage,
    x = metrics.get("step") ?? [],
    get = name => metrics.get(name),
    pick = step => find("step:" + step)
  const ofPolicy = name => {
    const k = agents.findIndex(a => policyOf(a, stage.config) === name)
    return k < 0 ? "var(--fg)" : colour(list.agents.indexOf(agents[k]))
  }
  if (!x.length) return el("p.dim", null, "This run has no metrics yet.")
  const held = get("eval/reward/mean"),
    spread = get("eval/reward/std"),
    n = get("eval/episodes/count")
  const side = sign =>
    spread &&
    n &&
    held.map((v, i) =>
      v === null || spread[i] === null || !n[i]
        ? null
        : v + (sign * 1.96 * spread[i]) / Math.sqrt(n[i]),
    )
  const main = [
    { name: "training", colour: "var(--orange)", y: get("reward/mean") },
    {
      name: "held out",
      colour: "var(--blue)",
      y: held,
      low: side(-1),
      high: side(1),
      points: true,
    },
  ].filter(s => s.y?.some(v => v !== null))
  const filled = y => y?.some(v => v !== null)
  const small = SMALL.map(([title, names, whole]) => {
    const policy = a => policyOf(a, stage.config)
    const own = a => [...names(`${policy(a)}/${a}`), ...names(a), ...names(policy(a))]
    const series = agents
      .map(a => ({
        name: a,
        colour: colour(list.agents.indexOf(a)),
        y: own(a).map(get).find(filled),
      }))
      .filter(s => s.y)
    const about = [...agents.flatMap(own), whole].map(name => stage.about.get(name)).find(Boolean)
    if (series.length > 1 && series.every(s => s.y.every((v, k) => v === series[0].y[k])))
      series.splice(0, series.length, { ...series[0], name: "all agents", colour: "var(--fg)" })
    if (!series.length && filled(get(whole)))
      series.push({ name: "all", colour: "var(--fg)", y: get(whole) })
    return series.length && chart({ title, about, x, series, shared, pick })
  }).filter(Boolean)
  const rest = [...metrics.keys()].filter(
    name => !["step", "time"].includes(name) && filled(get(name)),
  )
  const more = folded(`All ${rest.length} metrics`, rest, name =>
    chart({
      title: name,
      about: stage.about.get(name),
      x,
      series: [{ name: "", colour: "var(--fg)", y: get(name) }],
      shared,
      pick,
    }),
  )
  return [
    el(
      "div.charts",
      null,
      main.length &&
        chart({
          title: "Reward",
          about: "mean of an evaluation with its 95 % interval (normal approximation)",
          x,
          series: main,
          shared,
          height: 226,
          kind: "main",
          pick,
        }),
      alarmLane(stage, { shared, find }),
      small,
      ratings(stage, ofPolicy, { shared, pick }),
    ),
    el(
      "div.charts",
      null,
      components(stage, agents, { shared, pick, kind: "wide" }),
      lags(stage, { shared, pick, kind: "wide" }),
      seconds(stage, { shared, pick, kind: "wide" }),
    ),
    more,
    payoffs(stage),
  ]
}

export function runPage(query) {
  if (!meta.stages.length) {
    const wait = el("p", { role: "status" }, "Nothing is written yet; the page follows the run.")
    onGrowth(wait, () => meta.stages.length && wait.replaceWith(...shown(query)))
    return [wait]
  }
  return shown(query)
}

const address = stage => "/?" + new URLSearchParams({ stage: stage.name })

/** The choice of a run, where the page has several. */
function runs(stage) {
  const names = [...new Set(meta.stages.map(s => s.run))]
  if (names.length < 2) return null
  return el(
    "label.runs",
    null,
    "Run ",
    el(
      "select",
      {
        "aria-label": "Run",
        onchange: event => go(address(meta.stages.findLast(s => s.run === event.target.value))),
      },
      names.map(name => el("option", { value: name, selected: name === stage.run }, name)),
    ),
  )
}

function tabs(stage) {
  const box = el("nav.tabs", { "aria-label": "Stages" })
  const draw = () => {
    const own = meta.stages.filter(s => s.run === stage.run)
    box.hidden = own.length < 2
    box.replaceChildren(
      ...own.map(s =>
        el(
          "a",
          { href: "#" + address(s), "aria-current": s.name === stage.name ? "page" : null },
          s.run ? s.name.slice(s.run.length + 1) : s.name,
        ),
      ),
    )
  }
  draw()
  onGrowth(box, draw)
  return box
}

function shown(query) {
  const wanted = query.get("stage"),
    stage = meta.stages.find(s => s.name === wanted) ?? meta.stages.at(-1)
  const episodes = table(query.get("q") ?? "", meta.stages.length > 1 ? stage.name : ""),
    compared = compareLinks(stage)
  episodes.section.querySelector(".tools").after(compared.node)
  return [
    runs(stage),
    tabs(stage),
    overview(stage.name, (query, show) => {
      const step = query.match(/^step:(\d+)$/)
      if (step) compared.at(Number(step[1]))
      episodes.set(query, show)
    }),
    episodes.section,
    stage.config_text &&
      el("details", null, el("summary", null, "Settings"), el("pre", null, stage.config_text)),
  ]
    .flat(Infinity)
    .filter(Boolean)
}
