// SPDX-License-Identifier: Apache-2.0
// Where things are on the map. A place that was given stays: what is new gets a free place in the
// box of its namespace, or in another box where that is full. So the map stays still while data
// changes, and someone who looks away finds everything again.
import type { Vertex } from "./graph";

export const size = { width: 168, height: 34 };
const gap = { x: 44, y: 26 };
const edge = 18; // of a box, around its vertices
const head = 24; // for the box's name

export interface Point { x: number; y: number }

export interface Box { group: string; x: number; y: number; width: number; height: number; slots: Point[]; used: number }

export class Layout {
  boxes: Box[] = [];
  private places = new Map<string, Point>();
  private shelf = { x: 0, y: 0, height: 0, width: 0 };

  /** The left upper corner of a vertex. */
  at(id: string): Point | undefined {
    return this.places.get(id);
  }

  place(all: Iterable<Vertex>): void {
    const groups = new Map<string, Vertex[]>();
    for (const v of all) {
      if (this.places.has(v.id)) continue;
      const list = groups.get(v.group);
      if (list) list.push(v);
      else groups.set(v.group, [v]);
    }
    if (groups.size === 0) return;
    let slots = 0;
    for (const list of groups.values()) slots += room(list.length);
    this.shelf.width ||= Math.max(900, Math.sqrt(slots * (size.width + gap.x) * (size.height + gap.y) * 3.2));
    // Namespaces by size, so that shelves are filled well; names decide between equal ones.
    const order = [...groups].sort(([a, x], [b, y]) => y.length - x.length || (a < b ? -1 : 1));
    for (const [group, list] of order) {
      list.sort((a, b) => (a.kind === b.kind ? (a.label < b.label ? -1 : 1) : a.kind < b.kind ? -1 : 1));
      for (const v of list) {
        let box = this.boxes.find((b) => b.group === group && b.used < b.slots.length);
        if (!box) this.boxes.push((box = this.newBox(group, room(list.length))));
        this.places.set(v.id, box.slots[box.used++]);
      }
    }
  }

  private newBox(group: string, n: number): Box {
    const columns = Math.min(n, Math.max(1, Math.round(Math.sqrt(n / 2.6))));
    const rows = Math.ceil(n / columns);
    const width = columns * size.width + (columns - 1) * gap.x + 2 * edge;
    const height = rows * size.height + (rows - 1) * gap.y + edge + head + edge / 2;
    const s = this.shelf;
    if (s.x > 0 && s.x + width > s.width) Object.assign(s, { x: 0, y: s.y + s.height + 56, height: 0 });
    const box: Box = { group, x: s.x, y: s.y, width, height, slots: [], used: 0 };
    for (let i = 0; i < n; i++)
      box.slots.push({ x: box.x + edge + (i % columns) * (size.width + gap.x), y: box.y + head + edge / 2 + Math.floor(i / columns) * (size.height + gap.y) });
    s.x += width + 64;
    s.height = Math.max(s.height, height);
    return box;
  }

  bounds(): { width: number; height: number } {
    let width = 1;
    let height = 1;
    for (const b of this.boxes) {
      width = Math.max(width, b.x + b.width);
      height = Math.max(height, b.y + b.height);
    }
    return { width, height };
  }
}

/** A fourth more than what is there. */
const room = (n: number): number => (n === 1 ? 1 : Math.ceil(n * 1.25));
