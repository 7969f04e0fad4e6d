// SPDX-License-Identifier: Apache-2.0
// Paints the map on a canvas, in the view that the user moves. All text is painted as such. Of a
// large map that takes longer than a frame may: while it is moved, what was painted last is shown
// in the new place, and it is painted anew where it ends or becomes blurred, and afterwards.
import type { Edge, Graph, Vertex } from "./graph";
import { Layout, size } from "./layout";

interface Colors { box: string; line: string; text: string; faint: string; card: string; service: string; denied: string; accent: string; background: string }

/** How much is painted beyond each side of what is in sight, of its size. */
const margin = 0.4;

const names: (keyof Colors)[] = ["box", "line", "text", "faint", "card", "service", "denied", "accent", "background"];

export class Painter {
  graph: Graph = { vertices: new Map(), edges: [], left: 0 };
  selected = "";
  scale = 1;
  private x = 0;
  private y = 0;
  private fitted = false;
  private due = 0;
  private colors!: Colors;
  private labels = new Map<string, string>();
  private context: CanvasRenderingContext2D;
  private scene = document.createElement("canvas");
  /** The view for which the scene was painted; sizes are in pixels of the device. */
  private painted = { x: 0, y: 0, scale: 0, ratio: 0, width: 0, height: 0 };
  private stale = true;
  private sharpen = 0;
  private reach = { left: 0, top: 0, right: 0, bottom: 0 };

  constructor(private canvas: HTMLCanvasElement, private layout: Layout) {
    this.context = canvas.getContext("2d", { alpha: false })!;
    this.theme();
  }

  /** Reads the colours anew: a canvas does not follow those of the style sheet. */
  theme(): void {
    const style = this.canvas.style;
    this.colors = Object.fromEntries(names.map((n) => {
      style.color = `var(--map-${n})`;
      return [n, getComputedStyle(this.canvas).color];
    })) as unknown as Colors;
    style.color = "";
    this.stale = true;
    this.soon();
  }

  show(graph: Graph, selected: string): void {
    this.graph = graph;
    this.selected = selected;
    this.layout.place(graph.vertices.values());
    if (!this.fitted && graph.vertices.size > 0) this.fit();
    this.stale = true;
    this.soon();
  }

  /** Shows all of the map. */
  fit(): void {
    const { width, height } = this.layout.bounds();
    const w = this.canvas.clientWidth;
    const h = this.canvas.clientHeight;
    if (w === 0 || h === 0) return;
    this.scale = Math.min(1.2, (w - 32) / width, (h - 32) / height);
    this.x = (w - width * this.scale) / 2;
    this.y = (h - height * this.scale) / 2;
    this.fitted = this.graph.vertices.size > 0;
    this.soon();
  }

  move(dx: number, dy: number): void {
    this.x += dx;
    this.y += dy;
    this.soon();
  }

  zoom(by: number, at = { x: this.canvas.clientWidth / 2, y: this.canvas.clientHeight / 2 }): void {
    const to = Math.min(3, Math.max(0.04, this.scale * by));
    this.x = at.x - ((at.x - this.x) * to) / this.scale;
    this.y = at.y - ((at.y - this.y) * to) / this.scale;
    this.scale = to;
    this.soon();
  }

  /** The vertex at a point of the canvas. */
  hit(px: number, py: number): Vertex | undefined {
    const x = (px - this.x) / this.scale;
    const y = (py - this.y) / this.scale;
    for (const v of this.graph.vertices.values()) {
      const p = this.layout.at(v.id)!;
      if (x >= p.x && x <= p.x + size.width && y >= p.y && y <= p.y + size.height) return v;
    }
    return undefined;
  }

  /** Paints with the next frame, once, whatever changes until then. */
  soon(): void {
    this.due ||= requestAnimationFrame(() => {
      this.due = 0;
      this.paint();
    });
  }

  end(): void {
    cancelAnimationFrame(this.due);
    clearTimeout(this.sharpen);
  }

