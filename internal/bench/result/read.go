// SPDX-License-Identifier: Apache-2.0

package result

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/weir-net/weir/internal/bench/probe"
)

// Files come from elsewhere: what is read of them is bounded. A run has no more than maxRounds
// either.
const (
	maxFile   = 256 << 20
	maxRows   = 10_000
	maxRounds = 1000
)

// Read reads a file of ours, or one of knb's (its JSON, its YAML, or its data file).
func Read(name string) (*File, error) {
	in, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("reading results: %w", err)
	}
	defer in.Close()
	raw, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if len(raw) > maxFile {
		return nil, fmt.Errorf("%s has more than %d MB", name, maxFile>>20)
	}
	f, err := Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if f.Metadata.Name == "" {
		f.Metadata.Name = path.Base(name)
	}
	return f, nil
}

// Parse recognizes the formats by what they hold.
func Parse(raw []byte) (*File, error) {
	if bytes.HasPrefix(raw, []byte{0x1f, 0x8b}) {
		return parseKnbData(raw)
	}
	var head struct {
		Schema   string `json:"schema"`
		Metadata struct {
			Generator string `json:"generator"`
		} `json:"metadata"`
	}
	asJSON := bytes.HasPrefix(bytes.TrimSpace(raw), []byte("{"))
	decode := func(into any) error {
		if asJSON {
			return json.Unmarshal(raw, into)
		}
		return yaml.Unmarshal(raw, into)
	}
	if err := decode(&head); err != nil {
		if asJSON && bytes.Contains(raw, []byte(`"knb"`)) {
			return nil, fmt.Errorf("not JSON: %w (knb writes a comma too many when not all tests were run; its YAML and its data file are right)", err)
		}
		return nil, fmt.Errorf("neither JSON nor YAML: %w", err)
	}
	switch {
	case head.Schema == Schema:
		f := &File{}
		if err := decode(f); err != nil {
			return nil, fmt.Errorf("reading results: %w", err)
		}
		if err := f.bounded(); err != nil {
			return nil, err
		}
		return f, nil
	case head.Schema != "":
		return nil, fmt.Errorf("the file's schema is %q; this program reads %q", head.Schema, Schema)
	case head.Metadata.Generator != "knb":
		return nil, errors.New("not a file of `weir bench`, nor of knb")
	}
	f := &File{}
	if err := decode(f); err != nil {
		return nil, fmt.Errorf("reading knb's results: %w", err)
	}
	f.fromKnb()
	return f, nil
}

// bounded says what no run of ours writes: more than comparisons and pages can bear.
func (f *File) bounded() error {
	if len(f.Rows) > maxRows {
		return fmt.Errorf("%d rows: up to %d are read", len(f.Rows), maxRows)
	}
	for i := range f.Rows {
		r := &f.Rows[i]
		if r.ID == "" {
			return errors.New("a row has no name")
		}
		if len(r.Rounds) > maxRounds {
			return fmt.Errorf("row %q has %d rounds: up to %d are read", r.ID, len(r.Rounds), maxRounds)
		}
		for _, values := range []map[Metric]Value{r.Values, r.ToHost} {
			for m, v := range values {
				if len(v.All) > maxRounds {
					return fmt.Errorf("row %q has %d values of %q: up to %d are read", r.ID, len(v.All), m, maxRounds)
				}
			}
		}
	}
	return nil
}

// fromKnb makes rows of knb's results. knb measures once, and does not say how many CPUs its
// percentages are of; so there is bandwidth, with no interval, and no CPU time for a GB.
func (f *File) fromKnb() {
	f.Schema, f.Cluster.DataPlane = Schema, "not told (knb)"
	f.Cluster.Kubernetes = f.Data.K8sVersion
	for _, n := range []*Node{&f.Cluster.Client, &f.Cluster.Server} {
		n.Model, n.Kernel = f.Data.CPU, f.Data.Kernel
	}
	f.Cluster.Client.Name, f.Cluster.Server.Name = f.Metadata.ClientNode, f.Metadata.ServerNode
	f.Settings.Rounds, f.Settings.Tool = 1, "knb "+f.Metadata.Version
	add := func(id string, test probe.Test, t *KnbTest) {
		if t == nil {
			return
		}
		r := Row{ID: id, Title: id, Spec: probe.Spec{Test: test}, Values: map[Metric]Value{}, Rounds: []Round{{Round: 1}}}
		r.Values[CPUPctClient], r.Values[CPUPctServer] = Estimate([]float64{t.Client.CPU.Total}, "%"), Estimate([]float64{t.Server.CPU.Total}, "%")
		r.Values[MemClient], r.Values[MemServer] = Estimate([]float64{t.Client.RAM}, "MiB"), Estimate([]float64{t.Server.RAM}, "MiB")
		if test != probe.Idle {
			r.Values[Bandwidth] = Estimate([]float64{t.Bandwidth / 1000}, Bandwidth.Unit())
		}
		f.Rows = append(f.Rows, r)
	}
	add("idle", probe.Idle, f.Data.Idle)
	for _, p := range []struct {
		name string
		of   *Protocols
	}{{"pod2pod", f.Data.Pod2Pod}, {"pod2svc", f.Data.Pod2Svc}} {
		if p.of != nil {
			add(p.name+"/tcp", probe.Stream, p.of.TCP)
			add(p.name+"/udp", probe.Datagrams, p.of.UDP)
		}
	}
}

