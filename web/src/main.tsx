// SPDX-License-Identifier: Apache-2.0
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { takeToken, useRefused } from "./api";
import { filtersOf, type Filters, follow, go, href, type Place, queryOf, usePlace, type View, views, windows } from "./place";
import "./style.css";
import { FlowsView } from "./views/flows";
import { MapView } from "./views/map";
import { NodesView } from "./views/nodes";
import { PoliciesView } from "./views/policies";
import { WhyView } from "./views/why";

const titles: Record<View, string> = { map: "Map", flows: "Flows", policies: "Policies", nodes: "Nodes", why: "Why" };

function Page() {
  const place = usePlace();
  const filters = filtersOf(place.params);
  const refused = useRefused();
  useEffect(() => { document.title = titles[place.view] + " · Weir"; }, [place.view]);
  return (
    <div class="page" onClick={follow}>
      <a class="skip" href="#main">Skip to the view</a>
      <header>
        <span class="name" aria-hidden="true">Weir</span>
        <nav aria-label="Views">
          {views.map((v) => <a key={v} href={href(v, queryOf(filters))} aria-current={v === place.view ? "page" : undefined}>{titles[v]}</a>)}
        </nav>
        <Theme />
      </header>
      {place.view !== "nodes" && place.view !== "why" && <FilterBar place={place} filters={filters} />}
      <main id="main" class={place.view} tabIndex={place.view === "map" || place.view === "flows" ? -1 : 0}>
        <h1 class="hidden">{titles[place.view]}</h1>
        {refused ? <NoToken /> : <Shown view={place.view} filters={filters} />}
      </main>
    </div>
  );
}

function Shown({ view, filters }: { view: View; filters: Filters }) {
  switch (view) {
    case "map": return <MapView filters={filters} />;
    case "flows": return <FlowsView filters={filters} />;
    case "policies": return <PoliciesView filters={filters} />;
    case "nodes": return <NodesView />;
    case "why": return <WhyView />;
  }
}

function NoToken() {
  return (
    <div class="card" role="alert">
      <h2>The server does not know you</h2>
      <p>Open the address that <code>weir ui</code> prints: it has a token, which this tab has not, or which is that of a run that has ended.</p>
    </div>
  );
}

/** The filter of records, which is in the address: a change of it can be gone back from. */
function FilterBar({ place, filters }: { place: Place; filters: Filters }) {
  const [text, set] = useState({ from: filters.from, to: filters.to, policy: filters.policy });
  useEffect(() => set({ from: filters.from, to: filters.to, policy: filters.policy }), [filters.from, filters.to, filters.policy]);
  const apply = (change: Partial<Filters>) => go(href(place.view, queryOf({ ...filters, ...text, ...change })));
  const field = (name: "from" | "to" | "policy", label: string, hint: string) => (
    <label>{label}
      <input name={name} value={text[name]} placeholder={hint} autocomplete="off" spellcheck={false} onInput={(e) => set({ ...text, [name]: e.currentTarget.value })} onBlur={() => apply({})} />
    </label>
  );
  return (
    <form class="filters" role="search" aria-label="Filter of records" onSubmit={(e) => { e.preventDefault(); apply({}); }}>
      <label>Seen within
        <select name="within" value={filters.within} onChange={(e) => apply({ within: e.currentTarget.value })}>
          {Object.entries(windows).map(([k, v]) => <option key={k} value={k}>{v}</option>)}
        </select>
      </label>
      {field("from", "From", "namespace/name, network")}
      {field("to", "To", "namespace/name, network")}
      {field("policy", "Policy", "namespace/name")}
      <label class="check"><input type="checkbox" name="denied" checked={filters.denied} onChange={(e) => apply({ denied: e.currentTarget.checked })} /> denied only</label>
      <button type="submit">Show</button>
    </form>
  );
}

const themes = ["as the system", "light", "dark"];

function Theme() {
  const [theme, set] = useState(localStorage.getItem("weir-theme") ?? themes[0]);
  useEffect(() => {
    localStorage.setItem("weir-theme", theme);
    document.documentElement.dataset.theme = theme;
  }, [theme]);
  return <button type="button" class="theme" onClick={() => set(themes[(themes.indexOf(theme) + 1) % themes.length])} aria-label={`Colours: ${theme}. Change them`}>◐ <span>{theme}</span></button>;
}

takeToken();
render(<Page />, document.getElementById("page")!);