  private paint(): void {
    const ratio = devicePixelRatio || 1;
    const width = Math.round(this.canvas.clientWidth * ratio);
    const height = Math.round(this.canvas.clientHeight * ratio);
    if (width === 0 || height === 0) return;
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    const p = this.painted;
    const zoomed = this.scale / p.scale;
    let at = this.placed(ratio);
    if (this.stale || p.ratio !== ratio || p.width !== width || p.height !== height || zoomed < 0.6 || zoomed > 1.7 || !this.covers(at, ratio)) {
      this.paintScene(width, height, ratio);
      at = this.placed(ratio);
    }
    clearTimeout(this.sharpen);
    if (this.painted.scale !== this.scale) this.sharpen = window.setTimeout(() => {
      this.stale = true;
      this.soon();
    }, 150);
    const c = this.context;
    c.fillStyle = this.colors.background;
    c.fillRect(0, 0, width, height);
    c.drawImage(this.scene, at.x, at.y, at.width, at.height);
  }

  /** Where the scene is in the present view, in pixels of the device. */
  private placed(ratio: number): { x: number; y: number; width: number; height: number } {
    const p = this.painted;
    const by = this.scale / p.scale;
    const place = (of: number, was: number, now: number) => (-Math.round(of * margin) - was * ratio) * by + now * ratio;
    return { x: place(p.width, p.x, this.x), y: place(p.height, p.y, this.y), width: this.scene.width * by, height: this.scene.height * by };
  }

  /** Whether the scene has all of the map that is in sight. */
  private covers(at: { x: number; y: number; width: number; height: number }, ratio: number): boolean {
    const { width, height } = this.layout.bounds();
    const has = (from: number, length: number, of: number, begin: number, size: number) =>
      from <= Math.max(0, begin * ratio) && from + length >= Math.min(of, (begin + size * this.scale) * ratio);
    return has(at.x, at.width, this.canvas.width, this.x, width) && has(at.y, at.height, this.canvas.height, this.y, height);
  }

  private paintScene(width: number, height: number, ratio: number): void {
    this.painted = { x: this.x, y: this.y, scale: this.scale, ratio, width, height };
    this.stale = false;
    const mx = Math.round(width * margin);
    const my = Math.round(height * margin);
    const c = this.scene.getContext("2d", { alpha: false })!;
    if (this.scene.width !== width + 2 * mx || this.scene.height !== height + 2 * my) Object.assign(this.scene, { width: width + 2 * mx, height: height + 2 * my });
    c.setTransform(1, 0, 0, 1, 0, 0);
    c.fillStyle = this.colors.background;
    c.fillRect(0, 0, this.scene.width, this.scene.height);
    const zoom = ratio * this.scale;
    const left = mx + ratio * this.x;
    const top = my + ratio * this.y;
    this.reach = { left: -left / zoom, top: -top / zoom, right: (this.scene.width - left) / zoom, bottom: (this.scene.height - top) / zoom };
    c.setTransform(zoom, 0, 0, zoom, left, top);
    this.paintBoxes(c);
    this.paintEdges(c);
    this.paintVertices(c);
  }

  private visible(x: number, y: number, width: number, height: number): boolean {
    const r = this.reach;
    return x < r.right && x + width > r.left && y < r.bottom && y + height > r.top;
  }

  private paintBoxes(c: CanvasRenderingContext2D): void {
    c.font = `600 ${Math.min(40, Math.max(13, 11 / this.scale))}px system-ui, sans-serif`;
    c.textBaseline = "bottom";
    for (const b of this.layout.boxes) {
      if (!this.visible(b.x, b.y - 40, b.width, b.height + 40)) continue;
      c.fillStyle = this.colors.box;
      c.fillRect(b.x, b.y, b.width, b.height);
      c.fillStyle = this.colors.faint;
      if (b.group) c.fillText(this.cut(c, b.group, b.width), b.x + 4, b.y + 22);
    }
  }

