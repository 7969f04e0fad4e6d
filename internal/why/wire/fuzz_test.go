// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/json"
	"testing"
)

// FuzzRequest reads any bytes as a question: what passes its check has two addresses of one family
// and a bounded frame.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"hook":"from_workload","source":"10.0.0.1","destination":"10.0.0.2","protocol":6,"port":80}`))
	f.Add([]byte(`{"source":"fd00::1","destination":"fd00::2","protocol":58,"received":{"hook":"from_tunnel","from":"10.0.0.9","frame":"AAAA"}}`))
	f.Add([]byte(`{"source":"::ffff:10.0.0.1","destination":"fe80::1%eth0"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var q Request
		if json.Unmarshal(data, &q) != nil || q.Check() != nil {
			return
		}
		if !q.Source.IsValid() || q.Source.Is4() != q.Destination.Is4() || q.Source.Is4In6() || q.Source.Zone() != "" || q.Destination.Zone() != "" {
			t.Errorf("%+v", q)
		}
		if q.Received != nil && (len(q.Received.Frame) > maxFrame || !q.Received.From.IsValid()) {
			t.Errorf("%+v", q.Received)
		}
	})
}
