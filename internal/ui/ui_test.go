// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/ask"
	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/ui/page"
	why "github.com/weir-net/weir/internal/why/ask"
)

// fake answers with what it has, or with err.
type fake struct {
	found    *ask.Found
	err      error
	filter   flows.Filter // that was asked for
	most     int
	question Question
}

func (f *fake) Records(_ context.Context, filter flows.Filter, most int) (*ask.Found, error) {
	f.filter, f.most = filter, most
	return f.found, f.err
}

func (f *fake) Cluster(context.Context) (*Cluster, error) {
	return &Cluster{Nodes: []Node{{Name: "n1", State: "ready", Ready: true}}}, f.err
}

func (f *fake) Policies(context.Context) (*Policies, error) {
	return &Policies{Tiers: []Tier{{Name: "default\u202e", Known: true}}}, f.err
}

func (f *fake) Why(_ context.Context, q Question) (*why.Story, error) {
	f.question = q
	return &why.Story{Verdict: "allowed"}, f.err
}

const (
	origin = "http://127.0.0.1:4711"
	secret = "a-token"
)

// served is a server of one user.
func served(of Source) http.Handler {
	return New(Config{Origins: []string{origin, "http://localhost:4711"}, Access: Token(secret, of), Log: slog.New(slog.DiscardHandler)})
}

