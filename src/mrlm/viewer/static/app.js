// The frame: addresses behind `#` choose a page; a page is made whole before it is shown.

import { comparePage } from "viewer/compare.js"
import { arrival, list, load, meta, onGrowth } from "viewer/data.js"
import { count, el, link } from "viewer/dom.js"
import { episodePage } from "viewer/episode.js"
import { groupPage } from "viewer/group.js"
import { runPage } from "viewer/run.js"

const main = el("main"),
  trail = el("nav.trail", { "aria-label": "Place" })

function crumbs(page, number) {
  const c = list.columns,
    parts = [link("/", meta.title)]
  const i = page === "episode" ? number : c.group.indexOf(number)
  if (page === "compare") parts.push(el("span", { "aria-current": "page" }, "compare"))
  else if (page && i >= 0 && i < list.length) {
    const stage = list.codes.stage[c.stage[i]]
    parts.push(
      link(
        "/?" + new URLSearchParams({ ...(stage && { stage }), q: `step:${c.step[i]}` }),
        `step ${c.step[i]}`,
      ),
    )
    parts.push(
      page === "episode"
        ? link("/group/" + c.group[i], "group")
        : el("span", { "aria-current": "page" }, "group"),
    )
    if (page === "episode") parts.push(el("span", { "aria-current": "page" }, "episode"))
  }
  trail.replaceChildren(
    ...parts.flatMap((part, k) =>
      k ? [el("span.dim", { "aria-hidden": "true" }, "/"), part] : [part],
    ),
  )
}

let turn = 0
async function show(first) {
  const mine = ++turn,
    [path, query = ""] = location.hash.slice(1).split("?"),
    [, page = "", place = ""] = path.split("/"),
    number = /^\d+$/.test(place) ? Number(place) : -1
  if (page === "episode") await arrival(() => number < list.length)
  if (page === "group") await arrival(() => number < list.codes.group.length)
  if (page === "compare") await arrival(() => false) // of all evaluations that are there
  const made =
    page === "episode"
      ? await episodePage(number)
      : page === "group"
        ? await groupPage(number)
        : page === "compare"
          ? await comparePage(new URLSearchParams(query))
          : runPage(new URLSearchParams(query))
  if (mine !== turn) return // another page was asked for while this one was unpacked
  crumbs(["episode", "group", "compare"].includes(page) ? page : "", number)
  main.replaceChildren(...made.flat(Infinity).filter(Boolean))
  scrollTo(0, 0)
  if (first !== true) {
    main.tabIndex = -1
    ;(main.querySelector("[data-focus]") ?? main).focus({ preventScroll: true })
  }
  document.documentElement.dataset.page = location.hash
}

/** How many episodes there are, and whether the page follows the run. */
function state() {
  const box = el("span.dim.right", { role: "status" })
  const tell = () => {
    const { state, filling } = meta
    box.textContent = [
      `${count(meta.shown)} episodes`,
      filling ? "more are being read" : state,
      "MRLM",
    ]
      .filter(Boolean)
      .join(" · ")
  }
  tell()
  onGrowth(box, tell)
  return box
}

async function start() {
  await load()
  document.getElementById("app").replaceChildren(el("header.frame", null, trail, state()), main)
  addEventListener("hashchange", show)
  await show(true)
  requestAnimationFrame(() =>
    setTimeout(() => {
      document.documentElement.dataset.ready = performance.now().toFixed(0)
    }),
  )
}

start().catch(error => {
  document.getElementById("app").textContent =
    "This page cannot be opened (is it complete?): " + error
  console.error(error)
})
