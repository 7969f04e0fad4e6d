// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
)

var testConfig = Config{Pools: []model.Pool{poolOf("p", "10.0.0.0/24", 26)}}

// TestDamagedFiles damages a record in many ways; the address stays taken, a problem names the
// file, and it can be released or restored.
func TestDamagedFiles(t *testing.T) {
	api := newAPI()
	for name, damage := range map[string]func([]byte) []byte{
		"empty":     func([]byte) []byte { return nil },
		"truncated": func(b []byte) []byte { return b[:len(b)/2] },
		"last byte": func(b []byte) []byte { return b[:len(b)-1] },
		"no sum":    func(b []byte) []byte { return bytes.SplitAfter(b, []byte("\n"))[0] },
		"flipped":   func(b []byte) []byte { b[20] ^= 1; return b },
		"garbage":   func([]byte) []byte { return []byte("{}\nsha256:00\n") },
		"huge":      func([]byte) []byte { return make([]byte, maxRecord+1) },
		"other":     func([]byte) []byte { b, _ := encode(Record{Address: addr("10.9.9.9"), ContainerID: "x"}); return b },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			a := openTest(t, dir, "n1", api, Options{})
			a.Configure(testConfig)
			got := mustAlloc(t, a, reqFor("c"))
			path := filepath.Join(dir, got.String())
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, damage(data), 0o600); err != nil {
				t.Fatal(err)
			}
			b := openTest(t, dir, "n1", api, Options{})
			b.Configure(testConfig)
			text := fmt.Sprint(b.Problems())
			if !strings.Contains(text, path) || !strings.Contains(text, "weir ipam release "+got.String()) {
				t.Error("problem:", text)
			}
			for i := range 63 {
				if again, err := b.Allocate(context.Background(), reqFor(fmt.Sprint("d", i))); err != nil || again[0].Address == got {
					t.Fatal("the address of a damaged file was given:", again, err)
				}
			}
			req := reqFor("e")
			req.Fixed = []netip.Addr{got}
			_, err = b.Allocate(context.Background(), req)
			wantError(t, err, true, "already taken")
			if err := b.Restore(Record{Address: got, ContainerID: "c", IfName: "eth0", Namespace: "ns", Pod: "pod-c"}); err != nil {
				t.Fatal(err)
			}
			if len(b.Problems()) != 0 || len(b.Lookup("c", "eth0")) != 1 {
				t.Error("after Restore:", b.Problems())
			}
			if c := openTest(t, dir, "n1", api, Options{}); len(c.Lookup("c", "eth0")) != 1 {
				t.Error("Restore wrote nothing that lasts")
			}
			if err := b.Restore(Record{Address: got, ContainerID: "other"}); err == nil {
				t.Error("Restore took an address away from another container")
			}
		})
	}
}

func TestReleaseOfDamagedFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "10.0.0.1"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := openTest(t, dir, "n1", newAPI(), Options{})
	if err := a.ReleaseAddress(addr("10.0.0.1")); err != nil || len(a.Problems()) != 0 {
		t.Error(err, a.Problems())
	}
	wantError(t, a.ReleaseAddress(addr("10.0.0.1")), true, "not allocated")
}

// TestReboot: half-written files of the last boot hold nothing.
func TestReboot(t *testing.T) {
	dir := t.TempDir()
	os.WriteFile(filepath.Join(dir, "10.0.0.1"), nil, 0o600)
	os.WriteFile(filepath.Join(dir, bootFile), []byte("an-earlier-boot\n"), 0o600)
	a := openTest(t, dir, "n1", newAPI(), Options{})
	if len(a.Records()) != 0 || len(a.Problems()) != 0 {
		t.Error(a.Records(), a.Problems())
	}
	os.WriteFile(filepath.Join(dir, "10.0.0.1"), nil, 0o600)
	if a = openTest(t, dir, "n1", newAPI(), Options{}); len(a.Records()) != 1 {
		t.Error("a damaged file of this boot was dropped")
	}
}

