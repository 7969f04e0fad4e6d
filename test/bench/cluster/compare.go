// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/fanout/wire"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/watch"
)

// compare holds that the states of the sampled nodes by what they were sent are those by the whole
// cluster, as it is read of the API server now that nothing changes.
func (s *site) compare() {
	time.Sleep(2 * time.Second)
	watcher, err := watch.New(watch.Config{Core: s.server.Clients.Core, Dynamic: s.server.Clients.Dynamic, Log: slog.New(slog.DiscardHandler)})
	s.must(err)
	ctx, cancel := context.WithTimeout(s.ctx, 5*time.Minute)
	defer cancel()
	whole := model.NewCluster()
	_ = watcher.Run(ctx, func(_ context.Context, b *watch.Batch) { // until it is ended here
		b.Apply(whole)
		if b.Full {
			cancel()
		}
	})
	if whole.Pods.Len() == 0 {
		s.Fatalf("the cluster was not read within 5 minutes")
	}
	for i := 1; i <= min(sampled, s.nodes-1); i++ {
		part := model.NewCluster()
		var messages [][]byte
		s.must(ask("http://"+standInsAddr+"/model?node="+nodeName(i), &messages))
		d := wire.Decoder{Expression: expression}
		for _, m := range messages {
			got, err := d.Decode(m)
			s.must(err)
			got.Changes.Apply(part)
		}
		local := model.Local{Node: nodeName(i), LinkMTU: 1500, Endpoints: map[netip.Addr]*model.LocalEndpoint{}}
		for p := range whole.Pods.All() {
			if p.Node == nodeName(i) && !p.HostNetwork {
				local.Endpoints[p.Addrs[0]] = &model.LocalEndpoint{Pod: p.Name, IfIndex: 10 + len(local.Endpoints), Addrs: p.Addrs}
			}
		}
		whole.Local, part.Local = local, local
		if want, got := calc.Calc(whole), calc.Calc(part); !nodestate.Equal(want, got) {
			s.Fatalf("the state of %s by its part is not that by the whole:\n%.3000s", nodeName(i), nodestate.Diff(want, got))
		}
		s.result.Compared++
	}
	say("the states of %d nodes by what they were sent are those by the whole cluster", s.result.Compared)
}

// changingWhileLost is how many pods change each second while agents move to another fan-out.
const changingWhileLost = 5

// lose kills one fan-out and waits until the other one serves its agents.
func (s *site) lose() {
	var before standInState
	var err error
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if before, err = s.standInState(); err == nil && before.Whole == s.nodes-1 && served(fanOutHealths[0])+served(fanOutHealths[1]) == s.nodes {
			break
		}
		if time.Now().After(end) {
			say("no fan-out is killed: only %d of %d stand-ins are served", before.Whole, s.nodes-1)
			return
		}
	}
	streams := served(fanOutHealths[0])
	changing := s.beginLoad(load{pods: changingWhileLost})
	used := func(p *process) time.Duration {
		d, err := p.cpu()
		s.must(err)
		return d
	}
	fanOut, standIns := used(s.fanOuts[1]), used(s.standIns)
	other, _ := others()
	began := time.Now()
	s.fanOuts[0].kill()
	profiled := make(chan struct{})
	go func() {
		defer close(profiled)
		s.profileAll("replica killed", 5*time.Second)
	}()
	var st standInState
	s.await("the other fan-out to serve all", s.standIns, 5*time.Minute, func() bool {
		st, err = s.standInState()
		return err == nil && st.Whole == s.nodes-1 && served(fanOutHealths[1]) == s.nodes
	})
	all := time.Since(began).Seconds()
	lost := &Lost{Streams: streams, AllServedS: all, FanOutCPUS: (used(s.fanOuts[1]) - fanOut).Seconds(), StandInsCPUS: (used(s.standIns) - standIns).Seconds(), OthersCPUS: map[string]float64{}}
	after, _ := others()
	for name, now := range after {
		lost.OthersCPUS[name] = now - other[name]
	}
	s.must(changing.end())
	<-profiled
	took, err := s.probe.label()
	s.must(err)
	_, peak, _ := s.fanOuts[1].memory()
	lost.LongestMs, lost.EffectAfterMs, lost.FanOutRSSMiB = st.LongestMs, took.Seconds()*1000, peak
	lost.BytesEach = float64(st.Bytes-before.Bytes) / float64(max(1, streams))
	s.result.Lost = lost
	say("a fan-out was killed: %d streams, served again after at most %.1f s with %.0f bytes each; CPU in seconds: the other fan-out %.1f, stand-ins %.1f, the API server %.1f", streams, all, lost.BytesEach,
		lost.FanOutCPUS, lost.StandInsCPUS, lost.OthersCPUS["kube-apiserver"])
	s.save()
}