// parseKnbData reads what `knb -o data` writes: a compressed tar archive with a file of shell
// variables (env) that names the pods, and for each pod its bandwidth (.bw, Mbit/s) and the
// averages of both nodes (-client.avg, -server.avg).
func parseKnbData(raw []byte) (*File, error) {
	files, err := untar(raw)
	if err != nil {
		return nil, fmt.Errorf("not a data file of knb: %w", err)
	}
	env, ok := files["env"]
	if !ok {
		return nil, errors.New("not a data file of knb: it has no file env")
	}
	v := shellVariables(env)
	if v["GENERATOR"] != "knb" {
		return nil, fmt.Errorf("not a data file of knb: its generator is %q", v["GENERATOR"])
	}
	f := &File{Metadata: Metadata{Name: v["BENCHMARK_RUN_NAME"], Generator: "knb", Version: v["VERSION"], Date: v["BENCHMARK_DATE"],
		ServerNode: v["SERVER_NODE"], ClientNode: v["CLIENT_NODE"], SocketBufferSize: v["SOCKET_BUFFER_SIZE"]}}
	word := func(name string) string { return strings.TrimSpace(files[name]) }
	f.Data.CPU, f.Data.Kernel, f.Data.K8sVersion, f.Data.MTU = word("cpu"), word("kernel"), word("k8s-version"), word("mtu")
	var wrong error
	test := func(variable string, bandwidth bool) *KnbTest {
		pod := v[variable]
		if pod == "" {
			return nil
		}
		t := &KnbTest{}
		if bandwidth {
			n, err := strconv.ParseFloat(word(pod+".bw"), 64)
			if err != nil {
				wrong = errors.Join(wrong, fmt.Errorf("the bandwidth in %s.bw: %w", pod, err))
			}
			t.Bandwidth = n
		}
		for suffix, to := range map[string]*KnbNode{"-client.avg": &t.Client, "-server.avg": &t.Server} {
			if err := to.average(files[pod+suffix]); err != nil {
				wrong = errors.Join(wrong, fmt.Errorf("%s%s: %w", pod, suffix, err))
			}
		}
		return t
	}
	f.Data.Idle = test("IDLE_POD_NAME", false)
	if p := (Protocols{test("CLIENT_TCP_P2P_POD_NAME", true), test("CLIENT_UDP_P2P_POD_NAME", true)}); p != (Protocols{}) {
		f.Data.Pod2Pod = &p
	}
	if p := (Protocols{test("CLIENT_TCP_P2S_POD_NAME", true), test("CLIENT_UDP_P2S_POD_NAME", true)}); p != (Protocols{}) {
		f.Data.Pod2Svc = &p
	}
	if wrong != nil {
		return nil, fmt.Errorf("reading knb's data: %w", wrong)
	}
	f.fromKnb()
	return f, nil
}

// average reads the second line of a file of averages: user, nice, system, iowait and steal in
// percent, and memory in MB.
func (n *KnbNode) average(text string) error {
	lines := strings.Split(text, "\n")
	if len(lines) < 2 {
		return errors.New("it has no averages")
	}
	var v [6]float64
	words := strings.Fields(lines[1])
	if len(words) < len(v) {
		return fmt.Errorf("%q has not six numbers", lines[1])
	}
	for i := range v {
		var err error
		if v[i], err = strconv.ParseFloat(words[i], 64); err != nil {
			return err
		}
	}
	n.CPU = KnbCPU{User: v[0], Nice: v[1], System: v[2], IOWait: v[3], Steal: v[4], Total: v[0] + v[1] + v[2] + v[3] + v[4]}
	n.RAM = v[5]
	return nil
}

func untar(raw []byte) (map[string]string, error) {
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for t := tar.NewReader(io.LimitReader(z, maxFile)); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag != tar.TypeReg || h.Size > 1<<20 || len(out) > 1000 {
			continue // what is of no interest: traces of every second among it
		}
		b, err := io.ReadAll(t)
		if err != nil {
			return nil, err
		}
		out[path.Clean(h.Name)] = string(b)
	}
}

// shellVariables reads lines of NAME="value"; nothing is run.
func shellVariables(text string) map[string]string {
	out := map[string]string{}
	for sc := bufio.NewScanner(strings.NewReader(text)); sc.Scan(); {
		if name, value, ok := strings.Cut(sc.Text(), "="); ok {
			out[strings.TrimSpace(name)] = strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	return out
}
