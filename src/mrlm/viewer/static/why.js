// What `mrlm why` found out about an episode: the outcome if a turn or an agent were different.

import { badge, el, grid, num, signed, svg } from "viewer/dom.js"

const WIDE = 120
const HIGH = 12

/** An estimate and its interval as text. */
const written = ({ value, low, high }, show = num) =>
  Number.isFinite(low) ? `${show(value)} (${show(low)} to ${show(high)})` : show(value)

/** The place of an outcome between the lowest and the highest of all, in pixels. */
function scaleOf({ reward, turns, agents }) {
  const values = [...turns, ...agents].flatMap(({ mean }) => [mean.value, mean.low, mean.high])
  const known = [reward, ...values].filter(Number.isFinite),
    low = Math.min(...known),
    high = Math.max(...known)
  return value => 4 + (high > low ? (value - low) / (high - low) : 0.5) * (WIDE - 8)
}

/** The interval as a line, the mean as a dot, the recorded reward as a tick. */
function drawing(mean, reward, place) {
  if (!Number.isFinite(mean.value)) return null
  const y = HIGH / 2,
    kind = mean.value > reward ? "hurt" : mean.value < reward ? "helped" : ""
  return svg(
    "svg",
    { class: "outcome " + kind, width: WIDE, height: HIGH, "aria-hidden": "true" },
    svg("line", { class: "whole", x1: 4, x2: WIDE - 4, y1: y, y2: y }),
    Number.isFinite(mean.low) &&
      svg("line", { class: "range", x1: place(mean.low), x2: place(mean.high), y1: y, y2: y }),
    Number.isFinite(reward) &&
      svg("line", { class: "was", x1: place(reward), x2: place(reward), y1: 1, y2: HIGH - 1 }),
    svg("circle", { cx: place(mean.value), cy: y, r: 3 }),
  )
}

const AGAINST = {
  resample: "sampled again",
  expert: "the expert's",
  silence: "empty",
}
const against = why => AGAINST[why.against] ?? `sampled by ${why.against}`

/** What stands at a turn: nothing if the turn was not replaced. */
export function turnEffect(turn, why) {
  const found = why?.turns.find(each => each.agent === turn.agent && each.turn === turn.index)
  if (!found) return null
  const place = scaleOf(why),
    reached = Object.entries(found.influence).filter(([, value]) => value !== null)
  return el(
    "div.effect",
    null,
    drawing(found.mean, why.reward, place),
    el("span", null, "if different: reward ", el("b", null, written(found.mean))),
    el("span.dim", null, `success ${written(found.success)}`),
    reached.length > 0 &&
      el(
        "span.dim",
        { title: "divergence of the next agent's distribution without this message" },
        `influence ${reached.map(([name, value]) => `${name} ${num(value)}`).join(", ")} nats per token`,
      ),
    found.same > 0 && el("span.dim", null, `${found.same} of ${why.n} were the same`),
    found.failed > 0 && el("span.dim", null, `${found.failed} failed`),
  )
}

/** The mark of the decisive turn. */
export const decisive = (turn, why) =>
  why?.decisive?.agent === turn.agent && why.decisive.turn === turn.index
    ? badge("decisive", "the earliest turn whose replacement turns failure into success", "warn")
    : null

/** The agents: the outcome without each, its marginal, its Shapley value. */
export function whyBox(why) {
  if (!why) return null
  const place = scaleOf(why),
    shapley = why.agents.some(each => each.shapley)
  return el(
    "details.whys",
    { open: true },
    el("summary", null, "Which turn, which agent"),
    el(
      "p",
      null,
      why.decisive
        ? [
            "The decisive turn is ",
            el("b", null, `${why.decisive.agent}:${why.decisive.turn}`),
            ".",
          ]
        : why.solved
          ? "The episode succeeded, so no turn is decisive."
          : "No replacement of one turn succeeded.",
      why.suspect &&
        !why.decisive &&
        ` Replacing ${why.suspect} raises the reward most, over all its turns.`,
    ),
    grid(
      "table",
      ["agent", "reward if different", "marginal", ...(shapley ? ["Shapley value"] : [])],
      why.agents.map(each =>
        el(
          "tr",
          null,
          el("td", null, each.agent),
          el("td", null, drawing(each.mean, why.reward, place), " ", written(each.mean)),
          el("td", null, written(each.marginal, signed)),
          shapley && el("td", null, each.shapley ? written(each.shapley, signed) : "–"),
        ),
      ),
    ),
    el(
      "p.dim",
      null,
      `Turns were ${against(why)}, ${why.n} times each, and the episode was played on: ${why.played} episodes. ` +
        `A dot is the mean, a line its 95 % interval, a tick the recorded reward ${num(why.reward)}; orange: better without. `,
      !why.exact && "The unchanged episode did not come out as recorded. ",
      why.notes.at(-1),
    ),
  )
}
