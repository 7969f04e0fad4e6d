// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/nettest"
	"github.com/weir-net/weir/internal/ui"
	"github.com/weir-net/weir/test/ui/browser"
)

// wide and slim are the sizes that the page is for, in pixels.
const (
	wide, high     = 1280, 800
	slim, slimHigh = 390, 844
)

// pictures names the environment variable with the folder to which pictures of all views are
// written: those of docs/guides/ui.md are among them.
const pictures = "WEIR_UI_PICTURES"

// TestPage opens the page in a browser, view by view.
func TestPage(t *testing.T) {
	b := browser.Start(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *browser.Browser)
	}{
		{"refused", refused}, {"map", seesMap}, {"flows", seesFlows}, {"policies", seesPolicies}, {"nodes", seesNodes}, {"why", asksWhy},
		{"hostile", staysText}, {"off", recordsAreOff}, {"store", asksTheStore}, {"accessible", accessible}, {"many", manyRecords}, {"large", largeMap},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, b) })
	}
}

// opened opens a view of a server with the token.
func opened(t *testing.T, b *browser.Browser, of ui.Source, path string) *browser.Page {
	t.Helper()
	p := b.Open(t, served(t, of)+path+"#token="+token, wide, high)
	t.Cleanup(p.Faultless)
	return p
}

// Without the token, or with another one, the page shows nothing.
func refused(t *testing.T, b *browser.Browser) {
	address := served(t, shop(40))
	for _, fragment := range []string{"", "#token=another"} {
		p := b.Open(t, address+"/flows"+fragment, wide, high)
		p.Has("[role=alert]", "The server does not know you")
		if text := p.Text("body"); strings.Contains(text, "pg-") {
			t.Errorf("%q: the page shows records:\n%s", fragment, text)
		}
		p.Go(address + "/nodes#token=" + token) // and with it all is there
		p.Has("main", "worker1")
		if path := p.Path(); strings.Contains(path, token) {
			t.Errorf("the token stays in the address: %s", path)
		}
		p.Faultless()
	}
}

// The map shows workloads and Services, says what was denied, and stays as it is when more comes.
func seesMap(t *testing.T, b *browser.Browser) {
	of := shop(400)
	p := opened(t, b, of, "/")
	p.Has("caption", "connection")
	p.Has(".edges tbody tr:first-child", "denied")
	p.Has(".edges", "svc db/pg")
	p.Has(".sources", "2 nodes")
	p.Has(".sources", "1 node without an answer")
	p.Has(".sources", "not kept 7 records")
	// What is at a point of the picture: the first place at which there is something.
	find := `(async () => {
		const c = document.querySelector("canvas"), r = c.getBoundingClientRect();
		const click = (x, y) => ["pointerdown", "pointerup"].forEach((k) => c.dispatchEvent(new PointerEvent(k, {clientX: r.x + x, clientY: r.y + y, pointerId: 1, bubbles: true})));
		c.setPointerCapture = () => {};
		for (let y = 20; y < r.height; y += 14) for (let x = 20; x < r.width; x += 40) {
			click(x, y);
			await new Promise((f) => setTimeout(f, 0));
			const h = document.querySelector(".beside h2");
			if (h) return x + " " + y + " " + h.textContent;
		}
		return "";
	})()`
	var first, again string
	p.Eval(find, &first)
	if first == "" {
		t.Fatal("nothing on the map can be chosen")
	}
	p.Has(".beside .card", "Show all")
	for i := range 30 { // new namespaces, before the first by their name
		of.add(connection(time.Now(), 0, app(fmt.Sprintf("a-%02d", i), "new", 1), app("shop", "web", 1), 80, "", 1_000_000_000))
	}
	p.Is(`document.querySelector(".sources").innerText.startsWith("430 ")`)
	p.Click(".beside .card button")
	p.Is(`!document.querySelector(".beside h2")`)
	p.Eval(find, &again)
	if first != again {
		t.Errorf("what was %q is %q", first, again)
	}
	// By the keyboard.
	p.Focus("canvas")
	p.Keys(kb.ArrowLeft + "+-0" + kb.Escape)
	p.Is(`!document.querySelector(".beside h2")`)
	p.Click(".edges tbody button")
	p.Click(".beside .links a")
	p.Is(`location.pathname === "/flows" && new URLSearchParams(location.search).get("from")`)
}

