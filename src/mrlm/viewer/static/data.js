// The data of the page, as its source gives it: at once, or in pieces that follow a run.

import { bytes } from "viewer/bytes.js"
import * as source from "viewer/source.js"

export let meta, list
/** Bits of `list.columns.flags`; the order is that of listing.py. */
export const FLAGS = {
  cut: 1,
  error: 2,
  trained: 4,
  eval: 8,
  greedy: 16,
  pruned: 32,
  tokens: 64,
  lag: 128,
  played: 256,
  replayed: 512,
}
export const isEval = i => (list.columns.flags[i] & FLAGS.eval) > 0

const CODED = ["stage", "environment", "task", "status", "group", "policies"]
const NAMES = [...CODED, "step", "id", "reward", "tokens", "turns", "flags", "text"]
const table = (names, make) => Object.fromEntries(names.map(name => [name, make()]))
const empty = () => ({
  columns: table(NAMES, () => []),
  codes: table(CODED, () => []),
  places: table(CODED, () => new Map()), // column -> value -> its code
  rewards: new Map(),
  metrics: new Map(),
  agents: [],
  length: 0,
  chunks: [], // [number of the first episode, number of episodes, place in the source]
  known: new Map(), // chunk -> its rows
})

const push = (to, from) => {
  for (const value of from) to.push(value) // a spread of many arguments fails
}

/** Adds columns by name; a column has null where a row has no value. */
function extend(columns, found, before, after) {
  for (const [name, values] of found) {
    if (!columns.has(name)) columns.set(name, new Array(before).fill(null))
    push(columns.get(name), values)
  }
  for (const column of columns.values()) while (column.length < after) column.push(null)
}

function addEpisodes(found, chunks) {
  const before = list.length,
    size = found.columns.step.length
  for (const [name, values] of Object.entries(found.codes)) {
    const known = list.codes[name],
      places = list.places[name]
    const codes = values.map(value => {
      if (!places.has(value)) places.set(value, known.push(value) - 1)
      return places.get(value)
    })
    found.columns[name] = found.columns[name].map(code => codes[code])
  }
  for (const [name, values] of Object.entries(found.columns)) push(list.columns[name], values)
  list.length = meta.shown = before + size
  extend(list.rewards, found.rewards, before, list.length)
  extend(list.metrics, found.metrics, before, list.length)
  list.agents = [...list.rewards.keys()]
  let at = before
  for (const [count, place] of chunks) {
    list.chunks.push([at, count, place])
    at += count
  }
}

function addStage({ name, metrics, about, alarms, ...rest }) {
  let stage = meta.stages.find(s => s.name === name)
  if (!stage) {
    stage = { name, metrics: new Map(), about: new Map(), alarms: [], config: {}, config_text: "" }
    meta.stages.push(stage)
  }
  Object.assign(stage, rest)
  push(stage.alarms, alarms ?? [])
  for (const [metric, text] of about ?? []) stage.about.set(metric, text)
  if (metrics?.length) {
    const before = stage.metrics.get("step")?.length ?? 0
    extend(stage.metrics, metrics, before, before + metrics[0][1].length)
  }
}

let due,
  stale = false
/** Adds a piece of data; pages that are shown follow soon. */
function receive({ reset, state, meta: more, stages, list: found, chunks }) {
  stale ||= reset === true
  if (!meta || (stale && stages)) {
    // what was written again takes the place of what there was
    stale = false
    list = empty()
    meta = {
      title: "",
      shown: 0,
      total: 0,
      choice: "",
      stages: [],
      pieces: new Map(),
      tokenizers: new Map(),
      ...meta,
    }
    Object.assign(meta, { shown: 0, stages: [] }) // token texts of a run stay
  }
  if (state) meta.state = state
  const { pieces, tokenizers, ...rest } = more ?? {}
  Object.assign(meta, rest)
  if (tokenizers) meta.tokenizers = new Map(tokenizers)
  for (const [policy, table] of pieces ?? []) meta.pieces.set(policy, new Map(table))
  for (const stage of stages ?? []) addStage(stage)
  if (found) addEpisodes(found, chunks)
  due ??= setTimeout(
    () => {
      const began = performance.now()
      due = undefined
      dispatchEvent(new Event("grown"))
      pause = 4 * (performance.now() - began) // most of the time is for the reader
    },
    Math.max(100, pause),
  )
}
let pause = 0

/** Calls a function when data have arrived, as long as the node is in the page. */
export function onGrowth(node, react) {
  const listen = () => (node.isConnected ? react() : removeEventListener("grown", listen))
  addEventListener("grown", listen)
}

/** Loads the list of episodes and the settings; episodes follow on demand. */
export const load = () => source.start(receive)

/** Waits until a condition holds, or nothing more is to come for now. */
export const arrival = holds =>
  new Promise(done => {
    const look = () => {
      if (!holds() && meta.filling) return
      removeEventListener("grown", look)
      done()
    }
    addEventListener("grown", look)
    look()
  })

/** Adds episodes that were played for this page. Returns the number of the first. */
export function addRows({ rows, list: found }) {
  const first = list.length
  list.known.set(list.chunks.length, Promise.resolve(rows))
  addEpisodes(found, [[rows.length, null]])
  receive({})
  return first
}

const texted = new Map() // stage -> its vocabulary is there
function words(i) {
  const stage = list.codes.stage[list.columns.stage[i]]
  if (source.vocabulary && !texted.has(stage))
    texted.set(
      stage,
      source.vocabulary(stage).then(found => {
        for (const [policy, table] of found) meta.pieces.set(policy, table)
      }),
    )
  return texted.get(stage)
}

