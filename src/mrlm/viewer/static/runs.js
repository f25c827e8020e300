// The page of a folder with several runs: each opens.

import { count, el, grid, num } from "viewer/dom.js"
import { runs } from "viewer/source.js"

const when = time =>
  time
    ? new Date(1000 * time).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" })
    : "not yet"

function line({ name, stages, changed, last }) {
  const cells = [
    el("a", { href: `/runs/${encodeURIComponent(name)}/` }, name),
    stages > 1 ? `${stages} stages` : "",
    last.step === undefined ? "–" : count(last.step),
    num(last["reward/mean"]),
    num(last["eval/reward/mean"]),
    when(changed),
  ]
  return el(
    "tr",
    null,
    cells.map((cell, k) => el(k > 1 && k < 5 ? "td.num" : "td", null, cell)),
  )
}

async function draw() {
  const found = await runs()
  const names = ["run", "", "step", "reward", "held out", "written"]
  document.getElementById("app").replaceChildren(
    el(
      "main",
      null,
      el("h1", null, document.title.replace(/ · MRLM$/, "")),
      el("p.dim", null, `${count(found.length)} runs, the newest first`),
      grid(
        "table.runs",
        names.map((name, k) => el(k > 1 && k < 5 ? "th.num" : "th", null, name)),
        found.map(line),
      ),
    ),
  )
  document.documentElement.dataset.ready = performance.now().toFixed(0)
}

const again = () =>
  draw()
    .catch(error => {
      document.getElementById("app").textContent = String(error)
    })
    .finally(() => setTimeout(again, 5000))
again()