// The table follows what happens; its filter is in the address; a verdict leads to its rule.
func seesFlows(t *testing.T, b *browser.Browser) {
	of := shop(200)
	p := opened(t, b, of, "/flows")
	p.Is(`document.querySelector("[role=grid]")?.getAttribute("aria-rowcount") === "201"`)
	live := connection(time.Now(), 0, app("fresh", "arrival", 1), app("shop", "web", 1), 8080, "shop/web port http", 1000)
	of.add(live)
	p.Has(".rows .row", "fresh/arrival-6b7f9c-0001")
	named := connection(time.Now(), 0, app("fresh", "asker", 1), flows.Peer{Address: netip.MustParseAddr("203.0.113.80")}, 443, "", 1000)
	named.Egress = &events.End{Rule: clients, Domain: "*.cdn.example", Name: "img.cdn.example"}
	of.add(named)
	p.Has(".rows .row", "img.cdn.example")
	p.Is(`document.querySelector(".rows .to").title === "203.0.113.80"`)

	// Filters: in the question, in the address, and back.
	p.Type("input[name=from]", "shop/cart")
	p.Keys(kb.Enter)
	p.Is(`new URLSearchParams(location.search).get("from") === "shop/cart"`)
	p.Is(`[...document.querySelectorAll(".rows .from")].length > 0 && [...document.querySelectorAll(".rows .from")].every((e) => e.innerText.startsWith("shop/cart"))`)
	if f := of.filter(); f.From != "shop/cart" || f.Denied {
		t.Errorf("asked for %+v", f)
	}
	p.Click("input[name=denied]")
	p.Is(`new URLSearchParams(location.search).get("denied") === "true"`)
	p.Has("main", "Nothing in this time matches")
	p.Eval("history.back()", nil)
	p.Is(`!document.querySelector("input[name=denied]").checked && document.querySelectorAll(".rows .row").length > 0`)
	p.Eval("history.back()", nil)
	p.Is(`document.querySelector("input[name=from]").value === ""`)

	// A record by the keyboard, and by the pointer.
	p.Focus("[role=grid]")
	p.Keys(kb.Home + kb.ArrowDown + kb.ArrowDown + kb.Enter)
	p.Has("aside", "Policy at the destination")
	p.Is(`document.querySelector(".row.chosen")?.getAttribute("aria-rowindex") === "4"`)
	p.Keys(kb.Escape)
	p.Is(`!document.querySelector("aside")`)
	p.Click(".rows .row.denied .from")
	p.Has("aside", "POLICY_INGRESS")
	p.Has("aside .links", "Why?")
	p.Click("aside .close")

	// The rule.
	p.Click(".rows .row:not(.denied) a.verdict")
	p.Is(`location.pathname === "/policies"`)
	p.Has(".rule.marked", "ingress[0]")
	p.Has(".rule.marked", "namespaceSelector")
	p.Eval("history.back()", nil)
	p.Click(".rows .row.denied a.verdict")
	p.Has(".rule.marked", "What no rule matches is denied")
}

// Tiers in their order, what rules decided, and those that decided nothing.
func seesPolicies(t *testing.T, b *browser.Browser) {
	p := opened(t, b, shop(200), "/policies")
	p.Is(`[...document.querySelectorAll(".tier h2")].map((h) => h.innerText.split(" ")[1]).join() === "security,default"`)
	p.Has("main", "the right to list globalnetworkpolicies")
	p.Is(`[...document.querySelectorAll(".policy")].some((p) => p.innerText.includes("db/pg-clients") && p.innerText.includes("74 flows") && p.innerText.includes("1 of 2 rules never matched"))`)
	p.Eval(`document.querySelectorAll(".policy summary").forEach((s) => s.click())`, nil)
	p.Is(`document.querySelectorAll(".hits.none").length === 4`)
	p.Has(".tier:last-child .rule.end", "4 flows, 12 packets")
	p.Type("input[type=search]", "metadata")
	p.Is(`document.querySelectorAll(".policy").length === 1`)
	p.Type("input[type=search]", "nothing like this")
	p.Is(`document.querySelectorAll(".policy").length === 0`)
}

