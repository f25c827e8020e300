// Elements, addresses and numbers. Every text of the page passes `plain` and becomes a text node:
// text of models is hostile input, and nothing here parses HTML.

const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g

/** The text with control characters and marks that reorder or hide text shown as their codes. */
export const plain = text => text.replace(HIDDEN, c => `⟨${c.charCodeAt(0).toString(16)}⟩`)

const SVG = "http://www.w3.org/2000/svg"

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value)
    else if (name === "style")
      for (const [key, each] of Object.entries(value)) node.style.setProperty(key, each)
    else node.setAttribute(name, value === true ? "" : plain(String(value)))
  }
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue
    node.append(child instanceof Node ? child : document.createTextNode(plain(String(child))))
  }
  return node
}

/** An element: `el("p.dim", {title: "x"}, "text", other)`. */
export function el(kind, props, ...children) {
  const [tag, ...classes] = kind.split(".")
  const node = document.createElement(tag || "div")
  if (classes.length) node.className = classes.join(" ")
  return fill(node, props, children)
}

/** An element of a drawing. */
export const svg = (tag, props, ...children) =>
  fill(document.createElementNS(SVG, tag), props, children)

/** A number in at most four significant digits; a dash where there is none. */
export function num(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–"
  const size = Math.abs(value)
  if (Number.isInteger(value) && size < 1e7) return String(value).replace("-", "−")
  if (size && (size < 10 ** -digits || size >= 1e7)) return value.toExponential(1).replace("-", "−")
  return value
    .toFixed(size >= 100 ? 1 : digits)
    .replace(/\.?0+$/, "")
    .replace("-", "−")
}

/** A number with its sign. */
export const signed = (value, digits = 3) => (value > 0 ? "+" : "") + num(value, digits)
/** A number in three significant digits. */
export const brief = value =>
  value === null || value === undefined
    ? "–"
    : Math.abs(value) >= 1000
      ? count(Math.round(value))
      : num(Number(value.toPrecision(3)))
export const count = value => value.toLocaleString("en")

/** The class that paints a value in -1..1: `p1`..`p10` is blue, `n1`..`n10` orange. */
export const shade = x =>
  Number.isFinite(x) && x
    ? (x > 0 ? "p" : "n") + Math.max(1, Math.min(10, Math.ceil(Math.abs(x) * 10)))
    : ""

/** The colour of an agent, by its place in the run. */
export const colour = place => `var(--agent${place % 6})`

export const go = address => {
  location.hash = address
}
/** The prompt and the answer of a task, folded; nothing where there is no prompt. */
export function taskBox(task) {
  if (!task?.prompt?.length) return null
  return el(
    "details",
    null,
    el("summary", null, "Task"),
    task.prompt.map(m => el("p.message", null, el("b", null, m.role), " ", m.content)),
    task.answer !== undefined &&
      el("p.message", null, el("b", null, "answer"), " ", JSON.stringify(task.answer)),
  )
}

/** A table under a row of heads: what stands in them, or cells that are made already. */
export const grid = (kind, heads, rows) =>
  el(
    kind,
    null,
    el(
      "thead",
      null,
      el(
        "tr",
        null,
        heads.map(head =>
          head instanceof HTMLTableCellElement ? head : el("th", { scope: "col" }, head),
        ),
      ),
    ),
    el("tbody", null, rows),
  )
export const link = (address, ...children) => el("a", { href: "#" + address }, ...children)
export const badge = (text, why, kind = "") =>
  el("span.badge" + (kind && "." + kind), { title: why }, text)
