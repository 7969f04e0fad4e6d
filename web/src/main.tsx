// SPDX-License-Identifier: Apache-2.0
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { askSession, logIn, logOut, oidcPath, takeFailure, takeToken, useRefused, useSession } from "./api";
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
  const session = useSession();
  const out = session?.login && (!session.user || refused);
  useEffect(() => { document.title = titles[place.view] + " · Weir"; }, [place.view]);
  return (
    <div class="page" onClick={follow}>
      <a class="skip" href="#main">Skip to the view</a>
      <header>
        <span class="name" aria-hidden="true">Weir</span>
        <nav aria-label="Views">
          {views.map((v) => <a key={v} href={href(v, queryOf(filters))} aria-current={v === place.view ? "page" : undefined}>{titles[v]}</a>)}
        </nav>
        {session?.login && !out && (
          <span class="user">
            <span>{session.user}</span> <button type="button" class="logout" onClick={() => void logOut()}>Log out</button>
          </span>
        )}
        <Theme />
      </header>
      {!out && place.view !== "nodes" && place.view !== "why" && <FilterBar place={place} filters={filters} />}
      <main id="main" class={place.view} tabIndex={place.view === "map" || place.view === "flows" ? -1 : 0}>
        <h1 class="hidden">{titles[place.view]}</h1>
        {out ? <LogIn again={!!session?.user} oidc={!!session?.oidc} /> : refused ? <NoToken /> : session && <Shown view={place.view} filters={filters} />}
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

/** The log-in. The token is in this field alone, and is gone with it. */
function LogIn({ again, oidc }: { again: boolean; oidc: boolean }) {
  const [token, set] = useState("");
  const [error, say] = useState(takeFailure);
  const [asking, ask] = useState(false);
  const submit = async (e: Event) => {
    e.preventDefault();
    ask(true);
    try {
      await logIn(token);
    } catch (e) {
      say((e as Error).message);
    }
    set("");
    ask(false);
  };
  return (
    <form class="card login" onSubmit={submit}>
      <h2>Log in</h2>
      {again && <p>Your session has ended.</p>}
      {oidc && <p><a class="button" href={oidcPath}>Log in at your organization</a></p>}
      <p>{oidc ? "Or with" : "With"} a bearer token of this cluster's API server, such as <code>kubectl create token NAME</code> makes for a service account. You see what its user may see.</p>
      <label>Token
        <input type="password" name="token" value={token} autocomplete="off" spellcheck={false} required onInput={(e) => set(e.currentTarget.value)} />
      </label>
      <button type="submit" disabled={asking}>Log in</button>
      {error && <p class="bad" role="alert">{error}</p>}
    </form>
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
      <label>Up to
        <input type="datetime-local" name="until" value={local(filters.until)} onChange={(e) => apply({ until: e.currentTarget.value ? new Date(e.currentTarget.value).toISOString() : "" })} />
      </label>
      {field("from", "From", "namespace/name, network")}
      {field("to", "To", "namespace/name, network")}
      {field("policy", "Policy", "namespace/name")}
      <label class="check"><input type="checkbox" name="denied" checked={filters.denied} onChange={(e) => apply({ denied: e.currentTarget.checked })} /> denied only</label>
      <button type="submit">Show</button>
    </form>
  );
}

/** A time as a field of a form has it: in local time, to the minute. */
function local(iso: string): string {
  if (!iso) return "";
  const at = new Date(iso);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
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
void askSession();
render(<Page />, document.getElementById("page")!);
