// SPDX-License-Identifier: Apache-2.0
// The records of flows as a table, the latest first. Only the rows that are in sight are in the
// document, however many there are.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { bytes, clock, count, destination, peer, port, whyHref } from "../format";
import { NoRecords, RuleLink, Sources, Verdict } from "../parts";
import type { Filters } from "../place";
import { useRecords } from "../records";
import type { Flow, PolicyEnd } from "../types";

const narrow = matchMedia("(max-width: 760px)");
const beyond = 8; // rows above and below of those in sight

export function FlowsView({ filters }: { filters: Filters }) {
  const r = useRecords(filters);
  const [chosen, choose] = useState<Flow>();
  return (
    <div class={chosen ? "flows with" : "flows"}>
      <div class="bar">
        <Sources records={r} />
        <button type="button" aria-pressed={r.paused} onClick={() => r.pause(!r.paused)}>{r.paused ? "Go on" : "Pause"}</button>
      </div>
      {r.rows.length === 0 ? <NoRecords records={r} /> : <Grid rows={r.rows} filters={filters} chosen={chosen} choose={choose} />}
      {chosen && <Details f={chosen} filters={filters} close={() => choose(undefined)} />}
    </div>
  );
}

function Grid({ rows, filters, chosen, choose }: { rows: Flow[]; filters: Filters; chosen?: Flow; choose: (f?: Flow) => void }) {
  const ref = useRef<HTMLDivElement>(null);
  const [slim, setSlim] = useState(narrow.matches);
  const [seen, setSeen] = useState({ top: 0, height: 600 });
  const [at, setAt] = useState<Flow>();
  const first = useRef<Flow>();
  const height = slim ? 78 : 31;
  const row = (i: number) => rows[rows.length - 1 - i];
  useEffect(() => {
    const f = () => setSlim(narrow.matches);
    narrow.addEventListener("change", f);
    const box = ref.current!;
    const sizes = new ResizeObserver(() => setSeen({ top: box.scrollTop, height: box.clientHeight }));
    sizes.observe(box);
    return () => {
      narrow.removeEventListener("change", f);
      sizes.disconnect();
    };
  }, []);
  // Who has scrolled down reads: what comes above moves nothing of it.
  useLayoutEffect(() => {
    const box = ref.current!;
    if (box.scrollTop < height || !first.current) return;
    const i = rows.lastIndexOf(first.current);
    if (i < 0) return;
    const top = (rows.length - 1 - i) * height + (box.scrollTop % height);
    if (Math.abs(top - box.scrollTop) >= 1) box.scrollTop = top;
  }, [rows]);
  const begin = Math.max(0, Math.floor(seen.top / height) - beyond);
  const end = Math.min(rows.length, Math.ceil((seen.top + seen.height) / height) + beyond);
  const scrolled = () => {
    const box = ref.current!;
    first.current = row(Math.floor(box.scrollTop / height));
    setSeen({ top: box.scrollTop, height: box.clientHeight });
  };
  const keys = (e: KeyboardEvent) => {
    const box = ref.current!;
    if (e.target !== box || e.ctrlKey || e.metaKey || e.altKey) return;
    const i = at ? rows.length - 1 - rows.lastIndexOf(at) : -1;
    const page = Math.max(1, Math.floor(seen.height / height) - 1);
    const to: Record<string, number> = { ArrowDown: i + 1, ArrowUp: i - 1, PageDown: i + page, PageUp: i - page, Home: 0, End: rows.length - 1 };
    if (e.key === "Enter" && at) choose(at);
    else if (e.key === "Escape") choose(undefined);
    else if (e.key in to) {
      const n = Math.min(rows.length - 1, Math.max(0, to[e.key]));
      setAt(row(n));
      const y = n * height;
      if (y < box.scrollTop) box.scrollTop = y;
      else if (y + height > box.scrollTop + box.clientHeight - 30) box.scrollTop = y + height - box.clientHeight + 30;
    } else return;
    e.preventDefault();
  };
  const shown = [];
  let active = false;
  for (let i = begin; i < end; i++) {
    const f = row(i);
    active ||= f === at;
    shown.push(<Row key={f.id} f={f} i={i} y={i * height} filters={filters} at={f === at} chosen={f === chosen} choose={() => { setAt(f); choose(f); }} />);
  }
  return (
    <div class="grid" role="grid" aria-label="Records of flows, the latest first" aria-rowcount={rows.length + 1} aria-readonly="true"
      aria-activedescendant={active ? "row-" + at!.id : undefined} tabIndex={0} ref={ref} onScroll={scrolled} onKeyDown={keys}>
      <div role="rowgroup" class="titles">
        <div role="row" aria-rowindex={1} class="row title">
          {["Time", "Verdict and rule", "Source", "Destination", "Port", "Service", "Traffic", "Node"].map((t) => <span role="columnheader" key={t}>{t}</span>)}
        </div>
      </div>
      <div role="rowgroup" class="rows" style={{ height: rows.length * height + "px" }}>{shown}</div>
    </div>
  );
}

