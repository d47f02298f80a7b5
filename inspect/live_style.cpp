#include "inspect/live_style.h"

namespace ring {

const char* const kLiveStyle = R"css(
:root { --good: #008f68; --slow: #a87400; --bad: #c22f2f; }
@media (prefers-color-scheme: dark) { :root { --good: #2fc898; --slow: #e6b54a; --bad: #ff7b72; } }
.live { display: flex; flex-wrap: wrap; gap: 4px 16px; align-items: baseline; }
#run h1 { display: none; }
.stale { color: var(--bad); font-weight: 600; }
.banner { border-left: 4px solid var(--slow); padding: 6px 10px; background: var(--card); }
dl, dd, h3 { margin: 0; }
.facts { display: flex; flex-wrap: wrap; gap: 6px 28px; margin: 8px 0 12px; }
.facts dd { font-size: 18px; font-variant-numeric: tabular-nums; }
dt { color: var(--soft); font-size: 12.5px; }
.ranks { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 230px), 1fr)); gap: 10px;
  margin-bottom: 20px; }
.rank { border: 1px solid var(--line); border-left: 4px solid var(--good); border-radius: 6px; padding: 8px 12px;
  background: var(--card); }
.rank.slow { border-left-color: var(--slow); } .rank.bad { border-left-color: var(--bad); }
.rank h3 { font-size: 14px; } .rank em { font-style: normal; color: var(--slow); } .rank.bad em { color: var(--bad); }
.rank dl div { display: flex; justify-content: space-between; gap: 12px; font-size: 13.5px;
  font-variant-numeric: tabular-nums; }
.rank dd { text-align: right; overflow-wrap: anywhere; }
)css";

const char* const kLiveScript = R"js(
const part = id => document.getElementById(id);
let version = 0;
// Replaces the page's content and keeps the user's choices: axes, smoothing, unfolded parts, scroll positions, focus.
function show(markup) {
  const run = part('run');
  const on = [...run.querySelectorAll('input:checked')].map(input => input.id);
  const open = [...run.querySelectorAll('details')].map(details => details.open);
  const boxes = [...run.querySelectorAll('.scroll')], places = boxes.map(box => box.scrollLeft);
  const focused = boxes.indexOf(document.activeElement);
  run.innerHTML = markup;
  run.querySelectorAll('.scroll').forEach((box, i) => {
    box.scrollLeft = places[i] || 0;
    if (i === focused) box.focus({ preventScroll: true });
  });
  on.forEach(id => { if (part(id)) part(id).checked = true; });
  run.querySelectorAll('details').forEach((details, i) => { details.open = open[i] === true; });
  run.querySelectorAll('.plot').forEach(showValues);
}
function tell(text, stale) {
  if (part('state').textContent !== text) part('state').textContent = text;
  part('state').className = stale ? 'stale' : 'soft';
}
let seen = '';
async function follow() {
  try {
    const reply = await fetch('live?known=' + version, { cache: 'no-store' });
    if (!reply.ok) throw new Error('status ' + reply.status);
    const live = await reply.json();
    part('job').innerHTML = live.job;
    if (live.run !== undefined) if (!part('run').querySelector('.tip')) {  // not under somebody's pointer
      show(live.run);
      version = live.version;
    }
    seen = new Date().toLocaleTimeString();
    tell('live', false);
  } catch (error) {
    tell(seen ? 'no answer: the job has ended, or cannot be reached. This is from ' + seen : 'no answer', true);
  }
  setTimeout(follow, document.hidden ? 10000 : 2000);
}
follow();
)js";

}  // namespace ring
