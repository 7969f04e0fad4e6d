// SPDX-License-Identifier: Apache-2.0

package process

import (
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weir-net/weir/internal/bgp/feed"
	"github.com/weir-net/weir/internal/bgp/routertest"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nettest"
)

// A session with a password is not made before the password is known, begins when it is, survives
// the API server's absence, and is not made with another one.
func TestPassword(t *testing.T) {
	eachRouter(t, testPassword)
}

func testPassword(t *testing.T, kind string) {
	var password atomic.Value
	password.Store("")
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer proof" || r.URL.Path != "/secrets/bgp":
			http.Error(w, "no", http.StatusUnauthorized)
		case password.Load() == "":
			http.Error(w, "no", http.StatusForbidden)
		default:
			fmt.Fprintf(w, `{"data":{"router":%q}}`, base64.StdEncoding.EncodeToString([]byte(password.Load().(string))))
		}
	}))
	ns := wire(t) // lo is up
	api.StartTLS()
	defer api.Close()
	c := routerConfig()
	for i := range c.Neighbours {
		c.Neighbours[i].Password = "the-right-one" // FRR takes no spaces
		c.Neighbours[i].Waits = false              // OpenBGPD 7.7 has no password where the neighbour begins
	}
	routertest.Start(t, ns, kind, c)
	n := newNode(t)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})
	nettest.Must(t, errors.Join(os.WriteFile(filepath.Join(n.dir, "ca.crt"), ca, 0o600), os.WriteFile(filepath.Join(n.dir, "token"), []byte("proof\n"), 0o600)))
	s := nodeState()
	for i := range s.Peers {
		s.Peers[i].Password = model.SecretKey{Name: "bgp", Key: "router"}
	}
	n.agent.Set(s)
	n.start("WEIR_TEST_SECRETS=" + api.URL + "/secrets/")
	n.eventually("what is missing is reported", func() error {
		if st := n.agent.Status(); st == nil || len(st.Peers) > 0 || !strings.Contains(st.Err, "key router of Secret bgp") {
			return errors.New("it is not")
		}
		return nil
	})
	password.Store("the-right-one")
	n.established(2)
	n.kernel(networks...)
	info, err := os.Stat(filepath.Join(n.dir, "state.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file with passwords is %v (%v)", info.Mode(), err)
	}

	password.Store("") // as when the API server is away, and this node's process begins anew
	n.kill(9)
	n.start("WEIR_TEST_SECRETS=" + api.URL + "/secrets/")
	n.established(2)

	password.Store("another one")
	n.eventually("sessions end", func() error {
		st := n.agent.Status()
		if st == nil {
			return errors.New("no status")
		}
		for _, p := range st.Peers {
			if p.Established() {
				return fmt.Errorf("%s is established", p.Addr)
			}
		}
		return nil
	})
	n.eventually("only own routes", func() error {
		if a, err := n.agent.Ask(t.Context(), feed.Ask{}); err != nil || len(a.Routes) != len(blocks) {
			return fmt.Errorf("without sessions there are %+v (%v)", a, err)
		}
		return nil
	})
}
