// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"github.com/weir-net/weir/internal/kernel"
)

// setting is one of the kernel's that this data plane sets, of several interfaces. What it was is
// remembered, to be put back.
type setting struct {
	file string // in the state directory: what it was, by interface
	ours int
	path [3]string // below /proc/sys/net; the interface comes before the last part
}

var (
	acceptLocal  = setting{"accept-local.json", 1, [3]string{"ipv4", "conf", "accept_local"}}
	arpDelay     = setting{"arp-proxy-delay.json", 0, [3]string{"ipv4", "neigh", "proxy_delay"}}
	solicitDelay = setting{"ndp-proxy-delay.json", 0, [3]string{"ipv6", "neigh", "proxy_delay"}}
	proxyNDP     = setting{"proxy-ndp.json", 1, [3]string{"ipv6", "conf", "proxy_ndp"}}
)

// settings are all that are put back.
var settings = []setting{acceptLocal, arpDelay, solicitDelay, proxyNDP}

func (s setting) of(name string) []string {
	return []string{"net", s.path[0], s.path[1], name, s.path[2]}
}

// make sets what is wanted of an interface. stateDir is where RestoreSettings finds what was there
// before; "" = nowhere.
func (s setting) make(name, stateDir string) error {
	was, err := kernel.Sysctl(s.of(name)...)
	if err != nil || was == s.ours {
		return err
	}
	// First what is to be put back: who is killed in between finds what was not changed.
	if err := s.remember(stateDir, name, was); err != nil {
		return err
	}
	return s.set(name, s.ours)
}

func (s setting) set(name string, v int) error {
	_, err := kernel.SetSysctl(v, s.of(name)...)
	return err
}

// RestoreSettings gives interfaces back the settings that they had before, where they are as this
// data plane set them. Reverse-path checks that were strict stay loose: eBPF's data plane wants
// that, too. What an interface refuses is reported and forgotten: nothing is to be tried again.
func RestoreSettings(stateDir string) error {
	var errs []error
	for _, s := range settings {
		errs = append(errs, s.restore(stateDir))
	}
	return errors.Join(errs...)
}

func (s setting) restore(stateDir string) error {
	before, err := s.before(stateDir)
	if err == nil && len(before) == 0 {
		return nil
	}
	errs := []error{err} // what cannot be read says nothing, and goes
	for name, was := range before {
		now, err := kernel.Sysctl(s.of(name)...)
		if err == nil && now == s.ours {
			err = s.set(name, was)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // an interface that is gone has none
			errs = append(errs, err)
		}
	}
	if err := os.Remove(filepath.Join(stateDir, s.file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, fmt.Errorf("forgetting what interfaces were: %w", err))
	}
	return errors.Join(errs...)
}

// before is what interfaces had.
func (s setting) before(stateDir string) (map[string]int, error) {
	text, err := os.ReadFile(filepath.Join(stateDir, s.file))
	if errors.Is(err, fs.ErrNotExist) || stateDir == "" {
		return map[string]int{}, nil
	}
	out := map[string]int{}
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		return nil, fmt.Errorf("reading what %s was: %w", s.path[2], err)
	}
	return out, nil
}

// remember notes what an interface had, and forgets those that are gone. What cannot be read is
// written anew.
func (s setting) remember(stateDir, name string, was int) error {
	if stateDir == "" {
		return nil
	}
	all, err := s.before(stateDir)
	if err != nil {
		all = map[string]int{}
	}
	maps.DeleteFunc(all, func(name string, _ int) bool {
		_, err := os.Stat(filepath.Join(append([]string{"/proc/sys"}, s.of(name)...)...))
		return errors.Is(err, fs.ErrNotExist)
	})
	all[name] = was
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	path := filepath.Join(stateDir, s.file)
	if err := os.WriteFile(path+".new", append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("noting what %s of %s was: %w", s.path[2], name, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("noting what %s of %s was: %w", s.path[2], name, err)
	}
	return nil
}
