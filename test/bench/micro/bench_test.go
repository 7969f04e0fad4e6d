// SPDX-License-Identifier: Apache-2.0

package micro

import (
	"fmt"
	"testing"
)

const (
	fromWorkload = "weir_from_workload"
	fromUplink   = "weir_from_uplink"
	toUplink     = "weir_to_uplink"
)

// The far end of every connection: a client outside of the cluster.
const client = "172.20.0.1"

func BenchmarkEstablished(b *testing.B) {
	b.Run("PodToLocalPod", func(b *testing.B) {
		f := node(b, 0)
		f.step(b, fromWorkload, f.links.podA, "tcp 10.244.1.2:1000 > 10.244.1.3:8080 S ttl=64", actRedirect)
		f.step(b, fromWorkload, f.links.podB, "tcp 10.244.1.3:8080 > 10.244.1.2:1000 S. ttl=64", actRedirect)
		f.established(b, "established, pod to local pod", fromWorkload, f.links.podA, "tcp 10.244.1.2:1000 > 10.244.1.3:8080 . ttl=255", actRedirect)
	})
	b.Run("PodToRemotePod", func(b *testing.B) {
		f := node(b, 0)
		f.step(b, fromWorkload, f.links.podA, "tcp 10.244.1.2:1000 > 10.244.2.2:8080 S ttl=64", actRedirect)
		f.step(b, fromUplink, f.links.uplink, "tcp 10.244.2.2:8080 > 10.244.1.2:1000 S. ttl=64", actRedirect)
		f.established(b, "established, pod to remote pod", fromWorkload, f.links.podA, "tcp 10.244.1.2:1000 > 10.244.2.2:8080 . ttl=255", actRedirect)
		f.established(b, "established, remote pod to pod", fromUplink, f.links.uplink, "tcp 10.244.2.2:8080 > 10.244.1.2:1000 . ttl=255", actRedirect)
	})
	b.Run("PodToService", func(b *testing.B) {
		f := node(b, 0)
		const there, back = "tcp 10.244.1.2:1000 > 10.96.0.11:80", "tcp 10.244.2.2:8080 > 10.244.1.2:1000"
		f.step(b, fromWorkload, f.links.podA, there+" S ttl=64", actRedirect)
		f.step(b, fromUplink, f.links.uplink, back+" S. ttl=64", actRedirect)
		f.step(b, fromWorkload, f.links.podA, there+" . ttl=64", actRedirect)
		f.mirrored(b, there)
		f.mirrored(b, back)
		f.established(b, "established, pod to Service, translated", fromWorkload, f.links.podA, there+" . ttl=255", actRedirect)
		f.established(b, "established, answer to it, translated back", fromUplink, f.links.uplink, back+" . ttl=255", actRedirect)
	})
	b.Run("NodePortLocal", func(b *testing.B) {
		f := node(b, 0)
		const there, back = "tcp 172.20.0.1:1000 > 10.0.0.1:30604", "tcp 10.244.1.3:8080 > 172.20.0.1:1000"
		f.step(b, fromUplink, f.links.uplink, there+" S ttl=64", actRedirect)
		f.step(b, fromWorkload, f.links.podB, back+" S. ttl=64", actRedirect)
		f.step(b, fromUplink, f.links.uplink, there+" . ttl=64", actRedirect)
		f.mirrored(b, there)
		f.mirrored(b, back)
		f.established(b, "established, client to NodePort, translated", fromUplink, f.links.uplink, there+" . ttl=255", actRedirect)
		f.established(b, "established, answer to it, translated back", fromWorkload, f.links.podB, back+" . ttl=255", actRedirect)
	})
	b.Run("NodePortHandedOn", func(b *testing.B) {
		f := node(b, 0)
		const there = "tcp 172.20.0.1:1000 > 10.0.0.1:30605"
		f.step(b, fromUplink, f.links.uplink, there+" S ttl=64", actRedirect)
		f.step(b, fromUplink, f.links.uplink, there+" . ttl=64", actRedirect)
		f.established(b, "established, client to NodePort, handed on", fromUplink, f.links.uplink, there+" . ttl=255", actRedirect)
	})
}

// What is not ours should cost nothing.
func BenchmarkHostTraffic(b *testing.B) {
	b.Run("In", func(b *testing.B) {
		f := node(b, 0)
		f.established(b, "client to a host process", fromUplink, f.links.uplink, "tcp 172.20.0.1:1000 > 10.0.0.1:22 . ttl=255", actOK)
	})
	b.Run("Out", func(b *testing.B) {
		f := node(b, 0)
		f.established(b, "host process to client", toUplink, f.links.uplink, "tcp 10.0.0.1:22 > 172.20.0.1:1000 . ttl=255", actOK)
	})
	b.Run("SYN", func(b *testing.B) {
		f := node(b, 0)
		f.established(b, "client to a host process, SYN", fromUplink, f.links.uplink, "tcp 172.20.0.1:1000 > 10.0.0.1:22 S ttl=255", actOK)
	})
	b.Run("NodeToNode", func(b *testing.B) {
		f := node(b, 0)
		f.established(b, "node to host process", fromUplink, f.links.uplink, "tcp 10.0.0.2:1000 > 10.0.0.1:10250 . ttl=255", actOK)
	})
}

