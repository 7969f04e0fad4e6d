// SPDX-License-Identifier: Apache-2.0

// Package browser drives a real Chromium, without a window, for tests of the page: it opens
// addresses, asks the document, clicks and types as a user does, and notes what went wrong in the
// page. Tests are skipped where there is none (WEIR_CHROMIUM).
package browser

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/weir-net/weir/internal/await"
)

// Variable names the environment variable with the program.
const Variable = "WEIR_CHROMIUM"

// Browser is a Chromium that runs until its test ends.
type Browser struct {
	ctx context.Context
	pid int
}

// Start starts one. It takes these certificates of servers, whoever signed them, and no others.
func Start(t testing.TB, trusted ...*x509.Certificate) *Browser {
	t.Helper()
	program := os.Getenv(Variable)
	if program == "" {
		t.Skipf("NOT RUN: %s is not set: make browser brings Debian's Chromium", Variable)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()))
	var keys []string
	for _, c := range trusted {
		sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
		keys = append(keys, base64.StdEncoding.EncodeToString(sum[:]))
	}
	if len(keys) > 0 {
		options = append(options, chromedp.Flag("ignore-certificate-errors-spki-list", strings.Join(keys, ",")))
	}
	ctx, end := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(ctx)
	t.Cleanup(func() {
		cancel()
		end()
	})
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start %s: %v", program, err)
	}
	return &Browser{ctx, chromedp.FromContext(ctx).Browser.Process().Pid}
}

// Page is a tab.
type Page struct {
	t       testing.TB
	ctx     context.Context
	browser *Browser

	mu    sync.Mutex
	wrong []string
}

// Open opens an address in a tab of its own, of this size in pixels.
func (b *Browser) Open(t testing.TB, address string, width, height int64) *Page {
	t.Helper()
	ctx, cancel := chromedp.NewContext(b.ctx)
	p := &Page{t: t, ctx: ctx, browser: b}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the page says:\n%.2000s", p.Text("body"))
		}
		cancel()
	})
	if err := chromedp.Listen(ctx, p.note); err != nil {
		t.Fatal(err)
	}
	p.Do("open "+address, chromedp.EmulateViewport(width, height), chromedp.Navigate(address))
	return p
}

// note keeps what goes wrong in the page: exceptions, and what its security policy refuses.
func (p *Page) note(event any) {
	var text string
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		text = (&chromedp.ExceptionError{ExceptionDetails: e.ExceptionDetails}).Error()
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError && e.Entry.Source != log.EntrySourceNetwork {
			text = e.Entry.Text
		}
	}
	if text != "" {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.wrong = append(p.wrong, text)
	}
}

// Faultless fails the test where something went wrong in the page until now.
func (p *Page) Faultless() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.wrong {
		p.t.Errorf("in the page: %s", w)
	}
	p.wrong = nil
}

// Refuses waits until the page's security policy has refused something, which says this.
func (p *Page) Refuses(text string) {
	p.t.Helper()
	await.That(p.t, "the browser refuses: "+text, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		i := slices.IndexFunc(p.wrong, func(w string) bool { return strings.Contains(w, text) })
		if i < 0 {
			return fmt.Errorf("it has refused %q", p.wrong)
		}
		p.wrong = slices.Delete(p.wrong, i, i+1)
		return nil
	})
}

// Do carries out actions, which the test is about.
func (p *Page) Do(what string, actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, await.Patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		p.t.Fatalf("%s: %v", what, err)
	}
}

// evaluated is the value of an expression as JSON; that of a promise once there is one.
func (p *Page) evaluated(expression string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(p.ctx, await.Patience)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[[]byte](expression, chromedp.EvalAwaitPromise))
}

// Eval evaluates an expression in the page, and waits for a promise; into may be nil.
func (p *Page) Eval(expression string, into any) {
	p.t.Helper()
	if into == nil {
		p.Do(fmt.Sprintf("evaluate %.200s", expression), chromedp.Evaluate[chromedp.Void](expression, chromedp.EvalAwaitPromise))
		return
	}
	text, err := p.evaluated(expression)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		p.t.Fatalf("evaluate %.200s: %v", expression, err)
	}
}

// Is waits until an expression is true.
func (p *Page) Is(expression string) {
	p.t.Helper()
	await.That(p.t, expression, func() error {
		switch text, err := p.evaluated("!!(" + expression + ")"); {
		case err != nil:
			return err
		case string(text) != "true":
			return fmt.Errorf("it is not so; the page says: %.600s", p.Text("main"))
		}
		return nil
	})
}

// Text is the text of the first element of a selector; empty where there is none.
func (p *Page) Text(selector string) (said string) {
	text, err := p.evaluated(fmt.Sprintf("document.querySelector(%q)?.innerText ?? ''", selector))
	if err == nil {
		err = json.Unmarshal(text, &said)
	}
	if err != nil {
		return err.Error()
	}
	return said
}

// Has waits until the text of an element has another one in it.
func (p *Page) Has(selector, text string) {
	p.t.Helper()
	p.Is(fmt.Sprintf("(document.querySelector(%q)?.innerText ?? '').includes(%q)", selector, text))
}

// Click clicks on the first element of a selector, with the pointer.
func (p *Page) Click(selector string) {
	p.t.Helper()
	p.Do("click on "+selector, chromedp.ScrollIntoView(chromedp.CSS(selector)), chromedp.Click(chromedp.CSS(selector)))
}

// Type types into a field that is emptied before.
func (p *Page) Type(selector, text string) {
	p.t.Helper()
	p.Focus(selector)
	p.Eval(fmt.Sprintf("document.querySelector(%q).select()", selector), nil)
	p.Keys(text)
}

