// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// BenchmarkStream says for each table what 64 KiB of a TCP stream take, with their
// acknowledgements: few packets, between which copying drives tables and rules out of the
// processor's nearest caches, as it does in streams between machines. Both ends are in one thread.
func BenchmarkStream(b *testing.B) {
	sites := benchSites(b)
	for _, path := range []struct {
		name   string
		server string
		ends   func(s *benchSite) (from, to netns.NsHandle)
	}{
		{"pod to another node", benchFar, func(s *benchSite) (a, b netns.NsHandle) { return s.pod, s.other }},
		{"another node to pod", benchPod, func(s *benchSite) (a, b netns.NsHandle) { return s.other, s.pod }},
	} {
		b.Run(strings.ReplaceAll(path.name, " ", "-"), func(b *testing.B) {
			oneThread(b)
			type stream struct{ client, server int }
			streams := map[string]stream{}
			for _, t := range benchTables {
				from, to := path.ends(sites[t])
				listener, err := listen(to, path.server)
				if err != nil {
					b.Fatal(t, err)
				}
				defer unix.Close(listener)
				if err := netns.Set(from); err != nil {
					b.Fatal(t, err)
				}
				client, server, err := connection(listener, path.server, benchPort)
				if err != nil {
					b.Fatal(t, err)
				}
				defer unix.Close(client)
				defer unix.Close(server)
				streams[t] = stream{client, server}
			}
			data, space := make([]byte, 64<<10), make([]byte, 256<<10)
			inTurns(b, "64KiB", func(t string) float64 {
				const turn = 40
				begin := time.Now()
				for range turn {
					if err := carry(streams[t].client, streams[t].server, data, space); err != nil {
						b.Fatal(t, err)
					}
				}
				return float64(time.Since(begin).Nanoseconds()) / turn
			})
		})
	}
}

// carry sends data by one end and reads as much by the other.
func carry(from, to int, data, space []byte) error {
	if n, err := unix.Write(from, data); n != len(data) {
		return errors.Join(errors.New("not all was taken"), err)
	}
	for got := 0; got < len(data); {
		n, err := unix.Read(to, space)
		if err != nil || n == 0 {
			return errors.Join(errors.New("the stream ended"), err)
		}
		got += n
	}
	return nil
}