func seesNodes(t *testing.T, b *browser.Browser) {
	p := opened(t, b, shop(10), "/nodes")
	for _, want := range []string{"1 of 3 nodes ready", "eBPF", "nftables", "POLICY_INGRESS", "4,211", "weir_flows ipv4", "62 %", "Uplinks: eth1 is down", "more than 90 %", "no agent", "IPPool extra"} {
		p.Has("main", want)
	}
}

// A question by the form, its answer hop by hop, and an error.
func asksWhy(t *testing.T, b *browser.Browser) {
	of := shop(10)
	p := opened(t, b, of, "/why")
	p.Type("input[name=source]", "shop/cart")
	p.Type("input[name=target]", "svc/db/pg:5432")
	p.Keys(kb.Enter)
	p.Has(".conclusion", "denied on node worker2 by default-deny db/pg-clients ingress (POLICY_INGRESS)")
	p.Is(`[...document.querySelectorAll(".hop h2")].map((h) => h.innerText).join("; ") === "pod shop/cart; Node worker1 eBPF; Node worker2 eBPF; Service db/pg"`)
	p.Has(".hop.denied", "ingress[0] Allow no: peer")
	if q := of.whyAsked(); q != (ui.Question{Source: "shop/cart", Target: "svc/db/pg:5432"}) {
		t.Errorf("asked %+v", q)
	}
	p.Type("input[name=source]", "nobody")
	p.Click(".ask button")
	p.Has("[role=alert]", "not found")
}

// What nodes and tenants call things is text, in every view.
func staysText(t *testing.T, b *browser.Browser) {
	p := opened(t, b, shopWith(200, markup), "/map")
	for _, view := range []string{"map", "flows", "policies", "nodes", "why?source=" + "%3Cimg%20src%3Dx%20onerror%3D%22window.hit%3D1%22%3E" + "&target=a%2Fb%3A80"} {
		p.Click(`nav a[href^="/` + strings.SplitN(view, "?", 2)[0] + `"]`)
		if strings.Contains(view, "?") {
			var origin string
			p.Eval("location.origin", &origin)
			p.Go(origin + "/" + view)
		}
		switch view {
		case "map", "flows", "policies", "nodes":
			p.Has("main", "<img src=x onerror=")
		default:
			p.Has(".hop", "pod <img src=x")
		}
		if n := p.Count("main img, main script, main b"); n > 0 {
			t.Errorf("%s: %d elements come from names", view, n)
		}
		var hit bool
		if p.Eval("!!window.hit", &hit); hit {
			t.Errorf("%s: a name is carried out", view)
		}
	}
	// And the browser would refuse scripts that a fault of the page let in.
	var said string
	p.Eval(`(() => { try { document.createElement("div").innerHTML = "<b>x</b>"; return "taken"; } catch (e) { return e.name; } })()`, &said)
	if said != "TypeError" {
		t.Errorf("markup in a text is %s", said)
	}
	p.Refuses("TrustedHTML")
}

// While nodes keep no records the page says how to switch them on.
func recordsAreOff(t *testing.T, b *browser.Browser) {
	of := &recorded{off: true}
	p := opened(t, b, of, "/flows")
	p.Has("main pre", "weir patch felixconfiguration default")
	p.Click(`nav a[href="/map"]`)
	p.Has("main pre", "flowLogsLocalReporter")
}