const KEPT = 24 // chunks that are kept unpacked
/** The row of an episode as `episodes.jsonl` has it. */
export async function episode(i) {
  const { chunks, known } = list
  let chunk = 0
  for (let high = chunks.length; high - chunk > 1;) {
    const middle = (high + chunk) >> 1
    if (chunks[middle][0] <= i) chunk = middle
    else high = middle
  }
  const [first, count, place] = chunks[chunk]
  if (!known.has(chunk)) {
    const rows = source.rows(place, count)
    rows.catch(() => known.delete(chunk))
    known.set(chunk, rows)
    const old = [...known.keys()].filter(k => chunks[k][2] !== null)
    if (old.length > KEPT) known.delete(old[0])
  }
  await words(i)
  return (await known.get(chunk))[i - first]
}

/** The episodes of a group, in their order. */
export function siblings(group) {
  const found = []
  for (let i = 0; i < list.length; i++) if (list.columns.group[i] === group) found.push(i)
  return found
}

function half(u) {
  // for browsers without Float16Array
  const e = (u >> 10) & 31,
    f = u & 1023,
    s = u >> 15 ? -1 : 1
  return e === 31
    ? f
      ? NaN
      : s * Infinity
    : e
      ? s * 2 ** (e - 15) * (1 + f / 1024)
      : s * f * 2 ** -24
}

/** A column of numbers: `f2:`, `f4:`, `u2:` or `u4:` and base64, or one number for all tokens. */
export function column(packed, length) {
  if (packed === null || packed === undefined) return null
  if (typeof packed === "number") return new Array(length).fill(packed)
  if (Array.isArray(packed)) return packed
  const { buffer } = bytes(packed.slice(3)),
    kind = packed.slice(0, 2)
  if (kind === "f4") return new Float32Array(buffer)
  if (kind === "u2") return new Uint16Array(buffer)
  if (kind === "u4") return new Uint32Array(buffer)
  return Float32Array.from(new Uint16Array(buffer), half)
}

/** The text of each token, or null where the tokenizer is unknown. A character may take several
 *  tokens; it belongs to the last of them. */
export function texts(vocabulary, ids) {
  const table = meta.pieces.get(vocabulary)
  if (!table || !ids) return null
  const decoder = new TextDecoder(),
    found = []
  for (const id of ids) {
    const piece = table.get(id)
    if (piece === undefined) found.push(`⟨${id}⟩`)
    else
      found.push(
        decoder.decode(
          Uint8Array.from(piece, c => c.charCodeAt(0)),
          { stream: true },
        ),
      )
  }
  const rest = decoder.decode()
  if (rest && found.length) found[found.length - 1] += rest
  return found
}

const minus = (a, b, map = x => x) => (a && b ? Array.from(a, (x, i) => map(x - b[i])) : null)

/** What tokens can be painted by: a name, its column, and whether zero is its middle. */
export const PAINTS = {
  advantage: { signed: true, about: "advantage", of: c => c.advantages },
  "log-prob": {
    about: "−log-prob of the sampler, nats",
    of: c => c.logprobs && Array.from(c.logprobs, x => -x),
  },
  entropy: { about: "entropy, nats", of: c => c.entropies },
  ratio: {
    signed: true,
    about: "log ratio of the last pass to the old policy",
    of: c => minus(c.last_logprobs, c.old_logprobs ?? c.logprobs),
  },
  "ref KL": {
    signed: true,
    about: "log-prob less the reference's",
    of: c => minus(c.old_logprobs ?? c.logprobs, c.ref_logprobs),
  },
  mismatch: {
    signed: true,
    about: "trainer's log-prob less the sampler's",
    of: c => minus(c.old_logprobs, c.logprobs),
  },
  value: { signed: true, about: "value", of: c => c.values },
  return: { signed: true, about: "return", of: c => c.returns },
}

/** The turns of an episode in the order they were sampled, with unpacked tokens and columns. */
export function turnsOf(row, evaluation) {
  const found = []
  for (const [speaker, [agent, record]] of Object.entries(row.agents ?? {}).entries()) {
    // policies of different runs may have the same name
    const vocabulary = row.run ? `${row.run}\n${record.policy}` : record.policy
    let known = [],
      last = -1
    for (const [place, turn] of (record.turns ?? []).entries()) {
      const ids = turn.ids?.length ? column(turn.ids) : null,
        length = ids?.length ?? turn.tokens ?? 0
      const columns = Object.create(null)
      for (const [name, packed] of Object.entries(turn.columns ?? {}))
        columns[name] = column(packed, length)
      if (!columns.advantages && turn.advantage !== null && turn.advantage !== undefined)
        columns.advantages = column(turn.advantage, length)
      let prompt = null,
        shared = 0
      if (turn.prompt && ids) {
        shared = turn.prompt[0]
        prompt = [...known.slice(0, shared), ...column(turn.prompt[1])]
        known = [...prompt, ...ids]
      }
      const own = record.messages
        .map((m, k) => [m, k])
        .filter(([m]) => m.role === "assistant" && m.agent === agent)
      const observed = turn.finish_reason === "observation",
        at = observed ? null : (turn.message ?? own[place]?.[1] ?? null)
      const read = record.messages.slice(last + 1, at ?? last + 1)
      found.push({
        ...turn,
        agent,
        place,
        policy: record.policy,
        vocabulary,
        ids,
        length,
        columns,
        prompt,
        shared,
        read,
        at,
        step: turn.step ?? place,
        order: turn.order ?? speaker, // earlier records have no order
        before: record.messages.slice(0, at ?? 0),
        text: record.messages[at]?.content ?? turn.text ?? "",
        calls: record.messages[at]?.tool_calls ?? [],
        hatched: evaluation || turn.trained === false,
        words: texts(vocabulary, ids),
      })
      if (at !== null) last = at
    }
  }
  return found.sort((a, b) => a.step - b.step || a.order - b.order)
}
