import type { History } from "../support/report.ts";
import { bars, history } from "./chart.ts";
import { escapeText, number, withUnit } from "./markup.ts";
import { type Area, type Change, type Figure, type Model, modelOf } from "./model.ts";
import { STYLE } from "./style.ts";

/** Changes that are named in the headline; the remainder is counted. */
const NAMED = 8;
/** The limit's place in a row of the overview, percent; what uses more than its end shows stays at the end. */
const TRACK = { limit: 60, end: 98 } as const;

/** One page about all recorded runs, complete in itself: no network, no script. */
export function renderPage(runs: readonly History[]): string {
  const model = modelOf(runs);
  const body = model === undefined ? EMPTY : content(model);
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>OpenShell: performance</title><style>${STYLE}</style></head><body>${body}</body></html>
`;
}

const EMPTY = "<h1>OpenShell: performance</h1><p>No run is recorded yet: <code>npm run bench</code>.</p>";

function content(model: Model): string {
  const { machine, areas } = model;
  const busy = machine.load > machine.cores;
  const others = model.otherRuns === 0 ? "" : `; ${model.otherRuns} of another machine or mode are not shown`;
  return `<h1>OpenShell: performance</h1>
<p class="soft">${escapeText(when(model.at))} UTC, commit ${escapeText(machine.commit)}, as ${escapeText(machine.mode)}: ${escapeText(machine.cpu)}, ${machine.cores} cores, Linux ${escapeText(machine.kernel)}, Node ${escapeText(machine.node)}, load ${number(machine.load)}${busy ? " (<b>busy</b>: times are the machine's, look at the ratios)" : ""}. ${counted(model.runs, "run")}${others}.</p>
<div class="grid">
<div class="card"><h3>Budgets</h3><p class="big">${model.met} <span class="soft">of ${model.judged} met</span></p>${missed(areas)}</div>
${changes("better", "Better than the run before", model.better, model)}
${changes("worse", "Worse than the run before", model.worse, model)}
</div>
<h2>How much of each budget is used</h2>
<div class="card">${areas.flatMap(({ figures }) => figures.filter(({ share }) => share !== undefined).map(used)).join("")}
<p class="soft">Left of the line is within the budget.</p></div>
${LEGEND}
${areas.map(section).join("")}
`;
}

const LEGEND = `<p class="legend soft">
<span><svg viewBox="0 0 30 10"><circle class="pass" cx="15" cy="5" r="3.4"/></svg> within its budget</span>
<span><svg viewBox="0 0 30 10"><path class="miss" d="M15 .5l4.5 4.5l-4.5 4.5l-4.5 -4.5z"/></svg> beyond it</span>
<span><svg viewBox="0 0 30 10"><circle class="plain" cx="15" cy="5" r="3.4"/></svg> without one</span>
<span><svg viewBox="0 0 30 10"><circle class="pass busy" cx="15" cy="5" r="3.4"/></svg> on a busy machine</span>
<span><svg viewBox="0 0 30 10"><path class="line other" d="M0 5H30"/></svg> the alternative, same run</span>
<span><svg viewBox="0 0 30 10"><path class="budget" d="M0 5H30"/></svg> budget</span></p>`;

function when(at: string): string {
  return at.slice(0, 16).replace("T", " ");
}

function counted(count: number, what: string): string {
  return `${number(count)} ${what}${count === 1 ? "" : "s"}`;
}

function anchor(id: string): string {
  return `figure-${encodeURIComponent(id)}`;
}

function link({ id, latest }: Figure): string {
  return `<a href="#${escapeText(encodeURIComponent(anchor(id)))}">${escapeText(latest.result.what)}</a>`;
}

function missed(areas: readonly Area[]): string {
  const found = areas.flatMap(({ figures }) => figures.filter(({ latest }) => latest.result.met === false));
  if (found.length === 0) return "";
  const more = found.length > NAMED ? `<p class="soft">and ${found.length - NAMED} more below</p>` : "";
  return `<ul class="worse">${found
    .slice(0, NAMED)
    .map(
      (figure) =>
        `<li>${link(figure)}<b>◆ ${escapeText(withUnit(figure.latest.result.measured, figure.latest.result.unit))}</b></li>`,
    )
    .join("")}</ul>${more}`;
}

function changes(kind: "better" | "worse", title: string, found: readonly Change[], model: Model): string {
  const rows = found.slice(0, NAMED).map(({ figure, factor }) => {
    return `<li>${link(figure)}<b>${kind === "better" ? "▲" : "▼"} ${factorText(factor)}</b></li>`;
  });
  const more = found.length > NAMED ? `<p class="soft">and ${found.length - NAMED} more</p>` : "";
  const none =
    model.compared === 0
      ? "There is no earlier run to compare with."
      : `Nothing beyond noise, of ${counted(model.compared, "figure")}.`;
  return `<div class="card ${kind}"><h3>${title}</h3><p class="big">${found.length}</p>${found.length === 0 ? `<p class="soft">${none}</p>` : `<ul>${rows.join("")}</ul>${more}<p class="soft">By the ratio to the alternative of the same run.</p>`}</div>`;
}

/** What changed, as a factor above 1. */
function factorText(factor: number): string {
  if (factor === 0 || factor === Number.POSITIVE_INFINITY) return "from 0 or to 0";
  return `${number(factor > 1 ? factor : 1 / factor)} ×`;
}

/** A row of the overview. */
function used({ id, latest, share }: Figure): string {
  const { what, met } = latest.result;
  const x = Math.round(Math.max(2, Math.min(TRACK.end, TRACK.limit * share!)) * 10) / 10;
  const text = share === Number.POSITIVE_INFINITY ? "beyond" : `${number(share! * 100)} %`;
  const point =
    met === false
      ? `<svg x="${x}%" class="at"><path class="miss" d="M0 1l6 6l-6 6l-6 -6z"/></svg>`
      : `<circle class="pass" cx="${x}%" cy="7" r="5"/>`;
  const track = `<rect class="track" y="6" width="100%" height="2"/><line class="budget" x1="${TRACK.limit}%" x2="${TRACK.limit}%" y1="0" y2="14"/>`;
  return `<a class="share" href="#${escapeText(encodeURIComponent(anchor(id)))}"><span title="${escapeText(what)}">${escapeText(what)}</span><svg aria-hidden="true">${track}${point}</svg><b>${text}</b></a>`;
}

function section({ name, figures }: Area): string {
  return `<h2>${escapeText(name)}</h2><div class="grid">${figures.map(card).join("")}</div>`;
}

function card(figure: Figure): string {
  const { latest, current } = figure;
  const { what, budget, met, measured, reference } = latest.result;
  const chip =
    met === undefined ? "" : `<span class="chip ${met ? "pass" : "miss"}">${met ? "● within" : "◆ beyond"}</span>`;
  const ratio =
    reference === undefined || reference.value === 0
      ? ""
      : `${number(measured / reference.value)} × ${escapeText(reference.what)}`;
  const old = current ? "" : `measured ${escapeText(when(latest.at))}, commit ${escapeText(latest.commit)}`;
  const facts = [ratio, budget === undefined ? "no budget" : `budget ${escapeText(budget)}`, old].filter(Boolean);
  const better = figure.higherIsBetter ? "more is better" : "less is better";
  return `<article class="card" id="${escapeText(anchor(figure.id))}"><div class="head"><h3>${escapeText(what)}</h3>${chip}</div>
${bars(figure)}<p class="soft">${facts.join(" · ")} · ${better}</p>${history(figure)}${further(figure)}</article>`;
}

function further({ latest }: Figure): string {
  const details = Object.entries(latest.result.details ?? {}).filter(([, value]) => typeof value === "number");
  if (details.length === 0) return "";
  const rows = details.map(([key, value]) => `<dt>${escapeText(key)}</dt><dd>${escapeText(number(value))}</dd>`);
  return `<details><summary>further figures</summary><dl>${rows.join("")}</dl></details>`;
}
