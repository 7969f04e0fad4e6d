// SPDX-License-Identifier: Apache-2.0

// Package result is what `weir bench` writes and reads: files of measurements, what they say with
// which certainty, and how two of them compare.
package result

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/weir-net/weir/internal/bench/probe"
)

// Schema is of the files that this package writes. It reads no other one of ours.
const Schema = "weir.dev/bench/v1"

// Generator is metadata.generator of our files; knb's say "knb".
const Generator = "weir-bench"

// File is a run. Metadata and Data have the names of knb's JSON (k8s-bench-suite), so what reads
// that reads this; all that knb has not is in the other fields.
type File struct {
	Schema   string   `json:"schema"`
	Metadata Metadata `json:"metadata"`
	Data     Data     `json:"data"`
	Cluster  Cluster  `json:"cluster"`
	Settings Settings `json:"settings"`
	Rows     []Row    `json:"rows"`
	// Interrupted: the run ended early, and what is here was measured before.
	Interrupted string   `json:"interrupted,omitempty"`
	Warnings    []string `json:"warnings,omitempty"`
}

// Metadata are knb's, by its names.
type Metadata struct {
	Name             string `json:"name"`
	Generator        string `json:"generator"`
	Version          string `json:"version"`
	Date             string `json:"date"` // UTC, as 2006-01-02 15:04:05
	ServerNode       string `json:"server-node"`
	ClientNode       string `json:"client-node"`
	SocketBufferSize string `json:"socket-buffer-size"`
}

// Data are knb's results, by its names: medians over the rounds.
type Data struct {
	CPU        string     `json:"cpu"`
	Kernel     string     `json:"kernel"`
	K8sVersion string     `json:"k8s-version"`
	MTU        string     `json:"mtu"`
	Idle       *KnbTest   `json:"idle,omitempty"`
	Pod2Pod    *Protocols `json:"pod2pod,omitempty"`
	Pod2Svc    *Protocols `json:"pod2svc,omitempty"`
}

// Protocols are the tests of a path.
type Protocols struct {
	TCP *KnbTest `json:"tcp,omitempty"`
	UDP *KnbTest `json:"udp,omitempty"`
}

// KnbTest is a test's result.
type KnbTest struct {
	Bandwidth float64 `json:"bandwidth"` // Mbit/s
	Client    KnbNode `json:"client"`
	Server    KnbNode `json:"server"`
}

// KnbNode is what a node did: percent of all its CPUs, and MiB of memory.
type KnbNode struct {
	CPU KnbCPU  `json:"cpu"`
	RAM float64 `json:"ram"`
}

// KnbCPU are percentages.
type KnbCPU struct {
	Total  float64 `json:"total"`
	User   float64 `json:"user"`
	Nice   float64 `json:"nice"`
	System float64 `json:"system"`
	IOWait float64 `json:"iowait"`
	Steal  float64 `json:"steal"`
}

// Cluster is what was measured.
type Cluster struct {
	DataPlane  string `json:"data_plane"` // in words, as it was found
	Kubernetes string `json:"kubernetes"`
	Nodes      int    `json:"nodes"`
	OneMachine bool   `json:"one_machine"` // the two nodes share a kernel
	Client     Node   `json:"client"`
	Server     Node   `json:"server"`
	// Found are settings of the data plane, by name.
	Found map[string]string `json:"found,omitempty"`
}

// Node is a node.
type Node struct {
	Name    string `json:"name"`
	OS      string `json:"os"`
	Runtime string `json:"runtime"`
	Kubelet string `json:"kubelet"`
	probe.Node
}

// Settings are how it was measured.
type Settings struct {
	Tool        string   `json:"tool"` // this program's version
	Image       string   `json:"image"`
	Duration    string   `json:"duration"`
	WarmUp      string   `json:"warm_up"`
	Rounds      int      `json:"rounds"`
	Rows        []string `json:"rows"`
	Streams     int      `json:"streams"`
	UDPRate     float64  `json:"udp_rate_bits"`
	Requests    int      `json:"requests"`
	Concurrency int      `json:"concurrency"`
	Congestion  string   `json:"congestion,omitempty"`
	IPFamily    string   `json:"ip_family"`
	Services    []int    `json:"services,omitempty"`
	Policies    int      `json:"policies,omitempty"`
}

// Row is what was measured of one path by one test, with one number of Services.
type Row struct {
	ID       string     `json:"id"` // path/test
	Title    string     `json:"title"`
	Services int        `json:"services,omitempty"` // that were there besides
	Spec     probe.Spec `json:"spec"`
	Rounds   []Round    `json:"rounds"`
	// Values are by metric: medians over the rounds.
	Values map[Metric]Value `json:"values"`
	// ToHost are the ratios to the same test between the nodes themselves, round by round.
	ToHost map[Metric]Value `json:"ratio_to_host,omitempty"`
	// Histogram is of all rounds; µs.
	Histogram []probe.Bin `json:"histogram,omitempty"`
	Warnings  []string    `json:"warnings,omitempty"`
}

// Key distinguishes rows of different sizes.
func (r *Row) Key() string {
	if r.Services == 0 {
		return r.ID
	}
	return fmt.Sprintf("%s@%d", r.ID, r.Services)
}

// Round is one measurement of a row.
type Round struct {
	Round int       `json:"round"` // from 1
	At    time.Time `json:"at"`
	Error string    `json:"error,omitempty"`
	probe.Result
	// Daemons are what the daemons of the network used meanwhile, by node and name.
	Daemons map[string][]probe.Daemon `json:"daemons,omitempty"`
}

// CheckOutput says before a run whether its results can be written: the folder has to take files,
// and what is there under the name has to be a regular file, because it is replaced.
func CheckOutput(path string) error {
	if err := replaceable(path); err != nil {
		return err
	}
	part, err := os.CreateTemp(filepath.Dir(path), ".weir-bench-")
	if err != nil {
		return fmt.Errorf("results cannot be written to %s: %w", path, err)
	}
	return errors.Join(part.Close(), os.Remove(part.Name()))
}

func replaceable(path string) error {
	switch at, err := os.Lstat(path); {
	case path == "":
		return errors.New("there is no name of a file for the results")
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("results cannot be written: %w", err)
	case !at.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file: results replace a file as a whole", path)
	}
	return nil
}

// Write replaces a file as a whole.
func (f *File) Write(path string) error {
	if err := replaceable(path); err != nil {
		return err
	}
	b, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		return fmt.Errorf("encoding the results: %w", err)
	}
	part, err := os.CreateTemp(filepath.Dir(path), ".weir-bench-")
	if err != nil {
		return fmt.Errorf("writing the results: %w", err)
	}
	defer os.Remove(part.Name())
	_, err = part.Write(append(b, '\n'))
	if err = errors.Join(err, part.Chmod(0o644), part.Close()); err == nil {
		err = os.Rename(part.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("writing the results: %w", err)
	}
	return nil
}