// Keys presses keys where the focus is: kb.Enter, or characters.
func (p *Page) Keys(keys string) {
	p.t.Helper()
	p.Do("press keys", chromedp.KeyEvent(keys))
}

// Focus gives an element the focus.
func (p *Page) Focus(selector string) {
	p.t.Helper()
	p.Do("focus "+selector, chromedp.Focus(chromedp.CSS(selector)))
}

// Dark says that the user prefers dark colours, or light ones.
func (p *Page) Dark(dark bool) {
	p.t.Helper()
	value := map[bool]string{true: "dark", false: "light"}[dark]
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: value}}
	if _, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features}); err != nil {
		p.t.Fatalf("prefer %s colours: %v", value, err)
	}
}

// Resize gives the tab another size.
func (p *Page) Resize(width, height int64) {
	p.t.Helper()
	p.Do("resize", chromedp.EmulateViewport(width, height))
}

// Picture takes a picture of what is in sight, as WebP, and writes it to a file.
func (p *Page) Picture(file string) {
	p.t.Helper()
	quality := int64(70)
	got, err := chromedp.Call(p.ctx, page.CaptureScreenshot, page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatWebp, Quality: &quality})
	if err == nil {
		err = os.WriteFile(file, got.Data, 0o644)
	}
	if err != nil {
		p.t.Fatalf("take a picture: %v", err)
	}
}

// ModulesVariable names the environment variable with the folder of the modules that npm brought.
const ModulesVariable = "WEIR_WEB_MODULES"

// Accessible fails the test where axe-core finds that the page breaks a rule of WCAG 2.2 AA. It
// needs scripts from outside of the page, which the page's own policy forbids: see Unguarded.
func (p *Page) Accessible(what string) {
	p.t.Helper()
	dir := os.Getenv(ModulesVariable)
	if dir == "" {
		p.t.Fatalf("%s is not set: hack/web.sh modules says it", ModulesVariable)
	}
	axe, err := os.ReadFile(dir + "/axe-core/axe.min.js")
	if err != nil {
		p.t.Fatal(err)
	}
	var has bool
	if p.Eval("typeof axe !== 'undefined'", &has); !has {
		p.Eval(string(axe)+"; true", nil)
	}
	var found []string
	p.Eval(`axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}).then((r) =>
		r.violations.map((v) => v.id + ": " + v.help + ": " + v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + " " + n.failureSummary.split("\n").slice(1, 2)).join(" | ")))`, &found)
	for _, f := range found {
		p.t.Errorf("%s: %s", what, f)
	}
}

// Unguarded lets a tab run scripts that its security policy forbids, from its next address on.
func (p *Page) Unguarded() {
	p.t.Helper()
	if _, err := chromedp.Call(p.ctx, page.SetBypassCSP, page.SetBypassCSPParams{Enabled: true}); err != nil {
		p.t.Fatalf("set the page's policy aside: %v", err)
	}
}

// Go opens another address in the tab.
func (p *Page) Go(address string) {
	p.t.Helper()
	p.Do("open "+address, chromedp.Navigate(address))
}

// Count is how many elements a selector has.
func (p *Page) Count(selector string) (n int) {
	p.t.Helper()
	p.Eval(fmt.Sprintf("document.querySelectorAll(%q).length", selector), &n)
	return n
}

// Path is the address without its origin.
func (p *Page) Path() (path string) {
	p.t.Helper()
	p.Eval("location.pathname + location.search + location.hash", &path)
	return path
}

// Frames draws n frames, each after a script has changed the page, and measures them: the 95th of
// 100 from one to the next, which other work of the machine makes longer, and the CPU time that the
// browser takes for one, by all of its threads; both in milliseconds.
func (p *Page) Frames(change string, n int) (p95, cpu float64) {
	p.t.Helper()
	before := p.browser.cpuTime(p.t)
	p.Eval(fmt.Sprintf(`new Promise((done) => {
		const took = []; let last = performance.now(); let i = 0;
		const frame = (now) => {
			if (i > 0) took.push(now - last);
			last = now;
			if (i++ === %d) { took.sort((a, b) => a - b); done(took[Math.floor(took.length * 0.95)]); return; }
			(%s)(i);
			requestAnimationFrame(frame);
		};
		requestAnimationFrame(frame);
	})`, n, change), &p95)
	return p95, float64((p.browser.cpuTime(p.t)-before)/time.Millisecond) / float64(n)
}

// cpuTime is that of the browser's processes until now.
func (b *Browser) cpuTime(t testing.TB) time.Duration {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	parent, spent := map[int]int{}, map[int]time.Duration{}
	for _, file := range files {
		text, _ := os.ReadFile(file) // what has ended has none
		var pid int
		_, after, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(after)
		if _, err := fmt.Sscan(string(text), &pid); err != nil || len(fields) < 13 {
			continue
		}
		const tick = 10 * time.Millisecond // of USER_HZ, which is 100 wherever there is Linux
		var user, system time.Duration
		if _, err := fmt.Sscan(fields[1]+" "+fields[11]+" "+fields[12], new(int), &user, &system); err != nil { // proc(5)
			t.Fatalf("%s: %v", file, err)
		}
		parent[pid], _ = strconv.Atoi(fields[1])
		spent[pid] = (user + system) * tick
	}
	ours := func(pid int) bool {
		for ; pid > 1; pid = parent[pid] {
			if pid == b.pid {
				return true
			}
		}
		return false
	}
	var all time.Duration
	for pid, d := range spent {
		if ours(pid) {
			all += d
		}
	}
	if all == 0 {
		t.Fatal("no process of the browser is found")
	}
	return all
}