function Row({ f, i, y, filters, at, chosen, choose }: { f: Flow; i: number; y: number; filters: Filters; at: boolean; chosen: boolean; choose: () => void }) {
  return (
    <div role="row" id={"row-" + f.id} aria-rowindex={i + 2} aria-selected={chosen} class={`row ${f.verdict}${at ? " at" : ""}${chosen ? " chosen" : ""}`}
      style={{ transform: `translateY(${y}px)` }} onClick={(e) => { if (!(e.target as Element).closest("a")) choose(); }}>
      <span role="gridcell" class="time">{clock(f.at)}</span>
      <span role="gridcell" class="decided"><Verdict flow={f} filters={filters} /></span>
      <span role="gridcell" class="from">{peer(f.source)}</span>
      <span role="gridcell" class="to" title={f.destination.address}>{destination(f)}</span>
      <span role="gridcell" class="port">{port(f)}</span>
      <span role="gridcell" class="service">{f.service?.split(" ")[0] ?? ""}</span>
      <span role="gridcell" class="traffic">{f.verdict === "allowed" ? bytes(f.sent.bytes + f.received.bytes) : count(f.sent.packets) + " pkt"}</span>
      <span role="gridcell" class="node">{f.node}</span>
    </div>
  );
}

function Details({ f, filters, close }: { f: Flow; filters: Filters; close: () => void }) {
  const end = (e: PolicyEnd | undefined) => {
    if (!e) return "not an end on this node";
    return (
      <>
        {e.rule ? <RuleLink rule={e.rule} filters={filters} /> : "no policy selects the pod"}
        {e.staged && <> · staged policies would have {e.staged.verdict} it{e.staged.rule && <> by <RuleLink rule={e.staged.rule} filters={filters} /></>}</>}
      </>
    );
  };
  const ends = (p: Flow["source"]) => [peer(p), p.pod && p.address, p.port && "port " + p.port, p.workload, p.node && "on " + p.node].filter(Boolean).join(", ");
  const all: [string, preact.ComponentChildren][] = [
    ["Verdict", <Verdict flow={f} filters={filters} />],
    ["Reason", f.reason],
    ["Source", ends(f.source)],
    ["Destination", ends(f.destination)],
    ["Asked as", f.egress?.name],
    ["Allowed as", f.egress?.domain],
    ["Service", f.service && `${f.service}, asked at ${f.asked ?? "?"}`],
    ["Policy at the source", end(f.egress)],
    ["Policy at the destination", end(f.ingress)],
    ["Began", new Date(f.start).toLocaleString()],
    ["Recorded", new Date(f.end).toLocaleString() + " by " + f.node],
    ["Sent", `${count(f.sent.packets)} packets, ${bytes(f.sent.bytes)}`],
    ["Received", `${count(f.received.packets)} packets, ${bytes(f.received.bytes)}`],
    ["Flags of TCP", f.tcpFlags],
    ["Handshake", f.handshakeMicroseconds && `${f.handshakeMicroseconds / 1000} ms`],
    ["Retransmitted", f.retransmitted && `${count(f.retransmitted.sent)} segments sent, ${count(f.retransmitted.received)} received`],
    ["Path", [f.path, f.return && "answers " + f.return, f.handedOn && "handed on", f.dsr && "DSR", f.snat && "source NAT"].filter(Boolean).join(", ")],
    ["Ended", f.ended ?? (f.verdict === "allowed" ? "it goes on" : undefined)],
  ];
  return (
    <aside class="details card" aria-label="The chosen record">
      <button type="button" class="close" onClick={close} aria-label="Close the record">×</button>
      <h2>{peer(f.source)} → {destination(f)} {port(f)}</h2>
      <p class="links"><a href={whyHref(f)}>Why?</a></p>
      <dl>{all.filter(([, v]) => v).map(([k, v]) => <div key={k}><dt>{k}</dt><dd>{v}</dd></div>)}</dl>
    </aside>
  );
}
