// The replay bar of a turn: the episode is played again from here. A page of `mrlm view` plays; a
// file shows the command.

import { addRows, list, meta } from "viewer/data.js"
import { el, link, num, plain, signed } from "viewer/dom.js"
import { play } from "viewer/source.js"

const quoted = text => (/^[\w./:=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`)

/** The command that plays a request. */
export function command(folder, { id, step, agent, turn, n, greedy, weights, message }) {
  const words = ["mrlm", "replay", folder, "--episode", id, "--step", String(step)]
  words.push("--from", `${agent}:${turn}`, "--n", String(n))
  if (greedy) words.push("--greedy")
  if (weights) words.push("--weights", weights)
  if (message !== null) words.push("--message", message)
  return words.map(quoted).join(" ")
}

const last = (row, agent, place) => {
  const record = row.agents?.[agent],
    at = record?.turns?.[place]?.message
  return at === null || at === undefined ? "" : (record.messages[at]?.content ?? "")
}

/** Original and branches: reward, difference, the text of the turn. */
function results(turn, row, first, rows) {
  const line = (name, each) =>
    el(
      "tr",
      null,
      el("td", null, name),
      el("td.num", null, num(each.reward)),
      el("td.num", null, each === row ? "" : signed(each.reward - row.reward)),
      el("td", null, last(each, turn.agent, turn.place)),
    )
  return el(
    "table.branches",
    null,
    el(
      "tr",
      null,
      ["", "reward", "difference", turn.agent].map(name => el("th", null, name)),
    ),
    line("original", row),
    rows.map((each, k) => line(link("/episode/" + (first + k), `branch ${k + 1}`), each)),
  )
}

/** The bar of a turn of episode `i`. */
export function playBar(i, row, turn) {
  const stage = meta.stages.find(s => s.name === list.codes.stage[list.columns.stage[i]])
  const played = row.environment && stage?.config?.environments?.length
  if (!stage?.folder || !turn.agent || !played) return null // rows, and live objects
  const n = el("input", { type: "number", min: 1, max: 64, value: 4, "aria-label": "branches" }),
    greedy = el("input", { type: "checkbox" }),
    weights = el(
      "select",
      { "aria-label": "weights" },
      el("option", { value: "" }, "as played"),
      (stage.saved ?? []).map(name => el("option", null, name)),
    ),
    edit = el("input", { type: "checkbox" }),
    text = el("textarea", { rows: 3, hidden: true, "aria-label": "edited message" }),
    line = el("code.command", { tabindex: 0 }),
    shown = el("div", { role: "status" })
  text.value = turn.text
  const request = () => ({
    stage: stage.name,
    id: row.id,
    step: row.step,
    agent: turn.agent,
    turn: turn.place,
    n: Math.max(1, Math.min(64, Math.round(n.valueAsNumber) || 1)),
    greedy: greedy.checked && !edit.checked,
    weights: weights.value || null,
    message: edit.checked ? text.value : null,
  })
  const update = () => {
    text.hidden = !edit.checked
    greedy.disabled = edit.checked // the turn is one or the other
    line.textContent = plain(command(stage.folder, request()))
  }
  const go = async event => {
    event.preventDefault()
    button.disabled = true
    const began = performance.now()
    const tell = () => {
      shown.textContent = `playing, ${Math.round((performance.now() - began) / 1000)} s`
    }
    tell()
    const tick = setInterval(tell, 500)
    try {
      const found = await play(request()),
        first = addRows(found)
      shown.replaceChildren(results(turn, row, first, found.rows))
    } catch (error) {
      shown.replaceChildren(el("pre.error", null, error.message))
    } finally {
      clearInterval(tick)
      button.disabled = false
    }
  }
  const button = el("button", null, "play")
  const form = el(
    "form.play",
    { oninput: update, onsubmit: go },
    el("label", null, "branches ", n),
    el("label", null, greedy, " greedy"),
    el("label", null, "weights ", weights),
    el("label", null, edit, " edit the message"),
    play && button,
    text,
    line,
    shown,
  )
  const bar = el("details.bar", null, el("summary", null, "Play from here"))
  bar.addEventListener("toggle", () => {
    if (bar.children.length === 1) {
      bar.append(form)
      update()
    }
  })
  return bar
}
