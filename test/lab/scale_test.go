//go:build lab

package lab

import (
	"fmt"
	"testing"
	"time"
)

// TestConnectionTableDoubles: a connection table that gets full grows, and an agent with another size of it loses no connection.
func TestConnectionTableDoubles(t *testing.T) {
	b := newBase(t)
	b.metricsOn(t, "worker1")
	capacity := func() float64 {
		return b.metrics(t, "worker1")[`weir_bpf_map_capacity{family="ipv4",map="weir_flows"}`]
	}
	awaitCapacity := func(what string, want float64) {
		t.Helper()
		eventually(t, 5*time.Minute, what, func() error {
			// Metrics are away while the agent starts again.
			if _, err := b.exec("worker1", b.traffic, "get", "http://127.0.0.1:9091/metrics"); err != nil {
				return err
			}
			if got := capacity(); got != want {
				return fmt.Errorf("there is room for %v flows", got)
			}
			return nil
		})
	}
	usual := capacity()
	if usual < 4096 {
		t.Fatalf("there is room for %v flows to begin with", usual)
	}
	// An agent that is replaced before it has heard of the change does not know it when the next one starts.
	resized := func(want float64) {
		t.Helper()
		for tries := 0; ; tries++ {
			pid, err := b.agentPID("worker1")
			if err == nil {
				err = b.fresh("worker1")
			}
			if err != nil {
				t.Fatal(err)
			}
			b.agentsReady(t, time.Minute, map[string]string{"worker1": pid})
			b.metricsOn(t, "worker1")
			got := capacity()
			if got == want {
				return
			}
			if tries == 5 {
				t.Fatalf("there is room for %v flows, want %v", got, want)
			}
		}
	}
	open := b.cli1.begin(t, "stream", at(b.srv2.addr, echoPort))
	outside := b.client(1).begin(t, "stream", at(cpAddr, nodePort1+nodeEcho))
	b.patchFelix(t, `{"bpfMapSizeConntrack":1024}`, "bpfMapSizeConntrack")
	resized(4096)
	// Each connection is two entries, for 40 s after its end.
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = b.cli1.do(b.traffic, "dial", at(b.srv2.addr, whoPort), "--count", "1000", "--every", "2ms")
			}
		}
	}()
	awaitCapacity("the doubled table", 8192)
	close(stop)
	<-done
	b.agentsReady(t, time.Minute, nil)
	b.cli1.reaches(t, at(b.svc2, whoPort), "srv2", b.cli1.addr)
	// As it was: another configured size counts anew.
	b.mustKubectl(t, "", "patch", "felixconfiguration", "default", "--type=merge", "-p", `{"spec":{"bpfMapSizeConntrack":null}}`)
	resized(usual)
	unbroken(t, open)
	unbroken(t, outside)
}