// TestFullDisk fills a small file system: allocation fails with a clear message and leaves nothing;
// release works, and so does allocation afterwards.
func TestFullDisk(t *testing.T) {
	for _, options := range []string{"size=64k", "nr_inodes=12"} {
		t.Run(options, func(t *testing.T) {
			nettest.NeedRoot(t, "mounting a small file system")
			dir := t.TempDir()
			if err := unix.Mount("weir-test", dir, "tmpfs", 0, options); err != nil {
				t.Fatal(err)
			}
			defer unix.Unmount(dir, unix.MNT_DETACH)
			api := newAPI()
			a := openTest(t, dir, "n1", api, Options{})
			a.Configure(testConfig)
			n := 0
			var err error
			for ; n < 200; n++ {
				if _, err = a.Allocate(context.Background(), reqFor(fmt.Sprint("c", n))); err != nil {
					break
				}
			}
			wantError(t, err, false, "disk is full", dir)
			if !errors.Is(err, unix.ENOSPC) || n == 0 {
				t.Fatal(n, err)
			}
			entries, _ := os.ReadDir(dir)
			for _, e := range entries {
				if strings.HasPrefix(e.Name(), tempPrefix) {
					t.Error("left behind:", e.Name())
				}
			}
			if b := openTest(t, dir, "n1", api, Options{}); len(b.Records()) != n || len(b.Problems()) != 0 {
				t.Errorf("%d records on a full disk, want %d; problems %v", len(b.Records()), n, b.Problems())
			}
			if _, err := a.Release("c0", "eth0"); err != nil {
				t.Fatal("release on a full disk:", err)
			}
			mustAlloc(t, a, reqFor("again"))
		})
	}
}

// TestTwoProcesses: two agents over one directory (an upgrade) never give an address twice.
func TestTwoProcesses(t *testing.T) {
	dir, api := t.TempDir(), newAPI()
	a, b := openTest(t, dir, "n1", api, Options{}), openTest(t, dir, "n1", api, Options{})
	a.Configure(testConfig)
	b.Configure(testConfig)
	seen := map[netip.Addr]bool{}
	for i := range 60 {
		got := mustAlloc(t, []*Allocator{a, b}[i%2], reqFor(fmt.Sprint("c", i)))
		if seen[got] {
			t.Fatal("given twice:", got)
		}
		seen[got] = true
	}
	a.rescan()
	if len(a.Records()) != 60 {
		t.Error(len(a.Records()))
	}
}

// TestKill runs an allocator in a process of its own and kills it at every step. Afterwards each
// acknowledged allocation is there, none is there twice, what was acknowledged as released is free,
// and nothing but the one operation in progress is in doubt.
func TestKill(t *testing.T) {
	if dir := os.Getenv("WEIR_IPAM_KILL_DIR"); dir != "" {
		killChild(t, dir, os.Getenv("WEIR_IPAM_KILL_STEP"))
		return
	}
	t.Parallel()
	steps := []string{"create:before-temp", "create:before-link", "create:after-link", "create:after-unlink", "replace:before-rename",
		"remove:before-unlink", "remove:after-unlink", "claim:before", "claim:after"}
	for _, at := range steps {
		for _, nth := range []string{"1", "3"} {
			t.Run(at+"/"+nth, func(t *testing.T) {
				dir := t.TempDir()
				cmd := exec.Command(os.Args[0], "-test.run=^TestKill$")
				cmd.Env = append(os.Environ(), "WEIR_IPAM_KILL_DIR="+dir, "WEIR_IPAM_KILL_STEP="+at+"/"+nth)
				out, err := cmd.Output()
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
					t.Fatalf("the child was not killed at %s: %v\n%s", at, err, out)
				}
				afterKill(t, dir, string(out))
			})
		}
	}
}

