#include "trireme/observe/report/page.h"

#include "trireme/base/html.h"

#include <fmt/format.h>

namespace trireme::observe {
namespace {

// Colours after Okabe and Ito, which people with any kind of colour blindness tell apart; lighter ones on dark pages.
constexpr std::string_view kStyle = R"(
:root{--page:#f6f7f9;--card:#fff;--ink:#1b1f24;--soft:#5b6470;--rule:#dfe3e8;--grid:#e9ecf0;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#b0528b;--c4:#b27a00;--c5:#2f94c9;--c6:#7a6a2f;--c7:#4a4f57;color-scheme:light}
@media (prefers-color-scheme:dark){:root{--page:#14171a;--card:#1c2025;--ink:#e8eaed;--soft:#9aa4b0;--rule:#333a42;--grid:#2a3037;
--c0:#4ba6e0;--c1:#ff8b42;--c2:#35c795;--c3:#e794c2;--c4:#f0b840;--c5:#8fd0f5;--c6:#cdbb6c;--c7:#b9c0c9;color-scheme:dark}}
@media print{:root{--page:#fff;--card:#fff;--ink:#000;--soft:#444;--rule:#bbb;--grid:#e4e4e4;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#b0528b;--c4:#b27a00;--c5:#2f94c9;--c6:#7a6a2f;--c7:#4a4f57;color-scheme:light}}
*{box-sizing:border-box}
body{margin:0;padding:1.5rem clamp(.75rem,3vw,2.5rem) 3rem;background:var(--page);color:var(--ink);
font:15px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;-webkit-text-size-adjust:100%}
main{max-width:78rem;margin:0 auto}
h1{font-size:1.35rem;margin:0 0 .9rem;font-weight:650;overflow-wrap:anywhere}
h2{font-size:1.02rem;margin:1.6rem 0 .6rem;font-weight:650}
.facts{display:grid;grid-template-columns:repeat(6,minmax(0,1fr));gap:1px;margin:0 0 1rem;background:var(--rule);
border:1px solid var(--rule);border-radius:.5rem;overflow:hidden}
.facts div{background:var(--card);padding:.55rem .75rem}
.facts dt{font-size:.78rem;color:var(--soft)}
.facts dd{margin:0;font-size:1.12rem;font-weight:600;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.facts dd small{display:block;font-size:.75rem;font-weight:400;color:var(--soft)}
.scroll{overflow-x:auto;margin:0 0 1rem;border:1px solid var(--rule);border-radius:.5rem;background:var(--card)}
table{border-collapse:collapse;width:100%;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{padding:.45rem .6rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--rule)}
tbody tr:last-child>*{border-bottom:0}
thead th{font-size:.78rem;font-weight:400;color:var(--soft)}
th:first-child{text-align:left;position:sticky;left:0;background:var(--card)}
tbody th{font-weight:600}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,25rem),1fr));gap:1rem}
.chart{margin:0;padding:.8rem 1rem .7rem;background:var(--card);border:1px solid var(--rule);border-radius:.5rem;min-width:0;
break-inside:avoid}
.chart.wide{grid-column:1/-1}
.figure{margin:1rem 0;overflow-x:auto}.figure svg{max-width:100%;height:auto}
figcaption{font-size:.95rem}
figcaption small{color:var(--soft);font-size:.8rem;margin-left:.25rem}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.1rem 1rem;margin:.25rem 0 0;padding:0;font-size:.82rem;color:var(--soft)}
.legend.runs{margin:0 0 1rem;font-size:.9rem;color:var(--ink)}
.legend li{overflow-wrap:anywhere}
.key{display:inline-block;vertical-align:middle;width:1.15rem;margin:-.1rem .4rem 0 0;border-top:3px solid}
.key.faint{border-top-width:2px;opacity:.4}
.key.dot{width:.6rem;height:.6rem;border:0;border-radius:50%;background:currentColor}
.key.box{width:.75rem;height:.75rem;border:0;border-radius:2px;background:currentColor}
.plot{display:grid;grid-template-columns:3.4rem minmax(0,1fr);margin-top:.7rem;padding-right:.9rem;font-size:.76rem;color:var(--soft);
font-variant-numeric:tabular-nums}
.area-box{position:relative;height:12.5rem;outline-offset:2px}
.wide .area-box{height:18rem}
.area-box svg{position:absolute;inset:0;width:100%;height:100%;overflow:visible}.area-box .clip{overflow:hidden}
.y{position:relative}.y span{position:absolute;right:.5rem;transform:translateY(-50%);white-space:nowrap}
.x{position:relative;grid-column:2;height:1.5rem;margin-top:.3rem}.x span{position:absolute;transform:translateX(-50%);white-space:nowrap}
svg path{fill:none;vector-effect:non-scaling-stroke;stroke-linejoin:round;stroke-linecap:round}
svg .grid{stroke:var(--grid);stroke-width:1;stroke-linecap:butt}svg .base{stroke:var(--rule);stroke-width:1.5}
svg .mark{stroke:var(--soft);stroke-width:1;stroke-dasharray:2 4;stroke-linecap:butt}
svg .line{stroke-width:1.9}svg .faint{stroke-width:1;opacity:.38}svg .thin{stroke-width:1.2;stroke-dasharray:1 4}
svg .dots{stroke-width:7}svg .ring{stroke:var(--card);stroke-width:10}svg .area{stroke:none;opacity:.88}
.note{margin:.35rem 0 0;font-size:.8rem;color:var(--soft)}
.notes{margin:0 0 1rem;padding:.6rem .9rem;border-left:3px solid var(--c4);background:var(--card);font-size:.88rem;overflow-wrap:anywhere}
.notes p{margin:.15rem 0}
.cross{position:absolute;top:0;bottom:0;width:1px;background:var(--soft);pointer-events:none}
.tip{position:absolute;top:.4rem;z-index:2;padding:.4rem .6rem;background:var(--card);color:var(--ink);border:1px solid var(--rule);
border-radius:.4rem;box-shadow:0 2px 8px #0003;pointer-events:none;white-space:nowrap;font-size:.8rem;max-width:18rem}
.tip div{display:flex;align-items:center;gap:.4rem}.tip span{overflow:hidden;text-overflow:ellipsis}
.tip b{margin-left:auto;padding-left:.9rem;font-weight:600}
.tip i{flex:none;width:.6rem;height:.6rem;border-radius:2px;background:currentColor}
details{margin:.6rem 0;background:var(--card);border:1px solid var(--rule);border-radius:.5rem}
summary{padding:.55rem .9rem;cursor:pointer;overflow-wrap:anywhere}
pre{margin:0;padding:.2rem .9rem .9rem;overflow-x:auto;font:.82rem/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
footer{margin-top:1.6rem;font-size:.8rem;color:var(--soft)}
@media (max-width:56rem){.facts{grid-template-columns:repeat(4,minmax(0,1fr))}}
@media (max-width:38rem){.facts{grid-template-columns:repeat(2,minmax(0,1fr))}.chart{padding:.7rem .7rem .6rem}.wide .area-box{height:14rem}
th:first-child{white-space:normal;min-width:7rem;max-width:9rem;overflow-wrap:anywhere}}
@media print{@page{margin:14mm}body{padding:0;font-size:11px}.charts{grid-template-columns:1fr 1fr;gap:.6rem}.area-box{height:8.5rem}.wide .area-box{height:12rem}
.scroll{overflow:visible}th,td{padding:.3rem .5rem;white-space:normal}*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
pre{white-space:pre-wrap}.tip,.cross{display:none}.facts{grid-template-columns:repeat(6,1fr)}}
)";

// Shows the values at the step under the pointer, or, with the arrow keys, step by step along the drawn points.
constexpr std::string_view kScript = R"(
for (const box of document.querySelectorAll('.area-box')) {
  const data = JSON.parse(box.querySelector('script').textContent);
  const [low, high] = data.x;
  const steps = [...new Set(data.series.flatMap(s => s.points.map(p => p[0])))].sort((a, b) => a - b);
  if (!steps.length) continue;
  let cross, tip, at = -1;
  const near = (points, x) => {
    let a = 0, b = points.length - 1;
    while (b - a > 1) { const m = (a + b) >> 1; if ((points[m][0] ?? points[m]) <= x) a = m; else b = m; }
    const of = i => points[i][0] ?? points[i];
    return Math.abs(of(b) - x) < Math.abs(of(a) - x) ? b : a;
  };
  const text = y => {
    if (y === null) return 'not finite';
    if (data.count) {
      const n = Math.abs(y), k = n >= 1e9 ? [1e9, 'G'] : n >= 1e6 ? [1e6, 'M'] : n >= 1e3 ? [1e3, 'k'] : [1, ''];
      return +(y / k[0]).toPrecision(4) + k[1];
    }
    const v = y / data.scale, small = v !== 0 && Math.abs(v) < 1e-3;
    return (small ? v.toExponential(3) : +v.toPrecision(4)) + (data.unit ? ' ' + data.unit : '');
  };
  const hide = () => { cross?.remove(); tip?.remove(); cross = tip = null; at = -1; };
  const show = i => {
    if (i === at) return;
    hide();
    at = i;
    const x = steps[i], place = (x - low) / (high - low) * 100;
    cross = box.appendChild(Object.assign(document.createElement('div'), {className: 'cross'}));
    cross.style.left = place + '%';
    tip = box.appendChild(Object.assign(document.createElement('div'), {className: 'tip'}));
    const by_step = !data.time && data.of === 'step';
    tip.append(data.time ? +x.toPrecision(4) + ' s' : by_step ? 'step ' + x.toLocaleString('en') : data.of + ' ' + +x.toPrecision(5));
    const reach = Math.max((high - low) / 100, by_step ? 1 : 0);
    for (const s of data.series) {
      if (!s.points.length) continue;
      const p = s.points[near(s.points, x)];
      if (Math.abs(p[0] - x) > reach) continue;
      const row = tip.appendChild(document.createElement('div'));
      row.appendChild(document.createElement('i')).className = 'k' + s.color;
      row.appendChild(document.createElement('span')).textContent = s.name;
      row.appendChild(document.createElement('b')).textContent = text(p[1]);
    }
    const right = place > 50;
    tip.style[right ? 'right' : 'left'] = `calc(${right ? 100 - place : place}% + .6rem)`;
  };
  box.addEventListener('pointermove', e => {
    const r = box.getBoundingClientRect();
    show(near(steps, low + (e.clientX - r.left) / r.width * (high - low)));
  });
  box.addEventListener('pointerleave', hide);
  box.addEventListener('blur', hide);
  box.addEventListener('keydown', e => {
    const by = {ArrowLeft: -1, ArrowRight: 1}[e.key];
    if (!by) return;
    e.preventDefault();
    show(Math.min(Math.max((at < 0 ? steps.length - 1 : at) + by, 0), steps.length - 1));
  });
}
)";

std::string color_classes() {
  std::string out;
  for (int color = 0; color < kColors; ++color) {
    out +=
        fmt::format("svg .c{0}{{stroke:var(--c{0})}}svg .f{0}{{fill:var(--c{0})}}.k{0}{{color:var(--c{0})}}\n", color);
  }
  return out;
}

}  // namespace

std::string page(std::string_view title, std::string_view body) {
  return fmt::format(R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>{}</title><style>{}{}</style></head>
<body><main>
{}</main>
<script>{}</script></body></html>
)",
                     escaped(title), kStyle, color_classes(), body, kScript);
}

}  // namespace trireme::observe