// The same on both sides of the fast path: a call a packet.
func BenchmarkCold(b *testing.B) {
	f := node(b, 0)
	f.step(b, fromWorkload, f.links.podA, "tcp 10.244.1.2:1000 > 10.244.2.2:8080 S ttl=64", actRedirect)
	f.step(b, fromUplink, f.links.uplink, "tcp 10.244.2.2:8080 > 10.244.1.2:1000 S. ttl=64", actRedirect)
	f.fresh(b, "established, pod to remote pod", fromWorkload, f.links.podA, []string{"tcp 10.244.1.2:1000 > 10.244.2.2:8080 . ttl=64"}, actRedirect)
	f.fresh(b, "retransmitted SYN, pod to remote pod", fromWorkload, f.links.podA, []string{"tcp 10.244.1.2:1000 > 10.244.2.2:8080 S ttl=64"}, actRedirect)
	f.fresh(b, "client to a host process", fromUplink, f.links.uplink, []string{"tcp 172.20.0.1:1000 > 10.0.0.1:22 . ttl=64"}, actOK)
}

func BenchmarkNewFlow(b *testing.B) {
	b.Run("PodToLocalPod", func(b *testing.B) {
		f := node(b, 0)
		f.fresh(b, "new flow, pod to local pod", fromWorkload, f.links.podA, syns(singles, always(podA.String()), "10.244.1.3:8080"), actRedirect)
	})
	b.Run("PodToRemotePod", func(b *testing.B) {
		f := node(b, 0)
		f.fresh(b, "new flow, pod to remote pod", fromWorkload, f.links.podA, syns(singles, always(podA.String()), "10.244.2.2:8080"), actRedirect)
	})
	b.Run("PodToService", func(b *testing.B) {
		f := node(b, 0)
		f.fresh(b, "new flow, pod to Service, remote backend", fromWorkload, f.links.podA, syns(singles, always(podA.String()), "10.96.0.11:80"), actRedirect)
	})
	b.Run("NodePort", func(b *testing.B) {
		f := node(b, 0)
		f.fresh(b, "new flow, client to NodePort, local backend", fromUplink, f.links.uplink, syns(singles, always(client), "10.0.0.1:30604"), actRedirect)
		f = node(b, 0)
		f.fresh(b, "new flow, client to NodePort, handed on", fromUplink, f.links.uplink, syns(singles, always(client), "10.0.0.1:30605"), actRedirect)
	})
	b.Run("Outside", func(b *testing.B) {
		f := node(b, 0)
		// 100 connections to each of 50 servers: what a pod may have of the node's 10,000 ports
		// towards one is not used up.
		var frames []string
		for i := range 50 {
			frames = append(frames, syns(100, always(podA.String()), fmt.Sprintf("172.20.0.%d:443", i+1))...)
		}
		f.fresh(b, "new flow, pod to outside, source translated", fromWorkload, f.links.podA, frames, actRedirect)
	})
}

// The further life of a connection that begins: what follows the answer moves both entries to the
// established ones, FIN marks them.
func BenchmarkConnection(b *testing.B) {
	f := node(b, 0)
	var syn, answer, data, fin, back []string
	for i := range singles {
		there, here := fmt.Sprintf("tcp 10.244.1.2:%d > 10.244.2.2:8080", 1024+i), fmt.Sprintf("tcp 10.244.2.2:8080 > 10.244.1.2:%d", 1024+i)
		syn, answer = append(syn, there+" S ttl=64"), append(answer, here+" S. ttl=64")
		data, fin, back = append(data, there+" . ttl=64"), append(fin, there+" F. ttl=64"), append(back, here+" F. ttl=64")
	}
	f.fresh(b, "connection, SYN", fromWorkload, f.links.podA, syn, actRedirect)
	f.fresh(b, "connection, SYN-ACK", fromUplink, f.links.uplink, answer, actRedirect)
	f.fresh(b, "connection, ACK or data after the answer", fromWorkload, f.links.podA, data, actRedirect)
	f.fresh(b, "connection, FIN", fromWorkload, f.links.podA, fin, actRedirect)
	f.fresh(b, "connection, FIN of the other side", fromUplink, f.links.uplink, back, actRedirect)
	f.fresh(b, "connection, last ACK", fromWorkload, f.links.podA, data, actRedirect)
}

// A new flow to an isolated pod: the same look-ups, whatever the size of the policy. What grows is
// how much of the tables is not in the processor's caches, when peers come at random.
func BenchmarkPolicy(b *testing.B) {
	for _, peers := range []int{1, 100, 10000} {
		b.Run(fmt.Sprint(peers), func(b *testing.B) {
			row := func(what string) string {
				return fmt.Sprintf("new flow, outside to pod, policy of %d peers, %s", peers, what)
			}
			atRandom := func(i int) string { return peer(i % peers).String() }
			f := node(b, peers)
			f.fresh(b, row("one comes, allowed"), fromUplink, f.links.uplink, syns(singles, always(peer(0).String()), "10.244.1.3:8080"), actRedirect)
			if peers > 1 {
				f = node(b, peers)
				f.fresh(b, row("all come, allowed"), fromUplink, f.links.uplink, syns(singles, atRandom, "10.244.1.3:8080"), actRedirect)
			}
			f = node(b, peers)
			f.fresh(b, row("one comes, denied"), fromUplink, f.links.uplink, syns(singles, always(peer(0).String()), "10.244.1.3:9090"), actShot)
		})
	}
	b.Run("None", func(b *testing.B) {
		f := node(b, 0)
		f.fresh(b, "new flow, outside to pod, no policy", fromUplink, f.links.uplink, syns(singles, always(client), "10.244.1.3:8080"), actRedirect)
	})
}

func (f *fixture) mirrored(b *testing.B, text string) {
	b.Helper()
	if err := mirror(f.Node, text); err != nil {
		b.Fatal(err)
	}
}
