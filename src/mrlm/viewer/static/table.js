// The table of episodes: only the rows in sight are elements, so that 100,000 can be listed.

import { brush, rangeOf, withRange, without } from "viewer/brush.js"
import { count, el, go, link, num } from "viewer/dom.js"
import { FLAGS, isEval, list, meta, onGrowth } from "viewer/data.js"
import { HELP, search } from "viewer/filter.js"

const ROW = 26 // times the number of rows must stay below the browser's highest box (17 million px)
const COLUMNS = [
  ["step", ".num"],
  ["kind", ""],
  ["task", ""],
  ["reward", ".num"],
  ["tokens", ".num"],
  ["marks", ""],
  ["messages", ""],
]
const SORTED = ["step", "reward", "tokens"]

/** The marks of an episode as words. */
export const marks = i =>
  ["cut", "error", "pruned", "lag", "played"].filter(name => list.columns.flags[i] & FLAGS[name])

function line(i, top, on) {
  const c = list.columns
  return el(
    "div.row" + (on ? ".on" : ""),
    {
      role: "row",
      id: "episode" + i,
      style: { top: top + "px" },
      "aria-selected": String(on),
      onclick: () => go("/episode/" + i),
    },
    el("span.num", { role: "gridcell" }, c.step[i]),
    el("span", { role: "gridcell" }, isEval(i) ? "eval" : "train"),
    el(
      "span.c-task",
      { role: "gridcell", title: list.codes.task[c.task[i]] },
      list.codes.task[c.task[i]],
    ),
    el("span.num", { role: "gridcell" }, num(c.reward[i])),
    el("span.num.c-tokens", { role: "gridcell" }, count(c.tokens[i])),
    el(
      "span.c-marks",
      { role: "gridcell" },
      marks(i).map(name => el("span.badge.warn", null, name)),
    ),
    el(
      "span.c-messages",
      { role: "gridcell" },
      el("a", { tabindex: -1, href: "#/episode/" + i }, c.text[i].slice(0, 240) || "–"),
    ),
  )
}