// asked asks a server as the page does, but for what change does.
func asked(h http.Handler, method, path, body string, change func(*http.Request)) *http.Response {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host = "127.0.0.1:4711"
	r.Header.Set("Origin", origin)
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	r.Header.Set("Authorization", "Bearer "+secret)
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func textOf(t *testing.T, r *http.Response) string {
	t.Helper()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var questions = []struct{ method, path, body string }{
	{"GET", "/api/cluster", ""}, {"GET", "/api/policies", ""}, {"GET", "/api/flows", ""}, {"POST", "/api/why", `{"source":"a/b","target":"c/d:80"}`},
}

// attempt is how a request differs from one of the page, and the answer's status.
type attempt struct {
	what   string
	change func(*http.Request)
	want   int
}

// answers holds that each question is answered, or refused, as is wanted.
func answers(t *testing.T, all []attempt) {
	t.Helper()
	h := served(&fake{found: &ask.Found{}})
	for _, q := range questions {
		for _, c := range all {
			r := asked(h, q.method, q.path, q.body, c.change)
			if text := textOf(t, r); r.StatusCode != c.want {
				t.Errorf("%s %s: %s: %d, want %d: %s", q.method, q.path, c.what, r.StatusCode, c.want, text)
			} else if c.want != http.StatusOK && (!strings.HasPrefix(text, `{"error":`) || strings.Contains(text, "n1")) {
				t.Errorf("%s %s: %s: %s", q.method, q.path, c.what, text)
			}
		}
	}
}

// header gives a request's header other values; empty ones are left out.
func header(values ...string) func(*http.Request) {
	return func(r *http.Request) {
		for i := 0; i < len(values); i += 2 {
			if r.Header.Del(values[i]); values[i+1] != "" {
				r.Header.Set(values[i], values[i+1])
			}
		}
	}
}

// named makes a request one to another host.
func named(host string, change func(*http.Request)) func(*http.Request) {
	return func(r *http.Request) {
		r.Host = host
		change(r)
	}
}

// Each question is answered to the page, and to a program that has its token.
func TestAnswers(t *testing.T) {
	t.Parallel()
	answers(t, []attempt{
		{"the page", nil, http.StatusOK},
		{"by another name", named("localhost:4711", header("Origin", "http://localhost:4711")), http.StatusOK},
		{"a program", header("Origin", "", "Sec-Fetch-Site", ""), http.StatusOK},
	})
}

// TestHostilePageWithoutToken: the loopback belongs to all users of a machine, and only one of them
// has the token.
func TestHostilePageWithoutToken(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "another user of an operator's machine asks the operator's page", hostile.Browser, hostile.ControlPlane, hostile.Both)
	answers(t, []attempt{
		{"no token", header("Authorization", ""), http.StatusUnauthorized},
		{"another token", header("Authorization", "Bearer a-tokem"), http.StatusUnauthorized},
		{"the token's begin", header("Authorization", "Bearer a-toke"), http.StatusUnauthorized},
		{"an empty token", header("Authorization", "Bearer "), http.StatusUnauthorized},
		{"another scheme", header("Authorization", "Basic "+secret), http.StatusUnauthorized},
		{"a token as cookie", header("Authorization", "", "Cookie", "weir-token="+secret), http.StatusUnauthorized},
	})
}

// TestHostilePageByOtherName: who makes a name of theirs lead to the loopback (DNS rebinding) has
// pages in the operator's browser that count as of one origin with what is there.
func TestHostilePageByOtherName(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a web page in an operator's browser reaches the operator's page by DNS rebinding", hostile.Browser, hostile.ControlPlane, hostile.Both)
	answers(t, []attempt{
		{"a rebound name", named("evil.example:4711", header("Origin", "")), http.StatusMisdirectedRequest},
		{"with its origin", named("evil.example:4711", header("Origin", "http://evil.example:4711")), http.StatusMisdirectedRequest},
		{"with ours", named("evil.example:4711", header()), http.StatusMisdirectedRequest},
		{"another port", named("127.0.0.1:4712", header()), http.StatusMisdirectedRequest},
		{"no name", named("", header()), http.StatusMisdirectedRequest},
	})
}

// TestHostilePageOfOthers: pages of other origins, those of other ports of the loopback among them,
// get no answer.
func TestHostilePageOfOthers(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a web page of another origin asks the operator's page", hostile.Browser, hostile.ControlPlane, hostile.Both)
	answers(t, []attempt{
		{"another port's page", header("Origin", "http://127.0.0.1:4712"), http.StatusForbidden},
		{"another site", header("Origin", "https://evil.example"), http.StatusForbidden},
		{"an origin without a name", header("Origin", "null"), http.StatusForbidden},
		{"another site without its origin", header("Origin", "", "Sec-Fetch-Site", "cross-site"), http.StatusForbidden},
		{"another port without its origin", header("Origin", "", "Sec-Fetch-Site", "same-site"), http.StatusForbidden},
		{"an address that was typed in", header("Origin", "", "Sec-Fetch-Site", "none"), http.StatusForbidden},
	})
}

// The page itself is nobody's secret, and every answer forbids what is not the page's.
func TestPage(t *testing.T) {
	t.Parallel()
	h := served(&fake{found: &ask.Found{}})
	stranger := func(r *http.Request) { r.Header = http.Header{"Sec-Fetch-Site": {"none"}} }
	paths := map[string]string{"/page.js": "text/javascript", "/page.css": "text/css", "/icon.svg": "image/svg+xml", "/": "text/html", "/index.html": "text/html"}
	for _, v := range page.Views {
		paths["/"+v] = "text/html"
	}
	for path, kind := range paths {
		r := asked(h, "GET", path, "", stranger)
		if text := textOf(t, r); r.StatusCode != http.StatusOK || !strings.HasPrefix(r.Header.Get("Content-Type"), kind) || len(text) < 100 {
			t.Errorf("%s: %d %s", path, r.StatusCode, r.Header.Get("Content-Type"))
		}
	}
	for _, path := range []string{"/other", "/dist/page.js", "/../page.go", "/page.go", "/api", "/api/", "/api/secrets", "/api/why"} {
		if r := asked(h, "GET", path, "", nil); r.StatusCode == http.StatusOK {
			t.Errorf("%s is served: %s", path, textOf(t, r))
		}
	}
	for _, q := range append(questions, struct{ method, path, body string }{"GET", "/", ""}, struct{ method, path, body string }{"GET", "/nothing", ""}) {
		for _, change := range []func(*http.Request){nil, stranger, func(r *http.Request) { r.Host = "evil.example" }} {
			r := asked(h, q.method, q.path, q.body, change)
			csp := r.Header.Get("Content-Security-Policy")
			for _, want := range []string{"default-src 'none'", "script-src 'self';", "frame-ancestors 'none'", "base-uri 'none'", "require-trusted-types-for 'script'"} {
				if !strings.Contains(csp, want) {
					t.Errorf("%s: no %q in %q", q.path, want, csp)
				}
			}
			if strings.Contains(csp, "unsafe") || strings.Contains(csp, "http") {
				t.Errorf("%s: %q", q.path, csp)
			}
			for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY",
				"Cross-Origin-Resource-Policy": "same-origin", "Access-Control-Allow-Origin": "", "Set-Cookie": ""} {
				if got := r.Header.Get(name); got != want {
					t.Errorf("%s: %s is %q, want %q", q.path, name, got, want)
				}
			}
		}
	}
}

