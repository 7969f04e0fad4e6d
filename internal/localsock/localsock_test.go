// SPDX-License-Identifier: Apache-2.0

package localsock

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// inNamespace names the socket whose listener this program, started again by the test, is to look
// up.
const inNamespace = "WEIR_TEST_LISTENER"

func TestMain(m *testing.M) {
	path := os.Getenv(inNamespace)
	if path == "" {
		os.Exit(m.Run())
	}
	pid, err := ListenerPID(path)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Print(pid)
}

// The agent's startup probe rests on it: in another container's PID namespace the listener is
// process 0.
func TestListenerPID(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.sock")
	if _, err := ListenerPID(path); err == nil {
		t.Error("a socket that is not there has a listener")
	}
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	for what, c := range map[string]struct {
		flags uintptr
		want  int
	}{"the same PID namespace": {0, os.Getpid()}, "another one": {syscall.CLONE_NEWPID, 0}} {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), inNamespace+"="+path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: c.flags}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", what, err, out)
		}
		if got := string(bytes.TrimSpace(out)); got != fmt.Sprint(c.want) {
			t.Errorf("%s: listener %s, want %d", what, got, c.want)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if pid, err := ListenerPID(path); err == nil {
		t.Errorf("a closed socket has listener %d", pid)
	}
}