/** The part of the page with filter and table; `query` is the first filter. */
export function table(query, stage) {
  const began = performance.now()
  const input = el("input", {
    type: "search",
    value: query,
    spellcheck: "false",
    "aria-label": "Filter episodes",
    placeholder: "reward<0 and cut and step:100-200, or any text",
    title: HELP,
  })
  const told = el("span.dim", { role: "status" }),
    note = el("p.note")
  const brushes = ["reward", "tokens"].map(name => [
    name,
    brush(name, range => {
      input.value = withRange(input.value, name, range)
      update()
      remember()
    }),
  ])
  const body = el("div.body", { role: "rowgroup" }),
    head = el("div.row.head", { role: "row" })
  const box = el(
    "div.table",
    { tabindex: 0, role: "grid", "aria-label": "Episodes", onscroll: () => draw() },
    head,
    body,
  )
  let found = [],
    at = 0,
    sort = ["step", 1]
  head.append(
    ...COLUMNS.map(([name, kind]) => {
      const cell = el(`span.c-${name}${kind}`, { role: "columnheader" })
      if (!SORTED.includes(name)) cell.append(name)
      else
        cell.append(
          el(
            "button",
            {
              "data-sort": name,
              onclick: () => {
                sort = [name, sort[0] === name ? -sort[1] : 1]
                update()
              },
            },
            name,
          ),
        )
      return cell
    }),
  )
  const draw = () => {
    const tall = box.clientHeight || 480,
      first = Math.max(0, Math.floor(box.scrollTop / ROW) - 6),
      last = Math.min(found.length, first + Math.ceil(tall / ROW) + 12)
    body.replaceChildren(
      ...found.slice(first, last).map((i, k) => line(i, (first + k) * ROW, first + k === at)),
    )
    box.setAttribute("aria-activedescendant", found.length ? "episode" + found[at] : "")
  }
  const find = query =>
    search(stage && !/\bstage:/.test(query) ? `stage:"${stage}" ${query && `(${query})`}` : query)
  // with `keep`, the rows in sight and the chosen one stay where they are
  const update = keep => {
    const start = performance.now(),
      top = Math.floor(box.scrollTop / ROW),
      before = [found[top], found[at]],
      all = find(input.value)
    found = all.found
    const c = list.columns[sort[0]]
    if (sort[0] !== "step" || sort[1] < 0)
      found.sort((a, b) => sort[1] * ((c[a] ?? -Infinity) - (c[b] ?? -Infinity)) || a - b)
    head
      .querySelectorAll("button")
      .forEach(b =>
        b.setAttribute(
          "data-order",
          b.dataset.sort === sort[0] ? (sort[1] > 0 ? "up" : "down") : "",
        ),
      )
    const [shown, chosen] = before.map(i => (keep === true ? found.indexOf(i) : -1))
    at = Math.max(0, chosen)
    body.style.height = found.length * ROW + "px"
    told.textContent = `${count(found.length)} of ${count(meta.shown)} episodes`
    note.textContent = all.notes.join(" ")
    note.hidden = !all.notes.length
    for (const [name, { draw }] of brushes) {
      const range = rangeOf(input.value, name),
        some = range ? find(without(input.value, name)).found : found
      draw(
        some.map(i => list.columns[name][i]).filter(v => v !== null),
        range,
      )
    }
    told.title = meta.filling ? "more are being read" : ""
    box.style.height = Math.min(560, Math.max(3, found.length + 1) * ROW + 2) + "px"
    if (keep !== true) box.scrollTop = 0
    else if (shown >= 0) box.scrollTop += (shown - top) * ROW
    draw()
    document.documentElement.dataset.listed = (performance.now() - start).toFixed(1)
  }
  const remember = () =>
    history.replaceState(
      null,
      "",
      "#/?" +
        new URLSearchParams({ ...(stage && { stage }), ...(input.value && { q: input.value }) }),
    )
  let waiting
  input.addEventListener("input", () => {
    clearTimeout(waiting)
    waiting = setTimeout(() => {
      update()
      remember()
    }, 60)
  })
  input.addEventListener("keydown", event => {
    if (event.key === "ArrowDown" || event.key === "Enter") {
      event.preventDefault()
      box.focus()
    }
  })
  box.addEventListener("keydown", event => {
    if (event.target !== box) return
    const by = {
      ArrowDown: 1,
      j: 1,
      ArrowUp: -1,
      k: -1,
      PageDown: 18,
      PageUp: -18,
      Home: -Infinity,
      End: Infinity,
    }[event.key]
    if (event.key === "Enter" && found.length) return go("/episode/" + found[at])
    if (!by) return
    event.preventDefault()
    at = Math.max(0, Math.min(found.length - 1, at + by))
    if (at * ROW < box.scrollTop) box.scrollTop = at * ROW
    else if ((at + 2) * ROW > box.scrollTop + box.clientHeight)
      box.scrollTop = (at + 2) * ROW - box.clientHeight + 4
    draw()
  })
  requestAnimationFrame(() => update())
  onGrowth(box, () => update(true))
  const set = (value, show = true) => {
    input.value = value
    update()
    remember()
    if (show) input.scrollIntoView({ block: "start" })
  }
  const more = el(
    "details.help",
    null,
    el("summary", null, "Filter language"),
    el("p.dim", null, HELP),
  )
  const section = el(
    "section",
    null,
    el("div.tools", null, el("h2", null, "Episodes"), input, told),
    note,
    more,
    el(
      "div.brushes",
      null,
      brushes.map(([, { box }]) => box),
    ),
    box,
    meta.shortened && el("p.dim", null, "Search covers the first 4,000 characters of an episode."),
  )
  document.documentElement.dataset.table = (performance.now() - began).toFixed(1)
  return { section, set }
}
