// Evaluations, the tasks that two of them share, and how many of these flipped.

import { FLAGS, isEval, list, meta } from "viewer/data.js"

/** Components that say whether an episode passed, by the names that environments give them. */
const PASSED = ["correct", "solved", "passed", "success", "won"]

/** All evaluations: {stage, step, address, episodes}. */
export function evaluations() {
  const c = list.columns,
    found = (list.evaluations ??= { next: 0, by: new Map() }) // of the episodes so far
  for (; found.next < list.length; found.next++) {
    const i = found.next
    if (!isEval(i)) continue
    const stage = list.codes.stage[c.stage[i]],
      address = stage ? `${stage}@${c.step[i]}` : String(c.step[i])
    if (!found.by.has(address))
      found.by.set(address, { stage, step: c.step[i], address, episodes: [] })
    found.by.get(address).episodes.push(i)
  }
  return [...found.by.values()]
}

/** The evaluation of an address: one by stage and step, or the last one of a stage; without any, a
 *  stage alone. */
export function sideOf(address, known) {
  const exact = known.find(e => e.address === address) ?? known.findLast(e => e.stage === address)
  if (exact) return exact
  const stage = meta.stages.find(s => s.name === address)
  return stage && { stage: stage.name, step: null, address, episodes: [] }
}

/** Environment, task and place among its repeats -> episode. */
function byTask({ episodes }) {
  const c = list.columns,
    found = new Map(),
    seen = new Map()
  for (const i of episodes) {
    const task = `${c.environment[i]}/${c.task[i]}`,
      place = seen.get(task) ?? 0
    seen.set(task, place + 1)
    found.set(`${task}/${place}`, { i, task, place })
  }
  return found
}

/** The tasks of two evaluations: in both as {task, place, a, b}, and how many are in one only. */
export function matched(first, second) {
  const a = byTask(first),
    b = byTask(second),
    pairs = []
  for (const [key, { i, task, place }] of a)
    if (b.has(key)) pairs.push({ task, place, a: i, b: b.get(key).i })
  return { pairs, alone: [a.size - pairs.length, b.size - pairs.length] }
}

/** Components that are 0 or 1 in all these episodes: name -> their columns, one per agent. */
export function outcomes(pairs) {
  const all = pairs.flatMap(p => [p.a, p.b]),
    found = new Map()
  for (const [name, values] of list.metrics) {
    const short = name.slice(name.lastIndexOf("/") + 1),
      known = all.filter(i => values[i] !== null)
    if (!known.length) continue
    if (!found.has(short)) found.set(short, [])
    found.get(short).push(known.every(i => values[i] === 0 || values[i] === 1) ? values : null)
  }
  return new Map([...found].filter(([, columns]) => columns.every(Boolean)))
}

/** The rule that is used where none is chosen. */
export const usual = known => PASSED.find(name => known.has(name)) ?? "change"

/** Whether an episode passed by a rule; null where the rule cannot tell. */
function passed(i, rule, known) {
  const reward = list.columns.reward[i],
    least = rule.match(/^reward>=(.+)$/)
  if (list.columns.flags[i] & FLAGS.error) return null
  if (least) return reward === null ? null : reward >= Number(least[1])
  const values = (known.get(rule) ?? []).map(column => column[i]).filter(v => v !== null)
  return values.length ? values.every(v => v === 1) : null
}

/** Adds to every pair whether `a` and `b` passed, and `flip`: 1 where only `b` did (or its reward
 *  is higher), -1 where only `a` did, null where it cannot be told. */
export function judged(pairs, rule, known) {
  const { reward, flags } = list.columns
  return pairs.map(pair => {
    const [x, y] =
      rule === "change"
        ? [pair.a, pair.b].map(i => (flags[i] & FLAGS.error ? null : reward[i]))
        : [passed(pair.a, rule, known), passed(pair.b, rule, known)]
    return { ...pair, passed: [x, y], flip: x === null || y === null ? null : Math.sign(y - x) }
  })
}

/** Tasks that got better and worse: repeats of a task are not independent, so that they count
 *  together. */
export function byTasks(pairs) {
  const sums = new Map()
  for (const { task, flip } of pairs) sums.set(task, (sums.get(task) ?? 0) + (flip ?? 0))
  const values = [...sums.values()]
  return [values.filter(v => v > 0).length, values.filter(v => v < 0).length, values.length]
}

/** The exact two-sided sign test: the chance of a split at least as uneven if both ways are equally
 *  likely. */
export function signTest(up, down) {
  const n = up + down
  let term = -n * Math.LN2,
    sum = 0
  for (let k = 0; k <= Math.min(up, down); k++) {
    sum += Math.exp(term)
    term += Math.log(n - k) - Math.log(k + 1)
  }
  return Math.min(1, 2 * sum)
}

/** The address of a comparison; `pair` opens a task of it. */
export function comparison(a, b, { pair, ...rest } = {}) {
  const c = list.columns,
    query = { a: a.address, b: b.address, ...rest }
  if (pair)
    Object.assign(query, {
      env: list.codes.environment[c.environment[pair.a]],
      task: list.codes.task[c.task[pair.a]],
      place: pair.place,
    })
  return "/compare?" + new URLSearchParams(query)
}
