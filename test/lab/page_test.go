// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/weir-net/weir/test/ui/browser"
)

// servedPage runs `weir ui` on client1, and returns the address that it prints. That is client1's
// loopback: the same port of this machine's leads there.
func (b *base) servedPage(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // the test has ended
			}
			all.Go(func() { b.lead(ctx, c, at) })
		}
	})
	c := b.command(ctx, "exec", "client1", "--", filepath.Join(b.bin, "weir"), "ui", "--listen", at)
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	out, err := c.StdoutPipe()
	if err == nil {
		c.Stderr = c.Stdout
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		l.Close()
		_ = c.Wait() // it was interrupted
		all.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	_, address, found := strings.Cut(strings.TrimSpace(line), "The page is at ")
	if err != nil || !found || !strings.HasPrefix(address, "http://"+at+"/#token=") {
		t.Fatalf("weir ui: %q %v", line, err)
	}
	all.Go(func() { _, _ = io.Copy(io.Discard, out) })
	return address
}

// lead copies a connection to an address of client1's, and back.
func (b *base) lead(ctx context.Context, from net.Conn, to string) {
	defer from.Close()
	there, err := b.rest.Dial(ctx, "tcp", to)
	if err != nil {
		return // the browser says it
	}
	defer there.Close()
	defer context.AfterFunc(ctx, func() { from.Close(); there.Close() })()
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(from, there) // one end of both ends both
		from.Close()
	})
	_, _ = io.Copy(there, from)
	there.Close()
	back.Wait()
}

// pageShows looks in a browser at what happens while flow records are on: who talks to whom and
// what was denied, each record with its rule, the policy at that rule, nodes, and why.
func pageShows(t *testing.T, b *base) {
	p := browser.Start(t).Open(t, b.servedPage(t), 1280, 800)
	has := func(what, expression string) {
		eventually(t, 0, what, func() error {
			b.cli1.dial(t, at(b.svc1, whoPort), 1)
			b.cli2.dial(t, at(b.srv1.addr, whoPort), 1, "--timeout", "100ms")
			var is bool
			if p.Eval("!!("+expression+")", &is); !is {
				return fmt.Errorf("the page says:\n%.600s", p.Text("main"))
			}
			return nil
		})
	}
	line := func(words ...string) string {
		all := make([]string, len(words))
		for i, w := range words {
			all[i] = fmt.Sprintf("e.innerText.includes(%q)", w)
		}
		return strings.Join(all, " && ")
	}
	has("what was denied on the map", `[...document.querySelectorAll(".edges tr")].some((e) => `+line(b.ns+"/cli2", b.ns+"/srv1", "denied")+`)`)
	has("the Service on the map", `[...document.querySelectorAll(".edges tr")].some((e) => `+line(b.ns+"/cli1", "svc "+b.ns+"/svc1")+`)`)
	p.Click(`nav a[href^="/flows"]`)
	p.Type("input[name=to]", b.ns+"/srv1")
	p.Click(".filters button")
	has("a record with its rule", `[...document.querySelectorAll(".rows .row")].some((e) => `+line(b.ns+"/cli1", "NetworkPolicy "+b.ns+"/recorded ingress[0]", b.ns+"/svc1", "worker1")+`)`)
	has("what policy denied", `[...document.querySelectorAll(".rows .row.denied")].some((e) => `+line(b.ns+"/cli2", "default-deny "+b.ns+"/recorded")+`)`)
	p.Click(".rows .row:not(.denied) a.verdict")
	p.Has(".rule.marked", "ingress[0]")
	p.Has(".rule.marked", "flow") // that it decided
	p.Click(`nav a[href^="/nodes"]`)
	p.Has("main", fmt.Sprintf("of %d nodes ready", len(nodes)))
	p.Has("main", "POLICY_INGRESS")
	p.Click(`nav a[href^="/why"]`)
	p.Type("input[name=source]", b.ns+"/cli2")
	p.Type("input[name=target]", "pod/"+b.ns+"/"+fmt.Sprintf("srv1:%d", whoPort))
	p.Click(".ask button")
	p.Has(".conclusion", "denied on node worker1 by default-deny "+b.ns+"/recorded ingress")
	p.Faultless()
}
