#include "inspect/report_style.h"

namespace ring {

// Colors of runs: the palette of Okabe and Ito (2008, "Color Universal Design"), which is distinguishable with any kind
// of color vision. Lines that would be too pale on white are darker.
const char* const kReportStyle = R"css(
:root { color-scheme: light dark; --ground: #fff; --text: #1c1e21; --soft: #62676e; --line: #e2e4e8; --card: #f7f8fa;
  --head: rgb(130 140 160 / 8%); --shade: rgb(0 0 0 / 28%);
  --c0: #0072b2; --c1: #d55e00; --c2: #008f68; --c3: #b5508f; --c4: #a87400; --c5: #55595f; }
@media (prefers-color-scheme: dark) { :root { --ground: #16181c; --text: #e4e6ea; --soft: #a0a6ae; --line: #33373e;
  --card: #1e2126; --head: rgb(130 140 160 / 10%);
  --shade: rgb(255 255 255 / 30%);
  --c0: #56b4e9; --c1: #ff8f4a; --c2: #2fc898; --c3: #e59bc4; --c4: #e6b54a; --c5: #c3c8cf; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1240px; padding: 20px 16px 60px; background: var(--ground); color: var(--text);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 32px 0 10px; }
p { margin: 4px 0; overflow-wrap: anywhere; }
small, .soft { color: var(--soft); font-size: 13px; }
/* A shade on each side with hidden columns: covers that scroll with the table hide it at the ends. */
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px;
  background: linear-gradient(to right, var(--ground) 40%, transparent) left / 36px 100% no-repeat local,
    linear-gradient(to left, var(--ground) 40%, transparent) right / 36px 100% no-repeat local,
    linear-gradient(to right, var(--shade), transparent) left / 14px 100% no-repeat scroll,
    linear-gradient(to left, var(--shade), transparent) right / 14px 100% no-repeat scroll; }
.scroll:focus-visible { outline: 2px solid var(--c0); outline-offset: 1px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 10px; text-align: left; vertical-align: top; border-top: 1px solid var(--line); }
tr:first-child > * { border-top: 0; }
th { background: var(--head); font-weight: 600; white-space: nowrap; }
td { min-width: 40px; max-width: 420px; overflow-wrap: break-word; }
td:first-child { white-space: nowrap; }
td.n, th.n { text-align: right; white-space: nowrap; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 380px), 1fr)); gap: 16px; }
figure { margin: 0; padding: 10px 12px 6px; background: var(--card); border: 1px solid var(--line);
  border-radius: 6px; position: relative; break-inside: avoid; }
