// SPDX-License-Identifier: Apache-2.0

// Package cluster starts, inspects and removes a lab. All it needs to know of a
// lab is on disk, so that a lab can be removed after its starter was killed.
package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/weir-net/weir/lab/internal/nodeinit"
	"github.com/weir-net/weir/lab/internal/plan"
)

// StateDir holds a folder for each lab of this machine.
const StateDir = "/run/weir-lab"

// State is what is remembered of a lab.
type State struct {
	Name     string
	Workers  int
	Family   plan.Family
	Proxy    plan.Proxy
	Racks    bool `json:",omitempty"` // every second worker is behind the router
	BGP      bool // the nodes are in racks, and routers learn by BGP where pods are
	Created  time.Time
	Data     string   // folder with the nodes' files
	Programs string   // folder with the lab's programs
	Folders  []string // folders below Programs
	Weir     string   // folder with Weir's programs, or empty
	Starter  Process  // who starts it
	Started  bool     // set once it was started completely
}

// Process names a process for good.
type Process struct {
	PID   int
	Start uint64 // clock ticks since boot
}

// Alive says whether the process is still there.
func (p Process) Alive() bool {
	start, err := nodeinit.StartTime(p.PID)
	return err == nil && start == p.Start
}

func self() (Process, error) {
	start, err := nodeinit.StartTime(os.Getpid())
	if err != nil {
		return Process{}, fmt.Errorf("look up this process: %w", err)
	}
	return Process{PID: os.Getpid(), Start: start}, nil
}

// ErrNoLab says that there is no lab of a name.
var ErrNoLab = errors.New("there is no such lab")

func dir(lab string) string { return filepath.Join(StateDir, lab) }

// KubeconfigPath is where a lab's administrator's kubeconfig is on this machine.
func KubeconfigPath(lab string) string { return filepath.Join(dir(lab), "admin.conf") }

func specPath(lab, node string) string { return filepath.Join(dir(lab), "nodes", node+".json") }
func pidPath(lab, node string) string  { return filepath.Join(dir(lab), "nodes", node+".pid") }

// claim takes a lab's name. It fails if the name is taken.
func claim(s *State) error {
	return exclusively(func() error {
		if err := s.makeDir(); err != nil {
			return err
		}
		if err := raiseLimits(); err != nil {
			return errors.Join(err, s.forget())
		}
		return nil
	})
}

// forget is the last step of a lab's removal.
func (s *State) forget() error {
	if err := os.RemoveAll(dir(s.Name)); err != nil {
		return fmt.Errorf("remove the state of lab %s: %w", s.Name, err)
	}
	return restoreLimits()
}

func (s *State) makeDir() error {
	if err := os.MkdirAll(StateDir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", StateDir, err)
	}
	err := os.Mkdir(dir(s.Name), 0o700)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("lab %s exists already: remove it first with: weir-lab down --name %s", s.Name, s.Name)
	}
	if err != nil {
		return fmt.Errorf("make the state folder of lab %s: %w", s.Name, err)
	}
	if err := os.Mkdir(filepath.Join(dir(s.Name), "nodes"), 0o700); err != nil {
		return fmt.Errorf("make the state folder of lab %s: %w", s.Name, err)
	}
	return s.save()
}

func (s *State) save() error {
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the state of lab %s: %w", s.Name, err)
	}
	path := filepath.Join(dir(s.Name), "lab.json")
	if err := os.WriteFile(path+".part", raw, 0o600); err != nil {
		return fmt.Errorf("write the state of lab %s: %w", s.Name, err)
	}
	if err := os.Rename(path+".part", path); err != nil {
		return fmt.Errorf("write the state of lab %s: %w", s.Name, err)
	}
	return nil
}

// Load reads the state of a lab. A lab whose starter was killed before it wrote
// anything has an empty state.
func Load(name string) (*State, error) {
	if _, err := plan.New(name, 0, plan.IPv4, false); err != nil {
		return nil, err
	}
	if _, err := os.Stat(dir(name)); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("lab %s: %w", name, ErrNoLab)
	}
	s := &State{Name: name}
	raw, err := os.ReadFile(filepath.Join(dir(name), "lab.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the state of lab %s: %w", name, err)
	}
	if err := json.Unmarshal(raw, s); err != nil {
		return nil, fmt.Errorf("read the state of lab %s: %w", name, err)
	}
	return s, nil
}

func (s *State) plan() (*plan.Lab, error) {
	if s.Proxy.VPC() {
		return plan.NewVPC(s.Name, s.Workers, s.Family)
	}
	if s.Proxy.VNet() {
		return plan.NewVNet(s.Name, s.Workers, s.Proxy == plan.ProxyWeirOnAzureOverlay)
	}
	return plan.New(s.Name, s.Workers, s.Family, s.Racks || s.BGP)
}

// initProcess is a node's first process.
func (s *State) initProcess(node string) (Process, error) {
	raw, err := os.ReadFile(pidPath(s.Name, node))
	if err != nil {
		return Process{}, fmt.Errorf("node %s of lab %s was not started: %w", node, s.Name, err)
	}
	pid, start, _ := strings.Cut(strings.TrimSpace(string(raw)), " ")
	var p Process
	if p.PID, err = strconv.Atoi(pid); err != nil {
		return Process{}, fmt.Errorf("read the process of node %s: %w", node, err)
	}
	if p.Start, err = strconv.ParseUint(start, 10, 64); err != nil {
		return Process{}, fmt.Errorf("read the process of node %s: %w", node, err)
	}
	return p, nil
}
