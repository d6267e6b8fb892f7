"""How the page looks: one style sheet, in the page itself; light and dark as the reader's system is."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--ground:#f7f7f5;--card:#fff;--ink:#22272b;--soft:#616a72;--rule:#e2e4e3;--faint:#eeefed;
--in:#a9cbd9;--out:#2b6f8c;--lag:#a9741c;--time:#6a5aa0;--good:#2c7a4d;--bad:#b3261e;--bad-ground:#fdf1ef;--focus:#1a6fb0;--edge:#c3c8ca}
@media(prefers-color-scheme:dark){:root{--ground:#14171a;--card:#1c2024;--ink:#e4e7e9;--soft:#98a2ab;--rule:#30363b;
--faint:#262b30;--in:#33576a;--out:#6db5d3;--lag:#d9a650;--time:#a99bdc;--good:#6cc08f;--bad:#f28b82;
--bad-ground:#2c1e1d;--focus:#7ab8ea;--edge:#4b535a}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--ground);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main,header,footer{max-width:1160px;margin:0 auto;padding:0 24px}
header{padding-top:36px}
h1{font-size:27px;line-height:1.2;font-weight:600;margin:0;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:13px;font-weight:600;color:var(--soft);margin:36px 0 10px}
h3{font-size:17px;font-weight:600;margin:0;overflow-wrap:anywhere}
h4{font-size:13px;font-weight:600;color:var(--soft);margin:18px 0 6px}
p{margin:4px 0}
a{color:inherit;text-decoration-color:var(--in);text-underline-offset:3px}
a:hover{text-decoration-color:currentColor}
:focus-visible{outline:2px solid var(--focus);outline-offset:2px;border-radius:4px}
.skip{position:absolute;left:-999px}.skip:focus{left:24px;top:8px;background:var(--card);padding:6px 12px}
.soft{color:var(--soft)}
.state{display:inline-flex;align-items:center;gap:8px;white-space:nowrap}
.state::before{content:"";width:8px;height:8px;border-radius:50%;background:var(--soft)}
.state.written::before{background:var(--good)}
.state.unchanged::before{background:transparent;box-shadow:inset 0 0 0 1.5px var(--good)}
.state.failed,.state.skipped{color:var(--bad)}
.state.failed::before{background:var(--bad);border-radius:1px}
.state.skipped::before{background:transparent;border-radius:1px;box-shadow:inset 0 0 0 1.5px var(--bad)}
.facts{display:flex;flex-wrap:wrap;gap:12px 44px;margin:22px 0 0;padding:0}
.facts div{min-width:84px}
.facts dt{color:var(--soft);font-size:13px}
.facts dd{margin:0;font-size:22px;line-height:1.3;font-variant-numeric:tabular-nums;white-space:nowrap}
.wide{overflow-x:auto;background:var(--card);border:1px solid var(--rule);border-radius:10px}
.wide.picture{padding:16px;max-height:80vh;overflow:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:8px 14px;border-top:1px solid var(--faint);vertical-align:middle;white-space:nowrap}
thead th{border-top:0;font-size:13px;font-weight:500;color:var(--soft)}
tbody th{font-weight:500;white-space:normal;overflow-wrap:anywhere;min-width:170px}
.n{text-align:right}
.card{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:20px 22px;
margin:0 0 16px;scroll-margin-top:16px}
.card:target{border-color:var(--out)}
.top{display:flex;flex-wrap:wrap;gap:4px 20px;align-items:baseline;justify-content:space-between}
.said{white-space:pre-line;max-width:78ch;overflow-wrap:anywhere}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(264px,1fr));gap:18px 30px;margin:16px 0 4px}
figure{margin:0;min-width:0}
figcaption{display:flex;justify-content:space-between;gap:12px;font-size:13px;color:var(--soft)}
figcaption b{font-weight:500;color:var(--ink);font-variant-numeric:tabular-nums}
.key{display:inline-block;width:9px;height:9px;border-radius:2px;margin:0 5px 0 10px}
.key:first-child{margin-left:0}.key.in{background:var(--in)}.key.out{background:var(--out)}
svg{display:block}
.plot{width:100%;height:auto;overflow:visible}
svg .in{fill:var(--in)}svg .out{fill:var(--out)}svg .bad{fill:var(--bad)}
svg .area{opacity:.13}svg .line{fill:none;stroke-width:1.6;stroke-linejoin:round;stroke-linecap:round}
svg .lag.line{stroke:var(--lag)}svg .lag.area,svg .lag.dot{fill:var(--lag)}
svg .time.line{stroke:var(--time)}svg .time.area,svg .time.dot{fill:var(--time)}
svg .rule{stroke:var(--rule);fill:none}svg .rule.faint{stroke:var(--faint)}
svg .tick{fill:var(--soft);font-size:10.5px;font-variant-numeric:tabular-nums}
svg .hover{fill:transparent}svg .hover:hover{fill:var(--ink);fill-opacity:.07}
.graph{max-width:none;font-size:13px}
.edges path{fill:none;stroke:var(--edge);stroke-width:1.5}.edges .tip{fill:var(--soft);stroke:none}
.node rect{fill:var(--card);stroke:var(--out);stroke-width:1.3}
.node.topic rect{fill:var(--faint);stroke:var(--rule)}
.node.failed rect{stroke:var(--bad);fill:var(--bad-ground)}
.node .name{fill:var(--ink);font-weight:500}.node .about{fill:var(--soft);font-size:11.5px}
a.node{text-decoration:none}a.node:hover rect{stroke-width:2.2}
.error{background:var(--bad-ground);border-left:3px solid var(--bad);border-radius:0 6px 6px 0;
padding:10px 14px;margin:14px 0 4px}
.error pre{margin:4px 0;white-space:pre-wrap;overflow-wrap:anywhere;max-height:20em;overflow:auto;
font:13px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.past{border-left-color:var(--rule);background:none}
details{margin-top:10px}
summary{cursor:pointer;color:var(--soft);font-size:13px}
details table{margin-top:6px;width:auto;min-width:min(100%,420px)}
details .scroll{overflow-x:auto}
details th,details td{padding:4px 18px 4px 0;font-size:13.5px}
code{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
footer{padding:28px 24px 44px;color:var(--soft);font-size:13px}
@media(max-width:640px){
main,header,footer{padding-left:14px;padding-right:14px}.card{padding:16px 14px}.facts dd{font-size:19px}}
@media print{.wide.picture{max-height:none}body{background:#fff}.card{break-inside:avoid}.hover{display:none}}
"""
