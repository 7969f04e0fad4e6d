// SPDX-License-Identifier: Apache-2.0

package flowapi

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/config"
)

// A port without its files is a problem of the node, and says which; without a port there is none.
func TestProblems(t *testing.T) {
	t.Parallel()
	if p := (&API{}).Problems("n1"); len(p) != 0 {
		t.Errorf("without a port: %v", p)
	}
	at := config.Hubble{Port: 4244, CertFile: filepath.Join(t.TempDir(), "tls.crt"), KeyFile: "tls.key", CAFile: "ca.crt"}
	p := (&API{At: at}).Problems("n1")
	if len(p) != 1 || p[0].Object != "Node n1" || p[0].Value != "4244" || !strings.Contains(p[0].Message, at.CertFile) || !strings.Contains(p[0].Action, "weir-hubble-ca") {
		t.Errorf("without files: %v", p)
	}
}