figcaption { font-weight: 600; }
figcaption small { font-weight: 400; }
.plot { display: block; width: 100%; height: auto; touch-action: pan-y; }
.plot text { font-size: 16px; fill: var(--soft); font-variant-numeric: tabular-nums; }
.grid { stroke: var(--line); fill: none; }
.axis { stroke: var(--soft); fill: none; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
.dashed { stroke-dasharray: 6 5; }
.dots { fill: none; stroke-width: 6; stroke-linecap: round; }
.mark { fill: none; stroke-width: 1.6; stroke-dasharray: 2 3; opacity: 0.85; }
.c0 { stroke: var(--c0); } .c1 { stroke: var(--c1); } .c2 { stroke: var(--c2); }
.c3 { stroke: var(--c3); } .c4 { stroke: var(--c4); } .c5 { stroke: var(--c5); }
.swatch { width: 18px; height: 10px; margin-right: 4px; }
.swatch .line { stroke-width: 3; }
.choices { display: flex; flex-wrap: wrap; gap: 6px 28px; margin: 10px 0 14px; font-size: 14px; }
.choices span { display: inline-flex; flex-wrap: wrap; gap: 2px 12px; align-items: center; }
.choices b { font-weight: 600; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 14px; overflow-wrap: anywhere; }
.logy, .logxy, .s1, .s2, .s3 { display: none; }
body:has(#axes1:checked) .linear, body:has(#axes2:checked) .linear { display: none; }
body:has(#axes1:checked) .logy, body:has(#axes2:checked) .logxy { display: inline; }
body:has(#smooth1:checked) .s1, body:has(#smooth2:checked) .s2, body:has(#smooth3:checked) .s3 { display: inline; }
body:not(:has(#smooth0:checked)) .raw { opacity: 0.28; stroke-width: 1; }
details { margin: 8px 0; }
.picture svg { max-width: 100%; height: auto; border-radius: 6px; }
summary { cursor: pointer; overflow-wrap: anywhere; }
pre { overflow-x: auto; font-size: 12.5px; background: var(--card); border: 1px solid var(--line); padding: 10px;
  border-radius: 6px; }
.sample { white-space: pre-wrap; overflow-wrap: anywhere; }
.tip { position: absolute; pointer-events: none; z-index: 2; background: var(--ground); border: 1px solid var(--soft);
  border-radius: 4px; padding: 3px 8px; font-size: 12.5px; white-space: pre; top: 34px; max-width: 90%;
  overflow: hidden; }
.cursor { stroke: var(--soft); fill: none; stroke-dasharray: 3 3; }
@media (max-width: 600px) { .plot text { font-size: 18px; } body { padding: 14px 10px 40px; }
  th, td { padding: 5px 7px; }
  .stack tr { display: grid; grid-template-columns: 1fr 1fr; gap: 0 20px; padding: 5px 7px;
    border-top: 1px solid var(--line); }
  .stack tr:first-child { display: none; }
  .stack tr:nth-child(2) { border-top: 0; }
  .stack td, .stack td.n { display: flex; justify-content: space-between; gap: 10px; padding: 2px 0; border: 0;
    text-align: right; white-space: normal; }
  .stack td:first-child { grid-column: 1 / -1; justify-content: flex-start; align-items: center; font-weight: 600;
    overflow-wrap: anywhere; }
  .stack td::before { content: attr(data-head); color: var(--soft); text-align: left; }
  .stack td:first-child::before { content: none; } }
@media print { :root { color-scheme: light; --ground: #fff; --text: #000; --soft: #444; --line: #ccc; --card: #fff;
  --c0: #0072b2; --c1: #d55e00; --c2: #008f68; --c3: #b5508f; --c4: #a87400; --c5: #55595f; }
  body { max-width: none; padding: 0; font-size: 11px; } .choices, .tip, .cursor { display: none; }
  .scroll { overflow: visible; background: none; } .charts { grid-template-columns: 1fr 1fr; }
  h2 { break-after: avoid; }
  table, small, .soft, .legend { font-size: 10px; } th, td { padding: 3px 5px; overflow-wrap: anywhere; } }
)css";

// Shows the values under the pointer, computed from positions in the drawn paths.
const char* const kReportScript = R"js(
'use strict';
function axis(group, key, begin, end) {
  const [low, high, kind] = group.dataset[key].split(' ');
  const log = kind === 'log', f = log ? Math.log : Number, a = f(+low), b = f(+high);
  return place => { const v = a + (b - a) * (place - begin) / (end - begin); return log ? Math.exp(v) : v; };
}
function points(path) {
  if (!path.places) path.places = path.getAttribute('d').split(/[ML]/).slice(1).map(p => p.split(' ').map(Number));
  return path.places;
}
const shown = element => getComputedStyle(element).display !== 'none';
function showValues(svg) {
  const figure = svg.parentNode, tip = document.createElement('div');
  const cursor = document.createElementNS(svg.namespaceURI, 'path');
  tip.className = 'tip';
  cursor.setAttribute('class', 'cursor');
  const leave = () => { tip.remove(); cursor.remove(); };
  svg.addEventListener('pointerleave', leave);
  svg.addEventListener('pointermove', event => {
    const box = svg.viewBox.baseVal, area = svg.getBoundingClientRect();
    const at = (event.clientX - area.left) * box.width / area.width;
    const group = [...svg.querySelectorAll('g[data-x]')].find(shown);
    if (!group) return leave();
    const x = axis(group, 'x', +group.dataset.left, box.width - 12), y = axis(group, 'y', box.height - 46, 14);
    let best = null;
    const lines = [...group.querySelectorAll('.line')].filter(shown).filter(p => points(p).length);
    const smooth = lines.some(p => /\bs[123]\b/.test(p.getAttribute('class')));
    const texts = lines.filter(p => !(smooth ? p.classList.contains('raw') : false)).map(path => {
      const near = points(path).reduce((a, b) => Math.abs(b[0] - at) - Math.abs(a[0] - at) > 0 ? a : b);
      best = best === null ? near[0] : Math.abs(near[0] - at) - Math.abs(best - at) > 0 ? best : near[0];
      return +(y(near[1]) * svg.dataset.scale).toPrecision(5) + svg.dataset.suffix + '  ' + path.dataset.name;
    });
    if (best === null) return leave();
    tip.textContent = 'step ' + Math.round(x(best)) + '\n' + texts.join('\n');
    cursor.setAttribute('d', 'M' + best + ' 14V' + (box.height - 46));
    svg.append(cursor);
    figure.append(tip);
    const left = best * area.width / box.width, room = figure.clientWidth - tip.offsetWidth - 8;
    tip.style.left = Math.max(4, Math.min(room, best * 2 > box.width ? left - tip.offsetWidth - 4 : left + 24)) + 'px';
  });
}
document.querySelectorAll('.plot').forEach(showValues);
)js";

}  // namespace ring
