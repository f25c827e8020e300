// What deserves a mark at a turn: cut, frozen, stale, without advantage, clipped; and which tokens
// the loss clips, by the settings of the run.

import { badge, count, num } from "viewer/dom.js"

/** Losses whose ratio is that of a single token; `sequence` and `gspo` clip whole sequences. */
const TOKENWISE = ["ppo", "dapo", "bnpo", "grpo", "dr_grpo"]

/** The bounds of a stage's loss as its settings have them. */
export function boundsOf(config) {
  const own = config.algorithm?.clip_range
      ? config.algorithm
      : (config[config.training?.algorithm] ?? {}),
    { loss_type: loss, clip_range: range } = own
  const found = { ratio: null, weight: null }
  if (loss === "cispo")
    found.ratio =
      own.cispo_cap_mode === "relative"
        ? { low: 1 - range, high: 1 + (own.clip_range_high ?? range), always: true }
        : { low: 0, high: own.cispo_cap ?? Infinity, always: true }
  else if (range && own.mode !== "bon" && (TOKENWISE.includes(loss) || loss === "turn"))
    found.ratio = {
      low: 1 - range,
      high: 1 + (own.clip_range_high ?? range),
      turn: loss === "turn",
    }
  if (["auto", "token", "icepop"].includes(own.importance))
    found.weight = {
      low: own.importance === "icepop" ? own.importance_floor : 0,
      high: own.importance_cap,
      auto: own.importance === "auto",
      last: loss === "reinforce",
    }
  return found
}

const PLAIN = ["max_new_tokens", "temperature", "stop"]
/** A record has the sampling parameters that are not off. */
const truncates = ({ sampling = {}, lag }, ratio) =>
  lag > 0 ||
  (ratio &&
    sampling.temperature !== 0 &&
    Object.keys(sampling).some((name) => !PLAIN.includes(name)))

/**
 * What the loss clips of a turn: for each token nothing or a reason. The ratio is that of the last
 * pass; the gradient of the surrogate is cut only on the side that the advantage favours.
 */
export function clippedOf(turn, { ratio, weight }) {
  const { logprobs, old_logprobs: old, last_logprobs: last, advantages } = turn.columns,
    found = new Array(turn.length).fill("")
  if (turn.hatched || !turn.ids) return found
  const before = old ?? logprobs
  if (ratio && last && before && advantages) {
    const logs = Array.from(last, (v, i) => v - before[i])
    const whole = ratio.turn
      ? Math.exp(
          Math.max(
            -20,
            Math.min(
              3,
              logs.reduce((a, b) => a + (Number.isFinite(b) ? b : 0), 0),
            ),
          ),
        )
      : null
    logs.forEach((log, i) => {
      const r = whole ?? Math.exp(log),
        a = advantages[i]
      if (r > ratio.high && (ratio.always || a > 0))
        found[i] = `ratio ${num(r)} above ${num(ratio.high)}`
      else if (r < ratio.low && (ratio.always || a < 0))
        found[i] = `ratio ${num(r)} below ${num(ratio.low)}`
    })
  }
  const compared = weight?.last ? last : old
  if (weight && compared && logprobs && (!weight.auto || truncates(turn, !weight.last)))
    for (let i = 0; i < turn.length; i++) {
      const w = Math.exp(compared[i] - logprobs[i])
      if (w > weight.high || w < weight.low)
        found[i] ||=
          `importance weight ${num(w)} ${w > weight.high ? "above" : "below"} ${num(w > weight.high ? weight.high : weight.low)}`
    }
  return found
}

/** The badges of a turn; `frozen` tells whether its policy is never trained. */
export function badges(turn, frozen) {
  const found = [],
    clipped = turn.clipped?.filter(Boolean).length ?? 0
  if (turn.finish_reason === "length")
    found.push(badge("cut", "the limit of tokens ended it", "warn"))
  if (turn.finish_reason === "abort") found.push(badge("aborted", "sampling was aborted", "warn"))
  if (frozen) found.push(badge("frozen", "its policy is not trained in this run"))
  else if (turn.trained === false)
    found.push(badge("not trained", "context only: an excluded agent, or a copy in another branch"))
  if (turn.advantage === 0)
    found.push(badge("zero advantage", "it does not move the weights by its advantage"))
  if (turn.lag)
    found.push(
      badge(
        `stale, lag ${turn.lag}`,
        "updates of the policy between sampling and training",
        "warn",
      ),
    )
  if (clipped)
    found.push(
      badge(
        `clipped ${count(clipped)} of ${count(turn.length)}`,
        "tokens whose ratio or importance weight is outside the bounds of the loss; they are underlined",
        "warn",
      ),
    )
  return found
}
