// Ratings of players over time, and their pay-off matrix.

import { chart } from "viewer/charts.js"
import { el, grid, num, shade } from "viewer/dom.js"

/** A table of numbers as a heat map: `cell(row, column)` is {value, about, text} or null. */
export function heatmap({ caption, corner, rows, columns, cell, painted }) {
  return el(
    "div.scroll.heat",
    { tabindex: 0, role: "region", "aria-label": caption },
    el("p.dim", null, caption),
    grid(
      "table",
      [el("td", null, corner), ...columns],
      rows.map((r, i) =>
        el(
          "tr",
          null,
          el("th", { scope: "row" }, r),
          columns.map((c, j) => {
            const found = cell(i, j)
            const paint = found && shade(painted(found.value))
            return el(
              "td" + (paint ? "." + paint : "") + (found?.kind ? "." + found.kind : ""),
              { title: found?.about },
              found ? found.text : el("span.dim", null, "–"),
            )
          }),
        ),
      ),
    ),
  )
}

/** The rating of each policy at its evaluations, with its interval; dots are moving ratings. */
export function ratings(stage, colours, options) {
  const { metrics } = stage,
    x = metrics.get("step") ?? []
  const series = [...metrics.keys()]
    .map(name => name.match(/^rating\/(.+)$/)?.[1])
    .filter(name => name && !/\/(low|high|moving)$/.test(name))
    .map(name => ({
      name,
      colour: colours(name),
      y: metrics.get("rating/" + name),
      low: metrics.get(`rating/${name}/low`),
      high: metrics.get(`rating/${name}/high`),
      points: true,
    }))
    .filter(s => s.y.some(v => v !== null))
  return (
    series.length > 0 &&
    chart({
      title: "Rating",
      about: `of the policies at each evaluation, with 95 % intervals; ${stage.ratings?.anchor ?? "the first player"} is 1000`,
      x,
      series,
      ...options,
    })
  )
}

const MOST = 24

/** Mean scores of all players against one another; blue is above one half. */
export function payoffs(stage) {
  const found = stage.ratings
  if (!found?.payoffs?.length) return null
  const all = found.players.map(p => p.name),
    every = Math.ceil(all.length / MOST)
  const shown = found.players.filter((_, k) => (all.length - 1 - k) % every === 0)
  const games = new Map()
  for (const { player, other, games: n, score } of found.payoffs) {
    games.set(JSON.stringify([player, other]), { n, score })
    games.set(JSON.stringify([other, player]), { n, score: 1 - score })
  }
  const label = p => [p.name, " ", el("span.dim", null, num(Math.round(p.rating)))]
  return el(
    "details.payoffs",
    { open: true },
    el("summary", null, "Pay-offs between players"),
    heatmap({
      caption: `Mean score of the row against the column (1 a win, ½ a draw)${every > 1 ? `; one player in ${every} is shown` : ""}`,
      corner: el("span.dim", null, "rating"),
      rows: shown.map(label),
      columns: shown.map(p => p.name),
      painted: v => 2 * v - 1,
      cell: (i, j) => {
        const one = shown[i].name,
          other = shown[j].name,
          tally = games.get(JSON.stringify([one, other]))
        return (
          tally && {
            value: tally.score,
            text: num(tally.score, 2),
            about: `${one} against ${other}: ${num(tally.score)} in ${num(tally.n)} games`,
          }
        )
      },
    }),
  )
}