// Where the store answers, the page says so, what it has not, and shows what was yesterday.
func asksTheStore(t *testing.T, b *browser.Browser) {
	of := shop(10)
	of.stored = true
	yesterday := time.Now().Add(-24 * time.Hour)
	old := connection(yesterday, 10*time.Minute, app("past", "caller", 1), app("db", "pg", 1), 5432, "", 1000)
	old.Verdict, old.Rule, old.Ingress = flows.Denied, denied, &events.End{Rule: denied}
	of.flows = append([]*flows.Flow{&old}, of.flows...)
	p := opened(t, b, of, "/flows")
	p.Has(".sources", "10 records")
	p.Has(".sources", "and older ones that are not shown")
	p.Has(".sources", "of the store of flow records, which has them from ")
	p.Has(".sources", "3 (full)")
	p.Eval(fmt.Sprintf(`(() => {
		const e = document.querySelector("input[name=until]"), at = new Date(%d);
		e.value = new Date(at.getTime() - at.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
		e.dispatchEvent(new Event("change", {bubbles: true}));
	})()`, yesterday.UnixMilli()), nil)
	p.Is(`new URLSearchParams(location.search).get("until")`)
	p.Has(".sources", "1 record")
	p.Has(".rows", "past/caller")
	if f := of.filter(); f.Until.Before(yesterday.Add(-time.Minute)) || f.Until.After(yesterday) || f.Until.Sub(f.Since) != 15*time.Minute {
		t.Errorf("asked for %s to %s", f.Since, f.Until)
	}
	p.Click(".rows .row.denied a.verdict")
	p.Is(`location.pathname === "/policies" && new URLSearchParams(location.search).get("until")`)
	p.Has(".rule.marked", "What no rule matches is denied")
	p.Has(".rule.marked", "1 flow")
}

// Each view in each width and in dark and light, as axe-core says; nothing is wider than the
// window, and colours follow the system and the button.
func accessible(t *testing.T, b *browser.Browser) {
	p := b.Open(t, served(t, shop(400))+"/map#token="+token, wide, high)
	p.Unguarded() // axe-core is no script of the page
	for _, view := range []struct{ path, ready string }{
		{"/map", ".edges td"}, {"/flows", ".rows .row"}, {"/policies", ".policy"}, {"/nodes", ".card.node"}, {"/why?source=shop%2Fcart&target=svc%2Fdb%2Fpg%3A5432", ".hop.denied"},
	} {
		var origin string
		p.Eval("location.origin", &origin)
		p.Go(origin + view.path)
		for _, size := range [][2]int64{{wide, high}, {slim, slimHigh}} {
			p.Resize(size[0], size[1])
			p.Is(fmt.Sprintf("innerWidth === %d && document.querySelector(%q)", size[0], view.ready))
			switch view.path {
			case "/policies":
				p.Eval(`document.querySelectorAll(".policy:not([open]) summary").forEach((s) => s.click())`, nil)
				p.Is(`document.querySelector(".rule pre")`)
			case "/flows":
				p.Click(".rows .row.denied .from")
				p.Is(`document.querySelector("aside")`)
			}
			for _, dark := range []bool{false, true} {
				p.Dark(dark)
				p.Accessible(fmt.Sprintf("%s, %d pixels wide, dark %t", view.path, size[0], dark))
			}
			var over int
			if p.Eval("document.documentElement.scrollWidth - innerWidth", &over); over > 0 {
				t.Errorf("%s: %d pixels wide, it is %d wider than the window", view.path, size[0], over)
			}
			if dir := os.Getenv(pictures); dir != "" {
				p.Dark(false)
				p.Picture(filepath.Join(dir, fmt.Sprintf("%s-%d.webp", strings.Trim(strings.SplitN(view.path, "?", 2)[0], "/"), size[0])))
			}
		}
	}
	color := `getComputedStyle(document.body).backgroundColor`
	var light, dark, chosen string
	p.Dark(false)
	p.Eval(color, &light)
	p.Dark(true)
	p.Eval(color, &dark)
	p.Click(".theme") // light
	p.Is(`document.documentElement.dataset.theme === "light"`)
	p.Eval(color, &chosen)
	if light == dark || chosen != light {
		t.Errorf("light %s, dark %s, chosen %s", light, dark, chosen)
	}
}

// frames measures what frames take while a script changes the page in each.
func frames(t *testing.T, p *browser.Page, what, script string) {
	t.Helper()
	p95, cpu := p.Frames(script, 100)
	nettest.Figure(t, what+", frame p95 ms", p95)
	nettest.Figure(t, what+", CPU ms a frame", cpu)
	if nettest.Measuring() && p95 > 50 {
		t.Errorf("%s: a frame takes %.0f ms", what, p95)
	}
}

