// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/weir-net/weir/internal/kernel"
)

// TestHoldOpenConnection: a connection that connection tracking forgets while a Hold lasts, and
// rules would translate anew to another source port, is not given one, and goes on when its entry
// is back.
func TestHoldOpenConnection(t *testing.T) {
	table, server := opened(t), echoServer(t)
	ctx := context.Background()
	_, port, _ := net.SplitHostPort(server.String())
	if err := kernel.NFT(ctx, fmt.Sprintf(`table ip t {
		set clients { type inet_service; size 65536; flags dynamic; }
		chain arrived { type filter hook input priority 0; tcp dport %s add @clients { tcp sport }; }
		chain to { type nat hook output priority -100; ip daddr 127.0.0.2 tcp dport 7 dnat to %s; }
		chain from { type nat hook postrouting priority 100; ct status dnat meta l4proto tcp snat to 127.0.0.1:20000-29999 fully-random; }
	}
	`, port, server), nftTime); err != nil {
		t.Fatal(err)
	}
	defer kernel.NFT(ctx, "delete table ip t\n", nftTime)
	c, err := net.Dial("tcp4", "127.0.0.2:7")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	in := bufio.NewReader(c)
	if _, err := fmt.Fprintln(c, "before"); err != nil {
		t.Fatal(err)
	}
	if line, err := in.ReadString('\n'); line != "before\n" {
		t.Fatalf("before the Hold: %q, %v", line, err)
	}
	var open []Entry
	if err := table.Each(false, func(e Entry) {
		if e.Translated() && e.Orig.SrcPort == c.LocalAddr().(*net.TCPAddr).AddrPort().Port() {
			open = append(open, e)
		}
	}); err != nil || len(open) != 1 {
		t.Fatalf("%d connections are translated (%v)", len(open), err)
	}
	release, err := Hold(ctx, HoldOptions{InterfacePrefix: "cali"})
	defer func() {
		if err := release(); err != nil {
			t.Error(err)
		}
	}()
	if err != nil {
		t.Fatal(err)
	}
	if err := table.Delete(open[0].Orig); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(c, "meanwhile"); err != nil { // the packet has gone its way when this returns
		t.Fatal(err)
	}
	if ports, err := sourcePorts(); len(ports) != 1 || err != nil {
		t.Errorf("the server had packets from %d ports, want that of the connection alone (%v)", len(ports), err)
	}
	_, err = table.Put(open[0], func(Entry) bool { return true })
	if err = errors.Join(err, release()); err != nil {
		t.Fatal(err)
	}
	defer table.Delete(open[0].Orig)
	if line, err := in.ReadString('\n'); line != "meanwhile\n" {
		t.Errorf("after the Hold: %q, %v", line, err)
	}
}

// sourcePorts are the ports from which the server had packets.
func sourcePorts() ([]nftables.SetElement, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	return conn.GetSetElements(&nftables.Set{Name: "clients", Table: &nftables.Table{Name: "t", Family: nftables.TableFamilyIPv4}})
}
