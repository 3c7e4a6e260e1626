/**
 * The page's style. Blue and vermilion are told apart with any kind of colour blindness (Okabe and Ito,
 * https://jfly.uni-koeln.de/color/), and form and words say the same.
 */
export const STYLE = `
:root { color-scheme: light dark; --back: #f6f7f9; --card: #fff; --text: #1b1f24; --soft: #5c6570; --edge: #dde1e6;
  --pass: #0072b2; --miss: #d55e00; --plain: #6b7480; --other: #a9b2bd; --budget: #1b1f24; }
@media (prefers-color-scheme: dark) { :root { --back: #14171b; --card: #1d2126; --text: #e8eaed; --soft: #9aa4af;
  --edge: #323840; --pass: #56b4e9; --miss: #f0813a; --plain: #9aa4af; --other: #59626d; --budget: #e8eaed; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; background: var(--back); color: var(--text);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: .2rem 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .6rem; }
h3 { font-size: .95rem; margin: 0; line-height: 1.3; } p { margin: .3rem 0; }
a { color: inherit; } .soft, summary { color: var(--soft); font-size: .85rem; }
.grid { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); }
.card { background: var(--card); border: 1px solid var(--edge); border-radius: 8px; padding: .8rem; min-width: 0; }
.card:target { outline: 2px solid var(--pass); } .card > * + * { margin-top: .5rem; }
.head { display: flex; gap: .5rem; justify-content: space-between; align-items: flex-start; }
.chip { flex: none; border-radius: 1rem; padding: .05rem .55rem; font-size: .8rem; white-space: nowrap; color: #fff;
  background: #006299; } .chip.miss { background: #b34f00; } .chip.plain { background: #59626d; }
.big { font-size: 1.9rem; line-height: 1.1; margin: 0; } ul { margin: .3rem 0 0; padding: 0; list-style: none; }
li { display: flex; gap: .5rem; justify-content: space-between; font-size: .9rem; padding: .1rem 0; }
li b, .share b { white-space: nowrap; font-variant-numeric: tabular-nums; }
.better b { color: var(--pass); } .worse b { color: var(--miss); }
.share { display: grid; grid-template-columns: minmax(0, 3fr) minmax(5rem, 4fr) 4.2rem; gap: .6rem; align-items: center;
  font-size: .85rem; text-decoration: none; padding: .08rem 0; } .share:hover { text-decoration: underline; }
.share span { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; } .share b { text-align: right; }
.share > svg { height: 14px; } .share .at { width: 1px; }
@media (max-width: 40rem) { .share { grid-template-columns: minmax(0, 1fr) 4.2rem; gap: 0 .6rem; padding: .2rem 0; }
  .share span { grid-column: 1 / -1; white-space: normal; } } svg { display: block; width: 100%; overflow: visible; }
text { fill: var(--text); font: 12px system-ui, sans-serif; } text.small { fill: var(--soft); font-size: 10px; }
text.value { text-anchor: end; font-variant-numeric: tabular-nums; } text.middle { text-anchor: middle; }
.pass { fill: var(--pass); } .miss { fill: var(--miss); } .plain { fill: var(--plain); } .other { fill: var(--other); }
.busy { fill-opacity: .35; stroke: currentColor; stroke-width: .4; }
.line, .axis, .budget { fill: none; } .line.ours { stroke: var(--pass); stroke-width: 1.5; stroke-opacity: .5; }
.line.other { stroke: var(--plain); stroke-width: 1.4; stroke-dasharray: 2 3; } .axis { stroke: var(--edge); }
.budget { stroke: var(--budget); stroke-width: 1.4; stroke-dasharray: 6 3; } .track { fill: var(--edge); }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; } .legend svg { display: inline-block; width: 2.2rem; height: .8rem; vertical-align: -1px; }
dl { display: grid; grid-template-columns: 1fr auto; gap: .1rem .8rem; margin: .3rem 0 0; font-size: .85rem; }
dd { margin: 0; text-align: right; font-variant-numeric: tabular-nums; } summary { cursor: pointer; }
`;