// killChild allocates and releases, says so line by line, and kills itself at the n-th passage of a
// step.
func killChild(t *testing.T, dir, at string) {
	at, nth, _ := cutLast(at)
	passed := 0
	step = func(s string) {
		if s == at {
			if passed++; fmt.Sprint(passed) == nth {
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		}
	}
	a, err := Open(dir, "n1", fileBlocks{dir}, Options{}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	a.Configure(killPools)
	for i := range 30 {
		c := fmt.Sprint("c", i)
		fmt.Println("adding", c)
		got, err := a.Allocate(context.Background(), bothFor(c))
		if err != nil || len(got) != 2 {
			t.Fatal(got, err)
		}
		fmt.Println("added", c, got[0].Address, got[1].Address)
		if i%2 == 1 {
			fmt.Println("releasing", c)
			if _, err := a.Release(c, "eth0"); err != nil {
				t.Fatal(err)
			}
			fmt.Println("released", c)
		}
	}
}

// killPools have 256 addresses of each family.
var killPools = Config{Pools: []model.Pool{poolOf("p", "10.0.0.0/24", 30), poolOf("q", "fd00::/120", 126)}}

// bothFor asks for an address of each family.
func bothFor(container string) Request {
	r := reqFor(container)
	r.IPv6 = true
	return r
}

func cutLast(s string) (string, string, bool) {
	i := strings.LastIndex(s, "/")
	return s[:i], s[i+1:], i >= 0
}

// fileBlocks are blocks in a directory, so that they outlive the process.
type fileBlocks struct{ dir string }

func (f fileBlocks) path() string { return f.dir + ".api" }

func (f fileBlocks) List(context.Context) ([]Block, error) {
	entries, err := os.ReadDir(f.path())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var out []Block
	for _, e := range entries {
		out = append(out, Block{CIDR: cidr(strings.ReplaceAll(e.Name(), "_", "/")), Node: "n1", Pool: "p"})
	}
	return out, err
}

func (f fileBlocks) Claim(_ context.Context, c netip.Prefix, _ string) error {
	os.MkdirAll(f.path(), 0o700)
	file, err := os.OpenFile(filepath.Join(f.path(), strings.ReplaceAll(c.String(), "/", "_")), os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return ErrTaken
	}
	if err == nil {
		file.Close()
	}
	return err
}

func (f fileBlocks) Release(_ context.Context, c netip.Prefix) error {
	return os.Remove(filepath.Join(f.path(), strings.ReplaceAll(c.String(), "/", "_")))
}

func afterKill(t *testing.T, dir, log string) {
	defer os.RemoveAll(dir + ".api")
	held, doubt := map[string][]string{}, "" // addresses by container
	for _, line := range strings.Split(strings.TrimSpace(log), "\n") {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "adding", "releasing":
			doubt = f[1]
		case "added":
			held[f[1]], doubt = f[2:], ""
		case "released":
			delete(held, f[1])
			doubt = ""
		}
	}
	a, err := Open(dir, "n1", fileBlocks{dir}, Options{}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	a.Configure(killPools)
	if p := a.Problems(); len(p) > 0 {
		t.Error("problems:", p)
	}
	containers := map[string][]string{}
	for _, r := range a.Records() {
		containers[r.ContainerID] = append(containers[r.ContainerID], r.Address.String())
	}
	for c, got := range containers {
		switch want, ok := held[c]; {
		case !ok && c != doubt:
			t.Errorf("%v are held by %s, which was released", got, c)
		case ok && c != doubt && !slices.Equal(got, want):
			t.Errorf("%s has %v instead of %v", c, got, want)
		case ok && slices.ContainsFunc(got, func(a string) bool { return !slices.Contains(want, a) }):
			t.Errorf("%s, in release, has %v instead of %v", c, got, want)
		case len(got) > 2:
			t.Errorf("%s has %v", c, got)
		}
	}
	for c := range held {
		if c != doubt && containers[c] == nil {
			t.Error("lost:", c)
		}
	}
	// The runtime calls DEL for the operation in doubt, and all that is not held can be given
	// again.
	if _, err := a.Release(doubt, "eth0"); err != nil {
		t.Fatal(err)
	}
	delete(held, doubt)
	given := map[string]bool{}
	for i := range 256 - len(held) {
		got, err := a.Allocate(context.Background(), bothFor(fmt.Sprint("n", i)))
		if err != nil || len(got) != 2 {
			t.Fatal(got, err)
		}
		for _, r := range got {
			if given[r.Address.String()] {
				t.Fatal("given twice:", r.Address)
			}
			given[r.Address.String()] = true
		}
	}
	for _, both := range held {
		for _, have := range both {
			if given[have] {
				t.Error("an address in use was given again:", have)
			}
		}
	}
	_, err = a.Allocate(context.Background(), bothFor("too-many"))
	wantError(t, err, true, "no free address")
	entries, _ := os.ReadDir(dir)
	if slices.ContainsFunc(entries, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), tempPrefix) }) {
		t.Error("a temporary file is left")
	}
}

func TestStale(t *testing.T) {
	live := map[string]bool{"a": true}
	s := Stale{Grace: time.Minute}
	records := []Record{{Address: addr("10.0.0.1"), ContainerID: "a"}, {Address: addr("10.0.0.2"), ContainerID: "b"}, {Address: addr("10.0.0.3")}}
	at := time.Unix(0, 0)
	find := func(d time.Duration) string {
		var out []string
		for _, r := range s.Find(records, func(r Record) bool { return live[r.ContainerID] }, at.Add(d)) {
			out = append(out, r.ContainerID)
		}
		return strings.Join(out, ",")
	}
	if got := find(0) + "|" + find(59*time.Second) + "|" + find(time.Minute); got != "||b" {
		t.Error(got)
	}
	live["b"] = true
	find(2 * time.Minute)
	live["b"] = false
	if got := find(3*time.Minute) + "|" + find(4*time.Minute); got != "|b" {
		t.Error("coming back does not start the grace period anew:", got)
	}
	records[1].ContainerID = "c"
	if got := find(5 * time.Minute); got != "" {
		t.Error("another container inherits the grace period:", got)
	}
}
