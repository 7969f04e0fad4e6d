// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/weir-net/weir/internal/ipam"
)

func TestRecordsThatAreAskedFor(t *testing.T) {
	a := &Agent{opts: Options{StateDir: t.TempDir()}}
	ask := func() (int, ipam.NodeRecords) {
		w := httptest.NewRecorder()
		a.serveRecords(w, httptest.NewRequest(http.MethodGet, ipam.RecordsPath, nil))
		var has ipam.NodeRecords
		if w.Code == http.StatusOK {
			if err := json.Unmarshal(w.Body.Bytes(), &has); err != nil {
				t.Fatal(err)
			}
		}
		return w.Code, has
	}
	if code, _ := ask(); code != http.StatusServiceUnavailable {
		t.Errorf("without a folder of records: %d", code)
	}
	dir := filepath.Join(a.opts.StateDir, ipamDir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if code, has := ask(); code != http.StatusOK || len(has.Records)+len(has.Broken) != 0 {
		t.Errorf("without records: %d %v", code, has)
	}
	if err := os.WriteFile(filepath.Join(dir, "10.0.0.1"), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, has := ask(); code != http.StatusOK || len(has.Records) != 0 || len(has.Broken) != 1 {
		t.Errorf("with a record that is torn: %d %v", code, has)
	}
}
