// The filter language of the table: `reward<0 and agent:solver and cut and step:100-200`.
// It is that of record/filters.py, with `group:`, which only a page has.

import { FLAGS, list } from "viewer/data.js"

const WORD = /\s*("[^"]*"?|\(|\)|(?:[^\s()"]|"[^"]*")+)/y
const NUMBERS = ["step", "reward", "tokens", "turns"]
const CODES = {
  env: "environment",
  environment: "environment",
  task: "task",
  status: "status",
  stage: "stage",
}
const COMPARE = {
  "<": (a, b) => a < b,
  ">": (a, b) => a > b,
  "<=": (a, b) => a <= b,
  ">=": (a, b) => a >= b,
  "=": (a, b) => a === b,
  "!=": (a, b) => a !== b,
}
export const HELP = `Fields: ${[...NUMBERS, "AGENT.reward", "AGENT/COMPONENT"].join(", ")} with < <= = != >= >; step:10-20; agent:, policy:, id:, ${Object.keys(CODES).join(":, ")}: with a name. Marks: ${[...Object.keys(FLAGS), "train", "failed"].join(", ")}. Joined by and, or, not, ( ). Anything else is searched in the messages; "quotes" keep words together.`

const searched = word => {
  const lowered = (list.lowered ??= []),
    texts = list.columns.text
  while (lowered.length < list.length) lowered.push(texts[lowered.length].toLowerCase())
  const part = word.toLowerCase()
  return i => lowered[i].includes(part)
}

function numbers(name) {
  if (NUMBERS.includes(name)) return list.columns[name]
  return name.endsWith(".reward") ? list.rewards.get(name.slice(0, -7)) : list.metrics.get(name)
}

function coded(name, holds) {
  const hits = new Set()
  list.codes[name].forEach((value, code) => {
    if (holds(value)) hits.add(code)
  })
  return i => hits.has(list.columns[name][i])
}

function distance(one, other) {
  let row = Array.from({ length: other.length + 1 }, (_, i) => i)
  for (let i = 1; i <= one.length; i++) {
    const next = [i]
    for (let j = 1; j <= other.length; j++)
      next.push(Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (one[i - 1] !== other[j - 1])))
    row = next
  }
  return row.at(-1)
}

/** `No agent is called slover; did you mean solver?` */
function unknown(what, word, names) {
  const most = Math.max(1, Math.floor(word.length / 3)),
    [near] = names
      .filter(name => distance(word, name) <= most)
      .sort((a, b) => distance(word, a) - distance(word, b))
  return `No ${what} is called ${word}` + (near ? `; did you mean ${near}?` : ".")
}

/** A note where no episode has the name that a field asks for. */
function check(name, part, notes) {
  const names = {
    agent: () => [...list.rewards.keys()],
    policy: () => list.codes.policies.flatMap(value => value.split("\n")),
    env: () => list.codes.environment,
    environment: () => list.codes.environment,
    stage: () => list.codes.stage,
  }[name]?.()
  if (list.length && names && !names.includes(part))
    notes.push(unknown(name, part, [...new Set(names)]))
}

function atom(word, notes) {
  if (word.startsWith('"')) return searched(word.replaceAll('"', ""))
  const compared = word.match(/^([^<>=!:]+)(<=|>=|!=|<|>|=)(-?(?:\d+\.?\d*|\.\d+)(?:e-?\d+)?)$/i)
  if (compared) {
    const column = numbers(compared[1]),
      holds = COMPARE[compared[2]],
      value = Number(compared[3])
    if (column) return i => column[i] !== null && holds(column[i], value)
    const names = [...NUMBERS, ...list.metrics.keys()]
    for (const agent of list.rewards.keys()) names.push(agent + ".reward")
    notes.push(unknown("number", compared[1], names) + " It was searched as text.")
  }
  const range = word.match(/^(step|reward|tokens|turns):(-?\d+\.?\d*)(?:-(-?\d+\.?\d*))?$/)
  if (range) {
    const column = list.columns[range[1]],
      low = +range[2],
      high = range[3] === undefined ? low : +range[3]
    return i => column[i] !== null && column[i] >= low && column[i] <= high
  }
  const [, name, quoted] = word.match(/^(\w+):(.+)$/s) ?? [],
    part = quoted?.replaceAll('"', "")
  check(name, part, notes)
  if (Object.hasOwn(CODES, name ?? "")) return coded(CODES[name], value => value === part)
  if (name === "policy") return coded("policies", value => value.split("\n").includes(part))
  if (name === "group") return i => list.columns.group[i] === Number(part)
  if (name === "id") return i => list.columns.id[i] === part
  if (name === "kind") return i => (list.columns.flags[i] & FLAGS.eval) > 0 === (part === "eval")
  if (name === "agent") {
    const column = list.rewards.get(part)
    return i => column !== undefined && column[i] !== null
  }
  const mark = word.toLowerCase()
  if (mark === "train") return i => (list.columns.flags[i] & FLAGS.eval) === 0
  if (Object.hasOwn(FLAGS, mark)) return i => (list.columns.flags[i] & FLAGS[mark]) > 0
  if (mark === "failed") return i => (list.columns.flags[i] & FLAGS.error) > 0
  if (name) {
    const note = unknown("field", name, ["agent", "policy", "id", ...Object.keys(CODES)])
    if (note.endsWith("?")) notes.push(note + " It was searched as text.")
  }
  return searched(word)
}

/** The episodes that a query finds, and notes on what was not understood. */
export function search(query) {
  const words = [],
    notes = []
  WORD.lastIndex = 0
  for (let hit; (hit = WORD.exec(query));) words.push(hit[1])
  let at = 0
  const any = () => {
    const tests = [all()]
    while (words[at]?.toLowerCase() === "or") {
      at++
      tests.push(all())
    }
    return tests.length === 1 ? tests[0] : i => tests.some(test => test(i))
  }
  const all = () => {
    const tests = []
    while (at < words.length && words[at] !== ")" && words[at].toLowerCase() !== "or") {
      if (words[at].toLowerCase() === "and") at++
      else tests.push(one())
    }
    return i => tests.every(test => test(i))
  }
  const one = () => {
    const word = words[at++]
    if (word?.toLowerCase() === "not" && at < words.length) {
      const test = one()
      return i => !test(i)
    }
    if (word === "(") {
      const test = any()
      if (words[at] === ")") at++
      return test
    }
    return atom(word ?? "", notes)
  }
  let test = any()
  while (at < words.length) {
    at++
    const first = test,
      next = any()
    test = i => first(i) && next(i)
  }
  const found = []
  for (let i = 0; i < list.length; i++) if (test(i)) found.push(i)
  return { found, notes }
}
