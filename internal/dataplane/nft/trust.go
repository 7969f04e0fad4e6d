package nft

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/kernel"
)

// trustFile remembers in the state directory what accept_local was, by interface, before this data plane set it.
const trustFile = "accept-local.json"

// trustLink lets answers in that come back from the node of a backend by a link: their source is an address of this node. Tables
// judge who may send with one. stateDir is where Distrust finds what was there before; "" = nowhere.
func trustLink(index int, stateDir string) error {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return fmt.Errorf("looking for interface %d: %w", index, err)
	}
	name := l.Attrs().Name
	was, err := kernel.Sysctl("net", "ipv4", "conf", name, "accept_local")
	if err == nil && was != 1 {
		// First what is to be put back: who is killed in between finds what was not changed.
		if err = rememberTrust(stateDir, name, was); err == nil {
			err = setAcceptLocal(name, 1)
		}
	}
	_, err2 := kernel.LooseReversePath(name)
	return errors.Join(err, err2)
}

func setAcceptLocal(name string, v int) error {
	_, err := kernel.SetSysctl(v, "net", "ipv4", "conf", name, "accept_local")
	return err
}

// Distrust gives interfaces back the accept_local that they had before, where it is as this data plane set it. Reverse-path checks that were
// strict stay loose: eBPF's data plane wants that, too. What an interface refuses is told and forgotten: nothing is to be tried again.
func Distrust(stateDir string) error {
	before, err := trusted(stateDir)
	if err == nil && len(before) == 0 {
		return nil
	}
	errs := []error{err} // what cannot be read says nothing, and goes
	for name, was := range before {
		now, err := kernel.Sysctl("net", "ipv4", "conf", name, "accept_local")
		if err == nil && now == 1 {
			err = setAcceptLocal(name, was)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // an interface that is gone has none
			errs = append(errs, err)
		}
	}
	if err := os.Remove(filepath.Join(stateDir, trustFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, fmt.Errorf("forgetting what interfaces were: %w", err))
	}
	return errors.Join(errs...)
}

// trusted is what interfaces had before.
func trusted(stateDir string) (map[string]int, error) {
	text, err := os.ReadFile(filepath.Join(stateDir, trustFile))
	if errors.Is(err, fs.ErrNotExist) || stateDir == "" {
		return map[string]int{}, nil
	}
	out := map[string]int{}
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		return nil, fmt.Errorf("reading what accept_local was: %w", err)
	}
	return out, nil
}

// rememberTrust notes what an interface had. What cannot be read is written anew.
func rememberTrust(stateDir, name string, was int) error {
	if stateDir == "" {
		return nil
	}
	all, err := trusted(stateDir)
	if err != nil {
		all = map[string]int{}
	}
	all[name] = was
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	path := filepath.Join(stateDir, trustFile)
	if err := os.WriteFile(path+".new", append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("noting what accept_local of %s was: %w", name, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("noting what accept_local of %s was: %w", name, err)
	}
	return nil
}