  private paintEdges(c: CanvasRenderingContext2D): void {
    // By width and colour, as these are slow to change. Each edge is a path of its own: one of all
    // of them takes many times longer to fill.
    const paths = new Map<string, Edge[]>();
    for (const e of this.graph.edges) {
      const touched = e.from === this.selected || e.to === this.selected;
      const style = `${e.denied > 0 ? "denied" : touched ? "accent" : "line"} ${Math.max(width(e.bytes), e.denied > 0 ? 2.5 : 0)} ${this.selected && !touched ? "dim" : ""}`;
      const list = paths.get(style);
      if (list) list.push(e);
      else paths.set(style, [e]);
    }
    for (const [style, list] of paths) {
      const [color, w, dim] = style.split(" ");
      c.strokeStyle = this.colors[color as keyof Colors];
      c.lineWidth = Number(w) / Math.max(0.25, Math.min(1, this.scale));
      c.globalAlpha = dim ? 0.15 : color === "line" ? 0.7 : 1;
      for (const e of list) {
        c.beginPath();
        this.trace(c, e);
        c.stroke();
      }
    }
    c.globalAlpha = 1;
  }

  private trace(c: CanvasRenderingContext2D, e: Edge): void {
    const a = this.layout.at(e.from)!;
    const b = this.layout.at(e.to)!;
    const ax = a.x + size.width / 2;
    const ay = a.y + size.height / 2;
    const bx = b.x + size.width / 2;
    const by = b.y + size.height / 2;
    if (!this.visible(Math.min(ax, bx), Math.min(ay, by), Math.abs(ax - bx) + 1, Math.abs(ay - by) + 1)) return;
    if (e.from === e.to) {
      c.rect(a.x + size.width - 12, a.y - 8, 20, 16);
      return;
    }
    c.moveTo(ax, ay);
    if (this.scale < 0.3) {
      c.lineTo(bx, by);
      return;
    }
    // To the right of a straight line, so that both directions are seen; an arrow at its middle.
    const dx = bx - ax;
    const dy = by - ay;
    const length = Math.hypot(dx, dy) || 1;
    const off = Math.min(30, length / 8);
    const mx = (ax + bx) / 2 - (dy / length) * off;
    const my = (ay + by) / 2 + (dx / length) * off;
    c.quadraticCurveTo(mx - (dy / length) * off, my + (dx / length) * off, bx, by);
    const ux = dx / length;
    const uy = dy / length;
    c.moveTo(mx - 7 * ux - 5 * uy, my - 7 * uy + 5 * ux);
    c.lineTo(mx, my);
    c.lineTo(mx - 7 * ux + 5 * uy, my - 7 * uy - 5 * ux);
  }

  private paintVertices(c: CanvasRenderingContext2D): void {
    c.font = "13px system-ui, sans-serif";
    c.textBaseline = "middle";
    const readable = this.scale > 0.35;
    for (const v of this.graph.vertices.values()) {
      const p = this.layout.at(v.id)!;
      if (!this.visible(p.x, p.y, size.width, size.height)) continue;
      c.fillStyle = v.kind === "service" ? this.colors.service : this.colors.card;
      c.fillRect(p.x, p.y, size.width, size.height);
      const marked = v.id === this.selected;
      c.strokeStyle = marked ? this.colors.accent : v.denied > 0 ? this.colors.denied : this.colors.line;
      c.lineWidth = marked ? 3 : v.denied > 0 ? 2 : 1;
      c.strokeRect(p.x, p.y, size.width, size.height);
      if (!readable) continue;
      c.fillStyle = this.colors.text;
      c.fillText(this.cut(c, (v.kind === "service" ? "svc " : "") + v.label, size.width), p.x + 8, p.y + size.height / 2 + 1);
    }
  }

  /** A text that fits, with its end cut off. */
  private cut(c: CanvasRenderingContext2D, text: string, into: number): string {
    const name = c.font + into + text;
    let short = this.labels.get(name);
    if (short === undefined) {
      short = text;
      while (short.length > 1 && c.measureText(short).width > into - 16) short = short.slice(0, short.endsWith("…") ? -2 : -1) + "…";
      if (this.labels.size > 5000) this.labels.clear();
      this.labels.set(name, short);
    }
    return short;
  }
}

/** From 1 for a few bytes to 5 for GiB, in steps. */
function width(bytes: number): number {
  return bytes < 1e3 ? 1 : bytes < 1e5 ? 1.5 : bytes < 1e7 ? 2 : bytes < 1e9 ? 3 : 5;
}
