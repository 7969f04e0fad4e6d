// SPDX-License-Identifier: Apache-2.0
// Who talks to whom, as a picture and as a list that says the same.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { bytes, count, plural } from "../format";
import { type Edge, type Graph, graphOf, type Vertex } from "../graph";
import { Layout } from "../layout";
import { Painter } from "../painter";
import { type Filters, href, queryOf } from "../place";
import { useRecords } from "../records";
import { NoRecords, Sources } from "../parts";

// The places of the session: they stay when another view, or other records, are shown.
const layout = new Layout();
const mostListed = 60;

export function MapView({ filters }: { filters: Filters }) {
  const r = useRecords(filters);
  const graph = useMemo(() => graphOf(r.rows), [r.version]);
  const [selected, select] = useState("");
  const chosen = graph.vertices.get(selected);
  return (
    <div class="map">
      <Picture graph={graph} selected={chosen ? selected : ""} select={select} />
      <section class="beside" aria-label="Connections">
        <Sources records={r} />
        {r.rows.length === 0 ? <NoRecords records={r} /> : chosen ? <Chosen v={chosen} graph={graph} filters={filters} select={select} /> : null}
        {graph.edges.length > 0 && <List graph={graph} selected={chosen ? selected : ""} select={select} />}
      </section>
    </div>
  );
}

function Picture({ graph, selected, select }: { graph: Graph; selected: string; select: (id: string) => void }) {
  const ref = useRef<HTMLCanvasElement>(null);
  const painter = useRef<Painter>();
  useEffect(() => {
    const canvas = ref.current!;
    const p = (painter.current = new Painter(canvas, layout));
    const sizes = new ResizeObserver(() => p.soon());
    sizes.observe(canvas);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const themes = new MutationObserver(() => p.theme());
    themes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    const theme = () => p.theme();
    dark.addEventListener("change", theme);
    const wheel = (e: WheelEvent) => {
      e.preventDefault();
      p.zoom(Math.exp(-e.deltaY / 400), { x: e.offsetX, y: e.offsetY });
    };
    canvas.addEventListener("wheel", wheel, { passive: false });
    const drop = moved(canvas, p, select);
    return () => {
      p.end();
      sizes.disconnect();
      themes.disconnect();
      dark.removeEventListener("change", theme);
      canvas.removeEventListener("wheel", wheel);
      drop();
    };
  }, []);
  useEffect(() => painter.current!.show(graph, selected), [graph, selected]);
  const keys = (e: KeyboardEvent) => {
    const p = painter.current!;
    const step: Record<string, () => void> = {
      ArrowLeft: () => p.move(60, 0), ArrowRight: () => p.move(-60, 0), ArrowUp: () => p.move(0, 60), ArrowDown: () => p.move(0, -60),
      "+": () => p.zoom(1.25), "-": () => p.zoom(0.8), "0": () => p.fit(), Escape: () => select(""),
    };
    if (!step[e.key] || e.ctrlKey || e.metaKey || e.altKey) return;
    step[e.key]();
    e.preventDefault();
  };
  return (
    <div class="picture">
      <canvas ref={ref} tabIndex={0} role="img" onKeyDown={keys}
        aria-label={`Map of ${plural(graph.vertices.size, "workload or Service")} and ${plural(graph.edges.length, "connection")} between them; the list of connections says the same. Arrow keys move it, plus and minus zoom, 0 shows all.`} />
      <div class="zoom">
        <button type="button" onClick={() => painter.current!.zoom(1.25)} aria-label="Zoom in">+</button>
        <button type="button" onClick={() => painter.current!.zoom(0.8)} aria-label="Zoom out">−</button>
        <button type="button" onClick={() => painter.current!.fit()}>All</button>
      </div>
      {graph.left > 0 && <p class="note">{plural(graph.left, "more connection")} with less traffic: narrow the filter to see them.</p>}
    </div>
  );
}

/** Moves the map by pointer, and selects what is clicked on. */
function moved(canvas: HTMLCanvasElement, p: Painter, select: (id: string) => void): () => void {
  let at: { x: number; y: number } | undefined;
  let far = 0;
  const down = (e: PointerEvent) => {
    at = { x: e.clientX, y: e.clientY };
    far = 0;
    canvas.setPointerCapture(e.pointerId);
  };
  const move = (e: PointerEvent) => {
    if (!at) {
      canvas.style.cursor = p.hit(e.offsetX, e.offsetY) ? "pointer" : "grab";
      return;
    }
    p.move(e.clientX - at.x, e.clientY - at.y);
    far += Math.abs(e.clientX - at.x) + Math.abs(e.clientY - at.y);
    at = { x: e.clientX, y: e.clientY };
  };
  const up = (e: PointerEvent) => {
    if (at && far < 4) select(p.hit(e.offsetX, e.offsetY)?.id ?? "");
    at = undefined;
  };
  canvas.addEventListener("pointerdown", down);
  canvas.addEventListener("pointermove", move);
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", () => (at = undefined));
  return () => {
    canvas.removeEventListener("pointerdown", down);
    canvas.removeEventListener("pointermove", move);
    canvas.removeEventListener("pointerup", up);
  };
}

const named = (graph: Graph, id: string): string => {
  const v = graph.vertices.get(id)!;
  return (v.kind === "service" ? "svc " : "") + (v.group && v.kind !== "node" ? v.group + "/" : "") + v.label;
};

function Chosen({ v, graph, filters, select }: { v: Vertex; graph: Graph; filters: Filters; select: (id: string) => void }) {
  const of = v.kind === "workload" ? v.group + "/" + v.label : "";
  return (
    <div class="card">
      <h2>{named(graph, v.id)}</h2>
      <p>{bytes(v.bytes)} by {plural(v.edges, "connection")}{v.denied > 0 && <>, <strong class="bad">{plural(v.denied, "packet")} denied or dropped</strong></>}</p>
      <p class="links">
        {of && <a href={href("flows", queryOf({ ...filters, from: of, to: "" }))}>Flows from it</a>}
        {of && <a href={href("flows", queryOf({ ...filters, from: "", to: of }))}>Flows to it</a>}
        <button type="button" onClick={() => select("")}>Show all</button>
      </p>
    </div>
  );
}

function List({ graph, selected, select }: { graph: Graph; selected: string; select: (id: string) => void }) {
  const all = selected ? graph.edges.filter((e) => e.from === selected || e.to === selected) : graph.edges;
  return (
    <>
      <table class="edges">
        <caption>{plural(all.length, "connection")}, what was denied first</caption>
        <thead><tr><th scope="col">From</th><th scope="col">To</th><th scope="col" class="number">Traffic</th></tr></thead>
        <tbody>{all.slice(0, mostListed).map((e) => <Line key={e.id} e={e} graph={graph} select={select} />)}</tbody>
      </table>
      {all.length > mostListed && <p class="note">and {count(all.length - mostListed)} more</p>}
    </>
  );
}

function Line({ e, graph, select }: { e: Edge; graph: Graph; select: (id: string) => void }) {
  const end = (id: string) => <button type="button" class="plain" onClick={() => select(id)}>{named(graph, id)}</button>;
  return (
    <tr class={e.denied > 0 ? "bad" : ""}>
      <td>{end(e.from)}</td>
      <td>{end(e.to)}<span class="ports">{[...e.ports].join(", ")}</span></td>
      <td class="number">{bytes(e.bytes)}{e.denied > 0 && <strong class="bad">{count(e.denied)} denied</strong>}</td>
    </tr>
  );
}
