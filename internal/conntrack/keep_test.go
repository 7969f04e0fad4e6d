// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/kernel"
)

// TestKeep: a connection that a rule translated goes on when the rule goes with all chains of type
// nat that there were, after Keep, and does not without it. What Keep made goes when nothing is
// translated any more.
func TestKeep(t *testing.T) {
	table, server := opened(t), echoServer(t)
	ctx := context.Background()
	there := func() bool { return kernel.NFT(ctx, "list chain ip "+keptTable+" keep\n", nftTime) == nil }
	for _, keep := range []bool{true, false} {
		rules := fmt.Sprintf("table ip t { chain c { type nat hook output priority -100; ip daddr 127.0.0.2 tcp dport 7 dnat to %s; }; }\n", server)
		if err := kernel.NFT(ctx, rules, nftTime); err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("tcp4", "127.0.0.2:7")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		in := bufio.NewReader(c)
		ask := func() error {
			_ = c.SetDeadline(time.Now().Add(3 * time.Second))
			_, err := fmt.Fprintln(c, "line")
			_, err2 := in.ReadString('\n')
			return errors.Join(err, err2)
		}
		if err := ask(); err != nil {
			t.Fatal(err)
		}
		if keep {
			if err := errors.Join(Keep(), Keep()); err != nil || !there() {
				t.Fatalf("it is not there (%v)", err)
			}
		}
		if err := kernel.NFT(ctx, "delete table ip t\n", nftTime); err != nil {
			t.Fatal(err)
		}
		if err := ask(); (err == nil) != keep {
			t.Errorf("kept %v: after the rule has gone: %v", keep, err)
		}
		if keep {
			if err := Unkeep(true); err != nil || !there() {
				t.Errorf("it is gone while a connection is translated (%v)", err)
			}
		}
		var translated []Tuple
		if err := table.Each(false, func(e Entry) {
			if e.Translated() {
				translated = append(translated, e.Orig)
			}
		}); err != nil || len(translated) != 1 {
			t.Fatalf("%d connections are translated (%v)", len(translated), err)
		}
		if err := table.Delete(translated[0]); err != nil {
			t.Fatal(err)
		}
		if err := Unkeep(true); err != nil || there() {
			t.Errorf("it is there for nothing (%v)", err)
		}
	}
	if err := errors.Join(Keep(), Unkeep(false)); err != nil || there() {
		t.Errorf("it stays (%v)", err)
	}
}

// echoServer answers with what it gets, at an address of the loopback interface, which it puts up.
func echoServer(t *testing.T) net.Addr {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatal(err)
	}
	server, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go io.Copy(c, c)
		}
	}()
	return server.Addr()
}
