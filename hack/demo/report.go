// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/weir-net/weir/internal/bench"
)

// Result is one entry of out/demo.json.
type Result struct {
	Mode               string  `json:"mode"`
	SourceSeen         string  `json:"source_seen"`        // by nginx, when client1 (172.31.1.55) calls
	SecondSourceSeen   string  `json:"second_source_seen"` // when client2 (172.31.1.162) calls
	SecondClientDenied bool    `json:"second_client_denied"`
	Connections        int     `json:"connections"`
	MeanUS             float64 `json:"mean_us"`
	P50US              float64 `json:"p50_us"`
	P99US              float64 `json:"p99_us"`
	RatioIPTables      float64 `json:"ratio_to_kube_proxy_iptables,omitempty"` // of the means
	RatioNFTables      float64 `json:"ratio_to_kube_proxy_nftables,omitempty"`
	PublishedMS        float64 `json:"published_ms,omitempty"` // for such a walk-through on cloud VMs
	DisturbedRounds    int     `json:"disturbed_rounds"`       // that count for lack of better ones
	Raw                string  `json:"raw"`                    // file beside this one
}

// published are the mean ms that were published for such a walk-through on cloud VMs.
var published = map[string]float64{"weir-tunnel": 1.81, "weir-dsr": 1.59, "kube-proxy-iptables": 1.88, "kube-proxy-nftables": 1.88}

func results(modes []*mode) []Result {
	var out []Result
	means := map[string]float64{}
	for _, m := range modes {
		s := bench.Summarize(m.raw)
		means[m.name] = s.Mean
		out = append(out, Result{
			Mode: m.name, SourceSeen: m.seen, SecondSourceSeen: m.seenSecond, SecondClientDenied: m.denied, Connections: s.Count,
			MeanUS: s.Mean, P50US: s.P50, P99US: s.P99, PublishedMS: published[m.name], DisturbedRounds: m.rounds.Disturbed,
			Raw: "demo-raw-" + m.name + ".csv",
		})
	}
	for i := range out {
		out[i].RatioIPTables = bench.Ratio(out[i].MeanUS, means["kube-proxy-iptables"])
		out[i].RatioNFTables = bench.Ratio(out[i].MeanUS, means["kube-proxy-nftables"])
	}
	return out
}

// report writes the files and the table, and fails when Weir did not keep what it promises.
func (d *demo) report(modes []*mode) error {
	rs := results(modes)
	if err := bench.WriteJSON(filepath.Join(d.out, "demo.json"), rs); err != nil {
		return err
	}
	for i, m := range modes {
		if err := writeRaw(filepath.Join(d.out, rs[i].Raw), m.rounds.Kept, m.raw); err != nil {
			return err
		}
	}
	d.step("What was seen (%v)", bench.ThisMachine())
	t := bench.Table{Head: []string{"mode", "nginx sees client1 as", "client2", "connections", "mean µs", "p50 µs", "p99 µs", "to iptables", "to nftables", "published"}}
	for _, r := range rs {
		second := "gets in"
		if r.SecondClientDenied {
			second = "refused"
		}
		t.Add(r.Mode, r.SourceSeen, second, fmt.Sprint(r.Connections), r.MeanUS, r.P50US, r.P99US, ratioText(r.RatioIPTables), ratioText(r.RatioNFTables),
			fmt.Sprintf("%.2f ms", r.PublishedMS))
	}
	if err := t.Write(os.Stdout, false); err != nil {
		return err
	}
	fmt.Println("\nRatios are of the means. Published: the mean for such a walk-through on cloud VMs, with real networks between; compare its")
	fmt.Println("ratios (tunnel 0.96, DSR 0.85 of kube-proxy), not its times.")
	for _, r := range rs {
		if r.DisturbedRounds > 0 {
			fmt.Printf("%s: %d of %d rounds were disturbed by other work on this machine.\n", r.Mode, r.DisturbedRounds, d.rounds)
		}
		if strings.HasPrefix(r.Mode, "weir-") && (r.SourceSeen != "172.31.1.55" || !r.SecondClientDenied) {
			return fmt.Errorf("%s: the client's address was not kept, or the policy not enforced", r.Mode)
		}
	}
	return nil
}

func ratioText(r float64) string {
	if r == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", r)
}

// writeRaw writes a line for each connection: its round, and µs.
func writeRaw(path string, rounds []bench.Run, times []float64) error {
	var b strings.Builder
	b.WriteString("round,us\n")
	at := 0
	for n, r := range rounds {
		for range r.Times.Count {
			fmt.Fprintf(&b, "%d,%.3f\n", n+1, times[at])
			at++
		}
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		return fmt.Errorf("writing raw numbers: %w", err)
	}
	return nil
}