// served is how many agents a fan-out says that it serves.
func served(addr string) int {
	var got struct {
		Agents []json.RawMessage `json:"agents"`
	}
	if ask("http://"+addr+"/agents", &got) != nil {
		return 0
	}
	return len(got.Agents)
}

// single measures a policy whose peers are all pods of the cluster.
func (m *AgentResult) single(s *site, fed bool) {
	p := s.probePolicy("everyone", nil, everyonePort)
	p.Name, p.UID, p.ResourceVersion = fmt.Sprint("everyone-", fed), "", ""
	p.Spec.Ingress[0].From = []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}}}
	w := s.openWindow()
	took, err := s.probe.timed("", func() error {
		_, err := s.kube.NetworkingV1().NetworkPolicies(probeSpace).Create(s.ctx, p, metav1.CreateOptions{})
		return err
	}, func() error { return s.probe.untilReaches(late(1, 1), everyonePort) })
	s.must(err)
	time.Sleep(2 * time.Second)
	row := s.closeWindow(w, "policy of all pods")
	m.EveryoneMs, m.EveryoneCPU = took.Seconds()*1000, row.AgentMcore*row.Seconds
	s.must(s.kube.NetworkingV1().NetworkPolicies(probeSpace).Delete(s.ctx, p.Name, metav1.DeleteOptions{}))
	s.must(s.probe.untilDenied(late(1, 1), everyonePort))
	say("a policy whose peers are all pods has its effect after %.0f ms, and costs the agent %.0f ms of CPU", m.EveryoneMs, m.EveryoneCPU)
}

// countWatches counts the watches of the cluster's objects that agents had at the API server, by
// its audit log.
func (s *site) countWatches() {
	f, err := os.Open(s.auditLog())
	s.must(err)
	defer f.Close()
	by := map[string]int{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct {
			UserAgent string            `json:"userAgent"`
			ObjectRef map[string]string `json:"objectRef"`
			At        time.Time         `json:"requestReceivedTimestamp"`
		}
		if json.Unmarshal(lines.Bytes(), &e) != nil || !strings.HasPrefix(e.UserAgent, "weir-agent") {
			continue
		}
		by[e.ObjectRef["resource"]]++
		if s.directSince.IsZero() || e.At.Before(s.directSince) {
			s.result.APIWatches++
		} else {
			s.result.APIWatchesDirect++
		}
	}
	say("watches that agents asked for: %d while they were fed, %d without a fan-out (%v)", s.result.APIWatches, s.result.APIWatchesDirect, by)
}

// agentProfile is where an agent that is built with the tag profile serves its profiles.
const agentProfile = "127.0.0.1:9194"

// profileAll stores profiles: of the heap, and of the CPU where there is a span.
func (s *site) profileAll(name string, span time.Duration) {
	if s.profile == "" {
		return
	}
	s.must(os.MkdirAll(s.profile, 0o755))
	fetch := func(of, addr, kind string) error {
		resp, err := http.Get("http://" + addr + "/debug/pprof/" + kind)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		f, err := os.Create(filepath.Join(s.profile, fmt.Sprintf("%d-%s-%s-%s.pprof", s.nodes, name, of, strings.SplitN(kind, "?", 2)[0])))
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(f, resp.Body)
		return err
	}
	done := make(chan error, 8)
	n := 0
	for _, at := range []struct{ of, addr string }{{"agent", agentProfile}, {"fanout-1", fanOutHealths[0]}, {"fanout-2", fanOutHealths[1]}} {
		if at.of != "agent" && (strings.HasPrefix(name, "never") || strings.HasPrefix(name, "direct")) {
			continue
		}
		n++
		go func() {
			if span > 0 {
				if err := fetch(at.of, at.addr, fmt.Sprintf("profile?seconds=%d", int(span.Seconds()))); err != nil {
					done <- err
					return
				}
			}
			done <- fetch(at.of, at.addr, "heap")
		}()
	}
	for range n {
		if err := <-done; err != nil {
			say("a profile is missing: %v", err)
		}
	}
}