// A hundred thousand records are one table, of which the rows in sight are in the document.
func manyRecords(t *testing.T, b *browser.Browser) {
	of := shop(ui.MostRecords)
	began := time.Now()
	p := opened(t, b, of, "/flows?within=1h")
	p.Is(fmt.Sprintf(`document.querySelector("[role=grid]")?.getAttribute("aria-rowcount") === "%d"`, ui.MostRecords+1))
	nettest.Figure(t, "100,000 records in the table, s", time.Since(began).Seconds())
	if n := p.Count(".rows .row"); n < 20 || n > 80 {
		t.Errorf("%d rows are in the document", n)
	}
	frames(t, p, "scrolling through 100,000 records", `() => { document.querySelector("[role=grid]").scrollTop += 700; }`)
	p.Focus("[role=grid]")
	p.Keys(kb.End)
	p.Is(fmt.Sprintf(`document.querySelector(".rows .row:last-child")?.getAttribute("aria-rowindex") === "%d"`, ui.MostRecords+1))
	// Who has scrolled down reads: one more record moves nothing.
	p.Eval(`document.querySelector("[role=grid]").scrollTop = 31 * 5000`, nil)
	p.Is(`[...document.querySelectorAll(".rows .row")].some((r) => r.getAttribute("aria-rowindex") === "5002")`)
	at := `(() => { const g = document.querySelector("[role=grid]").getBoundingClientRect(); return document.elementFromPoint(g.x + 400, g.y + 200).closest(".row").id; })()`
	var before, after string
	p.Eval(at, &before)
	of.add(connection(time.Now(), 0, app("fresh", "arrival", 1), app("shop", "web", 1), 8080, "", 1000))
	p.Is(`[...document.querySelectorAll(".rows .row")].some((r) => r.getAttribute("aria-rowindex") === "5003") && document.querySelector(".sources").innerText.includes("older")`)
	p.Eval(at, &after)
	if before == "" || before != after {
		t.Errorf("what was read moved: %s, %s", before, after)
	}
}

// The map of 500 workloads and 2,000 pairs moves smoothly.
func largeMap(t *testing.T, b *browser.Browser) {
	of := city(500, 2000)
	p := opened(t, b, of, "/map")
	p.Is(`document.querySelector("canvas").getAttribute("aria-label").startsWith("Map of 500 ") && document.querySelector("caption").innerText.startsWith("2,000 ")`)
	moves := map[string]string{
		"dragged": `(i) => {
			const c = document.querySelector("canvas"), r = c.getBoundingClientRect();
			c.setPointerCapture = () => {};
			const go = (kind, x) => c.dispatchEvent(new PointerEvent(kind, {clientX: r.x + 300 + x, clientY: r.y + 300, pointerId: 1, bubbles: true}));
			if (i === 1) go("pointerdown", 0);
			go("pointermove", 12 * (i % 40 < 20 ? i % 20 : 20 - i % 20));
		}`,
		"zoomed": `(i) => document.querySelector("canvas").dispatchEvent(new WheelEvent("wheel", {deltaY: i % 40 < 20 ? -12 : 12, clientX: 400, clientY: 400, bubbles: true, cancelable: true}))`,
	}
	for what, script := range moves {
		frames(t, p, "a map of 500 and 2,000 that is "+what, script)
	}
	var paint float64
	p.Eval(`performance.getEntriesByName("first-contentful-paint")[0].startTime`, &paint)
	nettest.Figure(t, "first paint, ms", paint)
	if nettest.Measuring() && paint > 1000 {
		t.Errorf("first paint after %.0f ms", paint)
	}
}

// A flow that ends at no pod of the cluster, and one of IPv6, have their place, too.
func TestOtherEnds(t *testing.T) {
	b := browser.Start(t)
	of := &recorded{}
	out := connection(time.Now(), 0, app("shop", "web", 1), flows.Peer{Address: netip.MustParseAddr("2001:db8::9")}, 443, "", 5000)
	node := connection(time.Now(), 0, flows.Peer{Address: netip.MustParseAddr("172.31.1.207"), Node: "worker1"}, app("shop", "web", 1), 8080, "", 5000)
	of.add(out)
	of.add(node)
	p := opened(t, b, of, "/map?within=all")
	p.Has(".edges", "outside of the cluster")
	p.Has(".edges", "worker1")
	p.Click(`nav a[href^="/flows"]`)
	p.Has(".rows", "2001:db8::9")
}