// TestHostileWordsOnPage: what nodes say is data. No character of it turns the direction of a line,
// and JSON stays JSON.
func TestHostileWordsOnPage(t *testing.T) {
	t.Parallel()
	hostile.Record(t, "a compromised node shows a name as another one on the operator's page by its records", hostile.Node, hostile.ControlPlane, hostile.Both)
	f := &flows.Flow{Start: time.Unix(50, 0).UTC(), End: time.Unix(100, 0).UTC(), Node: "n1\u202e</script>", Verdict: flows.Denied, Protocol: "tcp",
		Source: flows.Peer{Address: netip.MustParseAddr("10.0.0.1"), Namespace: "a", Pod: "b\x1b[2J\u200b", Labels: map[string]string{"app": "b"}}, Destination: flows.Peer{Address: netip.MustParseAddr("10.0.0.2"), Port: 80},
		Rule: &events.Rule{Kind: "NetworkPolicy", Name: "a/p"}}
	other := *f
	other.Destination.Port = 81
	of := &fake{found: &ask.Found{Flows: []*flows.Flow{f, &other}, Left: 3, Nodes: []ask.Node{{Name: "n1", Status: &flows.Status{Node: "n1", Lost: map[string]uint64{"old": 4}}}, {Name: "n2", Err: errors.New("away")}}}}
	h := served(of)
	read := func(query string) (all []map[string]any) {
		r := asked(h, "GET", "/api/flows?"+query, "", nil)
		text := textOf(t, r)
		if r.StatusCode != http.StatusOK || strings.ContainsAny(text, "\u202e\u200b\x1b") || strings.Contains(text, "labels") {
			t.Fatalf("%d: %q", r.StatusCode, text)
		}
		for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
			var v map[string]any
			if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
				t.Fatalf("%v: %s", err, lines.Text())
			}
			all = append(all, v)
		}
		return all
	}
	first, second := read("denied=true&from=a&within=15m"), read("")
	if len(first) != 3 || first[0]["id"] == first[1]["id"] || first[0]["id"] != second[0]["id"] || first[0]["verdict"] != "denied" {
		t.Fatalf("%v\n%v", first, second)
	}
	last, _ := first[2]["summary"].(map[string]any)
	if nodes, _ := last["nodes"].([]any); last["left"] != 3.0 || len(nodes) != 2 || nodes[1].(map[string]any)["error"] != "away" {
		t.Errorf("summary: %v", first[2])
	}
	if len(f.Source.Labels) != 1 {
		t.Error("the source's records were changed")
	}
	read("denied=true&from=a&within=15m")
	if ago := time.Since(of.filter.Since); !of.filter.Denied || of.filter.From != "a" || ago < 15*time.Minute || ago > 16*time.Minute || of.most != MostRecords {
		t.Errorf("asked for %+v, %d", of.filter, of.most)
	}
	read("since=2026-01-02T03:04:05Z")
	if !of.filter.Since.Equal(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) {
		t.Errorf("asked for %+v", of.filter)
	}
	for _, bad := range []string{"within=yesterday", "within=-1m", "since=now", "denied=perhaps", "from=a/b/c"} {
		if r := asked(h, "GET", "/api/flows?"+bad, "", nil); r.StatusCode != http.StatusBadRequest || !strings.Contains(textOf(t, r), "error") {
			t.Errorf("%s: %d", bad, r.StatusCode)
		}
	}
}

// Why there is no answer is said, with a status by which programs can tell.
func TestErrors(t *testing.T) {
	t.Parallel()
	for _, q := range questions {
		for err, want := range map[error]int{
			fmt.Errorf("%w: nodes", ErrNoRight): http.StatusForbidden, fmt.Errorf("%w: nobody", ErrQuestion): http.StatusBadRequest, errors.New("away \u202e"): http.StatusBadGateway,
		} {
			r := asked(served(&fake{err: err}), q.method, q.path, q.body, nil)
			var said struct{ Error string }
			if bad := json.Unmarshal([]byte(textOf(t, r)), &said); bad != nil || r.StatusCode != want || said.Error != strings.ReplaceAll(err.Error(), "\u202e", "\ufffd") {
				t.Errorf("%s: %v: %d %q %v", q.path, err, r.StatusCode, said.Error, bad)
			}
		}
	}
	of := &fake{}
	for _, body := range []string{"", "{", `[]`, `{"sauce":"x"}`, `{"source":"` + strings.Repeat("x", maxQuestion) + `"}`} {
		if r := asked(served(of), "POST", "/api/why", body, nil); r.StatusCode != http.StatusBadRequest {
			t.Errorf("%.20q: %d", body, r.StatusCode)
		}
	}
	if r := asked(served(of), "POST", "/api/why", questions[3].body, nil); r.StatusCode != http.StatusOK || of.question.Source != "a/b" || of.question.Target != "c/d:80" {
		t.Errorf("%d: %+v", r.StatusCode, of.question)
	}
	if r := asked(served(of), "GET", "/api/policies", "", nil); strings.Contains(textOf(t, r), "\u202e") {
		t.Error("a tier's name turns the direction of the page")
	}
}
