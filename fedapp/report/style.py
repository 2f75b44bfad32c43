"""The page's style sheet, a Python string because the Flower bundle carries only code."""

CSS = """
:root{color-scheme:light dark;
--bg:#f6f7f9;--card:#fff;--ink:#17202b;--muted:#5a6675;--line:#e1e5ea;--accent:#0b6e99;
--received:#0072b2;--personal:#c2500a;--local:#707a86;
--first:#0072b2;--second:#d98200;--third:#0a8a66;--mark:#fff4d6;--mark-ink:#5c4300;--bad:#b3261e}
@media (prefers-color-scheme:dark){:root{
--bg:#0f141a;--card:#171e26;--ink:#e8edf3;--muted:#9fadbc;--line:#2b3540;--accent:#6cc4ee;
--received:#56b4e9;--personal:#f0934e;--local:#9aa6b3;
--first:#56b4e9;--second:#e6a93a;--third:#3fc79a;--mark:#3a3013;--mark-ink:#f5d98b;--bad:#ff8a80}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
overflow-wrap:anywhere;font-variant-numeric:tabular-nums}
main,header,footer{max-width:1120px;margin:0 auto;padding:0 20px}
header{padding-top:40px}
.eyebrow{margin:0;color:var(--muted);font-size:.875rem}
h1{margin:.1em 0 .35em;font-size:clamp(1.6rem,1.2rem + 2vw,2.3rem);line-height:1.15;
letter-spacing:-.02em}
h2{margin:3rem 0 .35rem;font-size:1.3rem;letter-spacing:-.01em;line-height:1.25}
h3{margin:0 0 .15rem;font-size:1rem;line-height:1.3}
section>h3{margin-top:1.4rem}
p{margin:.4em 0 .9em;max-width:72ch}
.lead{font-size:1.08rem}
.quiet{color:var(--muted);font-size:.9rem}
a{color:var(--accent)}
.chips{display:flex;flex-wrap:wrap;gap:8px;margin:0;padding:0;list-style:none;font-size:.875rem}
.chips li{padding:3px 11px;border:1px solid var(--line);border-radius:99px;background:var(--card)}
.chips .state-bad{border-color:var(--bad);color:var(--bad);font-weight:600}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,205px),1fr));gap:14px;
margin:1.4rem 0}
.tile,.card,.notice,.scroll,details{background:var(--card);border:1px solid var(--line);
border-radius:12px}
.tile{padding:14px 18px}
.tile dt{color:var(--muted);font-size:.875rem}
.tile dd{margin:0}
.tile .value{font-size:1.75rem;line-height:1.25;font-weight:650;letter-spacing:-.02em}
.tile .note{color:var(--muted);font-size:.85rem;line-height:1.4}
.notice{padding:12px 18px;margin:1.2rem 0;border-left:4px solid var(--second)}
.notice.bad{border-left-color:var(--bad)}
.notice p{margin:.2em 0}
.card{display:flex;flex-direction:column}.card .plot{margin-top:auto}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,310px),1fr));gap:14px;
margin-top:1rem}
.card{margin:0;padding:14px 16px 10px;min-width:0}
figure.card figcaption{margin-bottom:6px}
.card .quiet{margin:0 0 4px;line-height:1.4}
.mean{border-color:var(--muted)}
.plot{display:block;width:100%;height:auto;overflow:visible}
.plot text{font-family:inherit;font-variant-numeric:tabular-nums}
.plot *{stroke-linejoin:round}
.cells path:hover{fill:var(--ink);fill-opacity:.15}
tr:target>*{background:var(--mark);color:var(--mark-ink)}
.legend{display:flex;flex-wrap:wrap;gap:3px 16px;margin:6px 0 4px;padding:0;list-style:none;
font-size:.85rem;color:var(--muted)}
.legend li{display:flex;align-items:center;gap:7px}
.legend svg{flex:none;width:28px;height:12px;overflow:visible}
.guide .legend{flex-direction:column;gap:5px;font-size:.9rem;color:var(--ink);margin:8px 0}
.scroll{overflow-x:auto;margin:1rem 0;-webkit-overflow-scrolling:touch}
.scroll:focus-visible,summary:focus-visible{outline:3px solid var(--accent);outline-offset:2px}
table{border-collapse:separate;border-spacing:0;width:100%;font-size:.92rem;line-height:1.35}
caption{padding:12px 16px 4px;text-align:left;color:var(--muted);font-size:.875rem}
th,td{padding:9px 12px;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap;
vertical-align:baseline}
thead th{color:var(--muted);font-weight:600;font-size:.84rem;vertical-align:bottom}
thead tr:first-child th.group{color:var(--ink);text-align:left;border-bottom:0;padding-bottom:2px}
th.key{text-align:left;padding-left:16px;position:sticky;left:0;background:var(--card);
z-index:1;white-space:normal;overflow-wrap:break-word;min-width:8.5rem;max-width:15rem}
tbody th{font-weight:500}
.edge{border-left:1px solid var(--line);padding-left:16px}
tfoot th,tfoot td{font-weight:650}
tfoot tr:first-child th,tfoot tr:first-child td{border-top:2px solid var(--line)}
tr:last-child>th,tr:last-child>td{border-bottom:0}
thead tr:last-child>th{border-bottom:1px solid var(--line)}
.ci{display:block;color:var(--muted);font-size:.79rem;font-weight:400}
.dot{display:inline-block;width:.62em;height:.62em;margin-right:.5em;border-radius:50%}
.dot-received{background:var(--received)}.dot-personal{background:var(--personal);
border-radius:0;transform:rotate(45deg) scale(.88)}.dot-local-only{background:var(--local);
border-radius:0}
details{margin:1rem 0}
summary{padding:13px 18px;cursor:pointer;font-weight:600}
summary .quiet{font-weight:400}
details>div{padding:0 18px 14px}
details .scroll{margin:.4rem 0 1rem;border-radius:8px}
.tall{max-height:min(80vh,760px);overflow-y:auto}.tall thead,.tall tfoot{position:sticky;z-index:2;
background:var(--card)}.tall thead{top:0}.tall tfoot{bottom:0}
.remark{text-align:left;white-space:normal;min-width:13rem;overflow-wrap:break-word}
.settings td,.settings th{white-space:normal;text-align:left;overflow-wrap:normal}
.settings td.value{overflow-wrap:anywhere}
.settings td:last-child{color:var(--muted);min-width:15rem}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;
font-size:.875em}
pre{margin:.4rem 0 1rem;padding:13px 16px;overflow-x:auto;border:1px solid var(--line);
border-radius:10px;background:var(--bg);line-height:1.5;overflow-wrap:normal}
mark{padding:1px 6px;border-radius:5px;background:var(--mark);color:var(--mark-ink);
font-weight:600}
dl.facts{display:grid;grid-template-columns:max-content 1fr;gap:3px 18px;margin:.4rem 0 1rem;
font-size:.92rem}
dl.facts dt{color:var(--muted)}
dl.facts dd{margin:0}
dl.totals{display:grid;grid-template-columns:1fr auto;margin:.5rem 0}
dl.totals>*{margin:0;padding:7px 0;border-bottom:1px solid var(--line)}
dl.totals dt{color:var(--muted);font-size:.9rem}dl.totals dd{text-align:right;font-weight:600}
dl.totals>:nth-last-child(-n+2){border-bottom:0}
footer{margin-top:3rem;padding-bottom:40px;color:var(--muted);font-size:.85rem}
@media (max-width:560px){body{font-size:15.5px}main,header,footer{padding-left:14px;
padding-right:14px}header{padding-top:24px}h2{margin-top:2.4rem}
.tiles{grid-template-columns:1fr 1fr;gap:10px}.tile{padding:11px 13px}
.tile .value{font-size:1.45rem}th,td{padding:8px 10px}
th.key{min-width:7.4rem;max-width:9rem;padding-left:12px}
dl.facts{grid-template-columns:1fr}dl.facts dd{margin-bottom:6px}}
@media print{.tall{max-height:none}body{background:#fff}.card,.tile,tr{break-inside:avoid}}
"""
